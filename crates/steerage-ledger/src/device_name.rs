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
/// let asked = Arc::clone(&kernel);
/// let name = DeviceName::following("eth0", move || asked.lock().unwrap().clone());
/// *kernel.lock().unwrap() = Some("wan0".to_owned());
/// assert_eq!(name.get(), "wan0");
/// // The interface is gone, and keeps its last name.
/// *kernel.lock().unwrap() = None;
/// assert_eq!(name.get(), "wan0");
/// ```
#[derive(Clone)]
pub struct DeviceName(Arc<Inner>);

type Ask = Box<dyn Fn() -> Option<String> + Send + Sync>;

struct Inner {
    last: Mutex<String>,
    ask: Option<Ask>,
}

impl DeviceName {
    /// Makes a name that may change, and is `name` at first. Every call of [`get`](Self::get), from
    /// any thread, calls `ask` for the current name. If `ask` returns `None`, for example because
    /// the device no longer exists, the last known name stays.
    pub fn following(name: impl Into<String>, ask: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { last: Mutex::new(name.into()), ask: Some(Box::new(ask)) }))
    }

    /// Returns the current name of the device.
    pub fn get(&self) -> String {
        let Inner { last, ask } = &*self.0;
        let now = ask.as_ref().and_then(|ask| ask());
        // A panic of another thread leaves the name intact.
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(now) = now {
            *last = now;
        }
        last.clone()
    }
}

impl From<String> for DeviceName {
    fn from(name: String) -> Self {
        Self(Arc::new(Inner { last: Mutex::new(name), ask: None }))
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
        let asked = Arc::clone(&now);
        let name = DeviceName::following("eth0", move || asked.lock().unwrap().clone());
        let clone = name.clone();
        assert_eq!((name.get(), clone.to_string()), ("eth1".to_owned(), "eth1".to_owned()));
        *now.lock().unwrap() = None;
        assert_eq!((name.get(), clone.get()), ("eth1".to_owned(), "eth1".to_owned()));
        assert_eq!(DeviceName::from("file").get(), "file");
    }
}
