//! Reads the kernel's mount table, to find out whether another instance's tree is mounted on a
//! directory.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

const TABLE: &str = "/proc/self/mountinfo";

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mount {
    id: String,
    pub(super) at: PathBuf,
    pub(super) kind: String,
    pub(super) source: String,
}

/// The mount of an open file. The answer comes from the kernel, and not from the file system, which
/// may hang.
pub(super) fn mount_of(opened: BorrowedFd<'_>) -> io::Result<Mount> {
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", opened.as_raw_fd()))?;
    let id = about.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(str::trim);
    let table = fs::read(TABLE)?;
    let mut mounts = table.split(|byte| *byte == b'\n').filter_map(read);
    mounts.find(|mount| Some(mount.id.as_str()) == id).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Reads one line: `36 35 98:0 / /at ro,noatime master:1 - kind source options`. Any number of
/// fields may precede the dash.
fn read(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = String::from_utf8_lossy(fields.next()?).into_owned();
    let at = PathBuf::from(OsString::from_vec(unescaped(fields.nth(3)?)));
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let mut text = || Some(String::from_utf8_lossy(&unescaped(rest.next()?)).into_owned());
    Some(Mount { id, at, kind: text()?, source: text()? })
}

/// Decodes spaces and similar characters, which the table contains as `\040`.
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
        let of = |id: &str, at: &str, kind: &str, source: &str| {
            let [id, kind, source] = [id, kind, source].map(str::to_owned);
            Some(Mount { id, at: at.into(), kind, source })
        };
        assert_eq!(
            mount("36 35 98:0 / / rw master:1 unbindable - ext4 /dev/vda rw"),
            of("36", "/", "ext4", "/dev/vda")
        );
        let line = r"61 36 0:41 / /tmp/a\040tree\134x rw - fuse.steerage steerage:4711 rw,user_id=0";
        assert_eq!(mount(line), of("61", "/tmp/a tree\\x", "fuse.steerage", "steerage:4711"));
        assert_eq!((mount(""), mount("1 2 3 4 /x rw -")), (None, None));
    }
}
