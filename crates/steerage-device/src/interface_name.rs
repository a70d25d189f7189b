//! The name of an interface. The name is updated when the interface is renamed.

use steerage::device::DeviceName;
use steerage_netlink::Rtnetlink;

/// Makes an `InterfaceName` for the interface that is now called `name` in this thread's network
/// namespace. Later names of the interface are found by its index.
pub(crate) fn following(name: &str) -> DeviceName {
    let found = Rtnetlink::open().and_then(|mut kernel| Ok((kernel.link(name)?.index, kernel)));
    match found {
        Ok((index, mut kernel)) => DeviceName::following(name, move || kernel.link_at(index).ok()?.name),
        // The interface has been deleted, or too many files are open. In both cases, the name is
        // not updated.
        Err(_) => name.into(),
    }
}
