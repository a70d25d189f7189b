use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::Stat;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;

use steerage_guard::file::parent_of;
use steerage_guard::path::{Directory, PathError};

use super::directory::{answers, is_socket, set_socket_mode, through};

/// Every user who can access the directory may connect to the socket and read attributes. A write
/// requires that the client belongs to the right user.
const MODE: u32 = 0o666;

/// The maximum number of clients that wait to be accepted, as in Rust's standard library.
const BACKLOG: i32 = 128;

/// Only the owner may write to a new directory, regardless of the umask.
const NEW_DIRECTORY: u32 = 0o755;

const SUFFIX: &str = ".sock";

/// A socket that listens for clients, which get replies after [`serve`](Self::serve) is called. The
/// socket file is removed when this value is dropped.
///
/// The listening program accepts requests of `steerage get`, `set` and `top`:
///
/// ```no_run
/// use std::path::Path;
/// use std::sync::Arc;
///
/// use steerage::Builder;
/// use steerage::packet::each;
/// use steerage_control::{Listening, Options, Tree, reports};
///
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let socket = Listening::bind(Path::new("/run/limiter/control.sock"))?;
///     let input = steerage_device::open("eth1")?;
///     let running = Builder::new().input(input).build(each(|_packet| {}))?.start()?;
///     let tree = Arc::new(Tree::new(running.handle(), Options::default()));
///     let _serving = socket.serve(tree, reports(running.handle()))?;
///     // In a terminal: steerage top --to /run/limiter/control.sock
///     running.join();
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Listening {
    pub(super) listener: UnixListener,
    path: PathBuf,
    directory: Directory,
    name: OsString,
    /// The device and inode of the socket file distinguish it from a socket that another process
    /// creates with the same name.
    file: (u64, u64),
}

/// Why the socket could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// Another instance listens at this path.
    #[error("another instance listens at {}: name another socket", .0.display())]
    InUse(PathBuf),
    /// A file that is not a socket exists at this path.
    #[error("{} exists and is not a socket: remove it, or name another", .0.display())]
    NotASocket(PathBuf),
    /// A socket of another user exists at this path.
    #[error("{} is another user's socket: name another", .0.display())]
    NotOurs(PathBuf),
    /// Another user could replace the socket or controls a part of the path.
    #[error("no socket in {}: {why}", .path.display())]
    Directory {
        /// The directory that would contain the socket.
        path: PathBuf,
        /// Why the directory of the socket is refused.
        why: PathError,
    },
    /// The kernel refused to create the socket.
    #[error("cannot listen at {}: {error}; name a socket in a directory of yours", .path.display())]
    System {
        /// The path of the socket.
        path: PathBuf,
        /// The error that the kernel returned.
        error: io::Error,
    },
}

impl SocketError {
    fn directory(path: &Path, why: PathError) -> Self {
        match why {
            PathError::System(error) => Self::System { path: path.to_owned(), error },
            why => Self::Directory { path: path.to_owned(), why },
        }
    }
}

impl Listening {
    /// Listens at `path`. Creates the last directory if necessary, and replaces a socket of this
    /// user on which no process listens.
    ///
    /// The directory must belong to root or to this user, and other users must not be able to write
    /// to it, because they could replace the socket. Sticky directories such as /tmp are allowed.
    /// Links in the path are followed by the rules of [`steerage_guard::path`].
    ///
    /// # Errors
    /// Returns an error if the directory is unsafe, if the name is taken, or if the kernel refuses.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let failed = |error: io::Error| SocketError::System { path: path.to_owned(), error };
        let name = path.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        let parent = parent_of(path);
        let directory =
            Directory::open_or_create(parent, NEW_DIRECTORY).map_err(|why| SocketError::directory(parent, why))?;
        make_way(&directory, name, path)?;
        // The socket first has a temporary name, because a search for instances removes sockets
        // that do not answer.
        let unready = unready_name(name);
        let ready = listen(&directory, &unready).and_then(|(listener, stat)| {
            directory.rename_unless_taken(&unready, name)?;
            Ok((listener, (stat.st_dev, stat.st_ino)))
        });
        match ready {
            Ok((listener, file)) => {
                Ok(Self { listener, path: path.to_owned(), directory, name: name.to_owned(), file })
            }
            Err(error) => {
                let _ = directory.remove_file(&unready);
                match error.kind() {
                    io::ErrorKind::AlreadyExists => Err(SocketError::InUse(path.to_owned())),
                    _ => Err(failed(error)),
                }
            }
        }
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory of the socket.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let is_ours = |stat: Stat| (stat.st_dev, stat.st_ino) == self.file;
        if !self.directory.stat(&self.name).is_ok_and(is_ours) {
            return;
        }
        if let Err(error) = self.directory.remove_file(&self.name) {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

fn make_way(directory: &Directory, name: &OsStr, path: &Path) -> Result<(), SocketError> {
    let failed = |error: io::Error| SocketError::System { path: path.to_owned(), error };
    match directory.stat(name).map_err(io::Error::from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
        Ok(there) if !is_socket(&there) => Err(SocketError::NotASocket(path.to_owned())),
        Ok(there) if there.st_uid != geteuid().as_raw() => Err(SocketError::NotOurs(path.to_owned())),
        Ok(_) if answers(directory, name) => Err(SocketError::InUse(path.to_owned())),
        Ok(_) => directory.remove_file(name).map_err(|error| failed(error.into())),
    }
}

/// `bind` fails if a file or a link has this name.
fn listen(directory: &Directory, name: &OsStr) -> io::Result<(UnixListener, Stat)> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(through(directory, name))?)?;
    // `bind` has applied the umask to the mode of the socket. The umask itself is not changed,
    // because that would affect the files of other threads.
    let stat = set_socket_mode(directory, name, MODE)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok((socket.into(), stat))
}

/// Returns a temporary name that starts with a dot, and that no other process can guess.
fn unready_name(name: &OsStr) -> OsString {
    let random = RandomState::new().build_hasher().finish();
    let mut unready = OsString::from(".");
    unready.push(name);
    unready.push(format!(".{random:016x}"));
    unready
}

/// Returns the sockets in a directory on which instances of root or of this user listen, sorted by
/// name. Removes this user's sockets on which no process listens. Returns no sockets if the
/// directory does not exist.
///
/// # Errors
/// Returns an error if another user could have created sockets there (as for [`Listening::bind`]),
/// or if the kernel refuses to read the directory.
pub fn find(directory: &Path) -> Result<Vec<PathBuf>, SocketError> {
    let opened = match Directory::open(directory) {
        Err(PathError::System(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened.map_err(|why| SocketError::directory(directory, why))?,
    };
    let entries = opened.entries().map_err(|why| SocketError::directory(directory, why))?;
    // Directories are skipped without calling `stat`, which could hang on a mount that a stopped
    // process serves.
    let mut names: Vec<OsString> =
        entries.into_iter().filter(|(_, kind)| !kind.is_dir()).map(|(name, _)| name).collect();
    names.sort();
    let us = geteuid().as_raw();
    let is_found = |name: &OsString| {
        let Some(stat) = opened.stat(name).ok().filter(is_socket) else { return false };
        if ![0, us].contains(&stat.st_uid) || !name.as_encoded_bytes().ends_with(SUFFIX.as_bytes()) {
            return false;
        }
        let is_alive = answers(&opened, name);
        if !is_alive && stat.st_uid == us {
            let _ = opened.remove_file(name);
        }
        is_alive
    };
    names.retain(is_found);
    Ok(names.iter().map(|name| directory.join(name)).collect())
}
