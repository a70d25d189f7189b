use steerage::device::DeviceName;
use steerage_netlink::Rtnetlink;

/// A name that follows renames of the interface, which is looked up by its index.
pub(crate) fn following(name: &str) -> DeviceName {
    let found = Rtnetlink::open().and_then(|mut kernel| Ok((kernel.link(name)?.index, kernel)));
    match found {
        Ok((index, mut kernel)) => DeviceName::following(name, move || kernel.link_at(index).ok()?.name),
        // If the interface or a free file descriptor is missing, the name is never updated.
        Err(_) => name.into(),
    }
}
