//! A directory for one test.

use std::fs;
use std::io::Write as _;
use std::ops::Deref;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::own_name;

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
        let path = std::env::temp_dir().join(format!("steerage-test-{}", own_name()));
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        Self(path)
    }

    /// Creates a directory with the given files, each of one line, such as a fake /sys.
    pub fn with_files(files: &[(&str, &str)]) -> Self {
        let scratch = Self::new();
        files.iter().for_each(|(path, line)| scratch.write(path, &format!("{line}\n")));
        scratch
    }

    /// Writes a file, in directories that are created if they are missing.
    pub fn write(&self, path: &str, text: &str) {
        fs::write(self.in_directory(path), text).unwrap();
    }

    /// Creates a symbolic link to `target`, in directories that are created if they are missing.
    pub fn link(&self, path: &str, target: &str) {
        symlink(target, self.in_directory(path)).unwrap();
    }

    /// Copies `program` to the file `name`, which every user may execute, and returns the path of the
    /// copy.
    ///
    /// Another process writes the copy. A thread of a test cannot write a program that it then
    /// executes: while it writes, another thread may start a child, which inherits the open file. As
    /// long as the child holds the file, the kernel refuses to execute it (ETXTBSY). For the same
    /// reason, clippy.toml forbids `fs::copy`.
    pub fn install(&self, name: &str, program: impl AsRef<Path>) -> PathBuf {
        let copy = self.0.join(name);
        let status = Command::new("install").args(["-m", "755"]).arg(program.as_ref()).arg(&copy).status().unwrap();
        assert!(status.success(), "{}: {status}", program.as_ref().display());
        copy
    }

    fn in_directory(&self, path: &str) -> PathBuf {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }
}

/// Writes a file by another process, for a test that takes a lease of the file.
///
/// The kernel grants no lease of a file that is open for writing. If this process wrote the file,
/// a child that another thread starts meanwhile could hold the open file, until the child executes
/// its program.
pub fn write_by_another_process(path: &Path, bytes: &[u8]) {
    let to = format!("of={}", path.display());
    let mut writer = Command::new("dd").args([&to, "status=none"]).stdin(Stdio::piped()).spawn().unwrap();
    writer.stdin.take().unwrap().write_all(bytes).unwrap();
    assert!(writer.wait().unwrap().success(), "{to}");
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
