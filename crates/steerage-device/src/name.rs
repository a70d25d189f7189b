//! What an interface is called, also after it was renamed.

use steerage::DeviceName;

use crate::tap::Control;

/// The name of the interface that is called `name` now, in this thread's network namespace. It follows the interface by its number.
pub(crate) fn of_interface(name: &str) -> DeviceName {
    match (nix::net::if_::if_nametoindex(name), Control::open()) {
        (Ok(index), Ok(control)) => DeviceName::following(name, move || control.name_of(index).ok()),
        // It is gone already, or there are too many open files: the name that it was opened by will do.
        _ => name.into(),
    }
}
