//! A run has no capability while it handles packets.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};
use serde_json::{Value, json};
use steerage_fixtures::capture::pcap;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{HANG, NOBODY, is_root, skip};

use crate::program::{Ran, Started, command, report, run};

const ENDLESS: [&str; 6] = ["synthetic:rate=20000", "--virtual-cpus", "2", "--seconds", "0", "--json"];

/// Capability bits from linux/capability.h.
const DAC_OVERRIDE: u64 = 1 << 1;
const DAC_READ_SEARCH: u64 = 1 << 2;
const NET_RAW: u64 = 1 << 13;

#[derive(Debug)]
struct Task {
    name: String,
    status: String,
}

impl Task {
    fn field(&self, key: &str) -> &str {
        let line = self.status.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("{key}: {self:?}"));
        line[key.len()..].trim()
    }

    fn handles_packets(&self) -> bool {
        self.name.strip_prefix("steerage/").is_some_and(|cpu| cpu.parse::<u16>().is_ok())
    }

    fn capabilities(&self, key: &str) -> u64 {
        u64::from_str_radix(self.field(key), 16).unwrap()
    }

    /// Returns all capabilities that the thread has or could get.
    fn all(&self) -> u64 {
        ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"]
            .iter()
            .map(|set| self.capabilities(set))
            .fold(0, |all, set| all | set)
    }
}

/// Waits until the run has at least `at_least` packet threads, and all threads have their final
/// names. A new thread first has its creator's name.
fn tasks(run: &Started, at_least: usize) -> Vec<Task> {
    let start = Instant::now();
    let program = fs::read_to_string(format!("/proc/{}/comm", run.id())).unwrap().trim().to_owned();
    loop {
        let tasks: Vec<Task> = fs::read_dir(format!("/proc/{}/task", run.id()))
            .unwrap()
            .filter_map(|task| {
                let path = task.ok()?.path();
                let name = fs::read_to_string(path.join("comm")).ok()?.trim().to_owned();
                Some(Task { name, status: fs::read_to_string(path.join("status")).ok()? })
            })
            .collect();
        let workers = tasks.iter().filter(|task| task.name.starts_with("steerage/")).count();
        if workers >= at_least && tasks.iter().filter(|task| task.name == program).count() == 1 {
            return tasks;
        }
        assert!(start.elapsed() < HANG, "{tasks:?}");
        thread::yield_now();
    }
}

#[test]
fn no_thread_of_a_run_has_a_capability_and_each_has_a_filter() {
    if !is_root() {
        return;
    }
    let flows = Scratch::new();
    let name = flows.join("flows-%s.csv");
    let with_flows = [&["meter"][..], &ENDLESS, &["--flows", name.to_str().unwrap()]].concat();
    let written = format!("pcap:{}", flows.join("all.pcap").display());
    let with_output = [&["fanout"][..], &ENDLESS, &["--to", &written, "--to", "exec:cat >/dev/null"]].concat();
    for args in [[&["count"][..], &ENDLESS].concat(), with_flows, with_output] {
        let run = Started::new(&args);
        let start = Instant::now();
        let mut found = tasks(&run, 2);
        // A packet thread gets its name before it installs its seccomp filter.
        while found.iter().any(|task| task.handles_packets() && task.field("Seccomp_filters:") != "4") {
            assert!(start.elapsed() < HANG, "{found:?}");
            thread::yield_now();
            found = tasks(&run, 2);
        }
        let tasks = found;
        assert!(tasks.len() > 3, "{tasks:?}");
        for task in &tasks {
            assert_eq!((task.all(), task.field("NoNewPrivs:"), task.field("Seccomp:")), (0, "1", "2"), "{task:?}");
            // The process has two seccomp filters, and packet threads have two more.
            let filters = if task.handles_packets() { "4" } else { "2" };
            assert_eq!(task.field("Seccomp_filters:"), filters, "{task:?}");
        }
        run.stop(Signal::SIGTERM);
    }
}

/// With `--no-sandbox`, the program still drops its capabilities.
#[test]
fn no_sandbox_is_for_debugging() {
    let run = Started::new(&[&["count"][..], &ENDLESS, &["--no-sandbox"]].concat());
    for task in tasks(&run, 2) {
        assert_eq!((task.all(), task.field("NoNewPrivs:"), task.field("Seccomp:")), (0, "1", "0"), "{task:?}");
    }
    assert!(run.stop(Signal::SIGTERM)["sandbox"].is_null());
}

/// Each command blocks after its first request, because the test does not reply.
#[test]
fn commands_without_packets_have_no_capability_either() {
    let scratch = Scratch::new();
    let (fifo, socket) = (scratch.join("run.toml"), scratch.join("socket"));
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let _listener = UnixListener::bind(&socket).unwrap();
    let (fifo, to) = (fifo.to_str().unwrap(), ["--to", socket.to_str().unwrap()]);
    let commands: [&[&str]; 4] = [
        &["check", fifo],
        &["get", "steerage", to[0], to[1]],
        &["set", "a", "b", to[0], to[1]],
        &["top", "--once", to[0], to[1]],
    ];
    for args in commands {
        let mut child = command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let start = Instant::now();
        let is_confined = |status: &str| status.lines().any(|line| line == "Seccomp:\t2");
        let status = loop {
            let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
            if is_confined(&status) {
                break status;
            }
            assert!(start.elapsed() < HANG && child.try_wait().unwrap().is_none(), "{args:?}: {status}");
            thread::yield_now();
        };
        let task = Task { name: args[0].to_owned(), status };
        assert_eq!((task.all(), task.field("NoNewPrivs:")), (0, "1"), "{task:?}");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// A command enters the sandbox before it begins to read or write.
#[test]
fn commands_that_print_are_in_the_sandbox_unless_told_otherwise() {
    let scratch = Scratch::new();
    let fifo = scratch.join("run.toml");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let fifo = fifo.to_str().unwrap();
    let commands: [&[&str]; 4] = [&["check", fifo], &["help"], &["man"], &["completions", "bash"]];
    for args in commands {
        for (option, seccomp) in [(&[][..], "2"), (&["--no-sandbox"][..], "0")] {
            // The output of the command does not fit into a pipe of 4096 bytes, so the command
            // blocks.
            let (mut output, input) = io::pipe().unwrap();
            fcntl(&output, FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
            let mut command = command(&[&args[..1], option, &args[1..]].concat());
            let mut child = command.stdout(input).stderr(Stdio::null()).spawn().unwrap();
            drop(command);
            let start = Instant::now();
            let mut opened = None;
            if args[0] == "check" {
                // Opening the FIFO for writing succeeds only after the command has opened it for
                // reading.
                while opened.is_none() {
                    opened = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(fifo).ok();
                    assert!(start.elapsed() < HANG && child.try_wait().unwrap().is_none(), "{args:?}");
                    thread::yield_now();
                }
            } else {
                output.read_exact(&mut [0]).unwrap();
            }
            let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
            let task = Task { name: args[0].to_owned(), status };
            assert_eq!((task.all(), task.field("NoNewPrivs:"), task.field("Seccomp:")), (0, "1", seccomp), "{task:?}");
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

/// The steering policy reads how much CPU time other programs use, which the sandbox must allow.
#[test]
fn what_others_take_of_a_cpu_is_known_in_the_sandbox() {
    let stop = AtomicBool::new(false);
    let cpu = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let cpu = (0..CpuSet::count()).find(|at| cpu.is_set(*at).unwrap()).unwrap();
    let others = thread::scope(|scope| {
        scope.spawn(|| {
            let mut only = CpuSet::new();
            only.set(cpu).unwrap();
            sched_setaffinity(Pid::from_raw(0), &only).unwrap();
            let start = Instant::now();
            while !stop.load(Ordering::Relaxed) && start.elapsed() < HANG {
                std::hint::spin_loop();
            }
        });
        let report = report(&["count", "synthetic:rate=20000", "--cpus", &cpu.to_string(), "--seconds", "1"]);
        stop.store(true, Ordering::Relaxed);
        report["snapshot"]["cpus"][0]["others"].as_f64().unwrap()
    });
    assert!(others > 0.0);
}

#[test]
fn what_is_in_force_is_told() {
    let report = report(&["count", "synthetic:packets=1000"]);
    assert_eq!(report["sandbox"]["seccomp"], true);
    assert!(["full", "part", "none"].contains(&report["sandbox"]["landlock"].as_str().unwrap()), "{report}");
    let told = run(&["count", "synthetic:packets=1000", "-v"]);
    assert!(told.out.lines().any(|line| line.starts_with("sandbox     no capabilities, seccomp, ")), "{told:?}");
    assert!(told.err.contains("the sandbox is in force: seccomp, "), "{told:?}");
    let quiet = run(&["count", "synthetic:packets=1000"]);
    assert!(!quiet.out.contains("sandbox"), "{quiet:?}");
    let doctor = run(&["doctor"]);
    assert!(doctor.out.lines().any(|line| line.contains("sandbox") && line.contains("seccomp")), "{doctor:?}");
}

/// Runs the program as on a kernel without the system call `number`. The program inherits the
/// seccomp filter of this thread.
fn run_without(number: i64, errno: i32, args: &[&str]) -> Ran {
    let rules = BTreeMap::from([(number, Vec::new())]);
    let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
    let refused = SeccompAction::Errno(errno.cast_unsigned());
    let filter: BpfProgram =
        SeccompFilter::new(rules, SeccompAction::Allow, refused, arch).unwrap().try_into().unwrap();
    let ran = || {
        apply_filter(&filter).unwrap();
        run(args)
    };
    thread::scope(|scope| scope.spawn(ran).join().unwrap())
}

/// A kernel can be built, or started, without Landlock.
#[test]
fn a_kernel_without_landlock_is_told_and_the_run_goes_on() {
    for errno in [libc::ENOSYS, libc::EOPNOTSUPP] {
        let run = |args: &[&str]| run_without(libc::SYS_landlock_create_ruleset, errno, args);
        let counted = run(&["count", "synthetic:packets=1000", "--json"]);
        assert_eq!((counted.code, counted.err.as_str()), (Some(0), ""), "{counted:?}");
        assert_eq!(counted.report()["sandbox"], json!({ "seccomp": true, "landlock": "none" }));
        let told = run(&["count", "synthetic:packets=1000", "-v"]);
        let line = "sandbox     no capabilities, seccomp, no Landlock here";
        assert!(told.out.lines().any(|told| told == line), "{told:?}");
        assert!(told.err.contains("the sandbox is in force: seccomp, no Landlock here"), "{told:?}");
        let doctor = run(&["doctor"]);
        let line = "missing sandbox       each command has seccomp, no Landlock here: use Linux ";
        assert!(doctor.out.lines().any(|told| told.starts_with(line)), "{doctor:?}");
    }
}

/// The seccomp profile of a container can deny Landlock although the kernel supports it. The user
/// could change the container's profile, so the program prints a warning.
#[test]
fn landlock_that_is_denied_is_reported_once() {
    for errno in [libc::EPERM, libc::EACCES, libc::ENOMEM] {
        let run = |args: &[&str]| run_without(libc::SYS_landlock_create_ruleset, errno, args);
        let counted = run(&["count", "synthetic:packets=1000", "--json"]);
        assert_eq!(counted.code, Some(0), "{counted:?}");
        assert_eq!(counted.report()["sandbox"], json!({ "seccomp": true, "landlock": "none" }));
        let lines: Vec<&str> = counted.err.lines().collect();
        assert_eq!(lines.len(), 1, "{counted:?}");
        let line = "steerage: files are not restricted, because landlock_create_ruleset failed (";
        assert!(lines[0].starts_with(line), "{counted:?}");
        let verbose = run(&["count", "synthetic:packets=1000", "-v"]);
        let line = "sandbox     no capabilities, seccomp, Landlock refused";
        assert!(verbose.out.lines().any(|said| said == line), "{verbose:?}");
    }
}

/// The kernel supports Landlock or seccomp but refuses to apply it.
#[test]
fn a_sandbox_that_is_refused_ends_the_run() {
    let ran = run_without(libc::SYS_seccomp, libc::EPERM, &["count", "synthetic:packets=1000"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{ran:?}");
    assert!(ran.complaint().starts_with("steerage: cannot enter the sandbox: "), "{ran:?}");
}

/// A shell replaces `<(command)` by the path of a pipe. Landlock has no rules for pipes, and does
/// not restrict them.
#[test]
fn pipes_of_the_shell_are_read() {
    let scratch = Scratch::new();
    let (capture, file) = (scratch.join("a.pcap"), scratch.join("a.toml"));
    fs::write(&capture, pcap([(1, 0, [0_u8; 60])])).unwrap();
    fs::write(&file, "command = \"count\"\ndevices = \"synthetic:packets=2\"\njson = true\n").unwrap();
    let script = "\"$0\" count <(cat \"$1\") --json && \"$0\" check <(cat \"$2\") >&2 && \"$0\" run <(cat \"$2\")";
    let mut bash = Command::new("bash");
    bash.args(["-c", script, env!("CARGO_BIN_EXE_steerage")]).args([&capture, &file]);
    let ran = Ran::of(bash.stdin(Stdio::null()).output().unwrap());
    let received: Vec<Value> = ran
        .out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["snapshot"]["received"].take())
        .collect();
    assert_eq!((ran.code, received), (Some(0), vec![json!(1), json!(2)]), "{ran:?}");
    assert!(ran.err.contains(" is right; it runs\n"), "{ran:?}");
}

/// A run opens each of several captures only after it has read the earlier ones. Only the thread
/// that opens captures, which handles no packets, keeps the capability to read them.
#[test]
fn what_reads_captures_of_others_stays_with_the_thread_that_opens_them() {
    if !is_root() {
        return;
    }
    let theirs = Scratch::new();
    let fifo = theirs.join("fifo");
    mkfifo(&fifo, Mode::from_bits_truncate(0o600)).unwrap();
    let capture = theirs.join("theirs.pcap");
    fs::write(&capture, pcap::<[u8; 0]>([])).unwrap();
    chown(&capture, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(&capture, fs::Permissions::from_mode(0o400)).unwrap();
    // The test writes nothing to the FIFO, so the run waits for data.
    let kept = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    let run =
        Started::new(&["count", fifo.to_str().unwrap(), capture.to_str().unwrap(), "--json", "--virtual-cpus", "2"]);
    for task in tasks(&run, 2) {
        let held = if task.name == "open" { DAC_READ_SEARCH } else { 0 };
        assert_eq!(task.capabilities("CapEff:"), held, "{task:?}");
    }
    (&kept).write_all(&pcap::<[u8; 0]>([])).unwrap();
    drop(kept);
    let ended = run.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// Root needs a capability to create files in another user's directory. During a run, only the
/// thread that creates output files keeps this capability.
#[test]
fn what_files_need_stays_with_the_thread_that_writes_them() {
    if !is_root() {
        return;
    }
    let theirs = Scratch::new();
    chown(&*theirs, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o755)).unwrap();
    let name = theirs.join("%Y").join("flows-%s.csv");
    let run = Started::new(
        &[&["meter"][..], &ENDLESS, &["--flows", name.to_str().unwrap(), "--rotate", "1", "--active", "0.1"]].concat(),
    );
    for task in tasks(&run, 2) {
        let kept = if task.name == "flows" { DAC_OVERRIDE } else { 0 };
        assert_eq!((task.capabilities("CapEff:"), task.field("NoNewPrivs:")), (kept, "1"), "{task:?}");
    }
    let start = Instant::now();
    while files_in(&theirs).len() < 2 {
        assert!(start.elapsed() < HANG, "{:?}", files_in(&theirs));
        thread::yield_now();
    }
    run.stop(Signal::SIGTERM);
    assert!(files_in(&theirs).iter().all(|path| path.extension().is_some_and(|end| end == "csv")));
}

fn files_in(directory: &Path) -> Vec<PathBuf> {
    let entries = |directory: &Path| fs::read_dir(directory).into_iter().flatten().map(|entry| entry.unwrap().path());
    entries(directory).flat_map(|year| entries(&year).collect::<Vec<_>>()).collect()
}

/// Without a capability of root, the program could not open the capture of another user.
#[test]
fn captures_of_others_are_read() {
    if !is_root() {
        return;
    }
    let theirs = Scratch::new();
    let capture = theirs.join("theirs.pcap");
    fs::write(&capture, pcap::<[u8; 0]>([])).unwrap();
    chown(&capture, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(&capture, fs::Permissions::from_mode(0o400)).unwrap();
    let ran = run(&["count", capture.to_str().unwrap(), capture.to_str().unwrap(), "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.report()["snapshot"]["received"], 0);
}

/// Another user runs the program with only CAP_NET_RAW, as after `setcap cap_net_raw+ep`. The run
/// drops CAP_NET_RAW before packets arrive.
#[test]
fn one_capability_is_enough_and_goes_too() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    // The build directory may be readable only by root.
    let program = scratch.install("steerage", env!("CARGO_BIN_EXE_steerage"));
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all,+net_raw"]);
    command.args(["--ambient-caps=-all,+net_raw"]).arg(&program).arg("count").args(ENDLESS).arg("-v");
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    match child {
        Ok(child) => {
            let run = Started::of(child);
            for task in tasks(&run, 2) {
                assert_eq!((task.all(), task.field("NoNewPrivs:")), (0, "1"), "{task:?}");
                assert!(task.field("Uid:").starts_with("65534"), "{task:?}");
                assert_ne!(task.capabilities("CapBnd:") & NET_RAW, 0, "{task:?}");
            }
            run.stop(Signal::SIGTERM);
        }
        Err(error) => skip(&format!("no setpriv (util-linux): {error}")),
    }
}
