//! Opens the directory of a file that the program is going to write.
//!
//! The program often runs as root, with paths that other users can change. If the kernel resolved a
//! path that other users can change, one of them could plant a link and choose the file to which
//! root writes. This module therefore opens one name of a path at a time, each in the directory
//! that was opened before (`O_PATH`, `O_NOFOLLOW`). Later operations use only the file descriptor
//! of the last directory on the path.
//!
//! # The rule
//!
//! A directory is *trusted* if only root, the effective user and the user's private group can
//! change its entries, and if its file system is not a FUSE file system of another user, which
//! could report any user as the owner of a file.
//!
//! - Every directory on the path must be trusted, or must be a sticky directory of root or of the
//!   user, such as `/tmp`, in which other users cannot replace a trusted subdirectory. If a group
//!   can change a directory on the path (`/var/log` on some distributions), the next name must be a
//!   real directory of root or of the user, not a link. A member of the group can replace a real
//!   directory only by another existing directory of root or of the user.
//! - A link is followed if root or the user owns the link, and if its directory is trusted. A link
//!   in a sticky directory is not followed, because another user may have moved a link that belongs
//!   to root into this directory. The rules also apply to the names in the target of a link.
//! - The last directory, in which a new file or directory is created, may belong to any user,
//!   because a new file gets a random name, and a new directory is checked after its creation. The
//!   last directory must not be on a FUSE file system of another user, who could read the new file.
//! - A relative path begins at the working directory, which may belong to any user, because the
//!   user of this program chose it. If the working directory is not trusted, every later name must
//!   be a real directory, not a link, and `..` must not lead out of the working directory.
//!
//! Architecture invariant: only this module resolves the paths of files that are written.

mod access;
mod error;
mod groups;
mod walk;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::geteuid;

use access::Access;
use walk::{Missing, Walk};

pub use error::{PathError, Who};

const PATH_ONLY: OFlags =
    OFlags::from_bits_retain(OFlags::PATH.bits() | OFlags::NOFOLLOW.bits() | OFlags::CLOEXEC.bits());

/// Opening a FIFO that no process reads fails immediately instead of waiting. A terminal does not
/// become the controlling terminal of the process.
const SPECIAL: OFlags = OFlags::from_bits_retain(
    OFlags::WRONLY.bits() | OFlags::NONBLOCK.bits() | OFlags::NOCTTY.bits() | OFlags::CLOEXEC.bits(),
);

/// An open directory. The methods take single names instead of paths, and never follow a link.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    /// The path with which the directory was opened, for messages only.
    path: PathBuf,
    /// True if another user owns the directory, or a directory on the path to it.
    of_others: bool,
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Directory {
    /// Opens a directory that is trusted (only root and the user can change its entries), or a
    /// sticky directory of root or of the user, such as `/tmp`.
    ///
    /// # Errors
    /// Returns an error if another user can change a directory on the path, or if a directory is
    /// missing.
    pub fn open(path: &Path) -> Result<Self, PathError> {
        Walk::begin(path)?.reach_end(Missing::Fails)?.not_of_others()
    }

    /// Opens a directory whose path another program will resolve again. Every directory from the
    /// root of the file system to this directory must be trusted, even if the path is relative.
    ///
    /// # Errors
    /// Returns the same errors as [`open`](Self::open).
    pub fn open_strict(path: &Path) -> Result<Self, PathError> {
        let absolute = if path.is_absolute() {
            path.to_owned()
        } else {
            std::env::current_dir().map_err(PathError::System)?.join(path)
        };
        let directory = Walk::begin(&absolute)?.strict().reach_end(Missing::Fails)?;
        directory.only_ours().map(|()| directory)
    }

    /// Like [`open`](Self::open), but creates the last directory of the path if it does not exist.
    ///
    /// # Errors
    /// Returns the errors of [`open`](Self::open), and an error if the directory cannot be created.
    pub fn open_or_create(path: &Path, mode: u32) -> Result<Self, PathError> {
        Walk::begin(path)?.reach_end(Missing::LastIsCreated(mode))?.not_of_others()
    }

    /// Opens a directory in which only new files are created. The directory may belong to any user,
    /// but no other user may have permission to change the parent directories.
    ///
    /// # Errors
    /// Returns an error if another user can change a directory on the path, or if a directory is
    /// missing.
    pub fn open_for_new_files(path: &Path) -> Result<Self, PathError> {
        Walk::begin(path)?.reach_end(Missing::Fails)
    }

    /// Like [`open_for_new_files`](Self::open_for_new_files), but creates each missing directory of
    /// the path. The parent of the first missing directory may belong to any user. A later call
    /// uses a created directory again if the directory still belongs to this user.
    ///
    /// # Errors
    /// Returns the errors of [`open_for_new_files`](Self::open_for_new_files), and an error if a
    /// directory cannot be created.
    pub fn create_all(path: &Path, mode: u32) -> Result<Self, PathError> {
        Walk::begin(path)?.reach_end(Missing::IsCreated(mode))
    }

    /// Returns the directory in which a file with this path is created, and the name of the file in
    /// this directory. If the path ends in a link that may be followed, the result is for the
    /// link's target. The returned directory may belong to any user.
    ///
    /// # Errors
    /// Returns an error if another user can change a directory on the path, if a directory or the
    /// last name is missing, or if the path names a file descriptor ([`PathError::Descriptor`]).
    pub fn holding(path: &Path) -> Result<(Self, OsString), PathError> {
        Walk::begin(path)?.reach_holder(Missing::Fails)
    }

    /// Like [`holding`](Self::holding), but creates each missing directory of the path.
    ///
    /// # Errors
    /// Returns the errors of [`holding`](Self::holding), and an error if a directory cannot be
    /// created.
    pub fn holding_created(path: &Path, mode: u32) -> Result<(Self, OsString), PathError> {
        Walk::begin(path)?.reach_holder(Missing::IsCreated(mode))
    }

    /// Returns true if only root and the effective user can change the contents of the directory.
    ///
    /// # Errors
    /// Returns an error if the kernel does not report the owner and the mode of the directory.
    pub fn is_ours(&self) -> Result<bool, PathError> {
        Ok(self.access()? == Access::Ours)
    }

    /// Returns the path as the user wrote it, for messages only.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path `/proc/self/fd/N`, for system calls and libraries that need a path. The
    /// path works only in this process, and only while the directory is open.
    pub fn through(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.fd.as_raw_fd()))
    }

    /// Creates a subdirectory and opens it.
    ///
    /// # Errors
    /// Returns an error if the name exists, or if another user has replaced the new directory.
    pub fn create_dir(&self, name: &OsStr, mode: u32) -> Result<Self, PathError> {
        rustix::fs::mkdirat(&self.fd, single(name)?, Mode::from_raw_mode(mode))?;
        self.open_own(name)
    }

    /// Opens a subdirectory that this user created.
    ///
    /// # Errors
    /// Returns an error if the entry is not a directory, or if a user other than root and this user
    /// can change the directory.
    pub fn open_own(&self, name: &OsStr) -> Result<Self, PathError> {
        self.open_own_with(name, self.is_of_others()?)
    }

    fn open_own_with(&self, name: &OsStr, of_others: bool) -> Result<Self, PathError> {
        let fd = rustix::fs::openat(&self.fd, single(name)?, PATH_ONLY | OFlags::DIRECTORY, Mode::empty())?;
        let owner = rustix::fs::fstat(&fd)?.st_uid;
        let directory = Self { fd, path: self.path.join(name), of_others };
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
    /// Returns an error if the name exists, or if another user runs the directory's file system.
    pub fn create_new_file(&self, name: &OsStr, mode: u32) -> Result<File, PathError> {
        self.may_hold_files()?;
        let how = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.fd, single(name)?, how, Mode::from_raw_mode(mode))?.into())
    }

    /// Creates a FIFO in the directory.
    ///
    /// # Errors
    /// Returns an error if the name exists, or if the kernel refuses to create the FIFO.
    pub fn create_fifo(&self, name: &OsStr, mode: u32) -> Result<(), PathError> {
        Ok(rustix::fs::mknodat(&self.fd, single(name)?, FileType::Fifo, Mode::from_raw_mode(mode), 0)?)
    }

    /// Opens the FIFO or character device `name` of this directory for writing, without waiting for
    /// a reader. A FIFO must belong to root or to the user, because its owner can read the data
    /// that is written to it. A device must be in a trusted directory.
    ///
    /// # Errors
    /// Returns an error if the entry is neither a FIFO nor a character device, or if another user
    /// owns the entry or the directory. The error is `ENXIO` if no process reads the FIFO.
    pub fn open_special(&self, name: &OsStr) -> Result<File, PathError> {
        let how = SPECIAL | OFlags::NOFOLLOW;
        let trusted = |stat: &Stat| match FileType::from_raw_mode(stat.st_mode) {
            FileType::Fifo if is_trusted(stat.st_uid) => Ok(()),
            FileType::Fifo => Err(PathError::Fifo { owner: stat.st_uid }),
            FileType::CharacterDevice => self.only_ours(),
            _ => Err(PathError::System(io::Error::other("that is neither a file nor a FIFO"))),
        };
        // The entry is checked before it is opened, because opening a device may change the
        // device's state. The opened entry is checked again, because another user may have replaced
        // the entry.
        trusted(&self.stat(name)?)?;
        let file = rustix::fs::openat(&self.fd, single(name)?, how, Mode::empty())?;
        trusted(&rustix::fs::fstat(&file)?)?;
        Ok(file.into())
    }

    /// Returns the metadata of the entry `name`, without following a link.
    ///
    /// # Errors
    /// Returns an error if no entry has the name, or if the kernel refuses to return the metadata.
    pub fn stat(&self, name: &OsStr) -> Result<Stat, PathError> {
        Ok(rustix::fs::statat(&self.fd, single(name)?, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Returns the names and types of the directory's entries, unordered. The type of an entry may
    /// be unknown. The entries are not accessed, because an entry may be a mount whose file system
    /// does not respond.
    ///
    /// # Errors
    /// Returns an error if the process may not read the directory.
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

    /// Renames an entry of the directory. Replaces an older entry that has the new name.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses to rename the entry.
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> Result<(), PathError> {
        Ok(rustix::fs::renameat(&self.fd, single(from)?, &self.fd, single(to)?)?)
    }

    /// Renames an entry of the directory, unless an entry with the new name exists.
    ///
    /// # Errors
    /// Returns an error if the new name exists, or if the kernel refuses to rename the entry.
    pub fn rename_unless_taken(&self, from: &OsStr, to: &OsStr) -> Result<(), PathError> {
        Ok(rustix::fs::renameat_with(&self.fd, single(from)?, &self.fd, single(to)?, RenameFlags::NOREPLACE)?)
    }

    /// Removes a file, a link or a socket from the directory.
    ///
    /// # Errors
    /// Returns an error if no entry has the name, or if the kernel refuses to remove the entry.
    pub fn remove_file(&self, name: &OsStr) -> Result<(), PathError> {
        Ok(rustix::fs::unlinkat(&self.fd, single(name)?, AtFlags::empty())?)
    }

    /// Removes an empty subdirectory.
    ///
    /// # Errors
    /// Returns an error if the directory does not exist, or if it is not empty.
    pub fn remove_dir(&self, name: &OsStr) -> Result<(), PathError> {
        Ok(rustix::fs::unlinkat(&self.fd, single(name)?, AtFlags::REMOVEDIR)?)
    }

    /// Waits until the names of the directory's entries are stored on the disk (fsync).
    ///
    /// # Errors
    /// Returns an error if the process may not read the directory, or if the disk fails.
    pub fn sync(&self) -> io::Result<()> {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let readable = rustix::fs::openat(&self.fd, ".", how, Mode::empty())?;
        Ok(rustix::fs::fsync(readable)?)
    }

    /// Returns a second file descriptor of this directory.
    ///
    /// # Errors
    /// Returns an error if the process has too many open files.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, path: self.path.clone(), of_others: self.of_others })
    }

    /// Returns true if another user owns the directory or one of its parent directories. The owner
    /// of a directory can choose the group of new files (set-group-ID bit), and can give other
    /// users access to new files (default ACL).
    ///
    /// # Errors
    /// Returns an error if the kernel does not report the owner and the mode of the directory.
    pub fn is_of_others(&self) -> Result<bool, PathError> {
        Ok(self.of_others || self.access()?.is_of_user())
    }

    /// Returns an error if another user runs the directory's file system, because this user could
    /// read new files.
    pub(crate) fn may_hold_files(&self) -> Result<(), PathError> {
        match access::run_by(self.fd.as_fd()) {
            Some(by) => Err(PathError::FileSystem { directory: self.path.clone(), by }),
            None => Ok(()),
        }
    }

    fn access(&self) -> Result<Access, PathError> {
        Ok(Access::of(self.fd.as_fd(), &rustix::fs::fstat(&self.fd)?))
    }

    /// Fails if another user can change the directory, even if only by adding files.
    fn only_ours(&self) -> Result<(), PathError> {
        match self.access()? {
            Access::Ours => Ok(()),
            Access::Sticky(by) | Access::Others(by) => Err(PathError::Changeable { directory: self.path.clone(), by }),
        }
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

/// Opens an inherited file descriptor for writing, such as that of the path `/dev/stdout`
/// ([`PathError::Descriptor`]), because the user chose the file in the shell. A file is written at
/// its current position if its descriptor is standard input, output or error, and at its end
/// otherwise. A FIFO or a character device is opened again, so that the shared descriptor does not
/// become nonblocking.
///
/// # Errors
/// Returns an error if the descriptor is not open, or not a file, FIFO or character device.
pub fn open_descriptor(number: RawFd) -> Result<File, PathError> {
    let through = format!("/proc/self/fd/{number}");
    // The kernel resolves /proc/self/fd directly to the open file, without following links.
    let file = rustix::fs::openat(CWD, &through, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => match number {
            0 => Ok(fcntl_dupfd_cloexec(io::stdin(), 0)?.into()),
            1 => Ok(fcntl_dupfd_cloexec(io::stdout(), 0)?.into()),
            2 => Ok(fcntl_dupfd_cloexec(io::stderr(), 0)?.into()),
            // Safe code cannot duplicate a descriptor that is known only by its number.
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

/// Returns an error if `name` is a path.
fn single(name: &OsStr) -> Result<&OsStr, PathError> {
    let is_single = !name.as_bytes().contains(&b'/') && !["", ".", ".."].iter().any(|special| name == *special);
    if is_single { Ok(name) } else { Err(Errno::INVAL.into()) }
}

/// Returns true for root and the effective user. Root is trusted, because root can change every
/// file anyway.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

#[cfg(test)]
mod tests;
