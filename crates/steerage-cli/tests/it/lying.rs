use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, ReplyAttr, ReplyData, ReplyEntry, Request,
};

use crate::fuse;

/// A FUSE file system that reports root as the owner of every file. The file system contains
/// symbolic links to the directory `target` and to the file `name` in `target`.
pub(crate) struct Lying {
    pub(crate) target: PathBuf,
    pub(crate) name: &'static str,
}

const FILE: INodeNo = INodeNo(2);
/// The inode of `logs`, the symbolic link to the directory.
const DIRECTORY: INodeNo = INodeNo(3);

impl Lying {
    fn attributes(inode: INodeNo) -> FileAttr {
        match inode.0 {
            1 => fuse::attributes(inode, FileType::Directory, 0o755),
            _ => fuse::attributes(inode, FileType::Symlink, 0o777),
        }
    }
}

impl Filesystem for Lying {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let inode = match name.to_str() {
            Some(name) if name == self.name => FILE,
            Some("logs") => DIRECTORY,
            _ => return reply.error(Errno::ENOENT),
        };
        reply.entry(&Duration::ZERO, &Self::attributes(inode), Generation(0));
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::ZERO, &Self::attributes(inode));
    }

    fn readlink(&self, _: &Request, inode: INodeNo, reply: ReplyData) {
        let target = if inode == FILE { self.target.join(self.name) } else { self.target.clone() };
        reply.data(target.as_os_str().as_bytes());
    }
}
