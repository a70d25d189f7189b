//! The name of an interface, which follows the interface when it is renamed.

use steerage::device::DeviceName;
use steerage_netlink::Rtnetlink;

/// Names the interface that is now called `name` in this thread's network namespace. The name
/// follows the interface by its index.
pub(crate) fn following(name: &str) -> DeviceName {
    let found = Rtnetlink::open().and_then(|mut kernel| Ok((kernel.link(name)?.index, kernel)));
    match found {
        Ok((index, mut kernel)) => DeviceName::following(name, move || kernel.link_at(index).ok()?.name),
        // The interface is gone, or too many files are open. In both cases, the name stays as it
        // is.
        Err(_) => name.into(),
    }
}
