//! The socket itself: where it stands, whose it was, and that it is gone afterwards.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Anybody who gets to its directory may connect and read; who may write is looked at when somebody does.
const MODE: u32 = 0o666;

/// What a socket's name ends with.
const SUFFIX: &str = "sock";

/// A socket that listens. Nobody is answered before [`serve`](Self::serve) is called; it is removed when this is dropped.
#[derive(Debug)]
pub struct Listening {
    pub(super) listener: UnixListener,
    path: PathBuf,
    /// Device and inode: another's socket of the same name is not removed.
    file: (u64, u64),
}

/// Why there is no socket.
#[derive(Debug)]
pub enum SocketError {
    /// Somebody answers there.
    InUse(PathBuf),
    /// Something else has the name.
    NotASocket(PathBuf),
    /// The kernel refused.
    System {
        /// Where.
        path: PathBuf,
        /// What it said.
        error: io::Error,
    },
}

impl fmt::Display for SocketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(path) => {
                write!(f, "another instance listens at {}: name another socket", path.display())
            }
            Self::NotASocket(path) => {
                write!(f, "{} is there and is no socket: remove it, or name another", path.display())
            }
            Self::System { path, error } => {
                write!(f, "cannot listen at {}: {error}; name a socket in a directory of yours", path.display())
            }
        }
    }
}

impl std::error::Error for SocketError {}

impl Listening {
    /// Listens at `path`. A socket that nobody listens at any more is replaced; its directory is made if it isn't there.
    ///
    /// # Errors
    /// If somebody else has the path, or the kernel refuses.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let failed = |error| SocketError::System { path: path.to_owned(), error };
        match fs::symlink_metadata(path) {
            Ok(there) if !there.file_type().is_socket() => return Err(SocketError::NotASocket(path.to_owned())),
            Ok(_) if answers(path) => return Err(SocketError::InUse(path.to_owned())),
            _ => {}
        }
        if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
            if !directory.exists() {
                fs::create_dir(directory).map_err(failed)?;
            }
        }
        // Under another name until it listens: whoever cleans up must not take it for a dead one.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let unready = path.with_file_name(format!(".{name}.{}", std::process::id()));
        let _ = fs::remove_file(&unready);
        let listener = UnixListener::bind(&unready).map_err(failed)?;
        let ready = fs::set_permissions(&unready, fs::Permissions::from_mode(MODE))
            .and_then(|()| fs::symlink_metadata(&unready))
            .and_then(|file| fs::rename(&unready, path).map(|()| (file.dev(), file.ino())));
        match ready {
            Ok(file) => Ok(Self { listener, path: path.to_owned(), file }),
            Err(error) => {
                let _ = fs::remove_file(&unready);
                Err(failed(error))
            }
        }
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.file);
        if !ours {
            return;
        }
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Whether somebody listens at a socket.
pub fn answers(path: &Path) -> bool {
    // Without waiting: one who is stopped has a queue that gets full.
    let kind = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC);
    let connected =
        socket_with(kind.0, kind.1, kind.2, None).and_then(|socket| connect(&socket, &SocketAddrUnix::new(path)?));
    // Whoever may not connect cannot tell, and a full queue is somebody's.
    !matches!(connected, Err(Errno::CONNREFUSED | Errno::NOENT))
}

/// The sockets of running instances in `directories`, by name. Those of dead ones are removed on the way, as far as one may.
pub fn find(directories: &[PathBuf]) -> Vec<PathBuf> {
    let is_socket = |path: &PathBuf| {
        path.extension().is_some_and(|end| end == SUFFIX)
            && fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
    };
    let files = directories.iter().filter_map(|directory| fs::read_dir(directory).ok()).flatten();
    let mut found: Vec<PathBuf> = files.filter_map(|file| Some(file.ok()?.path())).filter(is_socket).collect();
    found.sort();
    found.retain(|path| {
        let alive = answers(path);
        if !alive {
            let _ = fs::remove_file(path);
        }
        alive
    });
    found
}
