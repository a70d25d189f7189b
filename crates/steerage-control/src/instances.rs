//! Finds the control socket of a running instance by the instance's name, and connects to this
//! socket.
//!
//! Root's sockets are in `/run/steerage`, and those of another user in `$XDG_RUNTIME_DIR/steerage`.
//! The environment variable STEERAGE_RUNTIME_DIR sets another directory.
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
    "without XDG_RUNTIME_DIR a run has a control socket only with --socket PATH; then name it by this PATH";

const BY_PATH: &str = "another user's run is named by the path of its socket";

const ROOT_DIRECTORY: &str = "/run/steerage";

/// The environment variable with a user's runtime directory, which systemd sets.
pub const USER_VARIABLE: &str = "XDG_RUNTIME_DIR";

const DIRECTORY_VARIABLE: &str = "STEERAGE_RUNTIME_DIR";

/// Returns the path of an instance's control socket, or `None` if there is no directory for
/// sockets. A `name` with a `/` is the path itself.
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

/// Why the search found no instance, or could not connect to one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SearchError {
    /// No instance was found.
    #[error("{0}")]
    None(NoInstance),
    /// The directory of the sockets cannot be read, or other users may change it.
    #[error("cannot look for runs: {0}")]
    Directory(SocketError),
    /// No running instance has this name.
    #[error(
        "no run {name} was found: {}",
        match why {
            NoInstance::NoDirectory => NO_DIRECTORY.to_owned(),
            _ if others.is_empty() => format!("none is running; {BY_PATH}"),
            _ => format!("there {}; {BY_PATH}", listed(others)),
        }
    )]
    NoneOfThisName {
        /// The name that the caller gave.
        name: String,
        /// Why the search found no instance of this name.
        why: NoInstance,
        /// The names of the instances that the search found.
        others: Vec<String>,
    },
    /// Several instances run, and the caller named no instance.
    #[error("there {}; choose one with --to", listed(.names))]
    Several {
        /// The names of the instances. A name that is a process number is followed by the command
        /// line of the process.
        names: Vec<String>,
    },
    /// The connection to the socket failed.
    #[error("cannot connect to {}: {error}; name the socket of a run", .path.display())]
    Connect {
        /// The path of the control socket.
        path: PathBuf,
        /// Why the connection to the socket failed.
        error: io::Error,
    },
}

/// Why no run was found.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum NoInstance {
    /// A search by root finds only runs of root.
    #[error("no run of root was found: start one, or name another user's run by the path of its socket")]
    OfRoot,
    /// Neither this user nor root runs an instance.
    #[error("no run was found: start one, or name a run by the path of its socket")]
    OfUser,
    /// Runs have no control sockets, because there is no directory for them.
    #[error("no run was found: {NO_DIRECTORY}")]
    NoDirectory,
}

/// The control socket of an instance, which a search has found or the caller has named.
#[derive(Clone, Debug)]
pub struct InstanceSocket {
    path: PathBuf,
    /// False if the caller gave the path of the socket, on which a process of any user may listen.
    was_found: bool,
}

impl InstanceSocket {
    /// Returns the file name of the socket without `.sock`. By default, this is the process number
    /// of the instance.
    pub fn name(&self) -> String {
        self.path.file_stem().map_or(String::new(), |name| name.to_string_lossy().into_owned())
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Connects to the socket. Unless the caller gave the path, the listening process must belong
    /// to this user or to root. A process of another user could read requests and send false
    /// replies.
    ///
    /// # Errors
    /// Returns the errors of [`Client::connect`], and an error for a process of another user.
    pub fn connect(&self) -> io::Result<Client> {
        let client = Client::connect(&self.path)?;
        let (uid, us) = (client.peer()?, geteuid().as_raw());
        if self.was_found && ![0, us].contains(&uid) {
            return Err(io::Error::other(format!(
                "a process of user {uid} listens there; to ask it anyway, name the socket by its path"
            )));
        }
        Ok(client)
    }
}

/// Connects to the instance that [`socket_of`] finds.
///
/// # Errors
/// Returns [`SearchError`] if no such instance exists, or if the instance does not answer.
pub fn connect(to: Option<&str>) -> Result<Client, SearchError> {
    let socket = socket_of(to)?;
    socket.connect().map_err(|error| SearchError::Connect { path: socket.path, error })
}

/// Returns the socket of the instance called `to`. A name with a `/` is the path of the socket. If
/// `to` is `None`, exactly one instance must run.
///
/// # Errors
/// Returns [`SearchError`] if no such instance exists, or if there are several without a name.
pub fn socket_of(to: Option<&str>) -> Result<InstanceSocket, SearchError> {
    match to {
        Some(name) if name.contains('/') => Ok(InstanceSocket { path: PathBuf::from(name), was_found: false }),
        Some(name) => {
            let (all, file) = (all()?, format!("{name}.sock"));
            let process: Option<u32> = name.parse().ok();
            let of_process = |instance: &&InstanceSocket| {
                process.is_some() && instance.connect().and_then(|client| client.peer_process()).ok() == process
            };
            let named = all.iter().find(|instance| instance.path.ends_with(&file));
            named.or_else(|| all.iter().find(of_process)).cloned().ok_or_else(|| SearchError::NoneOfThisName {
                name: name.to_owned(),
                why: why_none(),
                others: names(&all),
            })
        }
        None => match all()?.as_slice() {
            [] => Err(SearchError::None(why_none())),
            [only] => Ok(only.clone()),
            several => Err(SearchError::Several { names: names(several) }),
        },
    }
}

fn names(instances: &[InstanceSocket]) -> Vec<String> {
    instances.iter().map(|instance| described(&instance.name())).collect()
}

fn listed(names: &[String]) -> String {
    match names {
        [name] => format!("is one run: {name}"),
        _ => format!("are {} runs: {}", names.len(), names.join(", ")),
    }
}

/// Adds the command line to a process number, as in `4711 (meter eth0)`.
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

/// Returns the control sockets of this user's and root's instances. Any user may read the
/// attributes of root's instances.
///
/// # Errors
/// [`SearchError::Directory`] if the directory cannot be read, or others may change it.
pub fn all() -> Result<Vec<InstanceSocket>, SearchError> {
    let own = runtime_directory();
    let mut all = own.as_deref().map_or(Ok(Vec::new()), find).map_err(SearchError::Directory)?;
    if env::var_os(DIRECTORY_VARIABLE).is_none() && own.as_deref() != Some(Path::new(ROOT_DIRECTORY)) {
        // A user who cannot read root's directory cannot use root's sockets either.
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
        // The kernel may not show the command line of a new process yet.
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
