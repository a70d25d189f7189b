//! The directory of a control socket, opened by the rules of [`steerage_guard::path`]. All
//! operations use the open descriptor, even if the directory's path changes.

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;
use steerage_guard::path::Directory;

/// Returns a path through /proc, because Linux has no `bindat` and `connectat`.
pub(super) fn through(directory: &Directory, name: &OsStr) -> PathBuf {
    directory.through().join(name)
}

/// Sets the mode of this user's socket through a descriptor that is opened without following links,
/// and then checked. If another file has replaced the socket, that file is not changed.
pub(super) fn set_socket_mode(directory: &Directory, name: &OsStr, mode: u32) -> io::Result<Stat> {
    let how = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, how, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    if !is_socket(&stat) || stat.st_uid != geteuid().as_raw() {
        return Err(io::Error::other("another file took the place of the new socket"));
    }
    rustix::fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), Mode::from_raw_mode(mode))?;
    Ok(stat)
}

pub(super) fn answers(directory: &Directory, name: &OsStr) -> bool {
    // A blocking `connect` would wait for a stopped process whose queue of waiting clients is full.
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let connected = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .and_then(|socket| rustix::net::connect(&socket, &SocketAddrUnix::new(through(directory, name))?));
    // After an error other than `CONNREFUSED` and `NOENT`, a process may be listening on the
    // socket: the connection may not be permitted, or the queue may be full.
    !matches!(connected, Err(Errno::CONNREFUSED | Errno::NOENT))
}

pub(super) fn is_socket(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Socket
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_the_mode_of_a_socket_is_set() {
        let path = std::env::temp_dir().join(format!("steerage-control-directory-{}", std::process::id()));
        // A test process that was killed leaves its directory, and process IDs return.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        let directory = Directory::open(&path).unwrap();
        fs::write(path.join("file"), "").unwrap();
        fs::set_permissions(path.join("file"), fs::Permissions::from_mode(0o600)).unwrap();
        let listener = UnixListener::bind(path.join("socket")).unwrap();
        symlink("file", path.join("link to file")).unwrap();
        symlink("socket", path.join("link to socket")).unwrap();
        let mode = |name: &str| fs::metadata(path.join(name)).unwrap().mode() & 0o777;
        let before = mode("socket");
        for name in ["file", "link to file", "link to socket", "nothing"] {
            assert!(set_socket_mode(&directory, OsStr::new(name), 0o666).is_err(), "{name}");
        }
        assert_eq!((mode("file"), mode("socket")), (0o600, before));
        set_socket_mode(&directory, OsStr::new("socket"), 0o666).unwrap();
        assert_eq!(mode("socket"), 0o666);
        drop(listener);
        fs::remove_dir_all(&path).unwrap();
    }
}
