//! Tests every option that takes a path for writing with every object that another user can plant
//! there.
//!
//! The options come from docs/options.md, which a test compares with the definitions of the command
//! line. An option that can be a path and has no row here fails
//! [`every_option_that_can_be_a_path_has_a_row`].

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::libc::{O_NONBLOCK, makedev};
use nix::sys::stat::{Mode, SFlag, mknod};
use nix::unistd::mkfifo;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{HANG, NOBODY, is_root, skip};

use crate::program::{Ends, Ran, command};

/// What an option names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Names {
    File,
    /// A directory in which files are created.
    Directory,
}

/// Options that take a path for writing, and a command line for each form of their value.
struct Row {
    /// The option and its commands, as in docs/options.md.
    option: &'static str,
    commands: &'static str,
    names: Names,
    /// `{}` stands for the path.
    lines: &'static [&'static str],
}

const RUNS: &str = "count, meter, fanout, forward, send";

const ROWS: &[Row] = &[
    Row {
        option: "--flows <FILE>",
        commands: "meter",
        names: Names::File,
        lines: &["meter DEMO --virtual-cpus 1 --socket none -q --flows {}"],
    },
    Row {
        option: "--export <WHERE>",
        commands: "meter",
        names: Names::File,
        lines: &["meter DEMO --virtual-cpus 1 --socket none -q --export {}"],
    },
    Row {
        option: "--to <OUTPUT>",
        commands: "fanout",
        names: Names::File,
        lines: &[
            "fanout DEMO --virtual-cpus 1 --socket none -q --to pcap:{}",
            "fanout DEMO --virtual-cpus 1 --socket none -q --to fifo:{}",
        ],
    },
    Row {
        option: "<OUTPUT>",
        commands: "send",
        names: Names::File,
        lines: &["send pcap:{} DEMO --virtual-cpus 1 --socket none -q"],
    },
    Row {
        option: "--socket <PATH>",
        commands: RUNS,
        names: Names::File,
        lines: &["count DEMO --virtual-cpus 1 -q --socket {}"],
    },
    Row {
        option: "--results <DIR>",
        commands: "parallel",
        names: Names::Directory,
        lines: &["parallel DEMO -j 2 -q --results {} -- cat"],
    },
    Row {
        option: "--control <DIR>",
        commands: RUNS,
        names: Names::Directory,
        lines: &["count DEMO --virtual-cpus 1 --socket none -q --control {}"],
    },
    Row { option: "--out <DIR>", commands: "man", names: Names::Directory, lines: &["man --out {}"] },
];

/// Options and arguments that are paths, or can be paths, and that are only read or connected to.
const READ: &[(&str, &str)] = &[
    ("--to <PID\\|NAME\\|PATH>", "top, get, set"),
    ("[DEVICE]...", "count"),
    ("[DEVICE]...", "meter"),
    ("[DEVICE]...", "fanout"),
    ("[DEVICE]...", "send"),
    ("<DEVICE>...", "forward"),
    ("<FLOW\\|DEVICE>...", "explain"),
    ("<INPUT>...", "parallel"),
    ("<FILE>", "run"),
    ("<FILE>", "check"),
    // The name of a host.
    ("--metrics-host <NAME>", RUNS),
    // A program, and its arguments.
    ("<COMMAND>...", "parallel"),
    // These are the options of the file's command.
    ("[OPTION\\|DEVICE]...", "run"),
    ("[OPTION\\|DEVICE]...", "check"),
    // Attributes of the control tree.
    ("[PATH]", "get"),
    ("<PATH>", "set"),
];

/// The names of values that cannot be paths.
const NO_PATHS: &[&str] = &[
    "1:N",
    "ADDR:PORT",
    "ADDR[/LEN]",
    "BYTES",
    "COMMAND",
    "DURATION",
    "EXPR",
    "FACTOR",
    "FORMAT",
    "HASH",
    "HEX",
    "IFACE",
    "KEY",
    "LIST",
    "MAC",
    "MASK",
    "N",
    "NS",
    "POLICY",
    "PORT",
    "PORT:REQ:RESP",
    "ROUTE",
    "S",
    "SHELL",
    "SIZE",
    "TARGET",
    "TOPIC",
    "VALUE",
    "WAY",
];

#[test]
fn every_option_that_can_be_a_path_has_a_row() {
    let page = include_str!("../../../../docs/options.md");
    let (head, options) = page.split_once("\n## Options\n").unwrap();
    let (_, arguments) = head.split_once("\n## Arguments\n").unwrap();
    // The first two cells of each row. A bar in a cell is escaped.
    let cells = |table: &str| -> Vec<(String, String)> {
        let rows = table.lines().filter(|line| line.starts_with("| `"));
        let cell = |line: &str| -> Vec<String> {
            line.replace("\\|", "\0").split('|').map(|cell| cell.trim().replace('\0', "\\|").replace('`', "")).collect()
        };
        rows.map(|line| (cell(line)[1].clone(), cell(line)[2].clone())).collect()
    };
    // The first `<` begins the name, and the last `>` ends it.
    let value = |option: &str| -> Option<String> {
        let (_, name) = option.split_once('<')?;
        Some(name.rsplit_once('>')?.0.to_owned())
    };
    let mut found = BTreeSet::new();
    for (option, commands) in cells(options) {
        if value(&option).is_some_and(|name| !NO_PATHS.contains(&name.as_str())) {
            found.insert((option, commands));
        }
    }
    for (command, arguments) in cells(arguments) {
        for argument in arguments.split(' ') {
            let name = argument.trim_matches(|it| "<>[].".contains(it));
            // A COMMAND of `man` is a page, and that of `parallel` is a program.
            if !NO_PATHS.contains(&name) || argument == "<COMMAND>..." {
                found.insert((argument.to_owned(), command.clone()));
            }
        }
    }
    let rows = ROWS.iter().map(|row| (row.option, row.commands)).chain(READ.iter().copied());
    let rows: BTreeSet<(String, String)> = rows.map(|(option, of)| (option.to_owned(), of.to_owned())).collect();
    let missing: Vec<_> = found.difference(&rows).collect();
    assert!(missing.is_empty(), "options without a row in this file: {missing:?}");
    let stale: Vec<_> = rows.difference(&found).collect();
    assert!(stale.is_empty(), "rows of options that no longer exist: {stale:?}");
}

/// The name of a planted file. Its end is the format that `--flows` needs.
const NAME: &str = "out.csv";

const UNTOUCHED: &str = "untouched";

/// Planted objects, and the directories around them.
struct Ground {
    root: Scratch,
}

/// Something that another user planted, and the path that leads there.
#[derive(Clone, Copy, Debug)]
enum Planted {
    Link,
    LinkToNothing,
    /// A link of root, which leads to a link of the other user.
    Chain,
    DirectoryLink,
    /// Like `DirectoryLink`, but with the other user's directory as the working directory.
    DirectoryLinkFromThere,
    Fifo,
    Device,
    HardLink,
    /// A link of root that a member of the group moved to a directory of the group.
    InGroupDirectory,
    DirectoryLinkInGroupDirectory,
    InStickyDirectory,
    /// A link of root that the other user moved there.
    MovedToStickyDirectory,
    DirectoryLinkInStickyDirectory,
}

impl Planted {
    const ALL: [Self; 13] = [
        Self::Link,
        Self::LinkToNothing,
        Self::Chain,
        Self::DirectoryLink,
        Self::DirectoryLinkFromThere,
        Self::Fifo,
        Self::Device,
        Self::HardLink,
        Self::InGroupDirectory,
        Self::DirectoryLinkInGroupDirectory,
        Self::InStickyDirectory,
        Self::MovedToStickyDirectory,
        Self::DirectoryLinkInStickyDirectory,
    ];
}

impl Ground {
    fn new() -> Self {
        let ground = Self { root: Scratch::new() };
        ground.directory("protected", 0, 0, 0o755);
        fs::write(ground.at("protected").join(NAME), UNTOUCHED).unwrap();
        ground.directory("x", NOBODY, NOBODY, 0o755);
        ground.directory("group", 0, NOBODY, 0o775);
        ground.directory("sticky", 0, 0, 0o1777);
        ground.directory("plain", 0, 0, 0o755);
        ground
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn directory(&self, path: &str, uid: u32, gid: u32, mode: u32) {
        fs::create_dir(self.at(path)).unwrap();
        lchown(self.at(path), Some(uid), Some(gid)).unwrap();
        fs::set_permissions(self.at(path), Permissions::from_mode(mode)).unwrap();
    }

    fn link(&self, path: &str, uid: u32, target: &Path) {
        symlink(target, self.at(path)).unwrap();
        lchown(self.at(path), Some(uid), Some(uid)).unwrap();
    }

    /// Plants an object. Returns the path for the option, and the working directory.
    fn plant(&self, planted: Planted, names: Names) -> (PathBuf, PathBuf) {
        // The other user wants root to write here.
        let target = match names {
            Names::File => self.at("protected").join(NAME),
            Names::Directory => self.at("protected"),
        };
        let (here, there) = (self.root.to_path_buf(), self.at("x").join(NAME));
        let named = |directory: &str| format!("{directory}/{NAME}");
        // A file in a directory that a link leads to, or the directory itself.
        let below = |link: PathBuf| match names {
            Names::File => link.join("new.csv"),
            Names::Directory => link,
        };
        let path = match planted {
            Planted::Link => {
                self.link(&named("x"), NOBODY, &target);
                there
            }
            Planted::LinkToNothing => {
                self.link(&named("x"), NOBODY, &self.at("protected/new.csv"));
                there
            }
            Planted::Chain => {
                self.link(&named("x"), NOBODY, &target);
                self.link(NAME, 0, &there);
                self.at(NAME)
            }
            Planted::DirectoryLink => {
                self.link("x/logs", NOBODY, &self.at("protected"));
                below(self.at("x/logs"))
            }
            Planted::DirectoryLinkFromThere => {
                self.link("x/logs", NOBODY, &self.at("protected"));
                return (below(PathBuf::from("logs")), self.at("x"));
            }
            Planted::Fifo => {
                mkfifo(&there, Mode::empty()).unwrap();
                lchown(&there, Some(NOBODY), Some(NOBODY)).unwrap();
                fs::set_permissions(&there, Permissions::from_mode(0o666)).unwrap();
                there
            }
            Planted::Device => {
                mknod(&there, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), makedev(1, 3)).unwrap();
                lchown(&there, Some(NOBODY), Some(NOBODY)).unwrap();
                there
            }
            Planted::HardLink => {
                fs::hard_link(self.at("protected").join(NAME), &there).unwrap();
                there
            }
            Planted::InGroupDirectory => {
                self.link(&named("group"), 0, &target);
                self.at("group").join(NAME)
            }
            Planted::DirectoryLinkInGroupDirectory => {
                self.link("group/logs", 0, &self.at("protected"));
                below(self.at("group/logs"))
            }
            Planted::InStickyDirectory => {
                self.link(&named("sticky"), NOBODY, &target);
                self.at("sticky").join(NAME)
            }
            Planted::MovedToStickyDirectory => {
                self.link(&named("sticky"), 0, &target);
                self.at("sticky").join(NAME)
            }
            Planted::DirectoryLinkInStickyDirectory => {
                self.link("sticky/logs", NOBODY, &self.at("protected"));
                below(self.at("sticky/logs"))
            }
        };
        (path, here)
    }

    /// Checks that nothing was written in the protected directory.
    fn assert_untouched(&self, what: &str) {
        let entries = fs::read_dir(self.at("protected")).unwrap();
        let names: Vec<OsString> = entries.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [NAME], "{what}");
        let file = self.at("protected").join(NAME);
        assert_eq!(fs::read_to_string(&file).unwrap(), UNTOUCHED, "{what}");
        let metadata = fs::symlink_metadata(&file).unwrap();
        assert!(metadata.is_file() && metadata.uid() == 0, "{what}: {metadata:?}");
        let directory = fs::metadata(self.at("protected")).unwrap();
        assert_eq!((directory.mode() & 0o7777, directory.uid()), (0o755, 0), "{what}");
    }
}

fn line(row: &str, path: &Path) -> Vec<String> {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/demo.pcapng");
    row.split(' ').map(|word| word.replace("DEMO", demo).replace("{}", path.to_str().unwrap())).collect()
}

/// Opens a FIFO for reading if there is one.
fn reader(path: &Path) -> Option<File> {
    let is_fifo = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo());
    // The name may lead elsewhere by now.
    is_fifo.then(|| File::options().read(true).custom_flags(O_NONBLOCK).open(path).ok()).flatten()
}

/// Whether root may create devices here. Not every container allows it.
fn makes_devices() -> bool {
    let scratch = Scratch::new();
    let made = mknod(&scratch.join("null"), SFlag::S_IFCHR, Mode::empty(), makedev(1, 3));
    made.inspect_err(|error| skip(&format!("devices cannot be created: {error}"))).is_ok()
}

/// Runs a command line to its end. If it writes to a FIFO at `path`, the FIFO is read. Returns what
/// was read.
fn run(row: &str, path: &Path, working: &Path) -> (Ran, Vec<u8>) {
    let args = line(row, path);
    let mut command: Command = command(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let mut child = Ends(command.current_dir(working).spawn().unwrap());
    let at = working.join(path);
    let (start, mut reading, mut read) = (Instant::now(), None, Vec::new());
    let code = loop {
        let ended = child.try_wait().unwrap();
        reading = reading.or_else(|| reader(&at));
        // Without a writer or data, this reads nothing, or fails.
        let _ = reading.as_mut().map(|fifo| fifo.read_to_end(&mut read));
        match ended {
            Some(status) => break status.code(),
            None => assert!(start.elapsed() < HANG, "it hangs: {args:?}"),
        }
        thread::sleep(Duration::from_millis(2));
    };
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    // A note, and no error.
    let err = err.split_inclusive('\n').filter(|line| !line.starts_with("waiting for a reader of ")).collect();
    (Ran { code, out, err }, read)
}

/// Checks that a run ended with success, or with one line.
fn assert_ended(ran: &Ran, what: &str) {
    match ran.code {
        Some(0) => {}
        // The code 255 is the status of `parallel` for errors that no job caused.
        Some(1 | 255) => assert!(ran.complaint().len() > 30, "{what}"),
        _ => panic!("{what}: {ran:?}"),
    }
}

fn lines(rows: &'static [Row]) -> impl Iterator<Item = (&'static str, Names)> {
    rows.iter().flat_map(|row| row.lines.iter().map(|line| (*line, row.names)))
}

#[test]
fn what_another_user_planted_is_not_followed() {
    if !is_root() {
        return;
    }
    let makes_devices = makes_devices();
    for (row, names) in lines(ROWS) {
        for planted in Planted::ALL.into_iter().filter(|it| makes_devices || !matches!(it, Planted::Device)) {
            let what = format!("{planted:?}: {row}");
            let ground = Ground::new();
            let (path, working) = ground.plant(planted, names);
            let (ran, read) = run(row, &path, &working);
            ground.assert_untouched(&what);
            assert_ended(&ran, &what);
            match planted {
                Planted::Fifo => assert_eq!(read, b"", "{what}"),
                Planted::Device => {
                    let is_device = fs::symlink_metadata(&path).unwrap().file_type().is_char_device();
                    assert!(is_device && ran.code != Some(0), "{what}: {ran:?}");
                }
                _ => {}
            }
            // Only root's own names may appear, and no unfinished file stays.
            for directory in ["x", "group", "sticky"] {
                for entry in fs::read_dir(ground.at(directory)).unwrap() {
                    let name = entry.unwrap().file_name();
                    assert!(name == NAME || name == "logs", "{what}: {name:?}");
                }
            }
        }
    }
}

/// Without planted objects, each command writes to its path, so the rows test something.
#[test]
fn what_nobody_planted_is_written() {
    if !is_root() {
        return;
    }
    for (row, names) in lines(ROWS) {
        if row.contains("--control") && !Path::new("/dev/fuse").exists() {
            skip("this kernel has no FUSE");
            continue;
        }
        let ground = Ground::new();
        let (named, directory) = match names {
            Names::File => (NAME, ground.at("plain")),
            Names::Directory => ("", ground.at("plain")),
        };
        // A link of root in a directory of root is followed.
        ground.link("linked", 0, &directory);
        for path in [directory.join(named), ground.at("linked").join(named)] {
            if row.contains("--results") {
                let _ = fs::remove_dir_all(&directory);
                fs::create_dir(&directory).unwrap();
            }
            let (ran, read) = run(row, &path, &ground.root);
            assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{row}: {ran:?}");
            let count = fs::read_dir(&directory).unwrap().count();
            let is_left = !row.contains("--socket {}") && !row.contains("--control");
            assert_eq!(count > 0, is_left, "{row}");
            assert_eq!(row.contains("fifo:"), !read.is_empty(), "{row}");
        }
    }
}

/// Exchanges two names as fast as it can, until it is dropped.
struct Exchanged<'a> {
    ended: &'a AtomicBool,
}

impl Drop for Exchanged<'_> {
    fn drop(&mut self) {
        // Relaxed: the flag protects no data.
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// How often each command runs while the directory is exchanged.
const RACES: usize = 8;

#[test]
fn a_directory_that_is_exchanged_with_a_link_leads_nowhere() {
    if !is_root() {
        return;
    }
    for (row, names) in lines(ROWS) {
        let ground = Ground::new();
        ground.directory("x/logs", NOBODY, NOBODY, 0o755);
        ground.link("x/away", NOBODY, &ground.at("protected"));
        let (one, two) = (ground.at("x/logs"), ground.at("x/away"));
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let _exchanged = Exchanged { ended: &ended };
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    renameat2(AT_FDCWD, &one, AT_FDCWD, &two, RenameFlags::RENAME_EXCHANGE).unwrap();
                }
            });
            let file = if names == Names::File { "new.csv" } else { "" };
            for nth in 0..RACES {
                // By turns from the root, and from the other user's directory.
                let (path, working) = match nth % 2 {
                    0 => (ground.at("x/logs").join(file), ground.root.to_path_buf()),
                    _ => (Path::new("logs").join(file), ground.at("x")),
                };
                let (ran, _) = run(row, &path, &working);
                let what = format!("exchanged: {row}");
                ground.assert_untouched(&what);
                assert_ended(&ran, &what);
            }
        });
    }
}

/// The capture of the example is of this day.
const DAY: &str = "2026-01-01";

#[test]
fn the_directory_of_a_day_that_another_user_planted_is_not_used() {
    if !is_root() {
        return;
    }
    let row = "meter DEMO --virtual-cpus 1 --socket none -q --rotate 1h --flows {}";
    // Landlock would hide a mistake here.
    let open = &format!("{row} --no-sandbox");
    for (directory, row) in
        ["x", "group", "sticky"].into_iter().flat_map(|directory| [(directory, row), (directory, open)])
    {
        let ground = Ground::new();
        let owner = if directory == "group" { 0 } else { NOBODY };
        ground.link(&format!("{directory}/{DAY}"), owner, &ground.at("protected"));
        let (ran, _) = run(row, &ground.at(directory).join("%F/%H.csv"), &ground.root);
        ground.assert_untouched(directory);
        assert!(ran.code == Some(1) && ran.err.lines().last().is_some_and(|line| line.contains(DAY)), "{ran:?}");
    }
    // Without a planted link, the directory is made there, and used by the next run too.
    let ground = Ground::new();
    for file in ["one-%H.csv", "two-%H.csv"] {
        let (ran, _) = run(row, &ground.at("x/%F").join(file), &ground.root);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    }
    let directory = ground.at("x").join(DAY);
    assert_eq!(fs::metadata(&directory).unwrap().uid(), 0);
    assert!(directory.join("one-09.csv").is_file() && directory.join("two-09.csv").is_file());
}

/// A planted link cannot make a run fail, and Landlock stays closed for its target.
#[test]
fn a_run_replaces_a_planted_link() {
    if !is_root() {
        return;
    }
    for (row, _) in lines(ROWS).filter(|(row, _)| ["--flows", "--export", "pcap:"].iter().any(|way| row.contains(way)))
    {
        for planted in [Planted::Link, Planted::LinkToNothing, Planted::Chain, Planted::InStickyDirectory] {
            let ground = Ground::new();
            let (path, working) = ground.plant(planted, Names::File);
            let (ran, _) = run(row, &path, &working);
            assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{planted:?}: {row}: {ran:?}");
            let directory = if matches!(planted, Planted::InStickyDirectory) { "sticky" } else { "x" };
            let made = fs::symlink_metadata(ground.at(directory).join(NAME)).unwrap();
            assert!(made.is_file() && made.uid() == 0, "{planted:?}: {row}: {made:?}");
        }
    }
}

#[test]
fn a_refusal_names_the_directory_and_says_what_to_do() {
    if !is_root() {
        return;
    }
    let ground = Ground::new();
    ground.directory("x/logs", NOBODY, NOBODY, 0o755);
    let row = "meter DEMO --virtual-cpus 1 --socket none -q --flows {}";
    let path = ground.at("x/logs/f.csv");
    let (ran, _) = run(row, &path, &ground.root);
    let x = ground.at("x");
    let message = format!(
        "steerage: cannot write flows to {}: user 65534 can change the directory {}: name a directory that only root can \
         change, or change to the directory first",
        path.display(),
        x.display()
    );
    assert_eq!(ran.complaint(), message);
    // The advice helps.
    let (ran, _) = run(row, Path::new("logs/f.csv"), &x);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    assert!(path.is_file());
}

#[test]
fn standard_output_by_its_path_is_not_replaced() {
    let directory = Scratch::new();
    let file = directory.join("out");
    let named = directory.join(NAME);
    symlink("/dev/stdout", &named).unwrap();
    let to = |row: &str, path: &Path| {
        fs::write(&file, "before\n").unwrap();
        let args = line(row, path);
        let out = File::options().append(true).open(&file).unwrap();
        let mut command = command(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let output = command.stdout(out).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap(), fs::read(&file).unwrap())
    };
    for path in [Path::new("/dev/stdout"), &named] {
        let (code, err, bytes) = to("send pcap:{} synthetic:packets=10 --virtual-cpus 1 --socket none -q", path);
        assert_eq!((code, err.as_str()), (Some(0), ""));
        assert!(bytes.starts_with(b"before\n") && bytes.len() > 500, "{}", bytes.len());
    }
    let (code, err, bytes) = to("meter DEMO --virtual-cpus 1 --socket none -q --flows {}", &named);
    assert!(code == Some(1) && err.ends_with("instead of a file; write - for standard output\n"), "{err}");
    assert_eq!(bytes, b"before\n", "{err}");
}
