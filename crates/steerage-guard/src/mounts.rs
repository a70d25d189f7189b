//! Finds the mount of an open file in the kernel's mount table.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

const TABLE: &str = "/proc/self/mountinfo";

/// One entry of the kernel's mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    id: String,
    /// The directory on which the file system is mounted.
    pub at: PathBuf,
    /// The type of the file system, such as `fuse.sshfs`.
    pub kind: String,
    /// The source of the file system, such as a block device.
    pub source: String,
    /// The mount options, separated by commas. A comma within an option is written as `\054`.
    options: String,
}

impl Mount {
    /// Returns the ID of the user whose process serves this FUSE file system, or `None` if no
    /// process serves the file system, as for virtiofs.
    pub fn user(&self) -> Option<u32> {
        self.options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok())
    }
}

/// Returns the mount of an open file, without accessing the file system itself, which may not
/// respond.
///
/// # Errors
/// Returns an error if the mount table cannot be read, or if the table does not contain the mount.
///
/// ```
/// use std::fs::File;
/// use std::os::fd::AsFd;
/// use std::path::Path;
///
/// let mount = steerage_guard::mounts::mount_of(File::open("/proc/self/status")?.as_fd())?;
/// assert_eq!((&*mount.kind, &*mount.at), ("proc", Path::new("/proc")));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn mount_of(opened: BorrowedFd<'_>) -> io::Result<Mount> {
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", opened.as_raw_fd()))?;
    find(&about, &fs::read(TABLE)?).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// `about` is the content of the open file's entry in `/proc/self/fdinfo`.
fn find(about: &str, table: &[u8]) -> Option<Mount> {
    let id = about.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    table.split(|byte| *byte == b'\n').filter_map(read).find(|mount| mount.id == id)
}

/// Reads a line such as `36 35 98:0 / /at ro,noatime master:1 - kind source options`. The number of
/// fields before the dash of such a line varies.
fn read(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = String::from_utf8_lossy(fields.next()?).into_owned();
    let at = PathBuf::from(OsString::from_vec(unescaped(fields.nth(3)?)));
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let mut text = || Some(String::from_utf8_lossy(&unescaped(rest.next()?)).into_owned());
    let (kind, source) = (text()?, text()?);
    Some(Mount { id, at, kind, source, options: String::from_utf8_lossy(rest.next()?).into_owned() })
}

/// In a field of the mount table, a space is written as `\040`.
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
        let of = |line: &str| {
            let Mount { id, at, kind, source, .. } = read(line.as_bytes())?;
            Some([id, at.display().to_string(), kind, source])
        };
        let is = |parts: [&str; 4]| Some(parts.map(str::to_owned));
        let plain = "36 35 98:0 / / rw master:1 unbindable - ext4 /dev/vda rw";
        assert_eq!(of(plain), is(["36", "/", "ext4", "/dev/vda"]));
        let line = r"61 36 0:41 / /tmp/a\040tree\134x rw - fuse.steerage steerage:4711 rw,user_id=0";
        assert_eq!(of(line), is(["61", "/tmp/a tree\\x", "fuse.steerage", "steerage:4711"]));
        assert_eq!((of(""), of("1 2 3 4 /x rw - ext4 /dev/vda")), (None, None));
    }

    #[test]
    fn the_user_of_a_mount_is_found() {
        let about = "pos:\t0\nflags:\t012200000\nmnt_id:\t61\nino:\t1\n";
        let user = |options: &str| {
            let table = format!(
                "36 35 98:0 / / rw - ext4 /dev/vda rw,user_id=0\n61 36 0:41 / /tmp/a rw shared:1 - fuse.x a\\040,user_id=0 {options}\n"
            );
            find(about, table.as_bytes()).map(|mount| mount.user())
        };
        assert_eq!(user("rw,user_id=1000,group_id=0,allow_other"), Some(Some(1000)));
        assert_eq!(user(r"rw,name=a\054user_id=0,user_id=1000"), Some(Some(1000)));
        assert_eq!(user("rw"), Some(None));
        assert_eq!((find(about, b""), find("", b"61 36 0:41 / / rw - a b c")), (None, None));
    }
}
