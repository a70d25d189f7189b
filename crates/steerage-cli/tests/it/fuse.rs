use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use fuser::{Config, FileAttr, FileType, Filesystem, INodeNo, Session, SessionACL};
use nix::mount::{MsFlags, mount};
use steerage_fixtures::skip;

const DEVICE: &str = "/dev/fuse";

/// Mounts a FUSE file system in the mount namespace of this thread, and serves it. `options`
/// contains additional mount options. Returns `None` if mounting is not possible.
pub(crate) fn serve<F>(files: F, at: &Path, options: &str) -> Option<JoinHandle<io::Result<()>>>
where
    F: Filesystem + Send + 'static,
{
    let device = File::options().read(true).write(true).open(DEVICE);
    let device = device.inspect_err(|error| skip(&format!("{DEVICE}: {error}"))).ok()?;
    let options = format!("fd={},{options}", device.as_raw_fd());
    let mounted = mount(Some("test"), at, Some("fuse"), MsFlags::empty(), Some(options.as_str()));
    mounted.inspect_err(|error| skip(&format!("FUSE: {error}"))).ok()?;
    let session = Session::from_fd(files, device.into(), SessionACL::All, Config::default()).unwrap();
    Some(thread::spawn(|| session.run()))
}

/// Returns the attributes of a file that belongs to root.
pub(crate) fn attributes(inode: INodeNo, kind: FileType, perm: u16) -> FileAttr {
    let time = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: inode,
        size: 4096,
        blocks: 8,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}
