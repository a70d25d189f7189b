//! A directory for one test.

use std::fs;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// An empty temporary directory, which is removed when the value is dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates a directory that all users may read, but to which only this user may write.
    pub fn new() -> Self {
        Self::with_mode(0o755)
    }

    /// Creates a directory with the permission bits `mode`.
    pub fn with_mode(mode: u32) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("steerage-test-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        Self(path)
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for Scratch {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If something is mounted in the directory, the test must unmount it first.
        let _ = fs::remove_dir_all(&self.0);
    }
}
