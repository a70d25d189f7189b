//! Reads the kernel's mount table, to find out whether another instance's tree is mounted on a
//! directory.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The mounts that this process sees in its namespace.
const TABLE: &str = "/proc/self/mountinfo";

/// The fields of a mount that matter here.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    at: PathBuf,
    kind: String,
    source: String,
}

/// The source of the mount on a directory, if the mount is of that kind. The directory itself is
/// not opened, since the process that serves it may be stopped.
pub(super) fn source_at(directory: &Path, kind: &str) -> Option<String> {
    // Only the parent is resolved: the last name is the mount itself.
    let parent = fs::canonicalize(directory.parent()?.join(".")).ok()?;
    let at = parent.join(directory.file_name()?);
    let table = fs::read(TABLE).ok()?;
    // The last mount on a directory hides the mounts before it.
    let mount = table.split(|byte| *byte == b'\n').filter_map(read).rfind(|mount| mount.at == at)?;
    (mount.kind == kind).then_some(mount.source)
}

/// Reads one line: `36 35 98:0 / /at ro,noatime master:1 - kind source options`. Any number of
/// fields may precede the dash.
fn read(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let at = PathBuf::from(OsString::from_vec(unescaped(fields.nth(4)?)));
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let mut text = || Some(String::from_utf8_lossy(&unescaped(rest.next()?)).into_owned());
    Some(Mount { at, kind: text()?, source: text()? })
}

/// Decodes spaces and similar characters, which the table has as `\040`.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let code = (first == b'\\').then(|| after.get(..3)).flatten();
        let byte = code.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table() {
        let mount = |line: &str| read(line.as_bytes());
        let of = |at: &str, kind: &str, source: &str| {
            Some(Mount { at: at.into(), kind: kind.to_owned(), source: source.to_owned() })
        };
        assert_eq!(mount("36 35 98:0 / / rw master:1 unbindable - ext4 /dev/vda rw"), of("/", "ext4", "/dev/vda"));
        let line = r"61 36 0:41 / /tmp/a\040tree\134x rw - fuse.steerage steerage:4711 rw,user_id=0";
        assert_eq!(mount(line), of("/tmp/a tree\\x", "fuse.steerage", "steerage:4711"));
        assert_eq!((mount(""), mount("1 2 3 4 /x rw -")), (None, None));
    }
}
