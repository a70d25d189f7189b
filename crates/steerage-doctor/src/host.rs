use std::fs;
use std::path::{Path, PathBuf};

/// The files of /proc and /sys below a root directory. Any of these files may be missing:
/// containers hide files, and kernels differ.
#[derive(Debug)]
pub(crate) struct Host {
    root: PathBuf,
}

impl Host {
    pub(crate) fn this() -> Self {
        Self { root: PathBuf::from("/") }
    }

    #[cfg(test)]
    pub(crate) fn below(root: PathBuf) -> Self {
        Self { root }
    }

    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    pub(crate) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(fs::read_to_string(self.path(path)).ok()?.trim().to_owned())
    }

    pub(crate) fn number(&self, path: impl AsRef<Path>) -> Option<i64> {
        self.text(path)?.parse().ok()
    }

    pub(crate) fn numbered(&self, directory: impl AsRef<Path>, prefix: &str) -> Vec<(u32, PathBuf)> {
        let directory = directory.as_ref();
        let entries = fs::read_dir(self.path(directory)).into_iter().flatten().flatten();
        let mut numbered: Vec<_> = entries
            .filter_map(|entry| {
                let name = entry.file_name();
                let number = name.to_str()?.strip_prefix(prefix)?.parse().ok()?;
                Some((number, directory.join(&name)))
            })
            .collect();
        numbered.sort_unstable();
        numbered
    }

    /// Returns the last component of a symbolic link's target.
    pub(crate) fn link(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }
}

#[cfg(test)]
pub(crate) mod fake {
    use super::*;

    pub(crate) struct FakeHost(PathBuf);

    impl FakeHost {
        pub(crate) fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("steerage-doctor-{}-{name}", std::process::id()));
            let fake = Self(root);
            for (path, text) in files {
                let path = fake.0.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, format!("{text}\n")).unwrap();
            }
            fake
        }

        pub(crate) fn link(&self, path: &str, target: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(target, path).unwrap();
        }

        pub(crate) fn host(&self) -> Host {
            Host::below(self.0.clone())
        }
    }

    impl Drop for FakeHost {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}
