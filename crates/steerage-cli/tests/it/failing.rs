//! Tests a capture whose file system or disk fails while the capture is read.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData,
    ReplyEntry, Request,
};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use steerage_fixtures::capture::pcap;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{is_installed, skip, until};

use crate::fuse;
use crate::program::run;

const PACKETS: u32 = 100_000;

/// The number of readable bytes at the start of the capture.
const SOUND_BYTES: usize = 1 << 20;

fn capture() -> Vec<u8> {
    pcap((0..PACKETS).map(|second| (second, 0, [0; 60])))
}

/// A file system with the file `1.pcap`, whose first `SOUND_BYTES` bytes can be read.
struct Failing(Vec<u8>);

impl Failing {
    fn attributes(&self, inode: INodeNo) -> FileAttr {
        match inode.0 {
            1 => fuse::attributes(inode, FileType::Directory, 0o755),
            _ => FileAttr { size: self.0.len() as u64, ..fuse::attributes(inode, FileType::RegularFile, 0o644) },
        }
    }
}

impl Filesystem for Failing {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name.to_str() {
            Some("1.pcap") => reply.entry(&Duration::ZERO, &self.attributes(INodeNo(2)), Generation(0)),
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&Duration::ZERO, &self.attributes(inode));
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let at = offset as usize;
        let end = (at + size as usize).min(self.0.len());
        if end > SOUND_BYTES && at < self.0.len() {
            return reply.error(Errno::EIO);
        }
        reply.data(self.0.get(at..end).unwrap_or_default());
    }
}

/// Runs `body` in a mount namespace. The mounts in the namespace disappear with it, even if the
/// test fails.
fn in_namespace(body: impl FnOnce(&Path) + Send + 'static) {
    if !nix::unistd::geteuid().is_root() {
        return skip("only root can mount");
    }
    let run = move || {
        let scratch = Scratch::new();
        let at = scratch.join("mounted");
        fs::create_dir(&at).unwrap();
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        body(&at);
    };
    thread::spawn(run).join().unwrap();
}

fn fails_in_the_middle(path: &Path) {
    for command in ["count", "meter"] {
        let ran = run(&[command, path.to_str().unwrap(), "--virtual-cpus", "2"]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
        assert!(ran.err.contains("1.pcap: cannot read the capture at byte "), "{ran:?}");
        assert!(ran.err.contains("Input/output error"), "{ran:?}");
    }
}

#[test]
fn a_file_system_that_fails_gives_one_line() {
    in_namespace(|at| {
        let Some(serving) = fuse::serve(Failing(capture()), at, "rootmode=40755,user_id=0,group_id=0") else { return };
        fails_in_the_middle(&at.join("1.pcap"));
        umount2(at, MntFlags::MNT_DETACH).unwrap();
        serving.join().unwrap().unwrap();
    });
}

/// The disk in this test loses its end, because the file of its loop device is truncated. ext4
/// supports file leases, so the program maps the capture into memory.
#[test]
fn a_disk_that_fails_gives_one_line() {
    const DISK_BYTES: u64 = 64 << 20;
    if !is_installed("mkfs.ext4", "e2fsprogs") || !is_installed("losetup", "mount") {
        return;
    }
    in_namespace(|at| {
        let disk = at.with_extension("disk");
        File::create(&disk).unwrap().set_len(DISK_BYTES).unwrap();
        let made = Command::new("mkfs.ext4").args(["-q", "-O", "^has_journal"]).arg(&disk).status().unwrap();
        assert!(made.success());
        let mounted = Command::new("mount").args(["-o", "loop"]).args([&disk, at]).status().unwrap();
        if !mounted.success() {
            return skip("a loop device cannot be mounted");
        }
        let path = at.join("1.pcap");
        fs::write(&path, capture()).unwrap();
        // A process that another test is starting may hold a file of the disk open for a moment.
        until("the disk is unmounted", || umount2(at, MntFlags::empty()).is_ok());
        // After the disk is mounted again, no byte of the capture is in the page cache.
        assert!(Command::new("mount").args(["-o", "loop"]).args([&disk, at]).status().unwrap().success());
        let length = fs::metadata(&path).unwrap().len();
        let first = first_block(&path);
        let file = OpenOptions::new().write(true).open(&disk).unwrap();
        file.set_len((first + length / 2).next_multiple_of(4096)).unwrap();
        fails_in_the_middle(&path);
        umount2(at, MntFlags::MNT_DETACH).unwrap();
    });
}

/// Returns the offset of a file's first byte on the disk. `filefrag` reports blocks.
fn first_block(path: &Path) -> u64 {
    let output = Command::new("filefrag").args(["-b4096", "-v"]).arg(path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.trim_start().starts_with("0:")).unwrap_or_else(|| panic!("{text}"));
    let physical = line.split(':').nth(2).unwrap().trim().split('.').next().unwrap();
    physical.parse::<u64>().unwrap() * 4096
}
