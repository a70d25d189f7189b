//! Creates the files that steerage writes. The program often runs as root, and often writes to
//! directories that other users can change, such as `/tmp`, where another user can plant a link
//! with the name of the new file.
//!
//! Each file is therefore created with a random name (`O_EXCL`, `O_NOFOLLOW`), in a directory that
//! is opened by the rules of [`path`](crate::path), and later renamed to its final name, which
//! replaces a planted link. The program never writes to an older file with the final name.
//!
//! The outcome depends on what already has the new file's name:
//!
//! - No entry, or a file: the new file gets the name.
//! - A symbolic link that may be followed: the new file gets the name of the link's target.
//! - A symbolic link that must not be followed: the new file replaces the link.
//! - A FIFO of root or of the user: [`open`] opens the FIFO for writing.
//! - A character device in a directory that only root and the user can change: [`open`] opens the
//!   device for writing.
//! - An open file descriptor, such as `/dev/stdout`: [`open`] writes to the file of this
//!   descriptor.
//!
//! Architecture invariant: only this module creates files.
mod pattern;
mod series;
mod unnamed;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, OFlags};

use crate::path::{Directory, PathError, open_descriptor};

pub use pattern::{FilePattern, ParsePatternError};
pub use series::{FileSeries, start_of_period};
pub use unnamed::unnamed;

/// The users who may read a new file. The umask of the process can remove further permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// Only the file's owner and group, for packets, flows and other records of traffic. In a
    /// directory that belongs to another user, only the file's owner may read the file.
    Group,
    /// All users, for a manual page or other public text.
    All,
}

impl Readers {
    fn mode(self, directory: &Directory) -> Result<u32, PathError> {
        Ok(match self {
            Self::Group if directory.is_of_others()? => 0o600,
            Self::Group => 0o640,
            Self::All => 0o644,
        })
    }
}

const DIRECTORY_MODE: u32 = 0o755;

const PART: &str = ".part";

/// The number of bytes of the final name that a temporary name contains. File systems allow 255
/// bytes for a name.
const NAME_BYTES: usize = 200;

const TRIES: usize = 8;

/// A new file that does not have its final name yet. The file is removed when the `NewFile` value
/// is dropped, unless [`finish`](Self::finish) or [`kept`](Self::kept) was called.
#[derive(Debug)]
pub struct NewFile {
    directory: Directory,
    part: OsString,
    name: OsString,
    file: File,
    stays: bool,
}

impl NewFile {
    /// Creates a file with a temporary name, which [`finish`](Self::finish) changes to `path`.
    ///
    /// # Errors
    /// Returns an error if the directory of the file does not exist or is not writable, or if
    /// `path` exists and is neither a file nor a link.
    pub fn create(path: &Path, readers: Readers) -> io::Result<Self> {
        Self::create_at(Directory::holding(path)?, readers)
    }

    /// Like [`create`](Self::create), but creates each missing directory of the path.
    ///
    /// # Errors
    /// Returns the errors of [`create`](Self::create), and an error if a directory cannot be
    /// created.
    pub fn create_with_directories(path: &Path, readers: Readers) -> io::Result<Self> {
        Self::create_at(Directory::holding_created(path, DIRECTORY_MODE)?, readers)
    }

    fn create_at((directory, name): (Directory, OsString), readers: Readers) -> io::Result<Self> {
        if !may_be_replaced(&directory, &name)? {
            return Err(io::Error::other("that is neither a file nor a name for one"));
        }
        Self::create_in(directory, name, readers)
    }

    fn create_in(directory: Directory, name: OsString, readers: Readers) -> io::Result<Self> {
        let mode = readers.mode(&directory)?;
        for _ in 0..TRIES {
            let part = random_name(&name);
            match directory.create_new_file(&part, mode).map_err(io::Error::from) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => return Ok(Self { directory, part, name, file: created?, stays: false }),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Returns the file, open for writing.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Keeps the file even if [`finish`](Self::finish) is never called.
    #[must_use]
    pub fn kept(mut self) -> Self {
        self.stays = true;
        self
    }

    /// Returns the temporary name, which the file has until [`finish`](Self::finish) is called.
    pub fn part(&self) -> &OsStr {
        &self.part
    }

    /// Renames the file to its final name, and replaces an older entry with this name. If the older
    /// entry is a link, the link itself is replaced.
    ///
    /// # Errors
    /// Returns an error if the older entry cannot be replaced. After this error, the file keeps its
    /// temporary name ([`part`](Self::part)), because its contents may be valuable.
    pub fn finish(mut self) -> io::Result<File> {
        self.stays = true;
        self.directory.rename(&self.part, &self.name)?;
        self.file.try_clone()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.stays {
            // An error is ignored, because a temporary file that is not removed does no harm.
            let _ = self.directory.remove_file(&self.part);
        }
    }
}

/// A file that is open for writing.
#[derive(Debug)]
pub enum Opened {
    /// A new file, which already has its final name.
    File(File),
    /// A FIFO or character device in nonblocking mode, or a file that was already open.
    Special(File),
}

/// Opens a file that other programs read while it is written, such as a capture file. A new file
/// has its final name from the beginning. Opens an existing FIFO or character device instead of
/// replacing it.
///
/// # Errors
/// Returns the errors of [`NewFile::create`], and `ENXIO` for a FIFO that no process reads
/// ([`has_no_reader`]).
pub fn open(path: &Path, readers: Readers) -> io::Result<Opened> {
    match Target::find(path)? {
        Target::New { directory, name } => {
            NewFile::create_in(directory, name, readers).and_then(finish_or_remove).map(Opened::File)
        }
        Target::Open(file) => Ok(Opened::Special(file)),
    }
}

fn finish_or_remove(new: NewFile) -> io::Result<File> {
    let (directory, part) = (new.directory.try_clone()?, new.part.clone());
    new.finish().inspect_err(|_| {
        let _ = directory.remove_file(&part);
    })
}

/// Returns true if [`open`] failed because the path names a FIFO that no process reads.
pub fn has_no_reader(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error())
}

/// Writes a complete file. Until the new file is complete, an older file with the name still
/// exists. If `path` names a FIFO or a character device, `bytes` is written to this FIFO or device.
///
/// # Errors
/// Returns the errors of [`open`], and an error if the file cannot be written.
pub fn write(path: &Path, bytes: &[u8], readers: Readers) -> io::Result<()> {
    match Target::find(path)? {
        Target::New { directory, name } => {
            let new = NewFile::create_in(directory, name, readers)?;
            new.file().write_all(bytes)?;
            finish_or_remove(new).map(drop)
        }
        Target::Open(mut file) => {
            let blocking = rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK;
            rustix::fs::fcntl_setfl(&file, blocking)?;
            file.write_all(bytes)
        }
    }
}

/// Like [`write()`], but creates each missing directory of the path, and returns only after the
/// file's contents and name have been written to the disk.
///
/// # Errors
/// Returns the errors of [`NewFile::create_with_directories`] and of writing.
pub fn write_durably(path: &Path, bytes: &[u8], readers: Readers) -> io::Result<()> {
    let new = NewFile::create_with_directories(path, readers)?;
    new.file().write_all(bytes)?;
    new.file().sync_all()?;
    let directory = new.directory.try_clone()?;
    finish_or_remove(new)?;
    directory.sync()
}

/// Creates a FIFO with the path `path`, unless the FIFO already exists.
///
/// # Errors
/// Returns the errors of [`Directory::holding`], and an error if the path exists but is not a FIFO.
pub fn create_fifo(path: &Path, readers: Readers) -> io::Result<()> {
    let (directory, name) = Directory::holding(path)?;
    match directory.create_fifo(&name, readers.mode(&directory)?).map_err(io::Error::from) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let there = directory.stat(&name)?;
            if FileType::from_raw_mode(there.st_mode) == FileType::Fifo { Ok(()) } else { Err(error) }
        }
        created => created,
    }
}

/// Checks that the program can create files with the name `name` (see [`directory_of`]).
///
/// # Errors
/// Returns an error if the program cannot create a file.
pub fn probe(name: &Path) -> io::Result<()> {
    NewFile::create_in(directory_of(name)?, OsString::from(".steerage"), Readers::Group).map(drop)
}

enum Target {
    New {
        directory: Directory,
        name: OsString,
    },
    /// A FIFO or character device in nonblocking mode, or a file that was already open.
    Open(File),
}

impl Target {
    fn find(path: &Path) -> Result<Self, PathError> {
        let (directory, name) = match Directory::holding(path) {
            Err(PathError::Descriptor(number)) => return open_descriptor(number).map(Self::Open),
            found => found?,
        };
        if may_be_replaced(&directory, &name)? {
            return Ok(Self::New { directory, name });
        }
        directory.open_special(&name).map(Self::Open)
    }
}

/// Returns true if a new file may get the name `name`: no entry has the name, or the entry is a
/// file or a link.
fn may_be_replaced(directory: &Directory, name: &OsStr) -> Result<bool, PathError> {
    let there = match directory.stat(name) {
        Err(PathError::System(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        there => there?,
    };
    match FileType::from_raw_mode(there.st_mode) {
        FileType::RegularFile | FileType::Symlink => Ok(true),
        FileType::Directory => Err(PathError::System(io::ErrorKind::IsADirectory.into())),
        _ => Ok(false),
    }
}

/// Returns the directory that contains the file.
pub fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns the directory in which files with the name `name` are created, or the parent of the
/// first directory whose name contains a placeholder for the time (`%H`).
///
/// # Errors
/// Returns the errors of [`Directory::holding`].
pub fn directory_of(name: &Path) -> Result<Directory, PathError> {
    let has_time = |path: &Path| path.as_os_str().as_bytes().contains(&b'%');
    let parent = parent_of(name);
    if !has_time(parent) {
        return Directory::holding(name).map(|(directory, _)| directory);
    }
    let fixed = parent.ancestors().find(|path| !has_time(path)).filter(|path| !path.as_os_str().is_empty());
    Directory::open_for_new_files(fixed.unwrap_or(Path::new(".")))
}

fn random_name(name: &OsStr) -> OsString {
    // Each hasher of the standard library has new random keys, so even the hash of no data is
    // random.
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    let name = name.to_string_lossy();
    let end = (0..=name.len().min(NAME_BYTES)).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
    PathBuf::from(format!("{}.{random:016x}{PART}", &name[..end])).into()
}

#[cfg(test)]
mod tests;
