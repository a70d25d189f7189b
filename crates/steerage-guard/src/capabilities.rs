//! Drops the capabilities of a program after the program has opened its devices.
//!
//! Packets come from untrusted hosts, so the code that handles packets should have no privileges. A
//! program needs a capability to open an interface, but not to receive from it. [`drop_all`] drops
//! all capabilities, and sets `no_new_privs`, so that the process cannot regain them.
//!
//! A new thread inherits the capabilities of the thread that starts it. Threads that already run
//! keep their capabilities, so call `drop_all` while the process has only one thread. Call
//! `drop_all` after you have opened the devices and outputs, but before `build`, which starts a
//! thread for each capture file that the instance writes.
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
//! use steerage_device::af_packet::AfPacketOptions;
//! use steerage_guard::capabilities;
//!
//! let input = AfPacketOptions::new("eth0").filtered("not port 22")?.open()?.input;
//! capabilities::drop_all()?;
//! let running = Builder::new().input(input).build(|_cpu| Count)?.start()?;
//! # drop(running);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Operations that fail afterwards
//!
//! - Opening an interface or attaching to it (AF_PACKET, AF_XDP, TUN and TAP), including calls of
//!   `steerage_device::open`. An interface that is already open needs no capability when it
//!   disappears and reappears.
//! - Building an instance with AF_XDP devices, which pins its memory (locks it in RAM), unless the
//!   limit on locked memory is high enough. Call [`drop_except`] with [`Needed::pinned_memory`]
//!   before building the instance, and [`Kept::drop_start_up`] afterwards.
//! - Opening files for which the program needs root's capabilities. Request these capabilities with
//!   [`Needed::read_file`] and [`Needed::written_files`]. Files that belong to the program's user
//!   stay accessible, even if this user is root.
//! - Gaining privileges by running a program that is setuid or that has file capabilities.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};

use crate::file::directory_of;
use crate::path::PathError;

const READ: CapabilitySet = CapabilitySet::DAC_READ_SEARCH;
/// The capability to write any file, but not to rename files in sticky directories of other users.
const WRITE: CapabilitySet = CapabilitySet::DAC_OVERRIDE;
/// The capability to pin (lock in RAM) any amount of memory, as AF_XDP does for packets.
const PIN: CapabilitySet = CapabilitySet::IPC_LOCK;
const ADMINISTER: CapabilitySet = CapabilitySet::NET_ADMIN;

/// Drops all capabilities of the calling thread and of threads that it starts later, and sets
/// `no_new_privs`. Threads that already run keep their capabilities.
///
/// # Errors
/// Returns [`PrivilegesError`] if the kernel refuses to drop the capabilities. After this error,
/// the program must not handle packets.
pub fn drop_all() -> Result<(), PrivilegesError> {
    forbid_new()?;
    set(CapabilitySet::empty(), CapabilitySet::empty())
}

/// Drops capabilities like [`drop_all`], but this thread keeps those of its capabilities that
/// `needed` requires. Capabilities for files are kept only if the files are not accessible without
/// them.
///
/// After `drop_except`, start the thread that writes files, build the instance, and call
/// [`Kept::drop_start_up`] before you start the instance.
///
/// # Errors
/// Returns [`PrivilegesError`] under the same condition as [`drop_all`].
///
/// ```no_run
/// use std::path::Path;
///
/// use steerage_guard::capabilities::{self, Needed};
///
/// let kept = capabilities::drop_except(&Needed::default().written_files(Path::new("/var/log/flows-%H.csv")))?;
/// // Build the instance, and start the thread that writes the files. Then, before the instance starts:
/// kept.drop_start_up()?;
/// # Ok::<(), capabilities::PrivilegesError>(())
/// ```
pub fn drop_except(needed: &Needed<'_>) -> Result<Kept, PrivilegesError> {
    forbid_new()?;
    let have = capabilities(None).map_err(failed("read the capabilities of this thread"))?.permitted;
    // Checks without effective capabilities whether the files are accessible.
    set(have, CapabilitySet::empty())?;
    let is_readable = |path: &&Path| may(CWD, path, Access::READ_OK);
    let reading = if needed.read.iter().all(is_readable) { CapabilitySet::empty() } else { READ & have };
    let writing =
        if needed.written.iter().all(|name| may_create(name)) { CapabilitySet::empty() } else { WRITE & have };
    let pinning = if needed.pins { PIN & have } else { CapabilitySet::empty() };
    let administering = if needed.administers { ADMINISTER & have } else { CapabilitySet::empty() };
    let kept = reading | writing | pinning | administering;
    set(kept, kept)?;
    tracing::info!(?kept, "privileges are given up");
    Ok(Kept { _private: () })
}

/// The privileged operations that a run still needs after its devices are open, by default none.
#[derive(Clone, Debug, Default)]
pub struct Needed<'a> {
    read: Vec<&'a Path>,
    written: Vec<&'a Path>,
    pins: bool,
    administers: bool,
}

impl<'a> Needed<'a> {
    /// Declares a file that the run opens later, such as a later capture file. The calling thread
    /// keeps the capability to read the file until [`Kept::drop_start_up`]. `build` starts a thread
    /// that opens capture files, and that keeps the capability until it ends.
    #[must_use]
    pub fn read_file(mut self, path: &'a Path) -> Self {
        self.read.push(path);
        self
    }

    /// Declares the name of files that the run creates, which may contain placeholders for the time
    /// (`%H`). The calling thread keeps the capability to write the declared files until
    /// [`Kept::drop_start_up`]. A separate thread, which handles no packets, writes the declared
    /// files.
    #[must_use]
    pub fn written_files(mut self, name: &'a Path) -> Self {
        self.written.push(name);
        self
    }

    /// Declares whether this thread will pin memory (lock it in RAM) before it calls
    /// [`Kept::drop_start_up`]. Building an instance with an AF_XDP device pins memory.
    #[must_use]
    pub fn pinned_memory(mut self, pins: bool) -> Self {
        self.pins = pins;
        self
    }

    /// Declares that this process later changes interfaces, routes or routing rules. A process that
    /// has the capability to change interfaces and routes should handle no packets.
    #[must_use]
    pub fn network_administration(mut self) -> Self {
        self.administers = true;
        self
    }
}

/// The capabilities that the thread keeps only while the program starts.
#[derive(Debug)]
#[must_use = "call drop_start_up"]
pub struct Kept {
    _private: (),
}

impl Kept {
    /// Drops all capabilities of this thread. Call `drop_start_up` after `build`, when the threads
    /// that open and write files already run, and the memory is pinned.
    ///
    /// # Errors
    /// Returns [`PrivilegesError`] under the same condition as [`drop_all`].
    pub fn drop_start_up(self) -> Result<(), PrivilegesError> {
        set(CapabilitySet::empty(), CapabilitySet::empty())
    }
}

/// The kernel refused to drop the capabilities. The message has one line.
#[derive(Debug, thiserror::Error)]
#[error("cannot give up privileges: the attempt to {operation} failed: {cause}")]
pub struct PrivilegesError {
    operation: &'static str,
    #[source]
    cause: io::Error,
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

/// Returns false only if this process lacks a permission to create the file with its effective
/// capabilities. A capability would not help against any other error.
fn may_create(name: &Path) -> bool {
    match directory_of(name) {
        Ok(directory) => may(directory.as_fd(), Path::new("."), Access::WRITE_OK | Access::EXEC_OK),
        Err(PathError::System(error)) => error.kind() != io::ErrorKind::PermissionDenied,
        Err(_) => true,
    }
}

fn may(at: BorrowedFd<'_>, path: &Path, how: Access) -> bool {
    !matches!(accessat(at, path, how, AtFlags::EACCESS), Err(Errno::ACCESS | Errno::PERM))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};
    use std::thread;

    use super::*;

    const SOMEBODY: u32 = 65534;

    #[test]
    #[allow(clippy::print_stderr, reason = "tests that test nothing have to say so")]
    fn a_planted_link_keeps_no_capability() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "this test needs root");
            eprintln!("skipped: this test needs root, to plant a link of another user");
            return;
        }
        let root = std::env::temp_dir().join(format!("steerage-capabilities-{}", std::process::id()));
        // A test process that was killed leaves its directory, and process IDs return.
        let _ = fs::remove_dir_all(&root);
        let (closed, x) = (root.join("closed"), root.join("x"));
        for (directory, mode) in [(&root, 0o755), (&closed, 0o700), (&x, 0o755)] {
            fs::create_dir(directory).unwrap();
            fs::set_permissions(directory, Permissions::from_mode(mode)).unwrap();
        }
        for directory in [&closed, &x] {
            lchown(directory, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
        }
        for (link, target) in [("logs", closed.clone()), ("f.csv", closed.join("f.csv"))] {
            symlink(target, x.join(link)).unwrap();
            lchown(x.join(link), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
        }
        // Each thread has its own capabilities.
        let names = [closed.join("f.csv"), root.join("f.csv"), x.join("logs/f.csv"), x.join("%H/f.csv")];
        let may = thread::spawn(move || {
            let have = capabilities(None).unwrap().permitted;
            set(have, CapabilitySet::empty()).unwrap();
            names.map(|name| may_create(&name))
        });
        let may = may.join().unwrap();
        fs::remove_dir_all(&root).unwrap();
        // The last of the four names is a file in the directory `x`, which root can change only
        // with a capability.
        assert_eq!(may, [false, true, true, false]);
    }
}
