//! [`DeviceName`]: the name of a device, which follows renames.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The name of a device. Most names never change, but a network interface can be renamed while it
/// is open. Clones share the name.
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use steerage_ledger::DeviceName;
///
/// let kernel = Arc::new(Mutex::new(Some("eth0".to_owned())));
/// let shared = Arc::clone(&kernel);
/// let name = DeviceName::following("eth0", move || shared.lock().unwrap().clone());
/// *kernel.lock().unwrap() = Some("wan0".to_owned());
/// assert_eq!(name.get(), "wan0");
/// // The interface is gone, and keeps its last name.
/// *kernel.lock().unwrap() = None;
/// assert_eq!(name.get(), "wan0");
/// ```
#[derive(Clone)]
pub struct DeviceName(Arc<Mutex<Inner>>);

struct Inner {
    last: String,
    current: Option<Box<dyn FnMut() -> Option<String> + Send>>,
}

impl DeviceName {
    /// Makes a name that may change, and is `name` at first. Every call of [`get`](Self::get), from
    /// any thread, calls `current` for the current name. If `current` returns `None`, for example
    /// because the device no longer exists, the last known name stays.
    pub fn following(name: impl Into<String>, current: impl FnMut() -> Option<String> + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Inner { last: name.into(), current: Some(Box::new(current)) })))
    }

    /// Returns the current name of the device.
    pub fn get(&self) -> String {
        // A panic of another thread leaves the name intact.
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(now) = inner.current.as_mut().and_then(|current| current()) {
            inner.last = now;
        }
        inner.last.clone()
    }
}

impl From<String> for DeviceName {
    fn from(name: String) -> Self {
        Self(Arc::new(Mutex::new(Inner { last: name, current: None })))
    }
}

impl From<&str> for DeviceName {
    fn from(name: &str) -> Self {
        name.to_owned().into()
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.get())
    }
}

impl fmt::Debug for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.get(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_known_name_stands_once_nobody_knows_another() {
        let now = Arc::new(Mutex::new(Some("eth1".to_owned())));
        let shared = Arc::clone(&now);
        let name = DeviceName::following("eth0", move || shared.lock().unwrap().clone());
        let clone = name.clone();
        assert_eq!((name.get(), clone.to_string()), ("eth1".to_owned(), "eth1".to_owned()));
        *now.lock().unwrap() = None;
        assert_eq!((name.get(), clone.get()), ("eth1".to_owned(), "eth1".to_owned()));
        assert_eq!(DeviceName::from("file").get(), "file");
    }
}
