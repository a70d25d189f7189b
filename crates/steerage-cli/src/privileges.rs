//! Drops the capabilities of the process that only unmounts. The library drops those of a run
//! ([`steerage_guard::capabilities`]).

use std::io;

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};

use crate::error::Error;

/// The capabilities to unmount, and to reach the mount point in any directory.
const KEPT: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::DAC_READ_SEARCH);

/// Drops all capabilities except those for unmounting and for searching directories.
pub(crate) fn keep_unmount_only() -> Result<(), Error> {
    let failed = |error: Errno| Error::System { operation: "give up privileges", error: io::Error::from(error) };
    set_no_new_privs(true).map_err(failed)?;
    let kept = capabilities(None).map_err(failed)?.permitted & KEPT;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(failed)
}
