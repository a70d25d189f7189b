//! Reads and writes files of /sys and /proc below a root directory. Tests use a directory with
//! made-up files.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The maximum number of bytes that are read from a file of /sys or /proc. Most of this size is for
/// /proc/interrupts on a machine with 8,192 CPUs. A mask of 8,192 CPUs has only 2,304 characters.
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
    /// A machine whose /sys and /proc are in this directory.
    pub fn below(directory: impl Into<PathBuf>) -> Self {
        Self(directory.into())
    }

    /// The directory itself.
    pub fn directory(&self) -> &Path {
        &self.0
    }

    /// The real path of the file whose path on the machine is `name`, such as `/proc/stat`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name.trim_start_matches('/'))
    }

    /// Whether the file or directory exists.
    pub fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// The text of a file, without the line end.
    ///
    /// # Errors
    ///
    /// The kernel's error. For some devices, some files of /sys report an error because they have
    /// no value.
    pub fn read(&self, name: &str) -> io::Result<String> {
        let mut text = String::new();
        fs::File::open(self.path(name))?.take(FILE_MAX).read_to_string(&mut text)?;
        text.truncate(text.trim_end().len());
        Ok(text)
    }

    /// Writes a value to a file that exists, with one system call, as the kernel requires.
    ///
    /// # Errors
    ///
    /// The kernel's error. The file must exist, because it is never created.
    pub fn write(&self, name: &str, value: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).truncate(true).open(self.path(name))?;
        file.write_all(value.as_bytes())
    }

    /// The names in a directory, sorted so that rx-2 comes before rx-10. The list is empty if the
    /// directory cannot be read.
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
