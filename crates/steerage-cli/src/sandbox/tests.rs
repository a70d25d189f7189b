//! Injects faults into a packet function. Each test runs in a process of its own, which does not
//! survive the fault.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::UdpSocket;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output};

use steerage::{Batch, Cpu, Handler};

use super::*;
use crate::args::{self, RunArgs};
use crate::instance;

const FAULT: &str = "STEERAGE_TEST_FAULT";
const SIGSYS: i32 = 31;

/// A packet function that does something forbidden, or something that must stay possible.
struct Faulty(String);

impl Handler for Faulty {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        if batch.iter_mut().count() == 0 {
            return;
        }
        match self.0.as_str() {
            "open" => drop(fs::read("/etc/shadow")),
            "socket" => drop(UdpSocket::bind("127.0.0.1:0")),
            "program" => drop(Command::new("/bin/true").exec()),
            "thread" => drop(std::thread::spawn(|| ())),
            // The C library reads a kernel setting when it frees the memory of a thread's heap.
            "memory" => (0..10).for_each(|_| drop((0..400).map(|_| vec![1u8; 100_000]).collect::<Vec<_>>())),
            "panic" => panic!("as it was asked to"),
            other => assert_eq!(other, "nothing"),
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

fn run_args() -> RunArgs {
    let line = "steerage count synthetic:packets=10 --virtual-cpus 1 --socket none --quiet";
    match args::parse(line.split(' ').map(Into::into)).unwrap().command {
        args::Command::Count(args) => args.run,
        other => panic!("{other:?}"),
    }
}

/// Runs this test again in another process, with `fault`.
fn ran(test: &str, fault: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("sandbox::tests::{test}"), "--nocapture", "--test-threads=1"]);
    command.env(FAULT, fault).env("RUST_BACKTRACE", "1").output().unwrap()
}

#[test]
fn what_a_packet_function_must_not_do_ends_the_process_and_is_named() {
    if let Ok(fault) = std::env::var(FAULT) {
        let make = |_| Ok(move |_cpu| Faulty(fault.clone()));
        let (instance, _services) = instance::receiving(&run_args(), Needs::of(Confined::Count), make).unwrap();
        let outcome = instance.start().unwrap().join();
        assert_eq!(outcome.snapshot.received(), 10);
        return;
    }
    let test = "what_a_packet_function_must_not_do_ends_the_process_and_is_named";
    for (fault, named) in [
        ("open", "openat (257) for /etc/shadow;"),
        ("socket", "socket (41);"),
        ("program", "execve (59) for /bin/true;"),
        ("thread", "clone3 (435);"),
    ] {
        let ended = ran(test, fault);
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.signal(), Some(SIGSYS), "{fault}: {ended:?}");
        // The numbers are those of x86-64.
        let named = if cfg!(target_arch = "x86_64") { named } else { named.split(' ').next().unwrap() };
        assert!(said.contains(&format!("thread steerage/0 made the system call {named}")), "{fault}: {said}");
    }
    for fault in ["nothing", "memory", "panic"] {
        let ended = ran(test, fault);
        assert!(ended.status.success(), "{fault}: {ended:?}");
    }
}

/// Other threads may open files, but only files that the run needs.
#[test]
fn files_of_others_cannot_be_opened() {
    if std::env::var_os(FAULT).is_some() {
        let theirs = std::env::current_exe().unwrap();
        assert!(fs::File::open(&theirs).is_ok());
        let make = |_| {
            let denied = |opened: io::Result<fs::File>| match opened {
                Ok(_) => false,
                Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
            };
            let all = denied(fs::File::open(&theirs)) && denied(fs::File::create("/tmp/steerage-denied"));
            writeln!(io::stdout(), "denied: {all}").unwrap();
            Ok(|_cpu| Faulty("nothing".to_owned()))
        };
        let (instance, services) = instance::receiving(&run_args(), Needs::of(Confined::Count), make).unwrap();
        writeln!(io::stdout(), "landlock: {}", services.sandbox.unwrap().landlock()).unwrap();
        drop(instance.start().unwrap().join());
        return;
    }
    let ended = ran("files_of_others_cannot_be_opened", "file");
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{ended:?}");
    // A kernel without Landlock is reported, and the run goes on.
    assert!(said.contains("denied: true") || said.contains("landlock: none"), "{said}");
}

/// docs/privileges.md lists the same permissions of each command and the same system calls of each
/// group as the code.
#[test]
fn the_page_of_privileges_is_right() {
    let page = include_str!("../../../../docs/privileges.md");
    let rows: Vec<Vec<&str>> = page
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let names = |groups: &[Group]| -> String {
        let names: Vec<&str> = [Group::Run].iter().chain(groups).map(|group| group.name()).collect();
        names.join(", ")
    };
    for command in Confined::ALL {
        let packets = command.packet_groups().map_or("none".to_owned(), names);
        let row = [format!("`{}`", command.name()), names(command.groups()), packets];
        assert!(rows.iter().any(|it| *it == row), "no such row in docs/privileges.md: | {} |", row.join(" | "));
    }
    let files = rows.iter().find(|row| row.len() == 3 && row[0] == "every run").map_or("", |row| row[1]);
    let told: Vec<&str> = files.split('`').filter(|part| part.starts_with('/')).collect();
    assert_eq!(told, MACHINE, "the files of every run in docs/privileges.md");
    // Other architectures have fewer system calls.
    if cfg!(target_arch = "x86_64") {
        for group in Group::ALL {
            let calls: BTreeSet<&str> = group.names().into_iter().collect();
            let row = rows.iter().find(|row| row.len() == 2 && row[0] == group.name());
            let told: BTreeSet<&str> = row.map(|row| row[1].split(", ").collect()).unwrap_or_default();
            let calls_told = calls.iter().copied().collect::<Vec<_>>().join(", ");
            assert_eq!(told, calls, "in docs/privileges.md: | {} | {calls_told} |", group.name());
        }
    }
}
