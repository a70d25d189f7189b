//! A directory of temporary files, which is removed when this value is dropped.

use std::cell::OnceCell;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::{CWD, FileType, Mode, mknodat};

/// How many names are tried for the directory.
const TRIES: u32 = 1000;

/// A directory in `$TMPDIR` that only this user can read. It is created at its first use.
#[derive(Debug, Default)]
pub(super) struct Scratch(Mutex<OnceCell<PathBuf>>);

impl Scratch {
    /// Returns the directory. Creates it if necessary.
    pub(super) fn directory(&self) -> io::Result<PathBuf> {
        let made = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if made.get().is_none() {
            // The value was not set yet.
            let _ = made.set(make()?);
        }
        Ok(made.get().cloned().unwrap_or_default())
    }

    /// The path of a file in the directory.
    pub(super) fn path(&self, name: &str) -> io::Result<PathBuf> {
        Ok(self.directory()?.join(name))
    }

    /// Creates a named pipe in the directory.
    pub(super) fn fifo(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path(name)?;
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        Ok(path)
    }

    /// Creates a file without a name.
    pub(super) fn unnamed(&self) -> io::Result<File> {
        let path = self.path("kept")?;
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        fs::remove_file(path)?;
        Ok(file)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(directory) = self.0.get_mut().ok().and_then(|made| made.get()) {
            // An error cannot be reported here, and leftover files do no harm.
            let _ = fs::remove_dir_all(directory);
        }
    }
}

fn make() -> io::Result<PathBuf> {
    let place = std::env::temp_dir();
    for nth in 0..TRIES {
        let path = place.join(format!("steerage-parallel-{}-{nth}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(said_where(&place, error)),
            Ok(()) => return Ok(path),
        }
    }
    Err(said_where(&place, io::ErrorKind::AlreadyExists.into()))
}

fn said_where(place: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}; set TMPDIR to another directory", place.display()))
}
