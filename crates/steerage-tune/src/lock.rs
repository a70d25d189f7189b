//! One `tune` at a time may change the values of an interface. The lock is held for the whole run,
//! because the undo file only has the old values if nobody else sets values meanwhile.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};
use steerage_guard::path::Directory;
use steerage_text::shell_word;

use crate::error::TuneError;
use crate::machine::Machine;
use crate::undo::{create_directory, file_stem};
use crate::unit::unit;

/// The maximum number of times that the lock file is opened again, because the earlier holder
/// removed the file after it had been opened.
const ATTEMPTS: usize = 16;
/// A process number and the end of its line are shorter.
const PID_MAX: u64 = 32;
/// Only the owner may open the file, because each user who opens it can lock it.
const MODE: u32 = 0o600;
/// The names of interfaces' locks contain `@`, and this name does not.
const MACHINE: &str = "machine.lock";

/// The right to change the values of one interface, or of the machine. The kernel releases the lock
/// if the process is killed. Programs that the process starts do not inherit the lock.
#[derive(Debug)]
pub struct Lock {
    directory: Directory,
    name: String,
    // Declared last: the lock is released after `drop` has removed the file.
    _file: File,
}

impl Lock {
    /// Locks the values of an interface of this network namespace. Take the lock before you read
    /// the undo file.
    ///
    /// # Errors
    /// Fails if another process has the lock, or if the lock file cannot be created.
    pub fn of_interface(directory: &Path, machine: &Machine, interface: &str) -> Result<Self, TuneError> {
        Self::take(directory, format!("{}.lock", file_stem(machine, interface)), || {
            let unit = shell_word(&unit(interface));
            format!("measures or watches {interface}: end it first (a service: sudo systemctl stop {unit})")
        })
    }

    /// Locks the values of the machine that several interfaces share, while they are measured.
    ///
    /// # Errors
    /// Fails like [`of_interface`](Self::of_interface).
    pub fn of_machine(directory: &Path) -> Result<Self, TuneError> {
        Self::take(directory, MACHINE.to_owned(), || {
            "measures settings of the whole machine: try again when it has ended".to_owned()
        })
    }

    fn take(path: &Path, name: String, why: impl FnOnce() -> String) -> Result<Self, TuneError> {
        let directory = create_directory(path)?;
        let failed = |error: io::Error| TuneError::WriteFile { path: path.join(&name), error };
        let mut held = String::new();
        for _ in 0..ATTEMPTS {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(MODE);
            options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
            let mut file = options.open(directory.through().join(&name)).map_err(failed)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    held.clear();
                    // The process number is only for the message.
                    let _ = file.take(PID_MAX).read_to_string(&mut held);
                    break;
                }
                Err(error) => return Err(failed(error.into())),
            }
            let own = file.metadata().map_err(failed)?.ino();
            let is_present = directory.stat(name.as_ref()).is_ok_and(|present| present.st_ino == own);
            if is_present {
                let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
                return Ok(Self { directory, name, _file: file });
            }
        }
        let holder = if held.trim().is_empty() { "of unknown number" } else { held.trim() };
        Err(TuneError::Busy { holder: format!("process {holder}"), why: why() })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A file that stays is locked again by the next process.
        let _ = self.directory.remove_file(self.name.as_ref());
    }
}
