//! The directory of a socket. It is opened without following another user's links, and held by a
//! descriptor. So every later step uses the directory that was checked, even if its path leads
//! elsewhere by then.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;

use super::listening::SocketError;

/// How many links are followed on the way to a directory: the kernel's limit.
const LINKS_MAX: usize = 40;

/// The mode of a new directory for sockets. Only its owner may write to it, whatever the umask is.
const NEW_DIRECTORY: u32 = 0o755;

/// Write permission for the group and for all others.
const OTHERS_WRITE: u32 = 0o022;

/// The sticky bit: only the owner of a file may rename or remove it.
const STICKY: u32 = 0o1000;

/// A directory in which only root and this user can rename, remove or replace this user's files.
#[derive(Debug)]
pub(super) struct Directory(OwnedFd);

impl Directory {
    /// Opens the directory at that path.
    pub(super) fn open(path: &Path) -> Result<Self, SocketError> {
        Self::check(walk(path)?, path)
    }

    /// Like [`open`](Self::open), but creates the last directory of the path if it is missing.
    pub(super) fn open_or_make(path: &Path) -> Result<Self, SocketError> {
        let missing = match walk(path) {
            Err(SocketError::System { error, .. }) if error.kind() == io::ErrorKind::NotFound => path.file_name(),
            found => return Self::check(found?, path),
        };
        let Some(name) = missing else { return Self::open(path) };
        let parent = walk(parent(path))?;
        match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(NEW_DIRECTORY)) {
            // Another instance that starts at the same moment may have created it first.
            Ok(()) | Err(Errno::EXIST) => Self::open(path),
            Err(error) => Err(system(path, error)),
        }
    }

    fn check(directory: OwnedFd, path: &Path) -> Result<Self, SocketError> {
        let stat = rustix::fs::fstat(&directory).map_err(|error| system(path, error))?;
        let refused = |why: String| Err(SocketError::Directory { path: path.to_owned(), why });
        if !is_trusted(stat.st_uid) {
            return refused(format!("it belongs to user {}", stat.st_uid));
        }
        // In a sticky directory such as /tmp, others can create files but cannot touch ours.
        if stat.st_mode & OTHERS_WRITE != 0 && stat.st_mode & STICKY == 0 {
            return refused(format!("others may write to it (mode {:04o})", stat.st_mode & 0o7777));
        }
        Ok(Self(directory))
    }

    /// A path to `name` that leads through the descriptor. Sockets need such a path, because there
    /// is no `bindat` and no `connectat`.
    pub(super) fn through(&self, name: &OsStr) -> PathBuf {
        through(self.0.as_fd()).join(name)
    }

    /// The metadata of the file with that name. A link is not followed.
    pub(super) fn stat(&self, name: &OsStr) -> io::Result<Stat> {
        Ok(rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    pub(super) fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }

    /// Renames a file, unless the new name is taken.
    pub(super) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::renameat_with(&self.0, from, &self.0, to, RenameFlags::NOREPLACE)?)
    }

    /// The names of everything in it that is no directory. A directory could be a mount whose process
    /// is stopped, so it is not asked about.
    pub(super) fn names(&self) -> io::Result<Vec<OsString>> {
        let entries = fs::read_dir(through(self.0.as_fd()))?.collect::<io::Result<Vec<_>>>()?;
        let no_directories = entries.into_iter().filter(|entry| !entry.file_type().is_ok_and(|kind| kind.is_dir()));
        Ok(no_directories.map(|entry| entry.file_name()).collect())
    }

    /// Sets the mode of a socket of this user. The mode is set on the very file that was checked: a
    /// link is not followed, and only a socket is changed, even if another user put something else
    /// there.
    pub(super) fn set_socket_mode(&self, name: &OsStr, mode: u32) -> io::Result<Stat> {
        let file = rustix::fs::openat(&self.0, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        if !is_socket(&stat) || stat.st_uid != geteuid().as_raw() {
            return Err(io::Error::other("another file took the place of the new socket"));
        }
        rustix::fs::chmod(through(file.as_fd()), Mode::from_raw_mode(mode))?;
        Ok(stat)
    }

    /// Whether a process listens at that socket.
    pub(super) fn answers(&self, name: &OsStr) -> bool {
        // The connection does not wait: the queue of a stopped process fills up.
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let connected = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .and_then(|socket| rustix::net::connect(&socket, &SocketAddrUnix::new(self.through(name))?));
        // Any other error means that a process may listen: permission may be missing, or the queue
        // of a living process may be full.
        !matches!(connected, Err(Errno::CONNREFUSED | Errno::NOENT))
    }
}

/// The directory part of a path. It is `.` if the path has none.
pub(super) fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

pub(super) fn is_socket(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Socket
}

/// Whether files of that user can be trusted: they are our own or root's, and root can do
/// everything anyway.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

fn through(file: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn system(path: &Path, error: Errno) -> SocketError {
    SocketError::System { path: path.to_owned(), error: error.into() }
}

/// Opens a directory name by name. Links on the way are followed only if they belong to root or to
/// this user.
fn walk(path: &Path) -> Result<OwnedFd, SocketError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let failed = |error| system(path, error);
    let open = |at: BorrowedFd<'_>, name: &OsStr| rustix::fs::openat(at, name, flags, Mode::empty()).map_err(failed);
    let start = |path: &Path| open(rustix::fs::CWD, OsStr::new(if path.is_absolute() { "/" } else { "." }));
    let mut at = start(path)?;
    let mut left = names(path);
    let mut links = 0;
    while let Some(name) = left.pop() {
        let next = open(at.as_fd(), &name)?;
        let stat = rustix::fs::fstat(&next).map_err(failed)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => at = next,
            FileType::Symlink if !is_trusted(stat.st_uid) => {
                let why = format!("the link {} belongs to user {}", Path::new(&name).display(), stat.st_uid);
                return Err(SocketError::Directory { path: path.to_owned(), why });
            }
            FileType::Symlink if links < LINKS_MAX => {
                links += 1;
                // The target of the very link whose owner was checked.
                let target = rustix::fs::readlinkat(&next, "", Vec::new()).map_err(failed)?;
                let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
                if target.is_absolute() {
                    at = start(&target)?;
                }
                left.extend(names(&target));
            }
            FileType::Symlink => return Err(failed(Errno::LOOP)),
            _ => return Err(failed(Errno::NOTDIR)),
        }
    }
    Ok(at)
}

/// The names in a path, the last first.
fn names(path: &Path) -> Vec<OsString> {
    let name = |part: Component<'_>| {
        matches!(part, Component::Normal(_) | Component::ParentDir).then(|| part.as_os_str().to_owned())
    };
    path.components().rev().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Only a socket's mode is changed, even in a directory that should not have been trusted.
    #[test]
    fn only_the_mode_of_a_socket_is_set() {
        let path = std::env::temp_dir().join(format!("steerage-control-directory-{}", std::process::id()));
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
            assert!(directory.set_socket_mode(OsStr::new(name), 0o666).is_err(), "{name}");
        }
        assert_eq!((mode("file"), mode("socket")), (0o600, before));
        directory.set_socket_mode(OsStr::new("socket"), 0o666).unwrap();
        assert_eq!(mode("socket"), 0o666);
        drop(listener);
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn names_of_a_path_from_the_last_to_the_first() {
        let of = |path: &str| names(Path::new(path)).join(OsStr::new(" ")).into_string().unwrap();
        assert_eq!(of("/run//steerage/./x/../y/"), "y .. x steerage run");
        assert_eq!((of("/"), of(".")), (String::new(), String::new()));
        assert_eq!((parent(Path::new("x")), parent(Path::new("a/x"))), (Path::new("."), Path::new("a")));
    }
}
