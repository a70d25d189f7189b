//! Signals while a file system does not answer, like a hard NFS mount whose server is gone. The
//! process waits in the kernel and can only be killed.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, ReplyAttr, ReplyEntry, Request,
    Session, SessionACL,
};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::minor;
use nix::unistd::Pid;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{is_root, skip, until};

use crate::program::{Ends, command};
use crate::signals::ignores_hup;

const DEVICE: &str = "/dev/fuse";
const TTL: Duration = Duration::from_secs(3600);

/// The names in every directory of the file system, and their inodes.
const FILE: &str = "file";
const DIRECTORY: &str = "directory";
const FILE_INODE: u64 = 2;
const DIRECTORY_INODE: u64 = 3;

/// The name whose lookup stops the file system.
const STOP: &str = "stop";

/// A file system whose process stops when the name [`STOP`] is looked up. Later requests are not even
/// read, so a process that waits for one can be killed, as with a hard NFS mount.
struct Stopping {
    /// The process goes on when the other end is dropped.
    goes_on: Mutex<Receiver<()>>,
}

fn attributes(inode: u64) -> FileAttr {
    let time = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(inode),
        size: 4096,
        blocks: 8,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind: if inode == FILE_INODE { FileType::RegularFile } else { FileType::Directory },
        perm: 0o700,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for Stopping {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name.to_str() {
            Some(FILE) => reply.entry(&TTL, &attributes(FILE_INODE), Generation(0)),
            Some(DIRECTORY) => reply.entry(&TTL, &attributes(DIRECTORY_INODE), Generation(0)),
            Some(STOP) => {
                reply.error(Errno::ENOENT);
                // An error means that the other end was dropped.
                let _ = self.goes_on.lock().unwrap_or_else(PoisonError::into_inner).recv();
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &attributes(inode.0));
    }
}

/// A file system that is mounted in the mount namespace of this thread.
struct Mounted {
    at: PathBuf,
    /// The number of requests that wait, as the kernel shows it.
    waiting: PathBuf,
    /// Dropped to let the file system go on.
    _stopped: Sender<()>,
}

impl Mounted {
    /// Stops the file system. The kernel still knows the file, the directory and their attributes.
    fn stop(&self) {
        for name in ["", FILE, DIRECTORY] {
            fs::metadata(self.at.join(name)).unwrap();
        }
        assert!(!fs::exists(self.at.join(STOP)).unwrap());
    }

    /// Whether a request waits.
    fn is_waited_for(&self) -> bool {
        fs::read_to_string(&self.waiting).unwrap().trim() != "0"
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}

/// Runs `body` with the file system mounted on a directory. The mount is in a namespace of its own,
/// so it goes away with this thread and the programs that it starts, however they end. If nothing
/// can be mounted here, prints the reason on standard error.
fn with_mounted(body: impl FnOnce(&Mounted) + Send + 'static) {
    if !is_root() {
        return;
    }
    let device = match File::options().read(true).write(true).open(DEVICE) {
        Ok(device) => device,
        Err(error) => return skip(&format!("{DEVICE}: {error}")),
    };
    let run = move || {
        let scratch = Scratch::new();
        let (at, connections) = (scratch.join("mounted"), scratch.join("connections"));
        [&at, &connections].into_iter().for_each(|directory| fs::create_dir(directory).unwrap());
        let none = None::<&str>;
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        mount(none, &connections, Some("fusectl"), MsFlags::empty(), none).unwrap();
        let options = format!("fd={},rootmode=40700,user_id=0,group_id=0", device.as_raw_fd());
        mount(Some("stopping"), &at, Some("fuse"), MsFlags::empty(), Some(options.as_str())).unwrap();
        let (stopped, goes_on) = mpsc::channel();
        let files = Stopping { goes_on: Mutex::new(goes_on) };
        let session = Session::from_fd(files, device.into(), SessionACL::All, Config::default()).unwrap();
        let serving = thread::spawn(|| session.run());
        let connection = minor(fs::metadata(&at).unwrap().dev()).to_string();
        let waiting = connections.join(connection).join("waiting");
        let mounted = Mounted { at, waiting, _stopped: stopped };
        body(&mounted);
        drop(mounted);
        serving.join().unwrap().unwrap();
        umount2(&connections, MntFlags::MNT_DETACH).unwrap();
    };
    thread::spawn(run).join().unwrap();
}

/// The signals that must end a program which waits for a file system.
fn signals() -> Vec<Signal> {
    let hup = (!ignores_hup()).then_some(Signal::SIGHUP);
    [Signal::SIGTERM, Signal::SIGINT].into_iter().chain(hup).collect()
}

/// Starts the program, waits until it waits for the file system, and ends it by a signal.
fn ends_by(mounted: &Mounted, args: &[&str], signal: Signal) {
    let mut child = Ends(command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    until(&format!("{args:?} waits for the file system"), || {
        assert_eq!(child.try_wait().unwrap(), None, "{args:?} did not wait for the file system");
        mounted.is_waited_for()
    });
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
    until(&format!("{signal} ends {args:?}"), || child.try_wait().unwrap().is_some());
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(signal as i32), "{args:?}: {status}");
    until("the kernel forgets the request", || !mounted.is_waited_for());
}

/// Command lines with a path in a file system that does not answer. `{}` is a file that is never
/// opened, or a name that is never found, and `{d}` is a directory.
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
    "send pcap:/dev/null {}",
    "send pcap:{d}/x synthetic:packets=1",
    "set --to {d}/x steerage/policy hash",
    "top --once --to {d}/x",
];

#[test]
fn a_file_system_that_does_not_answer_keeps_no_command_from_ending() {
    with_mounted(|mounted| {
        mounted.stop();
        let path = |name: &str| mounted.at.join(name).display().to_string();
        for line in PATHS {
            for file in if line.contains("{}") { &[FILE, "never"][..] } else { &[FILE] } {
                let words =
                    line.split(' ').map(|word| word.replace("{}", &path(file)).replace("{d}", &path(DIRECTORY)));
                let words: Vec<String> = words.collect();
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                for signal in signals() {
                    ends_by(mounted, &words, signal);
                }
            }
        }
    });
}

/// During a run the first signal asks for an end in good order, which may never come. The second INT
/// ends the program, although its main thread waits for the file system with the report.
#[test]
fn the_second_int_ends_a_run_whose_report_is_never_written() {
    with_mounted(|mounted| {
        let path = mounted.at.join(FILE);
        // The kernel learns that the file system does not request to be informed when a file is
        // closed.
        drop(File::options().write(true).open(&path).unwrap());
        let report = File::options().write(true).open(&path).unwrap();
        let mut run = command(&["count", "synthetic:rate=1000", "--seconds", "0", "-v"]);
        let mut run = Ends(run.stdout(report).spawn().unwrap());
        let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("signals are listened to")));
        mounted.stop();
        // Keeps reading, since a full pipe would block the run.
        let rest = thread::spawn(move || lines.for_each(drop));
        let id = Pid::from_raw(run.id() as i32);
        kill(id, Signal::SIGINT).unwrap();
        until("the report waits for the file system", || mounted.is_waited_for());
        kill(id, Signal::SIGINT).unwrap();
        until("the second INT ends the run", || run.try_wait().unwrap().is_some());
        assert_eq!(run.wait().unwrap().code(), Some(130));
        rest.join().unwrap();
    });
}
