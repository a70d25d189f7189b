//! Tests every option with a path to which the program writes. At each path, another user has
//! planted a link, a FIFO, or another object that could redirect the output. The options come from
//! the definition of the command line: an argument without a row in the table fails the test
//! [`every_argument_that_can_be_a_path_has_a_row`].

mod ground;
mod table;

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use nix::libc::{O_NONBLOCK, makedev};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{Mode, SFlag, mknod};
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{HANG, NOBODY, is_installed, is_root, skip};

use ground::{Ground, NAME, Planted};
use table::{Names, READ, ROWS, VARIABLES};

use crate::command_line::{Argument, assert_complete};
use crate::fuse;
use crate::lying::Lying;
use crate::program::{Ends, Ran, command_in};

#[test]
fn every_argument_that_can_be_a_path_has_a_row() {
    let of = |argument: &str, commands: &[&str]| -> Vec<Argument> {
        commands.iter().map(|command| ((*command).to_owned(), argument.to_owned())).collect()
    };
    let written = ROWS.iter().flat_map(|row| of(row.argument, row.commands));
    assert_complete(written.chain(READ.iter().flat_map(|(argument, commands)| of(argument, commands))));
}

fn line(row: &str, path: &Path) -> Vec<String> {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/demo.pcapng");
    row.split(' ').map(|word| word.replace("DEMO", demo).replace("{}", path.to_str().unwrap())).collect()
}

fn reader(path: &Path) -> Option<File> {
    let is_fifo = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo());
    // Another file may already have replaced the FIFO.
    is_fifo.then(|| File::options().read(true).custom_flags(O_NONBLOCK).open(path).ok()).flatten()
}

/// In some containers, root cannot create device files.
fn makes_devices() -> bool {
    let scratch = Scratch::new();
    let made = mknod(&scratch.join("null"), SFlag::S_IFCHR, Mode::empty(), makedev(1, 3));
    made.inspect_err(|error| skip(&format!("devices cannot be created: {error}"))).is_ok()
}

/// Runs the command. Returns the command's result, and the data that the command writes to a FIFO
/// at `path`.
fn run(row: &str, path: &Path, working: &Path) -> (Ran, Vec<u8>) {
    let args = line(row, path);
    let mut command: Command = command_in(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let mut child = Ends(command.current_dir(working).spawn().unwrap());
    let at = working.join(path);
    let (start, mut reading, mut read) = (Instant::now(), None, Vec::new());
    let code = loop {
        let ended = child.try_wait().unwrap();
        reading = reading.or_else(|| reader(&at));
        // The FIFO may have no writer or no data.
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
    let err = err.split_inclusive('\n').filter(|line| !line.starts_with("waiting for a reader of ")).collect();
    (Ran { code, out, err }, read)
}

fn assert_ended(ran: &Ran, what: &str) {
    match ran.code {
        Some(0) => {}
        // `parallel` exits with 255 after errors that no job caused.
        Some(1 | 255) => assert!(ran.complaint().len() > 30, "{what}"),
        _ => panic!("{what}: {ran:?}"),
    }
}

fn lines() -> impl Iterator<Item = (&'static str, Names)> {
    ROWS.iter().chain(VARIABLES).flat_map(|row| row.lines.iter().map(|line| (*line, row.names)))
}

#[test]
fn what_another_user_planted_is_not_followed() {
    if !is_root() {
        return;
    }
    let makes_devices = makes_devices();
    for (row, names) in lines() {
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
                    // Without a usable directory for its control socket, a run continues.
                    assert!(is_device && (ran.code != Some(0) || row.contains('=')), "{what}: {ran:?}");
                }
                _ => {}
            }
            // The run must not leave unfinished files.
            for directory in ["x", "group", "sticky"] {
                for entry in fs::read_dir(ground.at(directory)).unwrap() {
                    let name = entry.unwrap().file_name();
                    assert!(name == NAME || name == "logs", "{what}: {name:?}");
                }
            }
        }
    }
}

/// In a FUSE file system of another user, links can seem to belong to root. The program follows
/// links only in FUSE file systems of root.
#[test]
fn a_file_system_that_another_user_runs_is_not_trusted() {
    if !is_root() {
        return;
    }
    let body = || {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        for user in [NOBODY, 0] {
            let ground = Ground::new();
            let at = ground.at("sticky/mounted");
            ground.directory("sticky/mounted", user, user, 0o755);
            let files = Lying { target: ground.at("protected"), name: NAME };
            let options = format!("rootmode=40755,user_id={user},group_id={user},allow_other");
            let Some(serving) = fuse::serve(files, &at, &options) else { return };
            for (row, names) in
                lines().filter(|(row, _)| user == NOBODY || row.contains("--flows") || row.starts_with("man "))
            {
                let path = match names {
                    Names::File => at.join(NAME),
                    Names::Directory => at.join("logs"),
                };
                let paths = [path, at.join("logs/new.csv")];
                for path in &paths[..if names == Names::File { 2 } else { 1 }] {
                    let what = format!("{}: {row}", path.display());
                    let (ran, _) = run(row, path, &ground.root);
                    assert_ended(&ran, &what);
                    match user {
                        0 => assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{what}: {ran:?}"),
                        _ => ground.assert_untouched(&what),
                    }
                    if user == NOBODY && path.ends_with(NAME) && row.contains("--flows") {
                        assert!(ran.err.contains("user 65534 runs the file system of "), "{what}: {ran:?}");
                    }
                }
            }
            umount2(&at, MntFlags::MNT_DETACH).unwrap();
            serving.join().unwrap().unwrap();
        }
    };
    thread::spawn(body).join().unwrap();
}

#[test]
fn what_nobody_planted_is_written() {
    if !is_root() {
        return;
    }
    for (row, names) in lines() {
        if row.contains("--control") && !Path::new("/dev/fuse").exists() {
            skip("this kernel has no FUSE");
            continue;
        }
        if row.contains("--control") && !is_installed("fusermount3", "fuse3") {
            continue;
        }
        let ground = Ground::new();
        let (named, directory) = match names {
            Names::File => (NAME, ground.at("plain")),
            Names::Directory => ("", ground.at("plain")),
        };
        // The program follows a link if root owns both the link and its directory.
        ground.link("linked", 0, &directory);
        for path in [directory.join(named), ground.at("linked").join(named)] {
            if row.contains("--results") {
                let _ = fs::remove_dir_all(&directory);
                fs::create_dir(&directory).unwrap();
            }
            let (ran, read) = run(row, &path, &ground.root);
            assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{row}: {ran:?}");
            let count = fs::read_dir(&directory).unwrap().count();
            let is_left =
                !["--socket {}", "--control", "TMPDIR={}", "RUNTIME_DIR={}"].iter().any(|gone| row.contains(gone));
            assert_eq!(count > 0, is_left, "{row}");
            assert_eq!(row.contains("fifo:"), !read.is_empty(), "{row}");
        }
    }
}

/// Exchanges two file names as fast as possible, until this value is dropped.
struct Exchanged<'a> {
    ended: &'a AtomicBool,
}

impl Drop for Exchanged<'_> {
    fn drop(&mut self) {
        // `Relaxed`: the flag protects no data.
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// The number of runs of each command while the output directory is exchanged with a link.
const RACES: usize = 8;

#[test]
fn a_directory_that_is_exchanged_with_a_link_leads_nowhere() {
    if !is_root() {
        return;
    }
    for (row, names) in lines() {
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
                // Relative paths start at the working directory, which belongs to the user
                // `NOBODY`.
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

const DAY: &str = "2026-01-01";

#[test]
fn the_directory_of_a_day_that_another_user_planted_is_not_used() {
    if !is_root() {
        return;
    }
    let rows = [
        "meter DEMO --virtual-cpus 1 --socket none -q --rotate 1h --flows {}",
        "fanout DEMO --virtual-cpus 1 --socket none -q --rotate 1h --to pcap:{}",
    ];
    rows.into_iter().for_each(a_planted_day_is_not_used);
}

fn a_planted_day_is_not_used(row: &str) {
    // Landlock would hide a mistake in the program's own check of the path.
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
    // If no link is planted, the first run creates the directory `%F`, and the second run writes to
    // the same directory.
    let ground = Ground::new();
    for file in ["one-%H.csv", "two-%H.csv"] {
        let (ran, _) = run(row, &ground.at("x/%F").join(file), &ground.root);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    }
    let directory = ground.at("x").join(DAY);
    assert_eq!(fs::metadata(&directory).unwrap().uid(), 0);
    assert!(directory.join("one-09.csv").is_file() && directory.join("two-09.csv").is_file());
}

/// Landlock does not allow the run to write to the link's target.
#[test]
fn a_run_replaces_a_planted_link() {
    if !is_root() {
        return;
    }
    for (row, _) in lines().filter(|(row, _)| ["--flows", "--export", "pcap:"].iter().any(|way| row.contains(way))) {
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

/// The owner of a directory can choose the group and the access control list (ACL) of new files in
/// it.
#[test]
fn the_owner_of_a_directory_does_not_choose_who_reads() {
    if !is_root() {
        return;
    }
    /// An ACL in the format of linux/posix_acl_xattr.h: tag, permissions and user of each entry.
    /// The last entry of the ACL is the mask, which limits the rights of users and groups.
    const ENTRIES: [(u16, u16, u32); 5] =
        [(1, 7, u32::MAX), (2, 7, NOBODY), (4, 7, u32::MAX), (0x10, 7, u32::MAX), (0x20, 5, u32::MAX)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, user) in ENTRIES {
        list.extend([&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &user.to_le_bytes()].concat());
    }
    let files = ["meter DEMO --virtual-cpus 1 --socket none -q --rotate 1h --flows {}/%F/%H.csv"];
    let here = [
        "meter DEMO --virtual-cpus 1 --socket none -q --flows {}/f.csv",
        "send pcap:{}/a DEMO --virtual-cpus 1 --socket none -q",
    ];
    for row in files.into_iter().chain(here) {
        let ground = Ground::new();
        let x = ground.at("x");
        fs::set_permissions(&x, Permissions::from_mode(0o2755)).unwrap();
        let listed = rustix::fs::setxattr(&x, "system.posix_acl_default", &list, rustix::fs::XattrFlags::empty());
        if let Err(error) = listed {
            skip(&format!("access lists: {error}"));
        }
        let (ran, _) = run(row, &x, &ground.root);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
        let day = x.join(DAY);
        let directory = if day.is_dir() { day } else { x };
        let written: Vec<PathBuf> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!written.is_empty());
        let read = || {
            let nobody = rustix::thread::Uid::from_raw(NOBODY);
            rustix::thread::set_thread_groups(&[]).unwrap();
            rustix::thread::set_thread_res_gid(
                rustix::thread::Gid::from_raw(NOBODY),
                rustix::thread::Gid::from_raw(NOBODY),
                rustix::thread::Gid::from_raw(NOBODY),
            )
            .unwrap();
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            written.iter().map(|file| File::open(file).map(drop).map_err(|error| error.kind())).collect::<Vec<_>>()
        };
        let read = thread::scope(|scope| scope.spawn(read).join().unwrap());
        assert!(read.iter().all(|read| *read == Err(std::io::ErrorKind::PermissionDenied)), "{row}: {read:?}");
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
    // The error message recommends changing to the directory `x`.
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
        let mut command = command_in(&args.iter().map(String::as_str).collect::<Vec<_>>());
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
