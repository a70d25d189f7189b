//! Finds the control sockets of running instances, and connects to them.

use std::env;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use steerage_control::{Client, find};

use crate::error::{NoInstance, SearchError};

const ROOT_DIRECTORY: &str = "/run/steerage";

/// The environment variable with a user's directory for sockets, which systemd sets.
pub(crate) const USER_VARIABLE: &str = "XDG_RUNTIME_DIR";

const DIRECTORY_VARIABLE: &str = "STEERAGE_RUNTIME_DIR";

/// The path of the socket of the instance called `name`. A name with a `/` is itself a path.
/// Returns `None` if there is no directory for sockets.
pub(crate) fn path_of(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name));
    }
    Some(runtime_directory()?.join(format!("{name}.sock")))
}

fn runtime_directory() -> Option<PathBuf> {
    if let Some(directory) = env::var_os(DIRECTORY_VARIABLE).filter(|directory| !directory.is_empty()) {
        return Some(directory.into());
    }
    if geteuid().is_root() {
        return Some(ROOT_DIRECTORY.into());
    }
    let directory = env::var_os(USER_VARIABLE).filter(|directory| !directory.is_empty())?;
    Some(PathBuf::from(directory).join("steerage"))
}

#[derive(Clone, Debug)]
pub(crate) struct InstanceSocket {
    pub(crate) path: PathBuf,
    /// Whether the socket was found in a directory. If the user named the socket's path, the
    /// process of any user may listen on the socket.
    was_found: bool,
}

impl InstanceSocket {
    /// Connects to the instance. Refuses a process of another user, except root, unless the user
    /// named the socket's path. Another user could replace the directory of this user's sockets, to
    /// read the requests or to send false replies.
    pub(crate) fn connect(&self) -> io::Result<Client> {
        let client = Client::connect(&self.path)?;
        let (uid, us) = (client.peer()?, geteuid().as_raw());
        if self.was_found && ![0, us].contains(&uid) {
            return Err(io::Error::other(format!("a process of user {uid} listens there, --to PATH would ask it")));
        }
        Ok(client)
    }
}

pub(crate) fn connect(to: Option<&str>) -> Result<Client, SearchError> {
    let socket = socket_of(to)?;
    socket.connect().map_err(|error| SearchError::Connect { path: socket.path, error })
}

/// The socket of the instance called `to`. Without a name, there must be exactly one instance.
pub(crate) fn socket_of(to: Option<&str>) -> Result<InstanceSocket, SearchError> {
    let found = |path| InstanceSocket { path, was_found: true };
    match to {
        Some(name) if name.contains('/') => Ok(InstanceSocket { path: PathBuf::from(name), was_found: false }),
        Some(name) => {
            let file = format!("{name}.sock");
            let named = instances()?.into_iter().find(|path| path.ends_with(&file));
            named.map(found).ok_or_else(|| SearchError::NoneOfThisName { name: name.to_owned(), why: why_none() })
        }
        None => match instances()?.as_slice() {
            [] => Err(SearchError::None(why_none())),
            [only] => Ok(found(only.clone())),
            several => {
                let names = several.iter().filter_map(|path| path.file_stem());
                let names = names.map(|name| name.to_string_lossy().into_owned()).collect();
                Err(SearchError::Several { names })
            }
        },
    }
}

/// The sockets of this user's instances and of root's instances. Any user may read from root's
/// instances.
fn instances() -> Result<Vec<PathBuf>, SearchError> {
    let own = runtime_directory();
    let mut all = own.as_deref().map_or(Ok(Vec::new()), find).map_err(SearchError::Directory)?;
    if env::var_os(DIRECTORY_VARIABLE).is_none() && own.as_deref() != Some(Path::new(ROOT_DIRECTORY)) {
        // If root's directory cannot be read, root's sockets cannot be used either.
        all.extend(find(Path::new(ROOT_DIRECTORY)).unwrap_or_default());
    }
    Ok(all)
}

fn why_none() -> NoInstance {
    match runtime_directory() {
        None => NoInstance::NoDirectory,
        Some(_) if geteuid().is_root() => NoInstance::OfRoot,
        Some(_) => NoInstance::OfUser,
    }
}
