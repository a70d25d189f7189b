//! Reads and writes files of /sys and /proc below a root directory, which tests replace.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// The longest file of /sys that is read. A mask of 8,192 CPUs has 2,304 characters, and the
/// interrupts of such a machine need most of the rest.
const FILE_MAX: u64 = 16 << 20;

/// The directory below which /sys and /proc lie: `/`, or a directory of a test.
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

    /// The real path of a file that is named as on the machine, such as `/proc/stat`.
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
    /// Those of the kernel: some files of /sys report for some devices that they have no value.
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
    /// Those of the kernel. The file is never created.
    pub fn write(&self, name: &str, value: &str) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).truncate(true).open(self.path(name))?;
        file.write_all(value.as_bytes())
    }

    /// The names in a directory, with numbers in their order: rx-2 comes before rx-10. Empty if the
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
