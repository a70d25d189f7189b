//! Files that steerage creates. The program often runs as root and often writes to directories that other users may write to,
//! such as `/tmp`. Another user can leave a link there under the name that is about to be written.
//!
//! So a file is always a new one. It is made under a random name (`O_EXCL`, `O_NOFOLLOW`), in a directory that is opened once,
//! and then renamed. A rename replaces a link instead of following it. An older file of that name is not written to.
//!
//! | what is there | what happens |
//! |---|---|
//! | nothing, or a file | a new file takes the name |
//! | a link that the user or root made, in a directory of theirs that not everybody may write to | a new file takes the name that the link leads to |
//! | any other link | a new file takes its place; what it leads to is not touched |
//! | a FIFO or a character device | [`open`] writes to it; in a sticky directory that everybody may write to, a FIFO must belong to the user or to the directory's owner, as `fs.protected_fifos` has it |
//!
//! Architecture invariant: every file that steerage creates is created here.
#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::process::geteuid;

/// The readers of a new file, before the umask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// Its owner and group: for captured packets, flows, and other records of traffic.
    Group,
    /// Everybody: manual pages and the like.
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

/// The end of a file's name until the file is complete.
const PART: &str = ".part";

/// How much of a name is kept in front of what makes it random: file systems take 255 bytes.
const NAME_BYTES: usize = 200;

/// How many random names are tried. If the name is taken already, it is a coincidence of 64 bits, or another user guessed it.
const TRIES: usize = 8;

/// A new file that does not have its name yet. It is removed unless it is [finished](Self::finish) or
/// [kept](Self::kept).
#[derive(Debug)]
pub struct NewFile {
    directory: OwnedFd,
    part: OsString,
    name: OsString,
    file: File,
    stays: bool,
}

impl NewFile {
    /// Makes a file that is to have this name.
    ///
    /// # Errors
    /// If the directory is not there or may not be written to, or if the name belongs to neither a file nor a link.
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

    /// The file, to be written.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// From now on the file stays as it is even if it is never finished: what is in it may be worth something.
    #[must_use]
    pub fn kept(mut self) -> Self {
        self.stays = true;
        self
    }

    /// The name that the file has until it is finished.
    pub fn part(&self) -> &OsStr {
        &self.part
    }

    /// Gives the file its name. An older entry of that name is replaced: a link is not followed.
    ///
    /// # Errors
    /// If the old entry cannot be replaced. The file then stays under the name that it has ([`part`](Self::part)), since what
    /// was written may be worth keeping.
    pub fn finish(mut self) -> io::Result<File> {
        self.stays = true;
        rustix::fs::renameat(&self.directory, self.part.as_os_str(), &self.directory, self.name.as_os_str())?;
        self.file.try_clone()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.stays {
            // There is no one to report this to, and one file too many does no harm.
            let _ = rustix::fs::unlinkat(&self.directory, self.part.as_os_str(), AtFlags::empty());
        }
    }
}

/// A file that is open to be written.
#[derive(Debug)]
pub enum Opened {
    /// A new file, which has its name already.
    File(File),
    /// A FIFO or a character device, without blocking.
    Special(File),
}

/// Opens what is written while it is read, such as a capture: a new file has its name at once, and a FIFO or a character device
/// is written to.
///
/// # Errors
/// As [`NewFile::create`]; `ENXIO` ([`has_no_reader`]) for a FIFO without a reader.
pub fn open(path: &Path, readers: Readers) -> io::Result<Opened> {
    match Place::find(path)? {
        Place::New { directory, name } => {
            NewFile::create_in(directory, name, readers).and_then(finish_or_remove).map(Opened::File)
        }
        Place::Special(file) => Ok(Opened::Special(file)),
    }
}

/// Nothing is in it yet: where it cannot have its name, it is not kept.
fn finish_or_remove(new: NewFile) -> io::Result<File> {
    let (directory, part) = (new.directory.try_clone()?, new.part.clone());
    new.finish().inspect_err(|_| {
        // There is no one to report this to, and one file too many does no harm.
        let _ = rustix::fs::unlinkat(&directory, part.as_os_str(), AtFlags::empty());
    })
}

/// Whether [`open`] failed because it is a FIFO without a reader.
pub fn has_no_reader(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error())
}

/// Writes a whole file: it has its name once it is complete, and until then an older file of that name stays. A FIFO or a
/// character device is written to.
///
/// # Errors
/// As [`open`], and if it cannot be written.
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

/// Whether files can be made in a directory.
///
/// # Errors
/// If not.
pub fn probe(directory: &Path) -> io::Result<()> {
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, directory, how, Mode::empty())?;
    NewFile::create_in(directory, OsString::from(".steerage"), Readers::Group).map(drop)
}

/// Where something is written.
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

    /// Behind a link that may be followed.
    fn behind(path: &Path, directory: OwnedFd, name: OsString) -> io::Result<Self> {
        // `/dev/stdout` leads to a file without a name, so it is opened first.
        match rustix::fs::openat(&directory, name.as_os_str(), SPECIAL, Mode::empty()) {
            Ok(file) if !is_file(&file)? => return special(file),
            Err(rustix::io::Errno::NXIO) => return Err(rustix::io::Errno::NXIO.into()),
            _ => {}
        }
        // A link that leads nowhere is replaced.
        let Ok(target) = fs::canonicalize(path) else { return Ok(Self::New { directory, name }) };
        let (directory, name) = open_parent(&target)?;
        Ok(Self::New { directory, name })
    }
}

/// A FIFO without a reader says so instead of waiting for one, and a terminal does not become ours.
const SPECIAL: OFlags = OFlags::from_bits_retain(
    OFlags::WRONLY.bits() | OFlags::NONBLOCK.bits() | OFlags::NOCTTY.bits() | OFlags::CLOEXEC.bits(),
);

fn special(file: OwnedFd) -> io::Result<Place> {
    // It may have been replaced since the check.
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

/// The directory that a file of this name is in.
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

/// Whether nobody but the user and root can have made the link, or put it there.
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
    // The standard library's hash keys are the system's random numbers, others for each.
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    let name = name.to_string_lossy();
    let end = (0..=name.len().min(NAME_BYTES)).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
    PathBuf::from(format!("{}.{random:016x}{PART}", &name[..end])).into()
}

#[cfg(test)]
mod tests;

/// The examples of the crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
