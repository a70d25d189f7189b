//! Drops the program's capabilities once its devices are open.
//!
//! Packets are written by strangers, so the code that handles them should have no privileges. Opening an interface
//! needs a capability; reading from it, and everything else in a run, needs none. So all capabilities are dropped in
//! between, and `no_new_privs` keeps them from coming back. Each thread has its own capabilities and inherits those of
//! the thread that starts it, so they are dropped while there is one thread.
//!
//! Files are the exception. A capture file is opened when its turn comes, and flows are written to new files during the
//! run. If the user may open these files, no capability is kept for them. If only root's access to all files allows it
//! (`sudo steerage meter eth1 --flows flows.csv` in another user's directory), just these capabilities stay: see
//! [`NeededFiles`].

use std::io;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};

use crate::error::Error;

/// Allows reading any file and searching any directory.
const READ: CapabilitySet = CapabilitySet::DAC_READ_SEARCH;
/// Allows writing to any file and directory. Renaming in another user's sticky directory needs more, which is not kept.
const WRITE: CapabilitySet = CapabilitySet::DAC_OVERRIDE;

/// Allows pinning any amount of memory: AF_XDP's pages are pinned when they are mapped.
const PIN: CapabilitySet = CapabilitySet::IPC_LOCK;

/// What a run still needs after its devices are open.
#[derive(Debug, Default)]
pub(crate) struct NeededFiles<'a> {
    /// The capture files. Threads that handle packets read them.
    pub(crate) read: Vec<&'a Path>,
    /// The name of the files for flows. A thread of its own writes them, which handles records and no packets.
    pub(crate) written: Option<&'a Path>,
    /// Whether the memory of packets is pinned. The thread that writes flows keeps this capability too, and has no use
    /// for it.
    pub(crate) pins: bool,
}

/// The capabilities that are left for the start-up, until [`KeptCapabilities::drop_start_up_capabilities`].
#[derive(Debug)]
#[must_use]
pub(crate) struct KeptCapabilities {
    /// The capabilities that all threads keep to the end.
    reading: CapabilitySet,
}

/// Drops every capability except those for the run's own files, and lets none come back.
///
/// Start the thread that writes flows after this. Then call [`KeptCapabilities::drop_start_up_capabilities`], which
/// drops what only that thread needs.
///
/// # Errors
/// If the kernel refuses. The run must not start then, since it would only seem to be confined.
pub(crate) fn drop_privileges(files: &NeededFiles<'_>) -> Result<KeptCapabilities, Error> {
    let failed = |error: Errno| Error::System { operation: "give up privileges", error: io::Error::from(error) };
    set_no_new_privs(true).map_err(failed)?;
    let have = capabilities(None).map_err(failed)?.permitted;
    // The access checks below run without effective capabilities.
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
    Ok(KeptCapabilities { reading })
}

/// Drops all capabilities except those for unmounting and for searching directories. This is for a process that only
/// unmounts.
pub(crate) fn keep_unmount_only() -> Result<(), Error> {
    let failed = |error: Errno| Error::System { operation: "give up privileges", error: io::Error::from(error) };
    set_no_new_privs(true).map_err(failed)?;
    let kept = capabilities(None).map_err(failed)?.permitted & (CapabilitySet::SYS_ADMIN | READ);
    set(kept, kept).map_err(failed)
}

impl KeptCapabilities {
    /// Drops the capabilities for writing files and pinning memory, once the writing thread runs and the memory is
    /// pinned.
    pub(crate) fn drop_start_up_capabilities(self) -> Result<(), Error> {
        set(self.reading, self.reading)
            .map_err(|error| Error::System { operation: "give up privileges", error: error.into() })
    }
}

fn set(permitted: CapabilitySet, effective: CapabilitySet) -> Result<(), Errno> {
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() })
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
