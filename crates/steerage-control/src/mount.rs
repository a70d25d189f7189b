mod fusermount;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, Session, SessionACL, TimeOrNow, WriteFlags,
};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, test_kill_process};
use steerage_guard::mounts::mount_of;
use steerage_guard::path::{Directory, PathError};

use crate::error::AttributeError;
use crate::limits::{
    OPEN_FILES_MAX, OPEN_FILES_PER_USER_MAX, OPEN_FILES_RESERVED, WAITING_WRITES_MAX, WRITE_BYTES_MAX,
};
use crate::quota::{Party, Quota, QuotaFull};
use crate::tree::{Entry, NodeId, Tree};
use fusermount::{Failure, Watched};

/// The mount's source in /proc/mounts starts with this text, which is followed by a colon and the
/// instance's process number.
const SOURCE: &str = "steerage";
const KIND: &str = "fuse.steerage";

/// The kernel checks file permissions (`default_permissions`). steerage also checks which user
/// writes.
const OPTIONS: &str = "auto_unmount,default_permissions,nosuid,nodev,noexec,noatime,subtype=steerage";

/// How long the kernel may cache names and permissions. Permissions never change, and only the
/// directories of devices can get new names.
const TTL: Duration = Duration::from_secs(3600);

/// A mounted directory, whose readers wait until [`serve`](Self::serve) is called. The directory is
/// unmounted when this value is dropped, or when the process ends.
#[derive(Debug)]
pub struct Mounted {
    // Fields drop in this order. `fuse` must be closed before `fusermount3` checks whether a
    // process still serves the mount.
    fuse: OwnedFd,
    mount: Mount,
}

/// A tree that is served as files. The tree is unmounted when this value is dropped, or when the
/// process ends.
#[derive(Debug)]
pub struct ServedFiles {
    ending: Arc<AtomicBool>,
    _mount: Mount,
}

#[derive(Debug)]
struct Mount {
    directory: PathBuf,
    watched: Watched,
}

/// Why a tree could not be mounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The path is not a directory, or the directory cannot be read.
    #[error("cannot mount on {}: {}; name a directory that is there", .0.display(), .1)]
    Directory(PathBuf, io::Error),
    /// Another user can change the directory or one of its parents.
    #[error("cannot mount on {}: {}", .0.display(), .1)]
    Changeable(PathBuf, PathError),
    /// The directory is not empty. A mount would hide its files.
    #[error("cannot mount on {}: it is not empty; name an empty directory", .0.display())]
    NotEmpty(PathBuf),
    /// The tree of the instance with this process number is mounted on the directory.
    #[error(
        "cannot mount on {}: the tree of process {} is mounted there; stop it, or name another directory",
        .0.display(), .1
    )]
    InUse(PathBuf, String),
    /// `fusermount3` is not installed.
    #[error(
        "cannot mount on {}: the program fusermount3 is missing; install it (apt install fuse3), or use `steerage get` \
         and `set`",
        .0.display()
    )]
    NotInstalled(PathBuf),
    /// `fusermount3` did not mount the tree. The string contains the reason.
    #[error(
        "cannot mount on {}: fusermount3: {}; run as root outside of containers, or use `steerage get` and `set`",
        .0.display(), .1
    )]
    Refused(PathBuf, String),
}

impl MountError {
    fn of_path(directory: &Path, error: PathError) -> Self {
        match error {
            PathError::System(error) => Self::Directory(directory.to_owned(), error),
            error => Self::Changeable(directory.to_owned(), error),
        }
    }

    fn of(directory: &Path, failure: Failure) -> Self {
        let directory = directory.to_owned();
        match failure {
            Failure::NotInstalled => Self::NotInstalled(directory),
            Failure::Io(error) => Self::Refused(directory, error.to_string()),
            Failure::Refused(why) => Self::Refused(directory, why),
        }
    }
}

impl Mounted {
    /// Mounts the tree on an empty directory, with the program `fusermount3` of the package fuse3.
    /// All users can access a tree that root has mounted. A tree that another user has mounted is
    /// accessible to all users only if /etc/fuse.conf has `user_allow_other`. A mount that a killed
    /// instance has left on the directory is removed first.
    ///
    /// `fusermount3` runs until the unmount, and is then a zombie until this process ends or waits
    /// for it.
    ///
    /// # Errors
    /// Returns an error if the mount fails. Nothing is then mounted.
    pub fn on(directory: &Path) -> Result<Self, MountError> {
        let wrong = |error| MountError::Directory(directory.to_owned(), error);
        let failed = |failure| MountError::of(directory, failure);
        // `fusermount3` resolves the path again, so the path must contain no directory that another
        // user can change.
        let strict = |path: &Path| Directory::open_strict(path).map_err(|error| MountError::of_path(directory, error));
        if let Some((process, path)) = instance_at(directory).map_err(wrong)? {
            if is_alive(&process) {
                return Err(MountError::InUse(directory.to_owned(), process));
            }
            tracing::info!("{} was left by process {process}, which is gone", directory.display());
            strict(path.parent().unwrap_or(&path))?;
            fusermount::unmount(&path).map_err(failed)?;
        }
        let opened = strict(directory)?;
        if !opened.entries().map_err(|error| MountError::of_path(directory, error))?.is_empty() {
            return Err(MountError::NotEmpty(directory.to_owned()));
        }
        let path = fs::read_link(opened.through()).map_err(wrong)?;
        let options = format!("{OPTIONS},fsname={SOURCE}:{}", std::process::id());
        let mounted = match fusermount::mount(&path, &format!("{options},allow_other")) {
            Err(Failure::Refused(why)) if !rustix::process::geteuid().is_root() => {
                let mounted = fusermount::mount(&path, &options);
                if mounted.is_ok() {
                    tracing::info!("only this user can see the tree on {}: {why}", directory.display());
                }
                mounted
            }
            mounted => mounted,
        };
        let (fuse, watched) = mounted.map_err(failed)?;
        Ok(Self { fuse, mount: Mount { directory: path, watched } })
    }

    /// Returns the path of the mounted directory, without symbolic links.
    pub fn directory(&self) -> &Path {
        &self.mount.directory
    }

    /// Serves the tree on separate threads, until the returned value is dropped.
    ///
    /// # Errors
    /// Returns an error if no thread can be started, or if the kernel has another version of FUSE.
    pub fn serve(self, tree: Arc<Tree>) -> io::Result<ServedFiles> {
        let (writes, waiting) = mpsc::sync_channel::<Write>(WAITING_WRITES_MAX);
        let for_writes = Arc::clone(&tree);
        // Writes wait for their effect. A separate thread handles writes, so that they do not delay
        // reads.
        thread::Builder::new().name("control/write".to_owned()).spawn(move || {
            for write in waiting {
                match for_writes.write(write.to, &write.value, write.uid) {
                    Ok(()) => write.reply.written(write.length),
                    Err(error) => write.reply.error(number(&error)),
                }
            }
        })?;
        let ending = Arc::new(AtomicBool::new(false));
        let files = Files::new(tree, writes, Arc::clone(&ending));
        let session = Session::from_fd(files, self.fuse, SessionACL::All, Config::default())?;
        thread::Builder::new().name("control/files".to_owned()).spawn(move || {
            if let Err(error) = session.run() {
                tracing::debug!("the mounted tree is gone: {error}");
            }
        })?;
        Ok(ServedFiles { ending, _mount: self.mount })
    }
}

impl Drop for ServedFiles {
    fn drop(&mut self) {
        // When `_mount` is dropped next, `fusermount3` opens the directory, and `opendir` reads
        // `ending`. Pairs with the `Acquire` load in `opendir`.
        self.ending.store(true, Ordering::Release);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let ended = self.watched.end();
        let own = std::process::id().to_string();
        let is_left = instance_at(&self.directory).is_ok_and(|at| at.is_some_and(|(process, _)| process == own));
        if is_left || ended.is_err() {
            tracing::warn!("fusermount3 did not unmount {0}: fusermount3 -u {0}", self.directory.display());
        }
    }
}

/// Returns the process number of the instance whose tree is mounted on this directory, and the path
/// without symbolic links. This function reads only the kernel's mount table, because a stopped
/// process would not answer.
fn instance_at(directory: &Path) -> io::Result<Option<(String, PathBuf)>> {
    let opened = rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let path = fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd()))?;
    let mount = mount_of(opened.as_fd())?;
    let process = mount.source.strip_prefix(SOURCE).and_then(|source| source.strip_prefix(':'));
    let process = process.filter(|_| mount.kind == KIND && mount.at == path);
    Ok(process.map(|process| (process.to_owned(), path)))
}

fn is_alive(process: &str) -> bool {
    let process = process.parse().ok().and_then(Pid::from_raw);
    process.is_some_and(|process| test_kill_process(process) != Err(rustix::io::Errno::SRCH))
}

struct Write {
    to: NodeId,
    value: Vec<u8>,
    length: u32,
    uid: u32,
    reply: ReplyWrite,
}

struct Files {
    tree: Arc<Tree>,
    mounted: SystemTime,
    writes: SyncSender<Write>,
    ending: Arc<AtomicBool>,
    quota: Quota,
    open: Mutex<HashMap<u64, OpenFile>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct OpenFile {
    uid: u32,
    /// The attribute's text, as it was at the last read from offset 0. Reads from later offsets
    /// return further parts of this text.
    text: Vec<u8>,
}

impl Files {
    fn new(tree: Arc<Tree>, writes: SyncSender<Write>, ending: Arc<AtomicBool>) -> Self {
        let quota = Quota {
            all: OPEN_FILES_MAX,
            reserved: OPEN_FILES_RESERVED,
            per_party: OPEN_FILES_PER_USER_MAX,
            owner: Some(tree.uid()),
        };
        let (mounted, open, next) = (SystemTime::now(), Mutex::default(), AtomicU64::new(1));
        Self { tree, mounted, writes, ending, quota, open, next }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<u64, OpenFile>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attributes(&self, entry: &Entry) -> FileAttr {
        let kind = if entry.is_directory { FileType::Directory } else { FileType::RegularFile };
        FileAttr {
            ino: inode(entry.id),
            // Every attribute has the size of one page, as in sysfs, whatever the length of its
            // text.
            size: if entry.is_directory { 0 } else { WRITE_BYTES_MAX as u64 },
            blocks: 0,
            atime: self.mounted,
            mtime: self.mounted,
            ctime: self.mounted,
            crtime: self.mounted,
            kind,
            perm: entry.mode,
            nlink: if entry.is_directory { 2 } else { 1 },
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: WRITE_BYTES_MAX as u32,
            flags: 0,
        }
    }

    fn found(&self, entry: Option<Entry>) -> Result<FileAttr, Errno> {
        entry.map(|entry| self.attributes(&entry)).ok_or(Errno::ENOENT)
    }
}

fn inode(id: NodeId) -> INodeNo {
    INodeNo(id.0 as u64 + 1)
}

fn node(inode: INodeNo) -> NodeId {
    NodeId((inode.0 as usize).wrapping_sub(1))
}

fn number(error: &AttributeError) -> Errno {
    Errno::from_i32(error.code().number())
}

impl Filesystem for Files {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let child = name.to_str().and_then(|name| self.tree.child(node(parent), name));
        let ttl = if child.is_some_and(|id| self.tree.may_be_renamed(id)) { Duration::ZERO } else { TTL };
        match self.found(child.and_then(|id| self.tree.entry(id))) {
            Ok(attributes) => reply.entry(&ttl, &attributes, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.found(self.tree.entry(node(inode))) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(error),
        }
    }

    /// Ignores a new length and new times, because the shell's `>` truncates the file and `touch`
    /// sets its times. Mode and owner cannot be changed.
    fn setattr(
        &self,
        request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        _: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        self.getattr(request, inode, handle, reply);
    }

    fn open(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let writes = flags.acc_mode() != OpenAccMode::O_RDONLY;
        if writes && !self.tree.is_writable(node(inode)) {
            // The kernel lets root open a file regardless of its mode.
            return reply.error(Errno::EACCES);
        }
        let mut open = self.locked();
        match self.quota.admit(Party::User(request.uid()), open.values().map(|file| Party::User(file.uid))) {
            Ok(()) => {}
            Err(QuotaFull::Party) => return reply.error(Errno::EMFILE),
            Err(QuotaFull::All) => return reply.error(Errno::ENFILE),
        }
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        open.insert(handle, OpenFile { uid: request.uid(), text: Vec::new() });
        // With direct I/O, the kernel forwards every read and write to this process, whatever the
        // file's size.
        reply.opened(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let is_new = |open: &HashMap<u64, OpenFile>| open.get(&handle.0).is_some_and(|file| file.text.is_empty());
        // A read at offset 0 reads the attribute again, without the lock on the open files.
        let text = (offset == 0 || is_new(&self.locked())).then(|| self.tree.read(node(inode)));
        let mut open = self.locked();
        let Some(OpenFile { text: known, .. }) = open.get_mut(&handle.0) else { return reply.error(Errno::EBADF) };
        match text {
            Some(Ok(text)) => *known = text.into_bytes(),
            Some(Err(error)) => return reply.error(number(&error)),
            None => {}
        }
        let from = known.len().min(offset as usize);
        let to = known.len().min(from.saturating_add(size as usize));
        reply.data(&known[from..to]);
    }

    fn write(
        &self,
        request: &Request,
        inode: INodeNo,
        _: FileHandle,
        _: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // Each write is a complete value of at most one page, whatever its offset.
        let value = data[..data.len().min(WRITE_BYTES_MAX)].to_vec();
        let length = value.len() as u32;
        let write = Write { to: node(inode), value, length, uid: request.uid(), reply };
        match self.writes.try_send(write) {
            Ok(()) => {}
            Err(TrySendError::Full(write) | TrySendError::Disconnected(write)) => write.reply.error(Errno::EBUSY),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.locked().remove(&handle.0);
        reply.ok();
    }

    /// Once `ending` is set, the error of `opendir` tells `fusermount3` that it must unmount.
    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // Pairs with the `Release` store in the `drop` of `ServedFiles`.
        if self.ending.load(Ordering::Acquire) {
            return reply.error(Errno::ENOTCONN);
        }
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn readdir(&self, _: &Request, directory: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let at = node(directory);
        if !self.tree.entry(at).is_some_and(|entry| entry.is_directory) {
            return reply.error(Errno::ENOTDIR);
        }
        let here = [(at, true, ".".to_owned()), (self.tree.parent(at), true, "..".to_owned())];
        let entries = self.tree.list(at).into_iter().map(|entry| (entry.id, entry.is_directory, entry.name));
        for (nth, (id, is_directory, name)) in here.into_iter().chain(entries).enumerate().skip(offset as usize) {
            let kind = if is_directory { FileType::Directory } else { FileType::RegularFile };
            // If the buffer is full, `add` returns true, and the kernel calls `readdir` again.
            if reply.add(inode(id), nth as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}
