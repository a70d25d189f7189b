//! The name of an interface. The name is updated when the interface is renamed.

use steerage::device::DeviceName;
use steerage_netlink::Rtnetlink;

/// Returns a name that follows the interface that is now called `name` in this thread's network
/// namespace. Later names of the interface are looked up by the interface's index.
pub(crate) fn following(name: &str) -> DeviceName {
    let found = Rtnetlink::open().and_then(|mut kernel| Ok((kernel.link(name)?.index, kernel)));
    match found {
        Ok((index, mut kernel)) => DeviceName::following(name, move || kernel.link_at(index).ok()?.name),
        // If the interface has been deleted, or if too many files are open, the name will not be
        // updated.
        Err(_) => name.into(),
    }
}
