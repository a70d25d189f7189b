//! Walks a path to the directory in which the program writes.
//!
//! The program often runs as root, and users name paths that other users can change. If the kernel
//! resolved such a path, another user could plant a link and thereby choose where root writes.
//! Therefore a path is walked one name at a time, and each name is opened in the directory that was
//! opened before (`O_PATH`, `O_NOFOLLOW`). The result is an open directory, and all later
//! operations use its descriptor and never its path.
//!
//! # The rule
//!
//! A directory is *ours* if only root and the effective user can change what it contains. A group
//! may write to the directory only if the group is private to the user. The directory's file system
//! must not be run by another user (FUSE), because such a file system can report any owner.
//!
//! - Every directory on the path must be ours, or a sticky directory of root or of the user, such
//!   as `/tmp`, where another user cannot replace a directory of ours. A group may be able to write
//!   to a directory, such as `/var/log` of some distributions. From such a directory, only a plain
//!   directory of root or of the user may follow. The group can exchange that directory only for
//!   another directory of root or of the user that exists there already.
//! - A link is followed if root or the user owns it, and the directory that contains it is ours. A
//!   sticky directory is not enough, because another user can move a link of root there. The names
//!   of the link's target are checked in the same way.
//! - The directory in which a new file or directory is created may be anybody's: a new file gets a
//!   random name, and a new directory is checked after it is created. The file system of this
//!   directory may not be run by another user, because that user would see the contents.
//! - The working directory, at which a relative path begins, may be anybody's, because the user
//!   chose it. If the working directory is not ours, only plain directories may follow: no links,
//!   and no `..` that leads out of the working directory.
//!
//! Architecture invariant: only this module walks along a path for writing.

mod groups;
mod mounts;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::{error, fmt};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::geteuid;

use groups::is_private;

/// The maximum number of links that are followed in one path: the kernel's limit.
const LINKS_MAX: usize = 40;

/// Opens a directory or any other entry, without access to its contents.
const LOOK: OFlags = OFlags::from_bits_retain(OFlags::PATH.bits() | OFlags::NOFOLLOW.bits() | OFlags::CLOEXEC.bits());

/// A FIFO without a reader returns an error instead of waiting, and a terminal does not become the
/// controlling terminal.
const SPECIAL: OFlags = OFlags::from_bits_retain(
    OFlags::WRONLY.bits() | OFlags::NONBLOCK.bits() | OFlags::NOCTTY.bits() | OFlags::CLOEXEC.bits(),
);

/// The reason for which a path cannot be used for writing. The message is one line and does not
/// repeat the path.
#[derive(Debug)]
#[non_exhaustive]
pub enum PathError {
    /// `{by} can change the directory {directory}: name a directory that only root can change, or
    /// change to the directory first`
    Changeable {
        /// The directory.
        directory: PathBuf,
        /// The user, group or public that can change the directory.
        by: Who,
    },
    /// `{by} can change the link {link}: name the directory that it leads to`
    Link {
        /// The link.
        link: PathBuf,
        /// The user, group or public that can change the link.
        by: Who,
    },
    /// `{by} runs the file system of {directory} and can read what is written there: name another directory`
    FileSystem {
        /// The directory.
        directory: PathBuf,
        /// The user who runs the file system.
        by: Who,
    },
    /// `the path names the open descriptor {0} instead of a file`
    Descriptor(RawFd),
    /// `user {owner} owns the FIFO and can read what is written to it: name another FIFO or a file`
    Fifo {
        /// The owner of the FIFO.
        owner: u32,
    },
    /// The kernel refused an operation on the path.
    System(io::Error),
}

impl fmt::Display for PathError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changeable { directory, by } => {
                let only = if geteuid().is_root() { "root" } else { "you and root" };
                let directory = directory.display();
                let advice = "can change, or change to the directory first";
                write!(f, "{by} can change the directory {directory}: name a directory that only {only} {advice}")
            }
            Self::Link { link, by } => {
                write!(f, "{by} can change the link {}: name the directory that it leads to", link.display())
            }
            Self::FileSystem { directory, by } => {
                let advice = "and can read what is written there: name another directory";
                write!(f, "{by} runs the file system of {} {advice}", directory.display())
            }
            Self::Descriptor(number) => {
                write!(f, "the path names the open descriptor {number} instead of a file")
            }
            Self::Fifo { owner } => {
                let advice = "name another FIFO or a file";
                write!(f, "user {owner} owns the FIFO and can read what is written to it: {advice}")
            }
            Self::System(error) => error.fmt(f),
        }
    }
}

impl error::Error for PathError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::System(error) => Some(error),
            _ => None,
        }
    }
}

impl From<Errno> for PathError {
    fn from(error: Errno) -> Self {
        Self::System(error.into())
    }
}

impl From<PathError> for io::Error {
    fn from(error: PathError) -> Self {
        match error {
            PathError::System(error) => error,
            PathError::Descriptor(_) => Self::new(io::ErrorKind::InvalidInput, error),
            PathError::Changeable { .. }
            | PathError::Link { .. }
            | PathError::FileSystem { .. }
            | PathError::Fifo { .. } => Self::new(io::ErrorKind::PermissionDenied, error),
        }
    }
}

/// A party, other than root and the effective user, that can change a directory or a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The user with this number.
    User(u32),
    /// The members of the group with this number.
    Group(u32),
    /// Every user of the machine.
    Everybody,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Group(gid) => write!(f, "group {gid}"),
            Self::Everybody => f.write_str("every user"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Ours,
    /// Other users can add names, but cannot change names of root and of the effective user.
    Sticky(Who),
    /// Other users can change the directory.
    Others(Who),
}

impl Access {
    fn of(directory: BorrowedFd<'_>, stat: &Stat) -> Self {
        if !is_trusted(stat.st_uid) {
            return Self::Others(Who::User(stat.st_uid));
        }
        if let Some(who) = mounts::run_by(directory) {
            return Self::Others(who);
        }
        let mode = Mode::from_raw_mode(stat.st_mode);
        let who = if mode.contains(Mode::WOTH) {
            Who::Everybody
        } else if mode.contains(Mode::WGRP) && !is_private(stat.st_gid, directory) {
            Who::Group(stat.st_gid)
        } else {
            return Self::Ours;
        };
        if mode.contains(Mode::SVTX) { Self::Sticky(who) } else { Self::Others(who) }
    }
}

/// An open directory, whose operations take single names and never follow a link.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    /// The path that led to the directory, for messages.
    path: PathBuf,
    /// Whether another user owns the directory, or a directory on the path to it.
    of_others: bool,
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Directory {
    /// Opens a directory that is ours, or that is sticky and belongs to root or the user. In a
    /// sticky directory such as `/tmp`, other users cannot change what this user creates.
    ///
    /// # Errors
    /// If another user can change the directory or a directory on the path to it, or if the
    /// directory does not exist.
    pub fn open(path: &Path) -> Result<Self, PathError> {
        Walk::begin(path)?.reach_end(Missing::Fails)?.not_of_others()
    }

    /// Opens a directory for a program that resolves the path again. The directory must therefore
    /// be ours, and so must every directory from the root on, even if the path is relative.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub fn open_strict(path: &Path) -> Result<Self, PathError> {
        let absolute = if path.is_absolute() {
            path.to_owned()
        } else {
            std::env::current_dir().map_err(PathError::System)?.join(path)
        };
        let directory = Walk { strict: true, ..Walk::begin(&absolute)? }.reach_end(Missing::Fails)?;
        match directory.access()? {
            Access::Ours => Ok(directory),
            Access::Sticky(by) | Access::Others(by) => {
                Err(PathError::Changeable { directory: directory.path.clone(), by })
            }
        }
    }

    /// Like [`open`](Self::open), but creates the last directory of the path if it does not exist.
    ///
    /// # Errors
    /// As for [`open`](Self::open), or if the directory cannot be created.
    pub fn open_or_create(path: &Path, mode: u32) -> Result<Self, PathError> {
        Walk::begin(path)?.reach_end(Missing::LastIsCreated(mode))?.not_of_others()
    }

    /// Opens a directory in which only new files are created. The directory may belong to any user,
    /// but no other user may be able to change the directories on the path to it.
    ///
    /// # Errors
    /// If another user can change a directory on the path, or if the directory does not exist.
    pub fn open_for_new_files(path: &Path) -> Result<Self, PathError> {
        Walk::begin(path)?.reach_end(Missing::Fails)
    }

    /// Like [`open_for_new_files`](Self::open_for_new_files), but creates each missing directory of
    /// the path. The first missing directory may be created in any user's directory. The directory
    /// is reused later if it is still a directory of this user.
    ///
    /// # Errors
    /// As for [`open_for_new_files`](Self::open_for_new_files), or if a directory cannot be
    /// created.
    pub fn create_all(path: &Path, mode: u32) -> Result<Self, PathError> {
        Walk::begin(path)?.reach_end(Missing::IsCreated(mode))
    }

    /// The directory in which a file with this path is created, and the file's name in it. If the
    /// last name is a link that may be followed, the result is the directory and name of its
    /// target. The directory may belong to any user.
    ///
    /// # Errors
    /// If another user can change a directory on the path, if a directory does not exist, if the
    /// path has no last name, or if the path names a descriptor ([`PathError::Descriptor`]).
    pub fn holding(path: &Path) -> Result<(Self, OsString), PathError> {
        Walk::begin(path)?.reach_holder(Missing::Fails)
    }

    /// Like [`holding`](Self::holding), but creates each missing directory of the path, as
    /// [`create_all`](Self::create_all) does.
    ///
    /// # Errors
    /// As for [`holding`](Self::holding), or if a directory cannot be created.
    pub fn holding_created(path: &Path, mode: u32) -> Result<(Self, OsString), PathError> {
        Walk::begin(path)?.reach_holder(Missing::IsCreated(mode))
    }

    /// Whether only root and the effective user can change the contents of the directory.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn is_ours(&self) -> Result<bool, PathError> {
        Ok(self.access()? == Access::Ours)
    }

    /// The path of the directory as the user wrote it, for messages only.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path through the directory's descriptor, for interfaces that need a path. The path works
    /// only in this process, and only while the directory is open.
    pub fn through(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }

    /// Creates a directory and opens it.
    ///
    /// # Errors
    /// If the name exists, or if another user exchanged the new directory.
    pub fn create_dir(&self, name: &OsStr, mode: u32) -> Result<Self, PathError> {
        rustix::fs::mkdirat(&self.fd, single(name)?, Mode::from_raw_mode(mode))?;
        self.open_own(name)
    }

    /// Opens a subdirectory that this user created.
    ///
    /// # Errors
    /// If the name is not a directory, or if users other than root and this user can change it.
    pub fn open_own(&self, name: &OsStr) -> Result<Self, PathError> {
        let fd = rustix::fs::openat(&self.fd, single(name)?, LOOK | OFlags::DIRECTORY, Mode::empty())?;
        let owner = rustix::fs::fstat(&fd)?.st_uid;
        let directory = Self { fd, path: self.path.join(name), of_others: self.is_of_others()? };
        let by = match directory.access()? {
            Access::Ours if owner == geteuid().as_raw() => return Ok(directory),
            Access::Ours => Who::User(owner),
            Access::Sticky(by) | Access::Others(by) => by,
        };
        Err(PathError::Changeable { directory: directory.path, by })
    }

    /// Creates a file for reading and writing.
    ///
    /// # Errors
    /// If the name exists, if another user runs the file system, or if the kernel refuses.
    pub fn create_new_file(&self, name: &OsStr, mode: u32) -> Result<File, PathError> {
        self.may_hold_files()?;
        let how = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.fd, single(name)?, how, Mode::from_raw_mode(mode))?.into())
    }

    /// Creates a FIFO.
    ///
    /// # Errors
    /// If the name exists, or if the kernel refuses.
    pub fn create_fifo(&self, name: &OsStr, mode: u32) -> Result<(), PathError> {
        Ok(rustix::fs::mknodat(&self.fd, single(name)?, FileType::Fifo, Mode::from_raw_mode(mode), 0)?)
    }

    /// Opens the FIFO or character device with that name for writing, without waiting for a reader.
    /// A FIFO must belong to root or to the user, because its owner can read what is written. A
    /// device must be in a directory that is ours.
    ///
    /// # Errors
    /// If the entry is neither a FIFO nor a character device, if the entry or the directory is
    /// another user's, or if the kernel refuses. `ENXIO` means that no process reads the FIFO.
    pub fn open_special(&self, name: &OsStr) -> Result<File, PathError> {
        let how = SPECIAL | OFlags::NOFOLLOW;
        let trusted = |stat: &Stat| match FileType::from_raw_mode(stat.st_mode) {
            FileType::Fifo if is_trusted(stat.st_uid) => Ok(()),
            FileType::Fifo => Err(PathError::Fifo { owner: stat.st_uid }),
            FileType::CharacterDevice => match self.access()? {
                Access::Ours => Ok(()),
                Access::Sticky(by) | Access::Others(by) => {
                    Err(PathError::Changeable { directory: self.path.clone(), by })
                }
            },
            _ => Err(PathError::System(io::Error::other("that is neither a file nor a FIFO"))),
        };
        // Opening a device may change its state, so the entry is checked before and after.
        trusted(&self.stat(name)?)?;
        let file = rustix::fs::openat(&self.fd, single(name)?, how, Mode::empty())?;
        trusted(&rustix::fs::fstat(&file)?)?;
        Ok(file.into())
    }

    /// The metadata of the entry with that name. A link is not followed.
    ///
    /// # Errors
    /// If no entry has the name, or if the kernel refuses.
    pub fn stat(&self, name: &OsStr) -> Result<Stat, PathError> {
        Ok(rustix::fs::statat(&self.fd, single(name)?, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// The names in the directory with the types of the entries, in no order. Some file systems do
    /// not report types. Only the directory is read, because an entry may be a mount that does not
    /// answer.
    ///
    /// # Errors
    /// If the directory may not be read.
    pub fn entries(&self) -> Result<Vec<(OsString, FileType)>, PathError> {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let readable = rustix::fs::openat(&self.fd, ".", how, Mode::empty())?;
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::new(readable)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes().to_owned();
            if name != b"." && name != b".." {
                entries.push((OsString::from_vec(name), entry.file_type()));
            }
        }
        Ok(entries)
    }

    /// Renames an entry of the directory, and replaces an older entry with the new name.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> Result<(), PathError> {
        Ok(rustix::fs::renameat(&self.fd, single(from)?, &self.fd, single(to)?)?)
    }

    /// Renames an entry of the directory, unless the new name exists.
    ///
    /// # Errors
    /// If the new name exists, or if the kernel refuses.
    pub fn rename_unless_taken(&self, from: &OsStr, to: &OsStr) -> Result<(), PathError> {
        Ok(rustix::fs::renameat_with(&self.fd, single(from)?, &self.fd, single(to)?, RenameFlags::NOREPLACE)?)
    }

    /// Removes a file, a link or a socket.
    ///
    /// # Errors
    /// If no entry has the name, or if the kernel refuses.
    pub fn remove_file(&self, name: &OsStr) -> Result<(), PathError> {
        Ok(rustix::fs::unlinkat(&self.fd, single(name)?, AtFlags::empty())?)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// If no directory has the name, if the directory is not empty, or if the kernel refuses.
    pub fn remove_dir(&self, name: &OsStr) -> Result<(), PathError> {
        Ok(rustix::fs::unlinkat(&self.fd, single(name)?, AtFlags::REMOVEDIR)?)
    }

    /// Another descriptor of the same directory.
    ///
    /// # Errors
    /// If the process has too many open files.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, path: self.path.clone(), of_others: self.of_others })
    }

    /// Whether another user owns the directory, or a directory on the path to it. The owner of a
    /// directory can choose the group of new files through the set-group-ID bit, and can admit
    /// further users through a default access list.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn is_of_others(&self) -> Result<bool, PathError> {
        Ok(self.of_others || matches!(self.access()?, Access::Others(Who::User(_))))
    }

    /// Checks that the file system does not hand the contents of files to another user.
    pub(crate) fn may_hold_files(&self) -> Result<(), PathError> {
        match mounts::run_by(self.fd.as_fd()) {
            Some(by) => Err(PathError::FileSystem { directory: self.path.clone(), by }),
            None => Ok(()),
        }
    }

    fn access(&self) -> Result<Access, PathError> {
        Ok(Access::of(self.fd.as_fd(), &rustix::fs::fstat(&self.fd)?))
    }

    fn not_of_others(self) -> Result<Self, PathError> {
        match self.access()? {
            Access::Others(by) => Err(PathError::Changeable { directory: self.path, by }),
            Access::Ours | Access::Sticky(_) => Ok(self),
        }
    }
}

impl From<Directory> for OwnedFd {
    fn from(directory: Directory) -> Self {
        directory.fd
    }
}

/// Opens a descriptor that a path names ([`PathError::Descriptor`]) for writing. The user's shell
/// opened the descriptor, so the user chose its file. Writes to a file begin at the current
/// position of standard input, output or error, and at the file's end for any other descriptor. A
/// FIFO or a character device is opened again without waiting for a reader, so that other processes
/// with the same descriptor are not affected.
///
/// # Errors
/// If the descriptor is not open, or is not a file, a FIFO or a character device.
pub fn open_descriptor(number: RawFd) -> Result<File, PathError> {
    let through = format!("/proc/self/fd/{number}");
    // The kernel resolves this path directly to the open file.
    let file = rustix::fs::openat(CWD, &through, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => match number {
            0 => Ok(fcntl_dupfd_cloexec(io::stdin(), 0)?.into()),
            1 => Ok(fcntl_dupfd_cloexec(io::stdout(), 0)?.into()),
            2 => Ok(fcntl_dupfd_cloexec(io::stderr(), 0)?.into()),
            // Safe code cannot duplicate any other descriptor by its number.
            _ => {
                let how = OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC;
                Ok(rustix::fs::openat(CWD, &through, how, Mode::empty())?.into())
            }
        },
        FileType::Fifo | FileType::CharacterDevice => {
            Ok(rustix::fs::openat(CWD, &through, SPECIAL, Mode::empty())?.into())
        }
        _ => Err(PathError::System(io::Error::other("that is neither a file nor a FIFO"))),
    }
}

#[derive(Clone, Copy, Debug)]
enum Missing {
    Fails,
    LastIsCreated(u32),
    IsCreated(u32),
}

impl Missing {
    fn mode(self, is_last: bool) -> Option<u32> {
        match self {
            Self::IsCreated(mode) => Some(mode),
            Self::LastIsCreated(mode) if is_last => Some(mode),
            Self::LastIsCreated(_) | Self::Fails => None,
        }
    }
}

#[derive(Debug)]
struct Walk {
    /// The open directories from the first to the current one. `..` returns to the previous
    /// directory, even if another user has moved the current directory meanwhile.
    at: Vec<Directory>,
    left: Vec<OsString>,
    links: usize,
    /// The party that can change the working directory. `None` if the walk is not in or below the
    /// working directory, or if the working directory is ours.
    chosen: Option<Who>,
    /// Whether a program will resolve the path again, so that no group may exchange a directory on
    /// it.
    strict: bool,
}

impl Walk {
    fn begin(path: &Path) -> Result<Self, PathError> {
        if path.is_absolute() {
            return Ok(Self { at: vec![root()?], left: names(path), links: 0, chosen: None, strict: false });
        }
        if path.as_os_str().is_empty() {
            return Err(Errno::NOENT.into());
        }
        let fd = rustix::fs::openat(CWD, ".", LOOK | OFlags::DIRECTORY, Mode::empty())?;
        Self::begin_in(Directory { fd, path: PathBuf::from("."), of_others: false }, path)
    }

    fn begin_in(start: Directory, path: &Path) -> Result<Self, PathError> {
        let chosen = match start.access()? {
            Access::Ours => None,
            Access::Sticky(by) | Access::Others(by) => Some(by),
        };
        Ok(Self { at: vec![start], left: names(path), links: 0, chosen, strict: false })
    }

    fn reach_end(mut self, missing: Missing) -> Result<Directory, PathError> {
        while let Some(name) = self.left.pop() {
            self.step(&name, missing)?;
        }
        self.at.pop().ok_or_else(|| Errno::NOENT.into())
    }

    fn reach_holder(mut self, missing: Missing) -> Result<(Directory, OsString), PathError> {
        loop {
            if let Some(number) = self.descriptor() {
                return Err(PathError::Descriptor(number));
            }
            let name = self.left.pop().ok_or(Errno::ISDIR)?;
            if !self.left.is_empty() {
                self.step(&name, missing)?;
                continue;
            }
            if name == ".." {
                return Err(Errno::ISDIR.into());
            }
            match rustix::fs::openat(self.here()?, &name, LOOK, Mode::empty()) {
                Ok(next) if self.may_follow(&rustix::fs::fstat(&next)?)? => self.follow(next.as_fd())?,
                Ok(_) | Err(Errno::NOENT) => break self.at.pop().map(|directory| (directory, name)),
                Err(error) => return Err(error.into()),
            }
        }
        .ok_or_else(|| Errno::NOENT.into())
    }

    fn here(&self) -> Result<&Directory, PathError> {
        self.at.last().ok_or_else(|| Errno::NOENT.into())
    }

    /// The descriptor of this process that the remaining names refer to, as in `/proc/self/fd/1`.
    fn descriptor(&self) -> Option<RawFd> {
        let [root] = &self.at[..] else { return None };
        let [number, fd, process, proc] = &self.left[..] else { return None };
        let own = std::process::id().to_string();
        let is_own = ["self", "thread-self", &own].iter().any(|own| process == own);
        let digits = number.to_str().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
        (root.path == Path::new("/") && proc == "proc" && fd == "fd" && is_own).then(|| digits.parse().ok())?
    }

    fn step(&mut self, name: &OsStr, missing: Missing) -> Result<(), PathError> {
        if name == ".." {
            return self.step_up();
        }
        let mode = missing.mode(self.left.is_empty());
        let here = self.here()?;
        let access = if self.chosen.is_some() { None } else { Some(here.access()?) };
        let changeable = |by| PathError::Changeable { directory: here.path.clone(), by };
        let next = match (rustix::fs::openat(here, name, LOOK, Mode::empty()), mode, access) {
            (Err(Errno::NOENT), Some(mode), _) => {
                match rustix::fs::mkdirat(here, name, Mode::from_raw_mode(mode)) {
                    // Another process of this user may have created the directory at the same
                    // moment.
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
                let created = here.open_own(name)?;
                self.at.push(created);
                return Ok(());
            }
            (Ok(_), Some(_), Some(Access::Others(by))) => {
                // An earlier run or file may have created the directory.
                let created = here.open_own(name).map_err(|_| changeable(by))?;
                self.at.push(created);
                return Ok(());
            }
            (Ok(next), _, Some(Access::Others(by @ Who::Group(_)))) => {
                let stat = rustix::fs::fstat(&next)?;
                let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
                if self.strict || !is_directory || !is_trusted(stat.st_uid) {
                    return Err(changeable(by));
                }
                next
            }
            (_, _, Some(Access::Others(by))) => return Err(changeable(by)),
            (next, _, _) => next?,
        };
        let stat = rustix::fs::fstat(&next)?;
        let (path, of_others) = (here.path.join(name), here.is_of_others()?);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                // If another user can change this directory, the walk ends with an error when the
                // next name is looked up.
                self.at.push(Directory { fd: next, path, of_others });
                Ok(())
            }
            FileType::Symlink if self.may_follow(&stat)? => self.follow(next.as_fd()),
            FileType::Symlink => {
                let by = match (here.access()?, self.chosen) {
                    _ if !is_trusted(stat.st_uid) => Who::User(stat.st_uid),
                    (Access::Sticky(by) | Access::Others(by), _) | (Access::Ours, Some(by)) => by,
                    (Access::Ours, None) => return Err(Errno::AGAIN.into()),
                };
                Err(PathError::Link { link: path, by })
            }
            _ => Err(Errno::NOTDIR.into()),
        }
    }

    fn step_up(&mut self) -> Result<(), PathError> {
        if self.at.len() > 1 {
            self.at.pop();
            return Ok(());
        }
        let here = self.here()?;
        if here.path == Path::new("/") {
            return Ok(());
        }
        // Another user who can change the working directory may move it elsewhere.
        if let Access::Sticky(by) | Access::Others(by) = here.access()? {
            return Err(PathError::Changeable { directory: here.path.clone(), by });
        }
        let fd = rustix::fs::openat(here, "..", LOOK | OFlags::DIRECTORY, Mode::empty())?;
        self.at = vec![Directory { fd, path: here.path.join(".."), of_others: false }];
        Ok(())
    }

    /// Whether this is a link that only root and the user could have created or moved here.
    fn may_follow(&self, next: &Stat) -> Result<bool, PathError> {
        let is_link = FileType::from_raw_mode(next.st_mode) == FileType::Symlink;
        Ok(is_link && is_trusted(next.st_uid) && self.chosen.is_none() && self.here()?.is_ours()?)
    }

    fn follow(&mut self, link: BorrowedFd<'_>) -> Result<(), PathError> {
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        let target = rustix::fs::readlinkat(link, "", Vec::new())?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if target.is_absolute() {
            self.at = vec![root()?];
        }
        self.left.extend(names(&target));
        Ok(())
    }
}

fn root() -> Result<Directory, PathError> {
    let fd = rustix::fs::openat(CWD, "/", LOOK | OFlags::DIRECTORY, Mode::empty())?;
    Ok(Directory { fd, path: PathBuf::from("/"), of_others: false })
}

fn names(path: &Path) -> Vec<OsString> {
    let name = |part: Component<'_>| {
        matches!(part, Component::Normal(_) | Component::ParentDir).then(|| part.as_os_str().to_owned())
    };
    path.components().rev().filter_map(name).collect()
}

/// Returns the name, unless the kernel would resolve it as a path.
fn single(name: &OsStr) -> Result<&OsStr, PathError> {
    let is_single = !name.as_bytes().contains(&b'/') && !["", ".", ".."].iter().any(|special| name == *special);
    if is_single { Ok(name) } else { Err(Errno::INVAL.into()) }
}

/// Whether a user's entries can be trusted: the effective user's and root's, because root can do
/// everything anyway.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

#[cfg(test)]
mod tests;
