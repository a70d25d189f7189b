//! The name of an interface. The name is updated when the interface is renamed.

use steerage::device::DeviceName;
use steerage_netlink::Rtnetlink;

/// Finds the interface `name` in this thread's network namespace, and returns a name that changes
/// when the interface is renamed. Later, the interface's current name is looked up by the interface
/// index.
pub(crate) fn following(name: &str) -> DeviceName {
    let found = Rtnetlink::open().and_then(|mut kernel| Ok((kernel.link(name)?.index, kernel)));
    match found {
        Ok((index, mut kernel)) => DeviceName::following(name, move || kernel.link_at(index).ok()?.name),
        // If the interface does not exist any more, or if too many files are open, the name will
        // never be updated.
        Err(_) => name.into(),
    }
}
