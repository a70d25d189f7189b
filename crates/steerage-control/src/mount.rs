//! Serves the tree as files, by FUSE.

mod table;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, Session, SessionACL, TimeOrNow, WriteFlags,
};
use rustix::mount::{MountFlags, UnmountFlags};

use crate::error::AttributeError;
use crate::limits::{
    OPEN_FILES_MAX, OPEN_FILES_PER_USER_MAX, OPEN_FILES_RESERVED, WAITING_WRITES_MAX, WRITE_BYTES_MAX,
};
use crate::quota::{Party, Quota, QuotaFull};
use crate::tree::{Entry, NodeId, Tree};

/// The name of the mount in /proc/mounts. A colon and the process number follow it.
const SOURCE: &str = "steerage";
const KIND: &str = "fuse.steerage";

const DEVICE: &str = "/dev/fuse";

/// How long the kernel may cache names and modes. They never change, except for the name of a
/// device's directory.
const TTL: Duration = Duration::from_secs(3600);

/// A directory with a mounted tree that is not served yet. Readers wait until
/// [`serve`](Self::serve) is called.
#[derive(Debug)]
pub struct Mounted {
    fuse: OwnedFd,
    directory: PathBuf,
}

/// Why a tree could not be mounted.
#[derive(Debug)]
#[non_exhaustive]
pub enum MountError {
    /// The path is not a directory, or cannot be read.
    Directory(PathBuf, io::Error),
    /// The directory has files in it, which the mount would hide.
    NotEmpty(PathBuf),
    /// The tree of another instance is mounted there. The string is its process number.
    InUse(PathBuf, String),
    /// FUSE is not available.
    Device(io::Error),
    /// The kernel refused the mount.
    Mount(PathBuf, io::Error),
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path, error) => {
                write!(f, "cannot mount on {}: {error}; name a directory that is there", path.display())
            }
            Self::NotEmpty(path) => {
                write!(f, "cannot mount on {}: it is not empty; name an empty directory", path.display())
            }
            Self::InUse(path, process) => {
                let what = "stop it, or name another directory";
                write!(f, "cannot mount on {}: the tree of process {process} is mounted there; {what}", path.display())
            }
            Self::Device(error) => {
                write!(
                    f,
                    "cannot open {DEVICE}: {error}; load the kernel's fuse module, or use `steerage get` and `set`"
                )
            }
            Self::Mount(path, error) => {
                let what = "mounting takes CAP_SYS_ADMIN: run as root, or use `steerage get` and `set`";
                write!(f, "cannot mount on {}: {error}; {what}", path.display())
            }
        }
    }
}

impl std::error::Error for MountError {}

impl Mounted {
    /// Mounts on an empty directory. This needs CAP_SYS_ADMIN. A mount that a killed instance left
    /// there is unmounted first.
    ///
    /// # Errors
    /// If the mount fails. Nothing is mounted then.
    pub fn on(directory: &Path) -> Result<Self, MountError> {
        let wrong = |error| MountError::Directory(directory.to_owned(), error);
        if is_stale(directory) {
            tracing::info!("{} was left by an instance that is gone", directory.display());
            unmount(directory).map_err(wrong)?;
        } else if let Some(process) = instance_at(directory) {
            return Err(MountError::InUse(directory.to_owned(), process));
        }
        if fs::read_dir(directory).map_err(wrong)?.next().is_some() {
            return Err(MountError::NotEmpty(directory.to_owned()));
        }
        let fuse = File::options().read(true).write(true).open(DEVICE).map_err(MountError::Device)?;
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        // Every user may read. The kernel checks the modes, and the tree checks the user of each
        // write.
        let options = format!(
            "fd={},rootmode=40755,user_id={uid},group_id={gid},allow_other,default_permissions\0",
            fuse.as_raw_fd()
        );
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME;
        let options = std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).ok();
        let source = format!("{SOURCE}:{}", std::process::id());
        rustix::mount::mount(source, directory, KIND, flags, options)
            .map_err(|error| MountError::Mount(directory.to_owned(), error.into()))?;
        Ok(Self { fuse: fuse.into(), directory: directory.to_owned() })
    }

    /// The directory on which the tree is mounted.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Answers requests on threads of its own until the tree is unmounted.
    ///
    /// # Errors
    /// If no thread can be started, or if this kernel's FUSE has another protocol version.
    pub fn serve(self, tree: Arc<Tree>) -> io::Result<()> {
        let (writes, waiting) = mpsc::sync_channel::<Write>(WAITING_WRITES_MAX);
        let for_writes = Arc::clone(&tree);
        // A write waits until its change is in force. It has a thread of its own so that reads do
        // not wait.
        thread::Builder::new().name("control/write".to_owned()).spawn(move || {
            for write in waiting {
                match for_writes.write(write.to, &write.value, write.uid) {
                    Ok(()) => write.reply.written(write.length),
                    Err(error) => write.reply.error(number(&error)),
                }
            }
        })?;
        let files = Files::new(tree, writes);
        let session = Session::from_fd(files, self.fuse, SessionACL::All, Config::default())?;
        thread::Builder::new().name("control/files".to_owned()).spawn(move || {
            if let Err(error) = session.run() {
                tracing::debug!("the mounted tree is gone: {error}");
            }
        })?;
        Ok(())
    }
}

/// Whether a mount is left there whose process is gone: "Transport endpoint is not connected".
fn is_stale(directory: &Path) -> bool {
    let error = fs::metadata(directory).err().and_then(|error| error.raw_os_error());
    error == Some(rustix::io::Errno::NOTCONN.raw_os_error())
}

/// The process whose tree is mounted on the directory.
fn instance_at(directory: &Path) -> Option<String> {
    table::source_at(directory, KIND)?.strip_prefix(SOURCE)?.strip_prefix(':').map(str::to_owned)
}

/// Unmounts a tree, even if files in it are open. This needs CAP_SYS_ADMIN. It is no error if
/// nothing is mounted.
///
/// # Errors
/// The error of the kernel.
pub fn unmount(directory: &Path) -> io::Result<()> {
    match rustix::mount::unmount(directory, UnmountFlags::DETACH) {
        Err(rustix::io::Errno::INVAL) => Ok(()),
        done => Ok(done?),
    }
}

/// A write that waits for its turn.
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
    /// Limits how many files each user may have open.
    quota: Quota,
    open: Mutex<HashMap<u64, OpenFile>>,
    next: AtomicU64,
}

/// An open file.
#[derive(Debug)]
struct OpenFile {
    /// The user that opened it.
    uid: u32,
    /// The text of the last read from the start of the file. Further reads go on in this text, as
    /// in /proc.
    text: Vec<u8>,
}

impl Files {
    fn new(tree: Arc<Tree>, writes: SyncSender<Write>) -> Self {
        let quota = Quota {
            all: OPEN_FILES_MAX,
            reserved: OPEN_FILES_RESERVED,
            per_party: OPEN_FILES_PER_USER_MAX,
            owner: Some(tree.uid()),
        };
        Self { tree, mounted: SystemTime::now(), writes, quota, open: Mutex::default(), next: AtomicU64::new(1) }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<u64, OpenFile>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attributes(&self, entry: &Entry) -> FileAttr {
        let kind = if entry.is_directory { FileType::Directory } else { FileType::RegularFile };
        FileAttr {
            ino: inode(entry.id),
            // One page, whatever the length of the text is, as in sysfs.
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

/// The top directory is inode 1.
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

    /// Ignores sizes and times: a shell's `>` truncates, and `touch` sets times. Modes and owners
    /// cannot be changed.
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
            // The kernel lets root pass whatever the mode is, so this check is for root.
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
        // The kernel passes on every read and write, whatever length the file seems to have.
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
        // A read from the start makes the text anew. It does so without the lock, so that other
        // reads go on.
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
        // Each write is one value of at most a page. The offset does not matter.
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

    fn readdir(&self, _: &Request, directory: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let at = node(directory);
        if !self.tree.entry(at).is_some_and(|entry| entry.is_directory) {
            return reply.error(Errno::ENOTDIR);
        }
        let here = [(at, true, ".".to_owned()), (self.tree.parent(at), true, "..".to_owned())];
        let entries = self.tree.list(at).into_iter().map(|entry| (entry.id, entry.is_directory, entry.name));
        for (nth, (id, is_directory, name)) in here.into_iter().chain(entries).enumerate().skip(offset as usize) {
            let kind = if is_directory { FileType::Directory } else { FileType::RegularFile };
            // `add` returns true when the buffer is full. The kernel then asks again from there.
            if reply.add(inode(id), nth as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}
