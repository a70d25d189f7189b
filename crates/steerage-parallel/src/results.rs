//! The directory of the option `--results`, with a subdirectory for the output of each job.
//!
//! Jobs run with the rights of the user, who is often root, so no other user may choose the
//! directory of the output. Each directory of the output is opened once, and its files are created
//! relative to its descriptor. An older file with the name of an output file is removed, and never
//! written to.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use steerage_guard::path::{Directory, PathError};

use super::error::Error;

/// A job's output may contain packets, so only the owner and the group may read the directory.
const DIRECTORY_MODE: u32 = 0o750;
const FILE_MODE: u32 = 0o640;

#[derive(Debug)]
pub(super) struct Results(Directory);

#[derive(Debug)]
pub(super) struct JobResults {
    pub(super) directory: Directory,
    pub(super) stdout: File,
    pub(super) stderr: File,
}

impl Results {
    /// Opens the directory for the results of `jobs` jobs. Parent directories are not created, so
    /// that a mistyped path is reported as an error.
    ///
    /// Results of an earlier run with more jobs are an error, because `DIR/*/stdout` would be the
    /// output of both runs.
    pub(super) fn open(path: &Path, jobs: usize) -> Result<Self, Error> {
        let failed = |error| Error::Results { path: path.to_owned(), error };
        let directory = Directory::open_or_create(path, DIRECTORY_MODE).map_err(failed)?;
        let entries = directory.entries().map_err(failed)?;
        let older = entries.iter().filter_map(|(name, _)| of_job(name)).filter(|number| *number > jobs).min();
        match older {
            Some(job) => Err(Error::OlderResults { path: path.join(job.to_string()), jobs }),
            None => Ok(Self(directory)),
        }
    }

    pub(super) fn job(&self, number: usize) -> Result<JobResults, Error> {
        let name = number.to_string();
        let failed = |path: &Path, error| Error::Results { path: path.to_owned(), error };
        let directory = match self.0.create_dir(name.as_ref(), DIRECTORY_MODE) {
            Err(PathError::System(error)) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.0.open_own(name.as_ref())
            }
            created => created,
        }
        .map_err(|error| failed(&self.0.path().join(&name), error))?;
        let file = |name: &str| {
            new_file(&directory, name.as_ref()).map_err(|error| failed(&directory.path().join(name), error))
        };
        let (stdout, stderr) = (file("stdout")?, file("stderr")?);
        Ok(JobResults { directory, stdout, stderr })
    }
}

/// Returns the number of the job whose directory would have this name.
fn of_job(name: &OsStr) -> Option<usize> {
    let number: usize = name.to_str()?.parse().ok()?;
    (number.to_string().as_str() == name).then_some(number)
}

/// Creates a file, and removes an older entry with the name `name` before. No other user can create
/// an entry in between, because only this user can write to the directory.
fn new_file(directory: &Directory, name: &OsStr) -> Result<File, PathError> {
    match directory.remove_file(name) {
        Err(PathError::System(error)) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {}
        other => other?,
    }
    directory.create_new_file(name, FILE_MODE)
}
