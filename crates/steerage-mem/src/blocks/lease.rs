use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// The magic numbers (statfs(2)) of file systems whose files change only through this kernel,
/// unlike FUSE or NFS. overlayfs is not in this list, because its layers can be FUSE or NFS.
const LOCAL: [u64; 13] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // xfs
    0x9123_683e, // btrfs
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0xf2f5_2010, // f2fs
    0x2fc1_2fc1, // zfs
    0xca45_1a4e, // bcachefs
    0xe0f5_e1e2, // erofs
    0x7371_7368, // squashfs
    0x9660,      // iso9660
    0x2011_bab0, // exfat
    0x4d44,      // vfat
];

/// The value of `F_SETSIG` in asm-generic/fcntl.h.
const F_SETSIG: c_int = 10;

/// An open file with a read lease (fcntl(2), F_SETLEASE). A process that opens the file for writing
/// or truncates it waits for the lease, up to `/proc/sys/fs/lease-break-time` (45 s).
#[derive(Debug)]
pub struct LeasedFile {
    file: Arc<File>,
    bytes: u64,
}

impl LeasedFile {
    /// `None` if the file is not local, another user owns it, or a process has it open for writing.
    pub(super) fn new(file: Arc<File>) -> Option<Arc<Self>> {
        if !is_local(&file) {
            return None;
        }
        // By default, a broken lease sends SIGIO, which would end the process. Instead of SIGIO,
        // the kernel sends SIGURG, which processes ignore by default, so `is_undisturbed` must be
        // called regularly.
        control(&file, F_SETSIG, libc::SIGURG).ok()?;
        control(&file, libc::F_SETLEASE, libc::F_RDLCK).ok()?;
        let leased = Self { bytes: 0, file };
        match leased.file.metadata() {
            // While the lease is held, the file cannot change its size.
            Ok(metadata) => Some(Arc::new(Self { bytes: metadata.len(), ..leased })),
            Err(_) => {
                leased.release();
                None
            }
        }
    }

    /// The size of the file, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn is_undisturbed(&self) -> bool {
        control(&self.file, libc::F_GETLEASE, 0).is_ok_and(|kind| kind == libc::F_RDLCK)
    }

    pub(super) fn release(&self) {
        // This call fails if the kernel has already withdrawn the lease.
        let _ = control(&self.file, libc::F_SETLEASE, libc::F_UNLCK);
    }
}

fn control(file: &File, command: c_int, argument: c_int) -> io::Result<c_int> {
    // SAFETY: these commands take a number and access no memory.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, argument) } {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

fn is_local(file: &File) -> bool {
    // SAFETY: all-zero bytes are a valid `statfs`, which outlives the call.
    let found = unsafe {
        let mut found: libc::statfs = std::mem::zeroed();
        (libc::fstatfs(file.as_raw_fd(), &raw mut found) == 0).then_some(found.f_type)
    };
    found.is_some_and(|kind| LOCAL.contains(&(kind as u64 & 0xffff_ffff)))
}
