//! Tests faults of a handler. Each fault of a handler is tested in a separate process, because the
//! sandbox ends the process.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::net::UdpSocket;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output};

#[cfg(target_arch = "x86_64")]
use seccompiler::BpfProgramRef;
use steerage::{Batch, Cpu, Handler};
use steerage_fixtures::seccomp::documented_rows;
#[cfg(target_arch = "x86_64")]
use steerage_fixtures::seccomp::{Answer, allows, answer};
#[cfg(target_arch = "x86_64")]
use steerage_guard::sandbox::call_name;

use super::*;
use crate::args::{self, RunArgs};
use crate::instance;

const FAULT: &str = "STEERAGE_TEST_FAULT";
const SIGABRT: i32 = 6;
const SIGSYS: i32 = 31;

/// Performs one operation, which the sandbox must forbid or allow.
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
            // The C library opens a file that contains a kernel setting when it frees memory of a
            // thread's heap.
            "memory" => (0..10).for_each(|_| drop((0..400).map(|_| vec![1u8; 100_000]).collect::<Vec<_>>())),
            "allocation" => drop(std::hint::black_box(Vec::<u8>::with_capacity(1 << 62))),
            "panic" => panic!("as it was asked to"),
            other => assert_eq!(other, "nothing"),
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

fn run_args() -> RunArgs {
    let line = "steerage count synthetic:packets=10 --virtual-cpus 1 --socket none --quiet";
    match args::parse(line.split(' ').map(Into::into)).unwrap().command {
        args::Command::Count(args) => args,
        other => panic!("{other:?}"),
    }
}

fn ran(test: &str, fault: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("sandbox::tests::{test}"), "--nocapture", "--test-threads=1"]);
    command.env(FAULT, fault).env("RUST_BACKTRACE", "1").output().unwrap()
}

#[test]
fn what_a_packet_function_must_not_do_ends_the_process_and_is_named() {
    if let Ok(fault) = std::env::var(FAULT) {
        let make = |_| Ok(move |_cpu| Faulty(fault.clone()));
        let (instance, _services) = instance::receiving(&run_args(), Needs::of(SandboxProfile::Count), make).unwrap();
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
        // The number in `named` is a system call number of x86-64.
        let named = if cfg!(target_arch = "x86_64") { named } else { named.split(' ').next().unwrap() };
        assert!(said.contains(&format!("thread steerage/0 made the system call {named}")), "{fault}: {said}");
    }
    for fault in ["nothing", "memory", "panic"] {
        let ended = ran(test, fault);
        assert!(ended.status.success(), "{fault}: {ended:?}");
    }
}

/// The standard library reports the failed allocation, with a backtrace if the user wants one, and
/// aborts.
#[test]
fn a_failed_allocation_is_no_violation() {
    if let Ok(fault) = std::env::var(FAULT) {
        let make = |_| Ok(move |_cpu| Faulty(fault.clone()));
        let (instance, _services) = instance::receiving(&run_args(), Needs::of(SandboxProfile::Count), make).unwrap();
        drop(instance.start().unwrap().join());
        return;
    }
    let ended = ran("a_failed_allocation_is_no_violation", "allocation");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.signal(), Some(SIGABRT), "{ended:?}");
    assert!(said.contains("memory allocation of 4611686018427387904 bytes failed\n"), "{said}");
    assert!(said.contains("steerage: the sandbox allows no backtrace; with --no-sandbox there is one\n"), "{said}");
    assert!(!said.contains("ended this process"), "{said}");
}

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
        let (instance, services) = instance::receiving(&run_args(), Needs::of(SandboxProfile::Count), make).unwrap();
        writeln!(io::stdout(), "landlock: {}", services.sandbox.unwrap().landlock()).unwrap();
        drop(instance.start().unwrap().join());
        return;
    }
    let ended = ran("files_of_others_cannot_be_opened", "file");
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(ended.status.success(), "{ended:?}");
    // If the kernel has no Landlock, the run reports that and continues.
    assert!(said.contains("denied: true") || said.contains("landlock: none"), "{said}");
}

fn calls_on_page(rows: &[Vec<&'static str>], group: &str) -> BTreeSet<&'static str> {
    let row = rows.iter().find(|row| row.len() == 2 && row[0] == group);
    row.map(|row| row[1].split(", ").collect()).unwrap_or_default()
}

#[test]
fn the_page_of_privileges_is_right() {
    let rows = documented_rows();
    let names = |groups: &[Group]| -> String {
        let names: Vec<&str> = [Group::Run].iter().chain(groups).map(|group| group.name()).collect();
        names.join(", ")
    };
    for command in SandboxProfile::ALL {
        let packets = command.packet_groups().map_or("none".to_owned(), names);
        let row = [format!("`{}`", command.name()), names(command.groups()), packets];
        assert!(rows.iter().any(|it| *it == row), "no such row in lab/notes/system-calls.md: | {} |", row.join(" | "));
    }
    let files = rows.iter().find(|row| row.len() == 3 && row[0] == "every run").map_or("", |row| row[1]);
    let listed: Vec<&str> = files.split('`').filter(|part| part.starts_with('/')).collect();
    assert_eq!(listed, MACHINE, "the files of every run in docs/privileges.md");
    for (kind, direction, label) in [
        ("af_packet", Direction::Out, "sends by an interface"),
        ("af_xdp", Direction::In, "receives by AF_XDP"),
        ("af_xdp", Direction::Out, "sends by AF_XDP"),
        ("udp", Direction::Out, "sends by UDP"),
    ] {
        let names: Vec<&str> = groups_of_device(kind, direction).iter().map(|group| group.name()).collect();
        let row = [label.to_owned(), names.join(", ")];
        assert!(rows.iter().any(|it| *it == row), "no such row in lab/notes/system-calls.md: | {} |", row.join(" | "));
    }
    // Some of the listed system calls exist only on x86-64.
    if cfg!(target_arch = "x86_64") {
        for group in Group::ALL {
            let calls: BTreeSet<&str> = group.names().into_iter().collect();
            let row = calls.iter().copied().collect::<Vec<_>>().join(", ");
            let listed = calls_on_page(&rows, group.name());
            assert_eq!(listed, calls, "in lab/notes/system-calls.md: | {} | {row} |", group.name());
        }
    }
}

/// All system call numbers are below this limit, even in later kernels.
#[cfg(target_arch = "x86_64")]
const NUMBERS: u32 = 1024;

/// Invalid system call numbers: numbers of another architecture (x32), and negative numbers.
#[cfg(target_arch = "x86_64")]
const INVALID: [u32; 4] = [0x4000_0000, 0x4000_0001, 0x8000_0000, u32::MAX];

/// Returns each thread of a command with its groups of system calls, according to
/// lab/notes/system-calls.md.
#[cfg(target_arch = "x86_64")]
fn threads(command: SandboxProfile) -> Vec<(String, Vec<Group>, Vec<&'static str>)> {
    let (rows, name) = (documented_rows(), format!("`{}`", command.name()));
    let row = rows.iter().find(|row| row.len() == 3 && row[0] == name).unwrap();
    let mut threads = vec![(command.name(), command.groups().to_vec(), row[1].split(", ").collect())];
    let Some(packet_groups) = command.packet_groups() else { return threads };
    for (kind, direction, label) in [
        ("capture", Direction::In, ""),
        ("af_packet", Direction::Out, "sends by an interface"),
        ("af_xdp", Direction::In, "receives by AF_XDP"),
        ("af_xdp", Direction::Out, "sends by AF_XDP"),
        ("udp", Direction::Out, "sends by UDP"),
    ] {
        let groups = [packet_groups, groups_of_device(kind, direction)].concat();
        let device = rows.iter().find(|row| row.len() == 2 && row[0] == label).map_or("", |row| row[1]);
        let listed = row[2].split(", ").chain(device.split(", ").filter(|group| !group.is_empty())).collect();
        threads.push((format!("{name} packets {kind} {direction:?}"), groups, listed));
    }
    threads
}

/// The test evaluates the seccomp filters for all tested values of the arguments.
#[test]
#[cfg(target_arch = "x86_64")]
fn each_filter_allows_what_the_page_lists_and_nothing_else() {
    let rows = documented_rows();
    let limited: BTreeSet<&str> =
        rows.iter().filter(|row| row.len() == 2 && row[0].starts_with('`')).flat_map(|row| row[0].split('`')).collect();
    let mut by_arguments = BTreeSet::new();
    for command in SandboxProfile::ALL {
        for (thread, groups, listed) in threads(command) {
            let filter = ThreadFilter::new(&groups, &Sockets::default()).unwrap();
            let program = filter.program().expect("this kernel has seccomp");
            let (mut allowed, mut sometimes) = (BTreeSet::new(), BTreeSet::new());
            for number in (0..NUMBERS).chain(INVALID) {
                let name = call_name(number as usize);
                match answer(program, number) {
                    Answer::Denied => continue,
                    Answer::Allowed => {}
                    Answer::ByArguments => drop(sometimes.insert(name)),
                }
                assert_ne!(name, "unknown", "{thread} may make the system call {number}");
                allowed.insert(name);
            }
            let listed: BTreeSet<&str> = listed.iter().flat_map(|group| calls_on_page(&rows, group)).collect();
            assert_eq!(allowed, listed, "{thread}");
            let unlisted: Vec<_> = sometimes.difference(&limited).collect();
            assert!(unlisted.is_empty(), "{thread}: lab/notes/system-calls.md does not limit {unlisted:?}");
            by_arguments.extend(sometimes);
        }
    }
    let listed: BTreeSet<&str> = limited.into_iter().filter(|name| call_number(name).is_some()).collect();
    assert_eq!(by_arguments, listed, "the system calls that lab/notes/system-calls.md allows with certain arguments");
}

#[cfg(target_arch = "x86_64")]
fn call_number(name: &str) -> Option<u32> {
    (0..NUMBERS).find(|number| call_name(*number as usize) == name)
}

/// The tested values of an argument are all numbers below 4096, each single bit, and all bits.
#[test]
#[cfg(target_arch = "x86_64")]
fn packet_threads_may_use_few_arguments() {
    let patterns: Vec<u64> = (0..4096)
        .chain((0..64).map(|bit| 1 << bit))
        .chain([u64::MAX, 0x8910, 0x8946, 0x8901, 0x8902, 0x5401, 0x5452])
        .collect();
    let receives = ThreadFilter::new(&[Group::Receive], &Sockets::default()).unwrap();
    let sends = ThreadFilter::new(&[Group::Receive, Group::Send], &Sockets::default()).unwrap();
    let [receives, sends] = [&receives, &sends].map(|filter| filter.program().expect("this kernel has seccomp"));
    let allowed = |program: BpfProgramRef<'_>, name: &str, place: usize, rest: [u64; 6]| -> BTreeSet<u64> {
        let number = call_number(name).unwrap();
        let with = |value| std::array::from_fn(|at| if at == place { value } else { rest[at] });
        patterns.iter().copied().filter(|value| allows(program, number, &with(*value))).collect()
    };
    let low = |values: BTreeSet<u64>| values.into_iter().filter(|value| *value < 1 << 32).collect::<Vec<u64>>();
    // F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_SETPIPE_SZ and F_GETPIPE_SZ are allowed. F_SETOWN (8),
    // F_SETSIG (10) and F_DUPFD (0) are not.
    assert_eq!(low(allowed(receives, "fcntl", 1, [0; 6])), [1, 2, 3, 4, 1031, 1032]);
    // Allowed: PR_SET_NAME and PR_GET_NAME.
    assert_eq!(low(allowed(receives, "prctl", 0, [0; 6])), [15, 16]);
    // TCGETS (0x5401) is allowed. FIOSETOWN (0x8901), SIOCSPGRP (0x8902), FIOASYNC (0x5452),
    // SIOCGIFNAME (0x8910) and SIOCETHTOOL (0x8946) are not.
    let requests = allowed(receives, "ioctl", 1, [0; 6]);
    assert!(requests.contains(&0x5401));
    assert!(![0x8901, 0x8902, 0x5452, 0x8910, 0x8946].iter().any(|one| requests.contains(one)));
    // At the level SOL_PACKET (263), setting PACKET_DROP_MEMBERSHIP and reading PACKET_STATISTICS
    // are allowed.
    assert_eq!(low(allowed(receives, "setsockopt", 2, [0, 263, 0, 0, 0, 0])), [2]);
    assert_eq!(low(allowed(receives, "getsockopt", 2, [0, 263, 0, 0, 0, 0])), [6]);
    // At the level SOL_SOCKET (1), setting SO_ATTACH_FILTER, and reading SO_ERROR, SO_MEMINFO and
    // SO_INCOMING_NAPI_ID are allowed.
    assert_eq!(low(allowed(receives, "setsockopt", 2, [0, 1, 0, 0, 0, 0])), [26]);
    assert_eq!(low(allowed(receives, "getsockopt", 2, [0, 1, 0, 0, 0, 0])), [4, 55, 56]);
    assert!(allowed(receives, "sendto", 4, [0; 6]).is_empty());
    // All 64 bits of the pointer to the destination address must be zero.
    assert_eq!(allowed(sends, "sendto", 4, [0; 6]), BTreeSet::from([0]));
    assert!(!allows(sends, call_number("sendmsg").unwrap(), &[0; 6]));
    assert!(low(allowed(receives, "tgkill", 0, [0; 6])).iter().all(|id| *id == u64::from(process::id())));
}
