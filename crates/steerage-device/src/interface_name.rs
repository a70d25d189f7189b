//! The name of an interface, which follows the interface when it is renamed.

use steerage::device::DeviceName;

use crate::sys::InterfaceSocket;

/// Names the interface that is now called `name` in this thread's network namespace. The name
/// follows the interface by its index.
pub(crate) fn following(name: &str) -> DeviceName {
    match (nix::net::if_::if_nametoindex(name), InterfaceSocket::open()) {
        (Ok(index), Ok(socket)) => DeviceName::following(name, move || socket.name_of(index).ok()),
        // The interface is gone, or too many files are open. The name then never changes.
        _ => name.into(),
    }
}
