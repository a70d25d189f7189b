//! Reads and writes files of /sys and /proc below a root directory. Tests use a directory with fake
//! files.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The maximum number of bytes that are read from a file of /sys or /proc. On a machine with 8,192
/// CPUs, the file /proc/interrupts is almost as long as this maximum, and no other file is. On a
/// machine with 8,192 CPUs, a CPU mask has 2,304 characters.
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

    /// Returns the directory itself.
    pub fn directory(&self) -> &Path {
        &self.0
    }

    /// Returns the path of a file below the root directory. `name` is the path of the file on the
    /// machine, such as `/proc/stat`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name.trim_start_matches('/'))
    }

    /// Returns true if the file or directory `name` exists below the root.
    pub fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Returns the text of a file, without the newline at its end.
    ///
    /// # Errors
    ///
    /// Fails with the kernel's error. For example, reading a file of /sys fails if the device has
    /// no such value.
    pub fn read(&self, name: &str) -> io::Result<String> {
        let mut text = String::new();
        fs::File::open(self.path(name))?.take(FILE_MAX).read_to_string(&mut text)?;
        text.truncate(text.trim_end().len());
        Ok(text)
    }

    /// Writes a value to an existing file. The value is written with a single system call, as the
    /// kernel requires.
    ///
    /// # Errors
    ///
    /// Fails with the kernel's error, for example if the file does not exist. The file is never
    /// created.
    pub fn write(&self, name: &str, value: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).truncate(true).open(self.path(name))?;
        file.write_all(value.as_bytes())
    }

    /// Returns the names of the entries in a directory. The names are sorted by the numbers in
    /// them, so rx-2 comes before rx-10. The list is empty if the directory cannot be read.
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
}
