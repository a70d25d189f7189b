//! Dropping the capabilities of a program once its devices are open.
//!
//! Packets are written by strangers, so the code that handles them should have no privileges. Opening an interface needs a
//! capability. Receiving from it and everything else in a run need none, so [`drop_all`] drops all capabilities in between, and sets
//! `no_new_privs`, which keeps them from coming back.
//!
//! Each thread has its own capabilities, and inherits those of the thread that starts it. So call it while there is one thread:
//! after the devices and outputs are opened, and before the instance is built, which starts a thread for each capture file that is
//! written. Threads that run already keep their capabilities.
//!
//! ```no_run
//! # use steerage::{Batch, Cpu, Handler};
//! # struct Count;
//! # impl Handler for Count {
//! #     type Moved = ();
//! #     type Report = ();
//! #     fn handle(&mut self, _: &mut Batch<'_>, _: &mut Cpu) {}
//! #     fn finish(self, _: &mut Cpu) {}
//! # }
//! use steerage::Builder;
//! use steerage_device::{af_packet::AfPacketOptions, privileges};
//!
//! let input = AfPacketOptions::new("eth0").filtered("not port 22")?.open()?.input;
//! privileges::drop_all()?;
//! let running = Builder::new().input(input).build(|_cpu| Count)?.start()?;
//! # drop(running);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What cannot be done afterwards
//!
//! - Open or attach to an interface (AF_PACKET, AF_XDP, TUN and TAP), also through [`open`](crate::open). An interface that goes away
//!   and comes back is received from again without any capability.
//! - Build an instance with AF_XDP devices, unless the limit on locked memory is high enough: its memory is pinned then. Call
//!   [`drop_except`] with [`Needed::pinned_memory`] before, and [`Kept::drop_start_up`] after.
//! - Open files that only root's access to all files allows: [`Needed::read_file`] and [`Needed::written_files`] keep the
//!   capabilities for them if they are needed. The files of the program's own user can be opened as before, and root still owns root's
//!   files.
//! - Gain privileges by running a program that is setuid or has file capabilities.

use std::path::Path;
use std::{error, fmt, io};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};

/// Allows reading any file and searching any directory.
const READ: CapabilitySet = CapabilitySet::DAC_READ_SEARCH;
/// Allows writing to any file and directory. Renaming in another user's sticky directory needs more, which is not kept.
const WRITE: CapabilitySet = CapabilitySet::DAC_OVERRIDE;
/// Allows pinning any amount of memory: AF_XDP's pages are pinned when they are mapped.
const PIN: CapabilitySet = CapabilitySet::IPC_LOCK;

/// Drops all capabilities of this thread and of the threads that it starts from now on, and sets `no_new_privs`. Threads that
/// run already keep theirs.
///
/// # Errors
/// [`PrivilegesError`] if the kernel refuses. Do not start the instance then, since it would have privileges.
/// The [module](self) has an example.
pub fn drop_all() -> Result<(), PrivilegesError> {
    forbid_new()?;
    set(CapabilitySet::empty(), CapabilitySet::empty())
}

/// Like [`drop_all`], but keeps the capabilities that `needed` takes, and only if this thread has them and cannot do without.
///
/// Start the thread that writes files after this, and build the instance. Then call [`Kept::drop_start_up`], before you start the
/// instance.
///
/// # Errors
/// As for [`drop_all`].
///
/// ```no_run
/// use std::path::Path;
///
/// use steerage_device::privileges::{self, Needed};
///
/// let kept = privileges::drop_except(&Needed::default().written_files(Path::new("/var/log/flows-%H.csv")))?;
/// // Build the instance, and start the thread that writes the files. Then, before the instance starts:
/// kept.drop_start_up()?;
/// # Ok::<(), privileges::PrivilegesError>(())
/// ```
pub fn drop_except(needed: &Needed<'_>) -> Result<Kept, PrivilegesError> {
    forbid_new()?;
    let have = capabilities(None).map_err(failed("read the capabilities of this thread"))?.permitted;
    // The access checks below run without effective capabilities.
    set(have, CapabilitySet::empty())?;
    let is_readable = |path: &&Path| may(path, Access::READ_OK);
    let reading = if needed.read.iter().all(is_readable) { CapabilitySet::empty() } else { READ & have };
    let is_writable = |name: &&Path| may(directory_of(name), Access::WRITE_OK | Access::EXEC_OK);
    let writing = if needed.written.iter().all(is_writable) { CapabilitySet::empty() } else { WRITE & have };
    let pinning = if needed.pins { PIN & have } else { CapabilitySet::empty() };
    set(reading | writing | pinning, reading | writing | pinning)?;
    tracing::info!(kept = ?(reading | writing), "privileges are given up");
    Ok(Kept { _private: () })
}

/// What a run still needs after its devices are open: nothing by default.
/// [`drop_except`] has an example.
#[derive(Clone, Debug, Default)]
pub struct Needed<'a> {
    read: Vec<&'a Path>,
    written: Vec<&'a Path>,
    pins: bool,
}

impl<'a> Needed<'a> {
    /// A file that is opened later, such as a capture file whose turn comes. The capability to read it is kept until
    /// [`Kept::drop_start_up`]. The thread that opens captures starts by then, when the instance is built, and keeps it to the end.
    #[must_use]
    pub fn read_file(mut self, path: &'a Path) -> Self {
        self.read.push(path);
        self
    }

    /// The name of files that are made during the run. It may have parts that stand for the time (`%H`), which do not count. The
    /// capability to write them is kept until [`Kept::drop_start_up`], for a thread that handles no packets.
    #[must_use]
    pub fn written_files(mut self, name: &'a Path) -> Self {
        self.written.push(name);
        self
    }

    /// Whether memory is pinned before [`Kept::drop_start_up`]: the instance is built by then, and has an AF_XDP device.
    #[must_use]
    pub fn pinned_memory(mut self, pins: bool) -> Self {
        self.pins = pins;
        self
    }
}

/// The capabilities that are left for the start-up. See [`drop_except`].
/// [`drop_except`] has an example.
#[derive(Debug)]
#[must_use = "call drop_start_up"]
pub struct Kept {
    _private: (),
}

impl Kept {
    /// Drops all capabilities of this thread, once the instance is built: the threads that open and write files run by then, and
    /// memory is pinned.
    ///
    /// # Errors
    /// As for [`drop_all`].
    pub fn drop_start_up(self) -> Result<(), PrivilegesError> {
        set(CapabilitySet::empty(), CapabilitySet::empty())
    }
}

/// The error for privileges that could not be dropped: one line.
/// [`drop_except`] has an example.
#[derive(Debug)]
pub struct PrivilegesError {
    operation: &'static str,
    cause: io::Error,
}

impl fmt::Display for PrivilegesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot give up privileges: the attempt to {} failed: {}", self.operation, self.cause)
    }
}

impl error::Error for PrivilegesError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&self.cause)
    }
}

fn failed(operation: &'static str) -> impl Fn(Errno) -> PrivilegesError {
    move |error| PrivilegesError { operation, cause: error.into() }
}

fn forbid_new() -> Result<(), PrivilegesError> {
    set_no_new_privs(true).map_err(failed("set no_new_privs"))
}

fn set(permitted: CapabilitySet, effective: CapabilitySet) -> Result<(), PrivilegesError> {
    let sets = CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(failed("set the capabilities of this thread"))
}

/// Whether this process may access the file with its effective capabilities. A file that does not exist counts as
/// accessible.
fn may(path: &Path, how: Access) -> bool {
    !matches!(accessat(CWD, path, how, AtFlags::EACCESS), Err(Errno::ACCESS | Errno::PERM))
}

/// The existing directory in which the file, or the first missing directory of its path, is created. Parts of the path
/// that contain the time do not count.
fn directory_of(name: &Path) -> &Path {
    let fixed = |path: &&Path| !path.to_string_lossy().contains('%') && !path.as_os_str().is_empty();
    name.ancestors().skip(1).find(|path| fixed(path) && path.exists()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_made_in_the_first_directory_that_is_there() {
        assert_eq!(directory_of(Path::new("flows.csv")), Path::new("."));
        assert_eq!(directory_of(Path::new("/tmp/no-such-directory/x/flows.csv")), Path::new("/tmp"));
        assert_eq!(directory_of(Path::new("/tmp/%Y/%m/flows.csv")), Path::new("/tmp"));
        assert_eq!(directory_of(Path::new("%Y/flows.csv")), Path::new("."));
    }
}
