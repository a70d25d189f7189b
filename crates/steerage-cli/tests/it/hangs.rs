//! Tests signals to a process that waits for a file system that does not answer, such as a hard NFS
//! mount whose server is down. The waiting process is in the kernel, and a signal that the process
//! catches does not end its wait.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use fuser::{Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, ReplyAttr, ReplyEntry, Request};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::minor;
use nix::unistd::Pid;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{is_root, until};

use crate::command_line::{Argument, assert_complete};
use crate::fuse;
use crate::program::{Ends, children, command, command_in};
use crate::signals::ignores;

const TTL: Duration = Duration::from_secs(3600);

/// The names and inode numbers of the two entries in every directory of the FUSE file system.
const FILE: &str = "file";
const DIRECTORY: &str = "directory";
const FILE_INODE: u64 = 2;
const DIRECTORY_INODE: u64 = 3;

/// When a program looks this name up, the server of the file system stops.
const STOP: &str = "stop";

/// A file system whose server stops reading requests when a program looks up [`STOP`]. While the
/// server is stopped, a program that accesses the file system waits. SIGKILL ends the program, as
/// with a hard NFS mount.
struct Stopping {
    /// The stopped file system continues when the sender is dropped.
    goes_on: Mutex<Receiver<()>>,
}

fn attributes(inode: u64) -> FileAttr {
    let kind = if inode == FILE_INODE { FileType::RegularFile } else { FileType::Directory };
    fuse::attributes(INodeNo(inode), kind, 0o700)
}

impl Filesystem for Stopping {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name.to_str() {
            Some(FILE) => reply.entry(&TTL, &attributes(FILE_INODE), Generation(0)),
            Some(DIRECTORY) => reply.entry(&TTL, &attributes(DIRECTORY_INODE), Generation(0)),
            Some(STOP) => {
                reply.error(Errno::ENOENT);
                let _ = self.goes_on.lock().unwrap_or_else(PoisonError::into_inner).recv();
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &attributes(inode.0));
    }
}

struct Mounted {
    at: PathBuf,
    /// The file in which the kernel shows the number of requests that wait for the FUSE server.
    waiting: PathBuf,
    /// Dropping this sender lets the stopped file system continue.
    _stopped: Sender<()>,
}

impl Mounted {
    /// Stops the file system. Afterwards, the kernel's cache still has the attributes of [`FILE`]
    /// and [`DIRECTORY`].
    fn stop(&self) {
        for name in ["", FILE, DIRECTORY] {
            fs::metadata(self.at.join(name)).unwrap();
        }
        assert!(!fs::exists(self.at.join(STOP)).unwrap());
    }

    fn is_waited_for(&self) -> bool {
        fs::read_to_string(&self.waiting).unwrap().trim() != "0"
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}

/// Mounts the file system in a separate mount namespace, so that the mount disappears with this
/// thread and its programs, even after a crash.
fn with_mounted(body: impl FnOnce(&Mounted) + Send + 'static) {
    if !is_root() {
        return;
    }
    let run = move || {
        let scratch = Scratch::new();
        let (at, connections) = (scratch.join("mounted"), scratch.join("connections"));
        [&at, &connections].into_iter().for_each(|directory| fs::create_dir(directory).unwrap());
        let none = None::<&str>;
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        mount(none, &connections, Some("fusectl"), MsFlags::empty(), none).unwrap();
        let (stopped, goes_on) = mpsc::channel();
        let files = Stopping { goes_on: Mutex::new(goes_on) };
        let Some(serving) = fuse::serve(files, &at, "rootmode=40700,user_id=0,group_id=0") else { return };
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

fn signals() -> Vec<Signal> {
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().filter(|signal| !ignores(*signal)).collect()
}

fn ends_by(mounted: &Mounted, args: &str, signal: Signal) {
    let mut command = command_in(&args.split(' ').collect::<Vec<_>>());
    let mut child = Ends(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    until(&format!("{args:?} waits for the file system"), || {
        assert_eq!(child.try_wait().unwrap(), None, "{args:?} did not wait for the file system");
        mounted.is_waited_for()
    });
    let started = children(child.id());
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
    until(&format!("{signal} ends {args:?}"), || child.try_wait().unwrap().is_some());
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(signal as i32), "{args:?}: {status}");
    // A child process that executes a program in the stopped file system also hangs, and does not
    // get the signal that its parent gets.
    let is_left = |child: &Pid| fs::exists(format!("/proc/{child}")).unwrap_or(false);
    for child in started.into_iter().filter(is_left) {
        let _ = kill(child, Signal::SIGKILL);
    }
    until("the kernel forgets the request", || !mounted.is_waited_for());
}

/// Command lines that use a path in the stopped file system for an argument.
struct Row {
    /// The argument as `--help` shows it.
    argument: &'static str,
    commands: &'static [&'static str],
    /// `{c}` stands for each command in `commands`, with the arguments that the command needs,
    /// `DEMO` for a capture, `{d}` for a directory, and `{}` for a file whose opening or lookup
    /// hangs. Words with `=` before the command set environment variables.
    lines: &'static [&'static str],
}

const RUNS: &[&str] = &["count", "meter", "fanout", "forward", "send"];

const ROWS: &[Row] = &[
    // In the second of the `lines`, the program searches the `PATH` for tcpdump.
    Row {
        argument: "[DEVICE]...",
        commands: &["count", "meter", "fanout", "send"],
        lines: &["{c} {}", "PATH={d} {c} DEMO -f arp"],
    },
    // `forward` accepts no file as a device, and searches for tcpdump to compile its filter.
    Row { argument: "<DEVICE>...", commands: &["forward"], lines: &["PATH={d} forward lo -f arp"] },
    Row { argument: "<FLOW|DEVICE>...", commands: &["explain"], lines: &["explain {}"] },
    Row {
        argument: "<INPUT>...",
        commands: &["parallel"],
        lines: &["parallel {} -- cat", "parallel {} -- cat {file}"],
    },
    Row { argument: "<FILE>", commands: &["run", "check"], lines: &["{c} {}"] },
    Row { argument: "[OPTION|DEVICE]...", commands: &["run"], lines: &["run COUNT {}", "run COUNT --control {d}"] },
    // `check` opens no device, and compiles no filter.
    Row { argument: "[OPTION|DEVICE]...", commands: &["check"], lines: &[] },
    Row {
        argument: "<OUTPUT>",
        commands: &["send"],
        lines: &["send pcap:{d}/x synthetic:packets=1", "send fifo:{d}/x synthetic:packets=1"],
    },
    Row {
        argument: "--to <OUTPUT>",
        commands: &["fanout"],
        lines: &[
            "fanout synthetic:packets=1 --to pcap:{d}/x",
            "fanout synthetic:packets=1 --to pcap:{d}/%F --rotate 1h",
            "fanout synthetic:packets=1 --to fifo:{d}/x",
        ],
    },
    Row {
        argument: "--flows <FILE>",
        commands: &["meter"],
        lines: &[
            "meter synthetic:packets=1 --flows {d}/x.csv",
            "meter synthetic:packets=1 --flows {d}/%F/x.csv --rotate 1h",
        ],
    },
    Row {
        argument: "--export <WHERE>",
        commands: &["meter"],
        lines: &["meter synthetic:packets=1 --export {d}/x.jsonl", "meter synthetic:packets=1 --export {d}/x.csv"],
    },
    Row {
        argument: "--socket <PATH>",
        commands: RUNS,
        lines: &["{c} --socket {d}/x", "STEERAGE_RUNTIME_DIR={d} {c}", "STEERAGE_RUNTIME_DIR={d}/x {c} --socket y"],
    },
    // In the second of the `lines`, the program searches the `PATH` for fusermount3.
    Row {
        argument: "--control <DIR>",
        commands: RUNS,
        lines: &["{c} --control {d}", "PATH={d} {c} --socket none --control EMPTY"],
    },
    Row {
        argument: "--results <DIR>",
        commands: &["parallel"],
        lines: &["parallel synthetic:packets=1 --results {d}/x -- cat"],
    },
    // In `lines`, `{d}` is the directory of a job's program or, as `TMPDIR`, of the job's files.
    Row {
        argument: "<COMMAND>...",
        commands: &["parallel"],
        lines: &[
            "parallel synthetic:packets=1 -- {d}/x",
            "parallel synthetic:packets=1 -- {}",
            "PATH={d} parallel synthetic:packets=1 -- x",
            "parallel synthetic:packets=1 -- {d}/x {file}",
            "TMPDIR={d} parallel synthetic:packets=1 -- cat {file}",
            "TMPDIR={d} parallel synthetic:packets=1 --keep-order -- cat",
        ],
    },
    // `parallel` starts the hidden command `exec-when-ready`, and waits for the end of that process
    // as for any job.
    Row { argument: "<COMMAND>...", commands: &["exec-when-ready"], lines: &[] },
    Row {
        argument: "--to <PID|NAME|PATH>",
        commands: &["top", "get", "set"],
        lines: &["{c} --to {d}/x", "STEERAGE_RUNTIME_DIR={d} {c}"],
    },
    Row { argument: "<PID|NAME|PATH>", commands: &["dump"], lines: &["dump {d}/x", "STEERAGE_RUNTIME_DIR={d} dump x"] },
    // `dump` creates its output file only after it has connected to a run.
    Row { argument: "--write <FILE>", commands: &["dump"], lines: &[] },
    Row { argument: "--out <DIR>", commands: &["man"], lines: &["man --out {d}"] },
    // `get` and `set` take the path of an attribute in the control tree, and not of a file.
    Row { argument: "[PATH]", commands: &["get"], lines: &[] },
    Row { argument: "<PATH>", commands: &["set"], lines: &[] },
];

/// Command lines in which only an environment variable contains a path.
const VARIABLES: &[&str] = &[
    "STEERAGE_STATE_DIR={d}/x tune lo",
    "STEERAGE_STATE_DIR={d}/x tune --undo",
    "STEERAGE_STATE_DIR={d}/x tune lo --check",
    "STEERAGE_STATE_DIR={d}/x tune lo --apply",
    "STEERAGE_STATE_DIR={d}/x tune lo --watch",
    "STEERAGE_STATE_DIR={d}/x tune lo --for listen --apply",
];

/// Adds the arguments that the command needs before it opens any path.
fn with_what_it_needs(command: &str, has_device: bool) -> String {
    let device = if has_device { "" } else { " synthetic:packets=1" };
    match command {
        "count" | "meter" => format!("{command}{device}"),
        "fanout" => format!("fanout --to pcap:/dev/null{device}"),
        "send" => format!("send pcap:/dev/null{device}"),
        "forward" => "forward lo".to_owned(),
        "set" => "set steerage/policy hash".to_owned(),
        "top" => "top --once".to_owned(),
        "run" | "check" | "get" => command.to_owned(),
        _ => panic!("{command}"),
    }
}

#[test]
fn every_argument_that_can_be_a_path_has_a_row() {
    let of = |row: &Row| -> Vec<Argument> {
        row.commands.iter().map(|command| ((*command).to_owned(), row.argument.to_owned())).collect()
    };
    assert_complete(ROWS.iter().flat_map(of));
}

#[test]
fn a_file_system_that_does_not_answer_keeps_no_command_from_ending() {
    with_mounted(|mounted| {
        mounted.stop();
        let scratch = Scratch::new();
        let count = scratch.join("count.toml");
        fs::write(&count, "command = \"count\"\ndevices = [\"synthetic:packets=1\"]\n").unwrap();
        let empty = scratch.join("empty");
        fs::create_dir(&empty).unwrap();
        let path = |name: &str| mounted.at.join(name).display().to_string();
        for row in ROWS {
            for (command, line) in row.commands.iter().flat_map(|it| row.lines.iter().map(move |line| (it, line))) {
                let line = match line.contains("{c}") {
                    true => line.replace("{c}", &with_what_it_needs(command, row.argument.contains("DEVICE"))),
                    false => (*line).to_owned(),
                };
                for file in if line.contains("{}") { &[FILE, "never"][..] } else { &[FILE] } {
                    let line = line.replace("{}", &path(file)).replace("{d}", &path(DIRECTORY));
                    let line = line.replace("COUNT", count.to_str().unwrap()).replace("EMPTY", empty.to_str().unwrap());
                    let line = line.replace("DEMO", concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/demo.pcapng"));
                    for signal in signals() {
                        ends_by(mounted, &line, signal);
                    }
                }
            }
        }
        for line in VARIABLES {
            signals().into_iter().for_each(|signal| ends_by(mounted, &line.replace("{d}", &path(DIRECTORY)), signal));
        }
    });
}

/// The main thread hangs in a write to the stopped file system, so the normal end that the first
/// SIGINT requests is never reached.
#[test]
fn the_second_int_ends_a_run_whose_report_is_never_written() {
    with_mounted(|mounted| {
        let path = mounted.at.join(FILE);
        // After this file is closed, the kernel knows that the file system does not support flush
        // requests.
        drop(File::options().write(true).open(&path).unwrap());
        let report = File::options().write(true).open(&path).unwrap();
        let mut run = command(&["count", "synthetic:rate=1000", "--seconds", "0", "-v"]);
        let mut run = Ends(run.stdout(report).spawn().unwrap());
        let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("signals are listened to")));
        mounted.stop();
        // A full pipe would block the run.
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
