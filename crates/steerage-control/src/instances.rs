//! Finds the control socket of a running instance by the instance's name, and connects to this
//! socket.
//!
//! The control socket of an instance is in the directory of the user who runs the instance. The
//! directory of a user's control sockets is `/run/steerage` for root and
//! `$XDG_RUNTIME_DIR/steerage` for other users. The environment variable STEERAGE_RUNTIME_DIR sets
//! another directory for control sockets.
//!
//! ```no_run
//! let mut client = steerage_control::instances::connect(None)?;
//! println!("{}", client.get("sys/class/net/eth0/queues/rx-0/rps_cpus")?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::socket::{Client, SocketError, find};

const NO_DIRECTORY: &str =
    "without XDG_RUNTIME_DIR a run has a control socket only with --socket PATH; then name it with --to PATH";

const ROOT_DIRECTORY: &str = "/run/steerage";

/// The environment variable with the directory for a user's sockets. systemd sets this variable.
pub const USER_VARIABLE: &str = "XDG_RUNTIME_DIR";

const DIRECTORY_VARIABLE: &str = "STEERAGE_RUNTIME_DIR";

/// Returns the path of the control socket of the instance called `name`. If `name` contains a `/`,
/// `name` is the path of the control socket. Returns `None` if there is no directory for control
/// sockets.
pub fn path_of(name: &str) -> Option<PathBuf> {
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

/// The reason why the search for an instance returned no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SearchError {
    /// No instance was found.
    #[error("{0}")]
    None(NoInstance),
    /// The directory of the control sockets cannot be read, or other users may change the
    /// directory.
    #[error("cannot look for runs: {0}")]
    Directory(SocketError),
    /// No running instance has this name.
    #[error(
        "no run {name} was found: {}",
        match why {
            NoInstance::NoDirectory => NO_DIRECTORY,
            _ => "`steerage get` lists the runs, and --to PATH names any socket",
        }
    )]
    NoneOfThisName {
        /// The name of the instance that the caller searched for.
        name: String,
        /// The reason why the search found no instance.
        why: NoInstance,
    },
    /// Several instances are running, and the caller named none of them.
    #[error("there are {} runs: choose one with --to: {}", .names.len(), .names.join(", "))]
    Several {
        /// The names of all running instances. If a name is a process number, the process's command
        /// line follows in parentheses.
        names: Vec<String>,
    },
    /// The search found the instance's socket, but the connection to it failed.
    #[error("cannot connect to {}: {error}; name the socket of a run", .path.display())]
    Connect {
        /// The path of the instance's control socket.
        path: PathBuf,
        /// The reason why the connection failed.
        error: io::Error,
    },
}

/// The reason why the search found no run.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum NoInstance {
    /// The caller is root, and a search by root finds only runs of root.
    #[error("no run of root was found: start one, or name another user's socket with --to PATH")]
    OfRoot,
    /// Neither this user nor root runs an instance.
    #[error("no run was found: start one, or name its socket with --to PATH")]
    OfUser,
    /// If this user has runs, they have no control sockets, because no directory for control
    /// sockets exists.
    #[error("no run was found: {NO_DIRECTORY}")]
    NoDirectory,
}

/// The control socket of an instance.
#[derive(Clone, Debug)]
pub struct InstanceSocket {
    /// The path of the socket.
    path: PathBuf,
    /// True if the socket was found by a search in a directory. If the caller gave the socket's
    /// path instead, any user's process may listen at the socket.
    was_found: bool,
}

impl InstanceSocket {
    /// Returns the name of the instance, which is the file name of the socket without `.sock`. By
    /// default, the name of an instance is its process number.
    pub fn name(&self) -> String {
        self.path.file_stem().map_or(String::new(), |name| name.to_string_lossy().into_owned())
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Connects to the instance. The listening process must belong to this user or to root, unless
    /// the caller gave the path of the socket. Without this check, another user could replace the
    /// directory that contains this user's sockets. The other user could then read the requests and
    /// send false replies.
    ///
    /// # Errors
    /// Returns the errors of [`Client::connect`], and an error if the process belongs to another
    /// user.
    pub fn connect(&self) -> io::Result<Client> {
        let client = Client::connect(&self.path)?;
        let (uid, us) = (client.peer()?, geteuid().as_raw());
        if self.was_found && ![0, us].contains(&uid) {
            return Err(io::Error::other(format!("a process of user {uid} listens there, --to PATH would ask it")));
        }
        Ok(client)
    }
}

/// Connects to the instance called `to`. [`socket_of`] describes which instance is found.
///
/// # Errors
/// Returns [`SearchError`] if no such instance exists, or if the instance does not answer.
pub fn connect(to: Option<&str>) -> Result<Client, SearchError> {
    let socket = socket_of(to)?;
    socket.connect().map_err(|error| SearchError::Connect { path: socket.path, error })
}

/// Returns the socket of the instance called `to`. If the name `to` contains a `/`, it is the path
/// of the control socket. If the caller gives no name, exactly one instance must be running.
///
/// # Errors
/// Returns [`SearchError`] if no such instance exists, or if several instances run and no name is
/// given.
pub fn socket_of(to: Option<&str>) -> Result<InstanceSocket, SearchError> {
    match to {
        Some(name) if name.contains('/') => Ok(InstanceSocket { path: PathBuf::from(name), was_found: false }),
        Some(name) => {
            let file = format!("{name}.sock");
            let named = all()?.into_iter().find(|instance| instance.path.ends_with(&file));
            named.ok_or_else(|| SearchError::NoneOfThisName { name: name.to_owned(), why: why_none() })
        }
        None => match all()?.as_slice() {
            [] => Err(SearchError::None(why_none())),
            [only] => Ok(only.clone()),
            several => Err(SearchError::Several { names: several.iter().map(|one| described(&one.name())).collect() }),
        },
    }
}

/// Returns an instance's name in the form that messages show. If the name is a process number, the
/// process's command line follows, as in `4711 (meter eth0)`.
fn described(name: &str) -> String {
    const CHARS_MAX: usize = 40;
    let number = name.parse::<u32>().ok();
    let line = number.and_then(|number| fs::read(format!("/proc/{number}/cmdline")).ok()).unwrap_or_default();
    let words = line.split(|byte| *byte == 0).skip(1).map(String::from_utf8_lossy).collect::<Vec<_>>().join(" ");
    match words.trim_end() {
        "" => name.to_owned(),
        words if words.chars().count() <= CHARS_MAX => format!("{name} ({words})"),
        words => format!("{name} ({}...)", words.chars().take(CHARS_MAX).collect::<String>().trim_end()),
    }
}

/// Returns the control sockets of the instances of this user and of root. Any user may read the
/// attributes of root's instances.
///
/// # Errors
/// Returns [`SearchError::Directory`] if the directory of the sockets cannot be read, or if other
/// users may change it.
pub fn all() -> Result<Vec<InstanceSocket>, SearchError> {
    let own = runtime_directory();
    let mut all = own.as_deref().map_or(Ok(Vec::new()), find).map_err(SearchError::Directory)?;
    if env::var_os(DIRECTORY_VARIABLE).is_none() && own.as_deref() != Some(Path::new(ROOT_DIRECTORY)) {
        // Errors in reading root's directory are ignored: if this user cannot read the directory,
        // this user cannot use root's sockets either.
        all.extend(find(Path::new(ROOT_DIRECTORY)).unwrap_or_default());
    }
    Ok(all.into_iter().map(|path| InstanceSocket { path, was_found: true }).collect())
}

fn why_none() -> NoInstance {
    match runtime_directory() {
        None => NoInstance::NoDirectory,
        Some(_) if geteuid().is_root() => NoInstance::OfRoot,
        Some(_) => NoInstance::OfUser,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_name_that_is_a_process_shows_its_command() {
        let mut child = Command::new("sleep").args(["1000", "1"]).spawn().unwrap();
        let name = child.id().to_string();
        // When a process has started, the kernel may not show the process's command line yet.
        // Therefore the test waits.
        let begin = Instant::now();
        while described(&name) == name && begin.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        assert_eq!(described(&name), format!("{name} (1000 1)"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(described(&name), name);
        assert_eq!(described("vpn"), "vpn");
    }
}
