//! Tests what an attacker who controls a thread of a run can do. ptrace injects system calls into
//! the threads of a run. lab/notes/system-calls.md lists the allowed system calls.
#![cfg(target_arch = "x86_64")]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use nix::errno::Errno;
use nix::libc::{self, user_regs_struct};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use steerage_control::Client;
use steerage_fixtures::capture::pcap;
use steerage_fixtures::namespaces::Namespaces;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::seccomp::documented_rows;
use steerage_fixtures::{HANG, is_root, skip};
use steerage_guard::sandbox::call_name;

use crate::forward::{ROUTER, linked};
use crate::program::{self, Started};

const NUMBERS: u64 = 512;

const INSTRUCTION_BYTES: u64 = 2;

/// uretprobe and uprobe, which no seccomp filter can deny, because the kernel's probes use these
/// calls (`arch/x86/kernel/uprobes.c`). If no probe is active, uretprobe ends the process by
/// SIGILL, and uprobe fails.
const PASSED_BY: [u64; 2] = [335, 336];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The thread got SIGSYS, which would end the process if ptrace did not trace it.
    Denied,
    Made(i64),
}

struct Hijacked {
    id: Pid,
    own: user_regs_struct,
}

impl Hijacked {
    fn new(id: i32) -> Option<Self> {
        let id = Pid::from_raw(id);
        if let Err(error) = ptrace::seize(id, ptrace::Options::PTRACE_O_TRACESYSGOOD) {
            skip(&format!("ptrace: {error}"));
            return None;
        }
        ptrace::interrupt(id).unwrap();
        assert!(matches!(waited(id), WaitStatus::PtraceEvent(..)));
        let (own, _) = until_system_call(id);
        Some(Self { id, own })
    }

    /// Replaces the system call at which the thread is stopped. Afterwards, the thread is stopped
    /// again at the start of its own system call.
    fn make(&mut self, number: u64, arguments: [u64; 6]) -> Outcome {
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        ptrace::setregs(self.id, user_regs_struct { orig_rax: number, rdi, rsi, rdx, r10, r8, r9, ..self.own })
            .unwrap();
        ptrace::syscall(self.id, None).unwrap();
        let ended = waited(self.id);
        assert!(matches!(ended, WaitStatus::PtraceSyscall(_)), "{}: {ended:?}", call_name(number as usize));
        let result = ptrace::getregs(self.id).unwrap().rax as i64;
        let again = user_regs_struct {
            rip: self.own.rip - INSTRUCTION_BYTES,
            rax: self.own.orig_rax,
            orig_rax: u64::MAX,
            ..self.own
        };
        ptrace::setregs(self.id, again).unwrap();
        // ptrace first reports the end of a denied system call, and then the signal SIGSYS.
        let (own, is_denied) = until_system_call(self.id);
        self.own = own;
        if is_denied { Outcome::Denied } else { Outcome::Made(result) }
    }

    #[track_caller]
    fn is_denied(&mut self, name: &str, arguments: [u64; 6]) {
        let outcome = self.make(number_of(name), arguments);
        assert_eq!(outcome, Outcome::Denied, "{name} {arguments:x?}");
    }

    #[track_caller]
    fn is_allowed(&mut self, name: &str, arguments: [u64; 6]) -> i64 {
        match self.make(number_of(name), arguments) {
            Outcome::Made(result) => result,
            Outcome::Denied => panic!("{name} {arguments:x?} is denied"),
        }
    }
}

impl Drop for Hijacked {
    fn drop(&mut self) {
        let _ = ptrace::detach(self.id, None);
    }
}

fn waited(id: Pid) -> WaitStatus {
    waitpid(id, Some(WaitPidFlag::__WALL)).unwrap()
}

/// Lets the thread run until the start of its next system call. Returns the registers, and true if
/// a SIGSYS arrived before that system call. The SIGSYS is not delivered to the thread.
fn until_system_call(id: Pid) -> (user_regs_struct, bool) {
    let (mut passed_on, mut is_denied) = (None, false);
    loop {
        ptrace::syscall(id, passed_on).unwrap();
        passed_on = match waited(id) {
            WaitStatus::PtraceSyscall(_) => {
                let registers = ptrace::getregs(id).unwrap();
                // At the start of a system call, the kernel sets the result register (`rax`) to
                // `-ENOSYS`.
                if registers.rax as i64 == -i64::from(Errno::ENOSYS as i32) {
                    return (registers, is_denied);
                }
                None
            }
            WaitStatus::Stopped(_, Signal::SIGSYS) => {
                is_denied = true;
                None
            }
            WaitStatus::Stopped(_, Signal::SIGTRAP) | WaitStatus::PtraceEvent(..) => None,
            WaitStatus::Stopped(_, signal) => Some(signal),
            ended => panic!("{ended:?}"),
        };
    }
}

fn number_of(name: &str) -> u64 {
    (0..NUMBERS).find(|number| call_name(*number as usize) == name).unwrap_or_else(|| panic!("no {name}"))
}

/// Returns the system calls that the command's threads may make. `column`, of the table in
/// lab/notes/system-calls.md, is 1 for all threads and 2 for packet threads. `devices` contains
/// that table's names of the run's devices.
fn listed(command: &str, column: usize, devices: &[&str]) -> BTreeSet<&'static str> {
    let rows = documented_rows();
    let row = rows.iter().find(|row| row.len() == 3 && row[0] == format!("`{command}`")).unwrap();
    let named = |name: &str| rows.iter().find(|row| row.len() == 2 && row[0] == name).map_or("", |row| row[1]);
    let groups = row[column].split(", ").chain(devices.iter().flat_map(|device| named(device).split(", ")));
    groups.flat_map(|group| named(group).split(", ")).collect()
}

/// Waits until all packet threads have installed their seccomp filter.
fn threads(run: &Started) -> Vec<(i32, String)> {
    let start = Instant::now();
    loop {
        let mut threads = Vec::new();
        let mut is_ready = true;
        for task in fs::read_dir(format!("/proc/{}/task", run.id())).unwrap() {
            let task = task.unwrap();
            let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
            let field = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or("").trim();
            let name = field("Name:").to_owned();
            is_ready &= field("Seccomp_filters:") == if handles_packets(&name) { "4" } else { "2" };
            threads.push((task.file_name().to_str().unwrap().parse().unwrap(), name));
        }
        if is_ready && threads.iter().any(|(_, name)| handles_packets(name)) {
            return threads;
        }
        assert!(start.elapsed() < HANG, "{threads:?}");
        thread::yield_now();
    }
}

fn handles_packets(name: &str) -> bool {
    name.strip_prefix("steerage/").is_some_and(|cpu| cpu.parse::<u16>().is_ok())
}

/// Injects every forbidden system call into one thread of each name, with several sets of
/// arguments. Afterwards, a few allowed calls must succeed, which shows that the denied calls did
/// not change the thread.
fn attack(run: &Started, command: &str, devices: &[&str]) {
    let mut met = BTreeSet::new();
    for (id, name) in threads(run) {
        let kind = if handles_packets(&name) { "packets".to_owned() } else { name.clone() };
        if !met.insert(kind) {
            continue;
        }
        let allowed = listed(command, 1 + usize::from(handles_packets(&name)), devices);
        let Some(mut thread) = Hijacked::new(id) else { return };
        let (process, stack) = (u64::from(run.id()), thread.own.rsp);
        let patterns =
            [[0; 6], [u64::MAX; 6], [process, 9, 0, 0, 0, 0], [stack, stack, stack, 64, 0, 0], [1, 1, 1, 1, 1, 1]];
        let mut denied = 0;
        for number in (0..NUMBERS).chain([0x4000_0000, 0x4000_0001, 0x8000_0000]) {
            if !allowed.contains(call_name(number as usize)) && !PASSED_BY.contains(&number) {
                for arguments in patterns {
                    let outcome = thread.make(number, arguments);
                    let call = call_name(number as usize);
                    assert_eq!(outcome, Outcome::Denied, "{name}: {call} ({number}) {arguments:x?}");
                }
                denied += 1;
            }
        }
        assert!(denied > 300, "{name}: {denied}");
        if handles_packets(&name) {
            attack_packets(&mut thread, process);
            // The handler of a stop signal makes a system call that a packet thread may not make.
            assert_eq!(thread.is_allowed("tgkill", [process, id as u64, libc::SIGTERM as u64, 0, 0, 0]), 0);
        }
        assert_eq!(thread.is_allowed("getpid", [0; 6]), i64::from(run.id()), "{name}");
        assert_eq!(thread.is_allowed("gettid", [0; 6]), i64::from(id), "{name}");
    }
}

fn attack_packets(thread: &mut Hijacked, process: u64) {
    let stack = thread.own.rsp;
    for command in [
        libc::F_DUPFD,
        libc::F_DUPFD_CLOEXEC,
        libc::F_SETOWN,
        10, // F_SETSIG
        libc::F_SETLEASE,
        libc::F_NOTIFY,
        15, // F_SETOWN_EX
    ] {
        thread.is_denied("fcntl", [0, command as u64, process, 0, 0, 0]);
    }
    for request in [0x8901, 0x8902, 0x5452, 0x5412] {
        // The ioctl requests FIOSETOWN, SIOCSPGRP, FIOASYNC and TIOCSTI.
        thread.is_denied("ioctl", [0, request, stack, 0, 0, 0]);
    }
    let [code, read] = [libc::PROT_EXEC as u64, libc::PROT_READ as u64];
    let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    thread.is_denied("mmap", [0, 4096, code | read, private, u64::MAX, 0]);
    thread.is_denied("mprotect", [stack & !4095, 4096, code, 0, 0, 0]);
    thread.is_denied("prctl", [libc::PR_SET_DUMPABLE as u64, 1, 0, 0, 0, 0]);
    thread.is_denied("rt_sigaction", [libc::SIGSYS as u64, 0, 0, 8, 0, 0]);
    thread.is_denied("tgkill", [1, 1, 0, 0, 0, 0]);
    thread.is_denied("setsockopt", [0, libc::SOL_SOCKET as u64, libc::SO_MARK as u64, stack, 4, 0]);
    thread.is_denied("getsockopt", [0, libc::SOL_SOCKET as u64, libc::SO_PEERCRED as u64, stack, stack, 0]);
    assert_eq!(thread.is_allowed("fcntl", [u64::MAX, libc::F_GETFL as u64, 0, 0, 0, 0]), -i64::from(libc::EBADF));
}

const ENDLESS: [&str; 6] = ["synthetic:rate=20000", "--virtual-cpus", "2", "--seconds", "0", "--json"];

/// `.ci/full attacks` attacks the threads of all commands. By default, one command is attacked.
fn attacks_all() -> bool {
    std::env::var_os("STEERAGE_ATTACKS").is_some()
}

#[test]
fn a_hijacked_thread_makes_no_other_system_call() {
    let scratch = Scratch::new();
    let (flows, saved) = (scratch.join("flows.csv"), format!("pcap:{}", scratch.join("a.pcap").display()));
    let capture = scratch.join("in.pcap");
    fs::write(&capture, pcap([(1, 0, [0_u8; 60])])).unwrap();
    let flows = ["--flows", flows.to_str().unwrap()];
    let to_files = ["--to", &saved, "--to", "exec:cat >/dev/null"];
    let mut runs: Vec<(&str, Vec<&str>, &[&str])> = vec![("count", ENDLESS.to_vec(), &[])];
    if attacks_all() {
        runs.push(("meter", [&ENDLESS[..], &flows].concat(), &[]));
        runs.push(("fanout", [&ENDLESS[..], &to_files].concat(), &[]));
        runs.push(("fanout", [&ENDLESS[..], &["--to", "udp:127.0.0.1:9"]].concat(), &["sends by UDP"]));
        runs.push(("send", [&["udp:127.0.0.1:9"], &ENDLESS[..]].concat(), &["sends by UDP"]));
        runs.push(("parallel", vec!["synthetic:rate=20000", "-j", "2", "-q", "--", "sh", "-c", "cat >/dev/null"], &[]));
        runs.push(("explain", vec!["synthetic:rate=20000", "--seconds", "600", "--json"], &[]));
    }
    for (command, args, devices) in runs {
        // `-v` comes first, because the arguments of `parallel` end with the program to start and
        // its options.
        let run = Started::of(program::command(&[&[command, "-v"][..], &args].concat()).spawn().unwrap());
        attack(&run, command, devices);
        run.signal(Signal::SIGTERM);
        let ran = run.end();
        // `send` and `fanout` fail, because their packets are Ethernet frames, which cannot be sent
        // as datagrams.
        assert!(ran.code.is_some() && !ran.err.contains("sandbox"), "{ran:?}");
    }
}

#[test]
fn a_hijacked_thread_of_forward_makes_no_other_system_call() {
    if !attacks_all() {
        return;
    }
    let Some(namespaces) = linked() else { return };
    let args = ["forward", "r0", "r1", "--virtual-cpus", "2", "--seconds", "0", "--json"];
    let run = namespaces.within(ROUTER, || Started::new(&args));
    attack(&run, "forward", &["sends by an interface"]);
    run.stop(Signal::SIGTERM);
}

fn sockets(run: &Started) -> Vec<(u64, String)> {
    let entries = fs::read_dir(format!("/proc/{}/fd", run.id())).unwrap().map(|entry| entry.unwrap().path());
    let socket = |path: PathBuf| {
        let target = fs::read_link(&path).ok()?;
        let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned();
        Some((path.file_name()?.to_str()?.parse().ok()?, inode))
    };
    entries.filter_map(socket).collect()
}

fn listed_sockets(run: &Started, kind: &str) -> Vec<Vec<String>> {
    let table = fs::read_to_string(format!("/proc/{}/net/{kind}", run.id())).unwrap();
    table.lines().skip(1).map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

/// Returns the descriptor of each packet socket, and whether the socket receives packets.
fn packet_sockets(run: &Started) -> Vec<(u64, bool)> {
    let rows = listed_sockets(run, "packet");
    let row = |inode: &String| rows.iter().find(|row| row.last() == Some(inode));
    sockets(run).iter().filter_map(|(socket, inode)| Some((*socket, row(inode)?[3] == "0003"))).collect()
}

/// The length of the Ethernet frame that an attacked thread tries to send from its stack.
const FRAME_BYTES: u64 = 60;

#[test]
fn a_hijacked_thread_sends_only_what_its_command_sends() {
    if !is_root() {
        return;
    }
    let Some(namespaces) = Namespaces::new(2) else { return };
    namespaces.veth((0, "in0"), (1, "far0"));
    namespaces.veth((0, "out0"), (1, "far1"));
    let to_wire = ["--virtual-cpus", "1", "--seconds", "0", "--json"];
    for (command, args) in [("count", vec!["in0"]), ("fanout", vec!["in0", "--to", "out0"])] {
        let before = [namespaces.received_by(1, "far0"), namespaces.received_by(1, "far1")];
        let run = namespaces.within(0, || Started::new(&[&[command][..], &args, &to_wire].concat()));
        let packets: Vec<i32> =
            threads(&run).into_iter().filter(|(_, name)| handles_packets(name)).map(|(id, _)| id).collect();
        let Some(mut thread) = Hijacked::new(packets[0]) else { return };
        let (stack, mut sent) = (thread.own.rsp, 0);
        let sockets = packet_sockets(&run);
        assert!(sockets.iter().any(|(_, listens)| *listens), "{sockets:?}");
        assert_eq!(sockets.iter().any(|(_, listens)| !*listens), command == "fanout", "{sockets:?}");
        for (socket, listens) in sockets {
            // If a thread could give `sendto` an address, the thread could send through another
            // interface.
            thread.is_denied("sendto", [socket, stack, FRAME_BYTES, 0, stack, 20]);
            thread.is_denied("sendmsg", [socket, stack, 0, 0, 0, 0]);
            thread.is_denied("sendmmsg", [socket, stack, 1, 0, 0, 0]);
            thread.is_denied("dup", [socket, 0, 0, 0, 0, 0]);
            thread.is_denied("dup2", [socket, 200, 0, 0, 0, 0]);
            thread.is_denied("sendfile", [socket, 0, 0, 60, 0, 0]);
            let send = [socket, stack, FRAME_BYTES, 0, 0, 0];
            if listens {
                thread.is_denied("write", send);
                thread.is_denied("writev", [socket, stack, 1, 0, 0, 0]);
                thread.is_denied("sendto", send);
            } else {
                assert_eq!(thread.is_allowed("sendto", send), FRAME_BYTES as i64);
                sent += 1;
            }
        }
        drop(thread);
        run.stop(Signal::SIGTERM);
        let after = [namespaces.received_by(1, "far0"), namespaces.received_by(1, "far1")];
        assert_eq!([after[0] - before[0], after[1] - before[1]], [0, sent], "frames that left by each interface");
    }
}

/// Another process that received a packet socket in a message could send through any interface. A
/// thread that sent the socket in a message to its own process would get a second descriptor of the
/// socket.
#[test]
fn a_hijacked_thread_passes_no_descriptor_on() {
    if !is_root() {
        return;
    }
    let Some(namespaces) = Namespaces::new(2) else { return };
    namespaces.veth((0, "in0"), (1, "far0"));
    let scratch = Scratch::new();
    let control = scratch.join("control");
    let args = ["fanout", "in0", "--to", "udp:127.0.0.1:9", "--virtual-cpus", "1", "--seconds", "0", "--json"];
    let run = namespaces.within(0, || Started::new(&[&args[..], &["--socket", control.to_str().unwrap()]].concat()));
    let mut client = Client::connect(&control).unwrap();
    client.hello().unwrap();
    let id = threads(&run).into_iter().find(|(_, name)| handles_packets(name)).unwrap().0;
    let Some(mut thread) = Hijacked::new(id) else { return };
    let (unix, udp, packet) =
        (listed_sockets(&run, "unix"), listed_sockets(&run, "udp"), listed_sockets(&run, "packet"));
    let has =
        |rows: &[Vec<String>], column: usize, inode: &String| rows.iter().any(|row| row.get(column) == Some(inode));
    let (mut others, mut by_udp) = (0, 0);
    for (socket, inode) in sockets(&run) {
        let message = [socket, 0, 0, 0, 0, 0];
        if has(&udp, 9, &inode) {
            // The message is a null pointer, so the allowed call fails with EFAULT.
            assert_eq!(thread.is_allowed("sendmsg", message), -i64::from(libc::EFAULT));
            stays_open(&mut thread, socket);
            by_udp += 1;
            continue;
        }
        thread.is_denied("sendmsg", message);
        thread.is_denied("sendmmsg", [socket, 0, 1, 0, 0, 0]);
        thread.is_denied("sendto", [socket, thread.own.rsp, 1, 0, thread.own.rsp, 16]);
        if has(&packet, 8, &inode) {
            stays_open(&mut thread, socket);
        }
        others += usize::from(has(&unix, 6, &inode));
    }
    assert!(others > 1 && by_udp > 0, "{unix:?} {udp:?}");
    drop(thread);
    run.stop(Signal::SIGTERM);
}

#[test]
fn a_hijacked_thread_of_parallel_signals_its_jobs_alone() {
    let args = ["parallel", "-v", "synthetic:rate=20000", "-j", "2", "-q", "--", "sh", "-c", "cat >/dev/null"];
    let run = Started::of(program::command(&args).spawn().unwrap());
    let leaders: Vec<i64> = program::children(run.id()).into_iter().map(|id| id.as_raw().into()).collect();
    assert_eq!(leaders.len(), 2, "{leaders:?}");
    threads(&run);
    let Some(mut thread) = Hijacked::new(run.id() as i32) else { return };
    for other in [1, i64::from(std::process::id()), -1, 0, leaders[0]] {
        thread.is_denied("kill", [other as u64, 0, 0, 0, 0, 0]);
    }
    for leader in leaders {
        assert_eq!(thread.is_allowed("kill", [-leader as u64, 0, 0, 0, 0, 0]), 0);
    }
    drop(thread);
    run.signal(Signal::SIGTERM);
    assert_eq!(run.end().code, Some(0));
}

/// If a thread could close a socket, another socket could get the same descriptor.
fn stays_open(thread: &mut Hijacked, socket: u64) {
    assert_eq!(thread.is_allowed("close", [socket, 0, 0, 0, 0, 0]), 0);
    assert!(thread.is_allowed("fcntl", [socket, libc::F_GETFL as u64, 0, 0, 0, 0]) > 0);
}
