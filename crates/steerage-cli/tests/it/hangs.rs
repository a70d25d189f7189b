//! Signals while a file system does not answer, like a hard NFS mount whose server is gone. The
//! process waits in the kernel and can only be killed.

use std::any::Any;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, LockOwner, OpenFlags,
    ReplyAttr, ReplyCreate, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session, SessionACL, WriteFlags,
};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{is_root, skip, until};

use crate::program::{Ends, command};
use crate::signals::ignores_hup;

const DEVICE: &str = "/dev/fuse";
const TTL: Duration = Duration::from_secs(3600);

/// The names in every directory of the file system. Looking up any other name never ends.
const FILE: &str = "file";
const DIRECTORY: &str = "directory";
/// A file that can be created. Writing to it never ends.
const CREATED: &str = "created";

/// A file system that answers only what leads to its files. It never opens, reads or writes one.
#[derive(Clone, Default)]
struct Silent(Arc<Mutex<Vec<Box<dyn Any + Send>>>>);

impl Silent {
    /// Keeps a request, so that it is never answered.
    fn keep(&self, reply: impl Send + 'static) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(reply));
    }

    /// How many requests were not answered.
    fn kept(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn attributes(inode: u64, kind: FileType) -> FileAttr {
        let time = SystemTime::UNIX_EPOCH;
        FileAttr {
            ino: INodeNo(inode),
            size: 4096,
            blocks: 8,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Silent {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = match name.to_str() {
            Some(FILE) => Self::attributes(2, FileType::RegularFile),
            Some(DIRECTORY) => Self::attributes(3, FileType::Directory),
            Some(CREATED) => return reply.error(Errno::ENOENT),
            _ => return self.keep(reply),
        };
        reply.entry(&TTL, &found, Generation(0));
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let is_file = [2, 4].contains(&inode.0);
        let kind = if is_file { FileType::RegularFile } else { FileType::Directory };
        reply.attr(&TTL, &Self::attributes(inode.0, kind));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.keep(reply);
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.keep(reply);
    }

    fn mkdir(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        self.keep(reply);
    }

    fn mknod(&self, _: &Request, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        self.keep(reply);
    }

    fn create(&self, _: &Request, _: INodeNo, name: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        if name == CREATED {
            let attributes = Self::attributes(4, FileType::RegularFile);
            return reply.created(&TTL, &attributes, Generation(0), FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
        }
        self.keep(reply);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.keep(reply);
    }
}

/// Runs `body` with the silent file system mounted on a directory. The mount is in a namespace of
/// its own, so it goes away with this thread and the programs that it starts, however they end. If
/// nothing can be mounted here, prints the reason on standard error.
fn with_silent(body: impl FnOnce(&Path, &Silent) + Send + 'static) {
    if !is_root() {
        return;
    }
    let device = match File::options().read(true).write(true).open(DEVICE) {
        Ok(device) => device,
        Err(error) => return skip(&format!("{DEVICE}: {error}")),
    };
    let run = move || {
        let scratch = Scratch::new();
        let none = None::<&str>;
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        let options = format!("fd={},rootmode=40700,user_id=0,group_id=0", device.as_raw_fd());
        mount(Some("silent"), &*scratch, Some("fuse"), MsFlags::empty(), Some(options.as_str())).unwrap();
        let silent = Silent::default();
        let session = Session::from_fd(silent.clone(), device.into(), SessionACL::All, Config::default()).unwrap();
        let serving = thread::spawn(|| session.run());
        let mounted = Mounted(&scratch);
        body(&scratch, &silent);
        drop(mounted);
        // Processes that were killed have no request left, so the file system ends.
        serving.join().unwrap().unwrap();
    };
    thread::spawn(run).join().unwrap();
}

struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = umount2(self.0, MntFlags::MNT_DETACH);
    }
}

/// The signals that must end a program which waits for a file system.
fn signals() -> Vec<Signal> {
    let hup = (!ignores_hup()).then_some(Signal::SIGHUP);
    [Signal::SIGTERM, Signal::SIGINT].into_iter().chain(hup).collect()
}

/// Starts the program, waits until the file system has a request of it that is never answered, and
/// ends the program by a signal.
fn ends_by(silent: &Silent, args: &[&str], signal: Signal) {
    let before = silent.kept();
    let mut child = Ends(command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    until(&format!("{args:?} waits for the file system"), || {
        assert_eq!(child.try_wait().unwrap(), None, "{args:?} did not wait for the file system");
        silent.kept() > before
    });
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
    until(&format!("{signal} ends {args:?}"), || child.try_wait().unwrap().is_some());
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(signal as i32), "{args:?}: {status}");
}

/// Every path of a command line, in a file system that does not answer. In `{}` stands a file whose
/// opening never ends, or a name that is never found; `{d}` is a directory.
const PATHS: [&str; 20] = [
    "count {}",
    "count synthetic:packets=1 --control {d}",
    "count synthetic:packets=1 --socket {d}/x",
    "check {}",
    "explain {}",
    "fanout synthetic:packets=1 --to pcap:{d}/x",
    "fanout {} --to pcap:/dev/null",
    "get --to {d}/x",
    "man --out {d}",
    "meter {}",
    "meter synthetic:packets=1 --flows {d}/x.csv",
    "meter synthetic:packets=1 --export {d}/x.jsonl",
    "parallel {} -- cat",
    "parallel synthetic:packets=1 --results {d}/x -- cat",
    "parallel {} -- cat {file}",
    "run {}",
    "send {} --to pcap:/dev/null",
    "send synthetic:packets=1 --to pcap:{d}/x",
    "set --to {d}/x steerage/policy hash",
    "top --once --to {d}/x",
];

#[test]
fn a_file_system_that_does_not_answer_keeps_no_command_from_ending() {
    with_silent(|at, silent| {
        let path = |name: &str| -> PathBuf { at.join(name) };
        for line in PATHS {
            for file in if line.contains("{}") { &[FILE, "never"][..] } else { &[FILE] } {
                let words = line.split(' ').map(|word| {
                    let directory = path(DIRECTORY).display().to_string();
                    word.replace("{}", &path(file).display().to_string()).replace("{d}", &directory)
                });
                let words: Vec<String> = words.collect();
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                for signal in signals() {
                    ends_by(silent, &words, signal);
                }
            }
        }
    });
}

/// During a run the first signal asks for an end in good order, which may never come. The second INT
/// ends the program, although its main thread waits for the file system with the report.
#[test]
fn the_second_int_ends_a_run_whose_report_is_never_written() {
    with_silent(|at, silent| {
        let report = File::create(at.join(CREATED)).unwrap();
        let mut run = command(&["count", "synthetic:rate=1000", "--seconds", "0", "-v"]);
        let mut run = Ends(run.stdout(report).spawn().unwrap());
        let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("signals are listened to")));
        // Keeps reading, since a full pipe would block the run.
        let rest = thread::spawn(move || lines.for_each(drop));
        let id = Pid::from_raw(run.id() as i32);
        kill(id, Signal::SIGINT).unwrap();
        until("the report waits for the file system", || silent.kept() > 0);
        kill(id, Signal::SIGINT).unwrap();
        until("the second INT ends the run", || run.try_wait().unwrap().is_some());
        assert_eq!(run.wait().unwrap().code(), Some(130));
        rest.join().unwrap();
    });
}
