//! The directory of the option `--results`. The directory has a subdirectory for each job, which
//! contains the job's output.
//!
//! Jobs run with the rights of the user, who is often root. Therefore no other user may choose the
//! directory to which the output of the jobs is written. Each directory is opened once. The files
//! in a directory are created relative to the descriptor of that directory. All output files are
//! new. If a file with the name of an output file exists, it is removed first. Therefore the output
//! is never written to an old file.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use steerage_guard::path::{Directory, PathError};

use super::error::Error;

/// The permission bits of a directory with output. Like a capture, the output of a job may contain
/// packets. Therefore only the owner and the group may read the directory.
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
    /// Creates the directory for the jobs' output if it does not exist. Parent directories are not
    /// created, so that a mistyped path is reported as an error.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let failed = |error| Error::Results { path: path.to_owned(), error };
        Directory::open_or_create(path, DIRECTORY_MODE).map(Self).map_err(failed)
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

/// Creates a new file. If a directory entry with the name of the new file exists, the entry is
/// removed first. Between this removal and the creation, no other user can create an entry with the
/// name, because only this user can write to the directory.
fn new_file(directory: &Directory, name: &OsStr) -> Result<File, PathError> {
    match directory.remove_file(name) {
        Err(PathError::System(error)) if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => {}
        other => other?,
    }
    directory.create_new_file(name, FILE_MODE)
}
