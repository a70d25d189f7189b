use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The maximum length of a file that is read. With 8,192 CPUs, /proc/interrupts has almost
/// `FILE_MAX` bytes.
const FILE_MAX: u64 = 16 << 20;

/// The directory that contains /sys and /proc: `/`, or a directory of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Default for Root {
    fn default() -> Self {
        Self::below("/")
    }
}

impl Root {
    /// Returns the root of a machine whose /sys and /proc are in `directory`.
    pub fn below(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// Returns the root directory.
    pub fn directory(&self) -> &Path {
        &self.0
    }

    /// Returns the path below this root of a file with a `name` such as `/proc/stat`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name.trim_start_matches('/'))
    }

    /// Returns true if the file or directory exists.
    pub fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Returns the text of a file without trailing white space.
    ///
    /// # Errors
    /// Returns the kernel's error. Some files of /sys cannot be read if the device has no such
    /// value.
    pub fn read(&self, name: &str) -> io::Result<String> {
        let mut text = String::new();
        fs::File::open(self.path(name))?.take(FILE_MAX).read_to_string(&mut text)?;
        text.truncate(text.trim_end().len());
        Ok(text)
    }

    /// Returns the number in a file, or `None` after an error.
    pub fn number<N: FromStr>(&self, name: &str) -> Option<N> {
        self.read(name).ok()?.parse().ok()
    }

    /// Returns the last component of a link's target, such as the name of a driver.
    pub fn link(&self, name: &str) -> Option<String> {
        let target = fs::read_link(self.path(name)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// Writes an existing file with a single system call, as the kernel requires.
    ///
    /// # Errors
    /// Returns the kernel's error, for example if the file does not exist. No file is created.
    pub fn write(&self, name: &str, value: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).truncate(true).open(self.path(name))?;
        file.write_all(value.as_bytes())
    }

    /// Returns the names in a directory, sorted by the numbers in them (rx-2, rx-10), or no names
    /// after an error.
    pub fn names(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(directory)).into_iter().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect();
        names.sort_by_key(|name| {
            let digits = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
            let (word, number) = name.split_at(digits);
            (word.to_owned(), number.parse::<u64>().unwrap_or_default(), number.to_owned())
        });
        names
    }
    /// Returns the names of an interface's queues that begin with `kind` (`rx-` or `tx-`).
    pub fn queues(&self, interface: &str, kind: &str) -> Vec<String> {
        let mut queues = self.names(&format!("/sys/class/net/{interface}/queues"));
        queues.retain(|name| name.starts_with(kind));
        queues
    }
}
