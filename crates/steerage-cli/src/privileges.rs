//! What the program may do once its devices are open: nothing that its packets' bytes could be the reason for.
//!
//! A packet is what a stranger wrote. Opening an interface takes a capability; reading from it, and everything else that a
//! run does, takes none. So between the two all capabilities go, and with `no_new_privs` none come back. Capabilities are
//! a thread's own and a new thread inherits its maker's: they are given up before there is a second thread.
//!
//! Files are the exception. A capture file is opened when its turn comes, and flows go into new files while the run goes
//! on. Where the user that we run as may do that anyway, nothing is kept for it; where only root's powers over files allow
//! it (`sudo steerage meter eth1 --flows flows.csv` in a user's directory), just those stay: see [`Files`].

use std::io;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};

use crate::error::Error;

/// To read any file and search any directory.
const READ: CapabilitySet = CapabilitySet::DAC_READ_SEARCH;
/// To write to any file and directory. To rename in a sticky directory of another's takes more, which is not kept.
const WRITE: CapabilitySet = CapabilitySet::DAC_OVERRIDE;

/// To pin as much memory as there is: AF_XDP's pages, once they are mapped.
const PIN: CapabilitySet = CapabilitySet::IPC_LOCK;

/// The files that a run opens after its devices, and what else it has to do until it starts.
#[derive(Debug, Default)]
pub(crate) struct Files<'a> {
    /// Capture files: read by the threads that handle packets.
    pub(crate) read: Vec<&'a Path>,
    /// The name of the flows' files: written by a thread of its own, which handles records and no packet.
    pub(crate) written: Option<&'a Path>,
    /// Whether it pins its packets' memory. Who writes files may then do so too, which is of no use to it.
    pub(crate) pins: bool,
}

/// Capabilities given up but for those to open files with, until [`Kept::let_go`].
#[derive(Debug)]
#[must_use]
pub(crate) struct Kept {
    /// For all threads, to the end.
    reading: CapabilitySet,
}

/// Gives up every capability but what the run's own files need, and takes none from now on. The thread that writes is to
/// be started after this; then the caller lets go of what only that one needs.
///
/// # Errors
/// If the kernel does not let us: better no run than one that only seems to be confined.
pub(crate) fn give_up(files: &Files<'_>) -> Result<Kept, Error> {
    let failed = |error: Errno| Error::System { operation: "give up privileges", error: io::Error::from(error) };
    set_no_new_privs(true).map_err(failed)?;
    let have = capabilities(None).map_err(failed)?.permitted;
    // Whether a file can be opened is tried with nothing in effect.
    set(have, CapabilitySet::empty()).map_err(failed)?;
    let is_readable = |path: &&Path| may(path, Access::READ_OK);
    let reading = if files.read.iter().all(is_readable) { CapabilitySet::empty() } else { READ & have };
    let writing = match files.written {
        Some(name) if !may(directory_of(name), Access::WRITE_OK | Access::EXEC_OK) => WRITE & have,
        _ => CapabilitySet::empty(),
    };
    let pinning = if files.pins { PIN & have } else { CapabilitySet::empty() };
    set(reading | writing | pinning, reading | writing | pinning).map_err(failed)?;
    tracing::info!(kept = ?(reading | writing), "privileges are given up");
    Ok(Kept { reading })
}

/// Gives up all but what unmounting takes, and finding the way there: for a process that does nothing else.
pub(crate) fn keep_to_unmount() -> Result<(), Error> {
    let failed = |error: Errno| Error::System { operation: "give up privileges", error: io::Error::from(error) };
    set_no_new_privs(true).map_err(failed)?;
    let kept = capabilities(None).map_err(failed)?.permitted & (CapabilitySet::SYS_ADMIN | READ);
    set(kept, kept).map_err(failed)
}

impl Kept {
    /// The thread that writes has been started, and memory is pinned: everybody else gives up what that took.
    pub(crate) fn let_go(self) -> Result<(), Error> {
        set(self.reading, self.reading)
            .map_err(|error| Error::System { operation: "give up privileges", error: error.into() })
    }
}

fn set(permitted: CapabilitySet, effective: CapabilitySet) -> Result<(), Errno> {
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() })
}

/// Whether the user that we run as may, by the capabilities in effect. What isn't there may as well be tried.
fn may(path: &Path, how: Access) -> bool {
    !matches!(accessat(CWD, path, how, AtFlags::EACCESS), Err(Errno::ACCESS | Errno::PERM))
}

/// The directory in which a file of that name, or the first directory on its way, is made. Of a name with the time in it,
/// it is where the time begins.
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
