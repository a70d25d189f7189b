//! The listening control socket. This module creates the control socket's file, checks its owner,
//! and removes the file at the end.

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

/// The mode of the socket's file. Every user who can access the socket's directory may connect and
/// read. Before the instance sets a value for a client, it checks the client's user.
const MODE: u32 = 0o666;

/// The maximum number of clients that the kernel queues until the instance accepts them. The
/// default queue of Rust's standard library has the same length.
const BACKLOG: i32 = 128;

/// The mode of a directory that is created for control sockets. Only the owner may write to the
/// directory, regardless of the umask.
const NEW_DIRECTORY: u32 = 0o755;

const SUFFIX: &str = ".sock";

/// A socket that listens for clients. Clients get replies only after [`serve`](Self::serve) is
/// called. The socket is removed when this value is dropped.
///
/// In the following program, the instance accepts requests of `steerage get`, `set` and `top`:
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
    /// The device number and the inode number of the socket's file. The instance compares these
    /// numbers before it removes the file, because another process may have created a socket with
    /// the same name.
    file: (u64, u64),
}

/// The reason why the socket could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// Another instance listens at this path.
    #[error("another instance listens at {}: name another socket", .0.display())]
    InUse(PathBuf),
    /// A file that is not a socket already exists at this path.
    #[error("{} exists and is not a socket: remove it, or name another", .0.display())]
    NotASocket(PathBuf),
    /// A socket of another user already exists at this path.
    #[error("{} is another user's socket: name another", .0.display())]
    NotOurs(PathBuf),
    /// The directory of the socket is not safe, because another user could replace the socket or
    /// controls a part of the path.
    #[error("no socket in {}: {why}", .path.display())]
    Directory {
        /// The directory that would contain the socket.
        path: PathBuf,
        /// The reason why the directory is refused.
        why: PathError,
    },
    /// The kernel refused to create the socket.
    #[error("cannot listen at {}: {error}; name a socket in a directory of yours", .path.display())]
    System {
        /// The path of the socket.
        path: PathBuf,
        /// The error of the kernel.
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
    /// Creates a socket that listens at `path`. The last directory of the path is created if it
    /// does not exist. If a socket of this user exists at the path but no process listens on it,
    /// the socket is replaced.
    ///
    /// The directory must belong to root or to this user. Other users must not have permission to
    /// write to the directory, because they could replace the socket. A sticky directory such as
    /// /tmp is an exception: other users may write to it. The path is resolved by the rules
    /// of [`steerage_guard::path`].
    ///
    /// # Errors
    /// Returns an error if the directory is unsafe, if the name is taken, or if the kernel refuses
    /// to create the socket.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let failed = |error: io::Error| SocketError::System { path: path.to_owned(), error };
        let name = path.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        let parent = parent_of(path);
        let directory =
            Directory::open_or_create(parent, NEW_DIRECTORY).map_err(|why| SocketError::directory(parent, why))?;
        make_way(&directory, name, path)?;
        // The socket has a temporary file name until the process listens on it. If the socket
        // already had its final name, a search for instances could remove the socket as a dead
        // socket.
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

/// Creates a new socket and listens on it. `bind` creates the socket's file. If a file or a link
/// with this name exists, `bind` fails.
fn listen(directory: &Directory, name: &OsStr) -> io::Result<(UnixListener, Stat)> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(through(directory, name))?)?;
    // The file's mode is set after `bind`, because `bind` removes the bits of the umask from the
    // mode. Changing the umask instead would affect all threads of the process. With a changed
    // umask, all users could access files that other threads create at that moment.
    let stat = set_socket_mode(directory, name, MODE)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok((socket.into(), stat))
}

/// Returns a file name that begins with a dot and that no other process can guess.
fn unready_name(name: &OsStr) -> OsString {
    let random = RandomState::new().build_hasher().finish();
    let mut unready = OsString::from(".");
    unready.push(name);
    unready.push(format!(".{random:016x}"));
    unready
}

/// Returns the sockets in a directory, sorted by name. The result includes only sockets on which
/// instances of root or of this user listen. Removes sockets of this user on which no process
/// listens. If the directory does not exist, the returned list is empty.
///
/// # Errors
/// Returns an error if another user could have created sockets in the directory (as for
/// [`Listening::bind`]). Also returns an error if the kernel refuses to read the directory.
pub fn find(directory: &Path) -> Result<Vec<PathBuf>, SocketError> {
    let opened = match Directory::open(directory) {
        Err(PathError::System(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened.map_err(|why| SocketError::directory(directory, why))?,
    };
    let entries = opened.entries().map_err(|why| SocketError::directory(directory, why))?;
    // The search for sockets reads only the names of the directory entries. Reading the type of an
    // entry could hang if the entry is a mount that a stopped process serves.
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
