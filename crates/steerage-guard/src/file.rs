//! Creates the files of steerage. The program often runs as root, and often writes to directories
//! that other users may write to, such as `/tmp`. Another user can put a link there under the name
//! of the new file.
//!
//! So every file is a new one. It is created under a random name (`O_EXCL`, `O_NOFOLLOW`) in a
//! directory that is opened once, and then renamed. A rename replaces a link instead of following
//! it. An older file with that name is never written to.
//!
//! The result depends on the existing entry with that name:
//!
//! - No entry, or a file: a new file takes the name.
//! - A link that is safe to follow: a new file takes the name of the link's target. The user or
//!   root must have made the link, in a directory of theirs that not everybody may write to.
//! - Any other link: a new file replaces the link. The target of the link is not touched.
//! - A FIFO or a character device: [`open`] writes to it. In a sticky directory that everybody may
//!   write to, a FIFO must belong to the user or to the directory's owner, like with
//!   `fs.protected_fifos`.
//!
//! Architecture invariant: this module creates every file of steerage.
mod unnamed;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::process::geteuid;

pub use unnamed::unnamed;

/// The users who may read a new file, before the umask is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// The owner and the group: for captured packets, flows, and other records of traffic.
    Group,
    /// Everybody: for manual pages and similar files.
    All,
}

impl Readers {
    fn mode(self) -> Mode {
        Mode::from_raw_mode(match self {
            Self::Group => 0o640,
            Self::All => 0o644,
        })
    }
}

/// The end of a file's temporary name, until the file is complete.
const PART: &str = ".part";

/// How many bytes of a name are kept in front of the random part. File systems allow 255 bytes.
const NAME_BYTES: usize = 200;

/// How many random names are tried. A name is taken only if 64 random bits coincide, or if another
/// user guessed it.
const TRIES: usize = 8;

/// A new file that does not have its final name yet. It is removed unless it is
/// [finished](Self::finish) or [kept](Self::kept).
#[derive(Debug)]
pub struct NewFile {
    directory: OwnedFd,
    part: OsString,
    name: OsString,
    file: File,
    stays: bool,
}

impl NewFile {
    /// Creates a file that will get this name.
    ///
    /// # Errors
    /// If the directory does not exist or is not writable, or if the name belongs to an entry that
    /// is neither a file nor a link.
    pub fn create(path: &Path, readers: Readers) -> io::Result<Self> {
        match Place::find(path)? {
            Place::New { directory, name } => Self::create_in(directory, name, readers),
            Place::Special(_) => Err(io::Error::other("that is neither a file nor a name for one")),
        }
    }

    fn create_in(directory: OwnedFd, name: OsString, readers: Readers) -> io::Result<Self> {
        let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for _ in 0..TRIES {
            let part = random_name(&name);
            match rustix::fs::openat(&directory, part.as_os_str(), how, readers.mode()) {
                Ok(file) => return Ok(Self { directory, part, name, file: file.into(), stays: false }),
                Err(rustix::io::Errno::EXIST) => {}
                Err(error) => {
                    last = error.into();
                    break;
                }
            }
        }
        Err(last)
    }

    /// The file, open for writing.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// From now on the file stays, even if it is never finished, because its contents may be of
    /// value.
    #[must_use]
    pub fn kept(mut self) -> Self {
        self.stays = true;
        self
    }

    /// The temporary name of the file, until it is finished.
    pub fn part(&self) -> &OsStr {
        &self.part
    }

    /// Gives the file its name. An older entry with that name is replaced, and a link is not
    /// followed.
    ///
    /// # Errors
    /// If the old entry cannot be replaced. The file then stays under its temporary name
    /// ([`part`](Self::part)), because its contents may be worth keeping.
    pub fn finish(mut self) -> io::Result<File> {
        self.stays = true;
        rustix::fs::renameat(&self.directory, self.part.as_os_str(), &self.directory, self.name.as_os_str())?;
        self.file.try_clone()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.stays {
            // There is nowhere to report this error, and a leftover file does no harm.
            let _ = rustix::fs::unlinkat(&self.directory, self.part.as_os_str(), AtFlags::empty());
        }
    }
}

/// A file that is open for writing.
#[derive(Debug)]
pub enum Opened {
    /// A new file, which has its final name already.
    File(File),
    /// A FIFO or a character device, opened without blocking.
    Special(File),
}

/// Opens a file that is read while it is written, such as a capture. A new file has its name at
/// once. If the path is a FIFO or a character device, the data goes there.
///
/// # Errors
/// As for [`NewFile::create`]. Also `ENXIO` ([`has_no_reader`]) for a FIFO without a reader.
pub fn open(path: &Path, readers: Readers) -> io::Result<Opened> {
    match Place::find(path)? {
        Place::New { directory, name } => {
            NewFile::create_in(directory, name, readers).and_then(finish_or_remove).map(Opened::File)
        }
        Place::Special(file) => Ok(Opened::Special(file)),
    }
}

/// Gives an empty new file its name, or removes the file if that fails.
fn finish_or_remove(new: NewFile) -> io::Result<File> {
    let (directory, part) = (new.directory.try_clone()?, new.part.clone());
    new.finish().inspect_err(|_| {
        // There is nowhere to report this error, and a leftover file does no harm.
        let _ = rustix::fs::unlinkat(&directory, part.as_os_str(), AtFlags::empty());
    })
}

/// Whether [`open`] failed because the path is a FIFO without a reader.
pub fn has_no_reader(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error())
}

/// Writes a complete file. It gets its name when it is complete, and until then an older file with
/// that name stays. If the path is a FIFO or a character device, the data goes there.
///
/// # Errors
/// As for [`open`]. Also, if the file cannot be written.
pub fn write(path: &Path, bytes: &[u8], readers: Readers) -> io::Result<()> {
    match Place::find(path)? {
        Place::New { directory, name } => {
            let new = NewFile::create_in(directory, name, readers)?;
            new.file().write_all(bytes)?;
            finish_or_remove(new).map(drop)
        }
        Place::Special(mut file) => {
            let blocking = rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK;
            rustix::fs::fcntl_setfl(&file, blocking)?;
            file.write_all(bytes)
        }
    }
}

/// Checks that files can be created in a directory.
///
/// # Errors
/// If no file can be created.
pub fn probe(directory: &Path) -> io::Result<()> {
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, directory, how, Mode::empty())?;
    NewFile::create_in(directory, OsString::from(".steerage"), Readers::Group).map(drop)
}

/// The place where data is written.
enum Place {
    New { directory: OwnedFd, name: OsString },
    Special(File),
}

impl Place {
    fn find(path: &Path) -> io::Result<Self> {
        let (directory, name) = open_parent(path)?;
        let Some(there) = look(&directory, &name)? else { return Ok(Self::New { directory, name }) };
        match FileType::from_raw_mode(there.st_mode) {
            FileType::RegularFile => Ok(Self::New { directory, name }),
            FileType::Symlink if may_follow(&there, &rustix::fs::fstat(&directory)?) => {
                Self::behind(path, directory, name)
            }
            FileType::Symlink => Ok(Self::New { directory, name }),
            FileType::Directory => Err(io::Error::from(io::ErrorKind::IsADirectory)),
            FileType::Fifo if !may_write_fifo(&there, &rustix::fs::fstat(&directory)?) => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "that FIFO is somebody else's, in a directory for all",
            )),
            FileType::Fifo | FileType::CharacterDevice => {
                special(rustix::fs::openat(&directory, name.as_os_str(), SPECIAL | OFlags::NOFOLLOW, Mode::empty())?)
            }
            _ => Err(io::Error::other("that is neither a file nor a FIFO")),
        }
    }

    /// The place behind a link that may be followed.
    fn behind(path: &Path, directory: OwnedFd, name: OsString) -> io::Result<Self> {
        // `/dev/stdout` leads to a file without a name, so open it first.
        match rustix::fs::openat(&directory, name.as_os_str(), SPECIAL, Mode::empty()) {
            Ok(file) if !is_file(&file)? => return special(file),
            Err(rustix::io::Errno::NXIO) => return Err(rustix::io::Errno::NXIO.into()),
            _ => {}
        }
        // A link to nothing is replaced.
        let Ok(target) = fs::canonicalize(path) else { return Ok(Self::New { directory, name }) };
        let (directory, name) = open_parent(&target)?;
        Ok(Self::New { directory, name })
    }
}

/// A FIFO without a reader returns an error instead of waiting, and a terminal does not become the
/// controlling terminal.
const SPECIAL: OFlags = OFlags::from_bits_retain(
    OFlags::WRONLY.bits() | OFlags::NONBLOCK.bits() | OFlags::NOCTTY.bits() | OFlags::CLOEXEC.bits(),
);

fn special(file: OwnedFd) -> io::Result<Place> {
    // The entry may have been replaced since the check.
    if is_file(&file)? {
        return Err(io::Error::other("it changed while it was opened"));
    }
    Ok(Place::Special(file.into()))
}

fn is_file(file: &OwnedFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode) == FileType::RegularFile)
}

fn open_parent(path: &Path) -> io::Result<(OwnedFd, OsString)> {
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::IsADirectory))?;
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, parent_of(path), how, Mode::empty())?;
    Ok((directory, name.to_owned()))
}

/// The directory that contains the file.
pub fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn look(directory: &OwnedFd, name: &OsStr) -> io::Result<Option<Stat>> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) => Ok(Some(there)),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether only the user or root can have made the link or put it there.
fn may_follow(link: &Stat, directory: &Stat) -> bool {
    let ours = |uid: u32| uid == 0 || uid == geteuid().as_raw();
    let for_all = Mode::from_raw_mode(directory.st_mode).contains(Mode::WOTH);
    ours(link.st_uid) && ours(directory.st_uid) && !for_all
}

fn may_write_fifo(fifo: &Stat, directory: &Stat) -> bool {
    let mode = Mode::from_raw_mode(directory.st_mode);
    let for_all = mode.contains(Mode::SVTX | Mode::WOTH);
    !for_all || fifo.st_uid == geteuid().as_raw() || fifo.st_uid == directory.st_uid
}

fn random_name(name: &OsStr) -> OsString {
    // The keys of the standard library's hash are random numbers from the system, different in each
    // call.
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    let name = name.to_string_lossy();
    let end = (0..=name.len().min(NAME_BYTES)).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
    PathBuf::from(format!("{}.{random:016x}{PART}", &name[..end])).into()
}

#[cfg(test)]
mod tests;
