use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// The current name of a device, which all clones share. It changes if an open interface is
/// renamed.
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
pub struct DeviceName(Arc<Inner>);

struct Inner {
    last: Mutex<String>,
    current: Option<Mutex<Current>>,
}

type Current = Box<dyn FnMut() -> Option<String> + Send>;

impl DeviceName {
    /// Creates a name that begins as `name` and may change. Each [`get`](Self::get) calls the
    /// function `current` for the latest name, from any thread. If `current` returns `None` (the
    /// device no longer exists), or another thread is still in a call of `current`, the last known
    /// name is used.
    pub fn following(name: impl Into<String>, current: impl FnMut() -> Option<String> + Send + 'static) -> Self {
        Self::of(name.into(), Some(Mutex::new(Box::new(current))))
    }

    fn of(last: String, current: Option<Mutex<Current>>) -> Self {
        Self(Arc::new(Inner { last: Mutex::new(last), current }))
    }

    /// Returns the current name. Never waits for another call, because packet CPUs call `get`.
    pub fn get(&self) -> String {
        // The name is still valid after a panic of a thread that held the lock.
        let current = match self.0.current.as_ref().map(Mutex::try_lock) {
            Some(Ok(current)) => Some(current),
            Some(Err(TryLockError::Poisoned(current))) => Some(current.into_inner()),
            Some(Err(TryLockError::WouldBlock)) | None => None,
        };
        let now = current.and_then(|mut current| current());
        let mut last = self.0.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(now) = now {
            *last = now;
        }
        last.clone()
    }
}

impl From<String> for DeviceName {
    fn from(name: String) -> Self {
        Self::of(name, None)
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
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

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

    #[test]
    fn nobody_waits_for_the_request_of_another_thread() {
        let ((begun, begins), (end, ends)) = (mpsc::channel(), mpsc::channel::<()>());
        let name = DeviceName::following("eth0", move || {
            begun.send(()).unwrap();
            let _ = ends.recv();
            Some("wan0".to_owned())
        });
        let clone = name.clone();
        let requests = thread::spawn(move || clone.get());
        begins.recv().unwrap();
        let ((to, got), clone) = (mpsc::channel(), name.clone());
        thread::spawn(move || to.send(clone.get()));
        let got = got.recv_timeout(Duration::from_secs(60));
        drop(end);
        assert_eq!(got.as_deref(), Ok("eth0"));
        assert_eq!(requests.join().unwrap(), "wan0");
    }
}
