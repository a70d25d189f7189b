//! Signals and closed pipes end a run early. Signals also request reports.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, mkfifo};
use serde_json::Value;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{HANG, skip, until};

use crate::program::{Ends, Started, assert_balanced, command};

/// A run that does not end, and is slow enough to leave CPU time for other tests.
const ENDLESS: [&str; 6] = ["count", "synthetic:rate=20000,queues=2", "--virtual-cpus", "2", "--seconds", "0"];

fn endless(more: &[&str]) -> Started {
    Started::new(&[&ENDLESS, more].concat())
}

fn parse(line: &str) -> Value {
    let report = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    assert_balanced(&report);
    report
}

#[test]
fn usr1_reports_and_goes_on() {
    let mut run = endless(&["--json"]);
    let mut received = 0;
    // Repeats until packets have arrived between two reports.
    while received == 0 {
        run.signal(Signal::SIGUSR1);
        let report = parse(&run.line());
        assert_eq!((&report["type"], &report["ended_by"]), (&"report".into(), &Value::Null));
        received = report["snapshot"]["received"].as_u64().unwrap();
    }
    run.signal(Signal::SIGINT);
    let ran = run.end();
    let report = ran.report();
    assert_eq!((ran.code, &report["ended_by"]), (Some(0), &"signal".into()));
    assert!(report["snapshot"]["received"].as_u64().unwrap() >= received);
}

#[test]
fn int_and_term_end_a_run_well() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let run = endless(&["--json", "--strict", "--backlog", "100000"]);
        run.signal(signal);
        let ran = run.end();
        let report = ran.report();
        assert_eq!((ran.code, &report["ended_by"]), (Some(0), &"signal".into()), "{ran:?}");
        assert_eq!((&report["snapshot"]["in_flight"], &report["snapshot"]["reordered"]), (&0.into(), &0.into()));
    }
}

#[test]
fn a_report_for_people_while_it_runs_says_so() {
    let mut run = endless(&[]);
    run.signal(Signal::SIGUSR1);
    let head = run.line();
    assert!(head.starts_with("synthetic:rate=20000,queues=2  ") && head.contains("so far, in "), "{head}");
    run.signal(Signal::SIGTERM);
    assert_eq!(run.end().code, Some(0));
}

/// The report does not fit into the pipe, so the program hangs while it writes its report.
#[test]
fn a_second_int_quits_whatever_hangs() {
    let many = ["count", "synthetic:rate=1", "--virtual-cpus", "500", "--backlog", "16", "--seconds", "0", "--json"];
    let mut run = Started::new(&many);
    run.signal(Signal::SIGINT);
    assert_eq!(run.byte(), b'{');
    run.signal(Signal::SIGINT);
    assert_eq!(run.end_unread(), Some(130));
}

/// The signals arrive after the last packet, while the program waits because its report does not
/// fit into the pipe.
#[test]
fn term_ends_a_program_whose_report_nobody_reads() {
    let many = ["count", "synthetic:rate=1", "--virtual-cpus", "500", "--backlog", "16", "--seconds", "0", "--json"];
    let mut run = Started::new(&many);
    run.signal(Signal::SIGINT);
    assert_eq!(run.byte(), b'{');
    run.signal_to_end(Signal::SIGTERM);
    assert_eq!(run.end_unread(), Some(128 + Signal::SIGTERM as i32));
}

/// The program in the output `exec:` does not end at the end of its input.
#[test]
fn term_ends_a_run_that_waits_for_a_program() {
    let scratch = Scratch::new();
    let ends = scratch.join("ends");
    mkfifo(&ends, Mode::S_IRWXU).unwrap();
    let program = format!("exec:cat >/dev/null; cat {}", ends.display());
    let args = ["fanout", "synthetic:packets=10", "--virtual-cpus", "1", "--to", &program, "-q"];
    let mut run = Ends(command(&args).spawn().unwrap());
    // The first word in /proc/PID/syscall is the number of the current system call.
    let call = format!("{} ", nix::libc::SYS_wait4);
    let status = format!("/proc/{}/syscall", run.id());
    until("the run waits for the program", || fs::read_to_string(&status).is_ok_and(|text| text.starts_with(&call)));
    kill(Pid::from_raw(run.id() as i32), Signal::SIGTERM).unwrap();
    until("TERM ends the run", || run.try_wait().unwrap().is_some());
    assert_eq!(run.wait().unwrap().code(), Some(128 + Signal::SIGTERM as i32));
    drop(fs::File::options().read(true).write(true).open(&ends).unwrap());
}

#[test]
fn a_reader_that_has_gone_is_no_error() {
    let mut child = command(&["count", "-c", "1000", "--virtual-cpus", "2"]).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

#[test]
fn a_report_that_nobody_reads_ends_the_run() {
    let mut run = endless(&[]).close_out();
    run.signal_to_death(Signal::SIGUSR1);
    let ran = run.end();
    assert_eq!(ran.code, Some(0));
    assert!(!ran.err.contains("steerage: "), "{ran:?}");
}

#[test]
fn a_report_that_cannot_be_written_is_an_error() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let output = command(&["count", "-c", "1000", "--virtual-cpus", "2"]).stdout(full).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(err.starts_with("steerage: cannot write the report") && err.lines().count() == 1, "{err}");
}

/// A program that ptrace stops at each system call of the program's main thread.
struct Stepped(Ends);

impl Stepped {
    /// Starts the program under ptrace. A shell stops itself, is traced, and then replaces itself
    /// by the program (`exec`). Returns `None` if tracing is not allowed.
    fn new(args: &[&str]) -> Option<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", "kill -STOP $$; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_steerage")]).args(args);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let stepped = Self(Ends(child));
        assert!(matches!(waitpid(stepped.id(), Some(WaitPidFlag::WUNTRACED)), Ok(WaitStatus::Stopped(..))));
        if let Err(error) = ptrace::seize(stepped.id(), ptrace::Options::PTRACE_O_TRACESYSGOOD) {
            skip(&format!("ptrace: {error}"));
            return None;
        }
        kill(stepped.id(), Signal::SIGCONT).unwrap();
        Some(stepped)
    }

    fn id(&self) -> Pid {
        Pid::from_raw(self.0.id() as i32)
    }

    /// Continues the traced program to the start or the end of the next system call, and passes
    /// signals on.
    fn step(&self) {
        let mut passed_on = None;
        let start = Instant::now();
        loop {
            // `ptrace` returns an error if the shell has not stopped itself yet.
            if let Err(error) = ptrace::syscall(self.id(), passed_on) {
                assert!(start.elapsed() < HANG, "{error}");
                std::thread::yield_now();
                continue;
            }
            match waitpid(self.id(), None).unwrap() {
                WaitStatus::PtraceSyscall(_) => return,
                WaitStatus::Stopped(_, Signal::SIGTRAP) | WaitStatus::PtraceEvent(..) => passed_on = None,
                WaitStatus::Stopped(_, signal) => passed_on = Some(signal),
                ended => panic!("{ended:?}"),
            }
        }
    }

    /// Returns whether the program blocks the signal, which the kernel then delivers later.
    fn holds(&self, signal: Signal) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let field = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim();
        let blocked = u64::from_str_radix(field("SigBlk:"), 16).unwrap();
        field("Name:") == "steerage" && (blocked >> (signal as u32 - 1)) & 1 == 1
    }

    fn threads(&self) -> usize {
        fs::read_dir(format!("/proc/{}/task", self.id())).unwrap().count()
    }

    /// Sends the signal at the current system call, stops tracing, and returns how the program
    /// ended.
    fn end_by(self, signal: Signal) -> (Option<i32>, Option<i32>, String) {
        kill(self.id(), signal).unwrap();
        ptrace::detach(self.id(), None).unwrap();
        let mut child = self.0;
        let start = Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < HANG, "{signal} is lost, and the run goes on");
            std::thread::yield_now();
        }
        let status = child.wait().unwrap();
        let mut out = String::new();
        child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        (status.code(), status.signal(), out)
    }
}

/// The test sends a stop signal to one run after its first system call, to the next run after its
/// second, and so on until all threads have started. A signal before the program has blocked
/// signals kills the program. A signal after the program has blocked signals ends the run normally.
#[test]
fn no_signal_to_stop_is_lost() {
    /// The number of threads of the program: the main thread, two packet threads, two threads for
    /// signals, and a thread that waits for the run's end.
    const THREADS: usize = 6;
    /// The number of system calls to test before the program blocks signals.
    const BEFORE: usize = 10;
    for signal in [Signal::SIGINT, Signal::SIGTERM].into_iter().filter(|signal| !ignores(*signal)) {
        let program = || Stepped::new(&[&ENDLESS[..], &["--json", "--socket", "none"]].concat());
        let Some(first) = program() else { return };
        let mut steps: usize = 0;
        while !first.holds(signal) {
            first.step();
            steps += 1;
        }
        drop(first);
        let (mut killed, mut ended, mut has_started) = (0, 0, false);
        // ptrace stops the program at the start and at the end of each system call.
        for steps in (steps.saturating_sub(2 * BEFORE)..).step_by(2) {
            if has_started {
                break;
            }
            let Some(stepped) = program() else { return };
            (0..steps).for_each(|_| stepped.step());
            has_started = stepped.threads() >= THREADS;
            match stepped.end_by(signal) {
                (None, Some(by), _) if by == signal as i32 && ended == 0 => killed += 1,
                (Some(0), None, out) => {
                    assert_eq!(parse(&out)["ended_by"], "signal");
                    ended += 1;
                }
                other => panic!("{signal}, after {killed} and {ended} system calls: {other:?}"),
            }
        }
        assert!(killed > 0 && ended > 5, "{killed} and {ended} system calls");
    }
}

/// Returns whether a new program ignores the signal until it handles the signal itself. nohup
/// ignores SIGHUP, and a shell ignores SIGINT for a script's jobs in the background.
pub(crate) fn ignores(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    u64::from_str_radix(ignored, 16).unwrap() >> (signal as u32 - 1) & 1 == 1
}

/// The exit code after SIGHUP makes the service manager start the run again.
#[test]
fn hup_ends_a_run_well_and_asks_for_another() {
    if ignores(Signal::SIGHUP) {
        return skip("HUP is ignored here, as nohup does it");
    }
    let run = endless(&["--json"]);
    run.signal(Signal::SIGHUP);
    let ran = run.end();
    assert_eq!((ran.code, &ran.report()["ended_by"]), (Some(129), &"signal".into()), "{ran:?}");
}

#[test]
fn with_nohup_a_run_outlives_its_terminal() {
    let program = env!("CARGO_BIN_EXE_steerage");
    let mut run = Command::new("nohup")
        .arg(program)
        .args(ENDLESS)
        .args(["--json", "-c", "2000"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // nohup ignores SIGHUP before it executes the program, so the program ignores SIGHUP too.
    let status = format!("/proc/{}/comm", run.id());
    let until = Instant::now() + HANG;
    while fs::read_to_string(&status).unwrap().trim() != "steerage" {
        assert!(Instant::now() < until, "nohup did not start the program");
        std::thread::yield_now();
    }
    kill(Pid::from_raw(run.id() as i32), Signal::SIGHUP).unwrap();
    let mut out = String::new();
    run.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(0));
    let report = parse(&out);
    assert_eq!((&report["ended_by"], &report["snapshot"]["received"]), (&"packets".into(), &2000.into()));
}

#[test]
fn a_service_manager_is_told_when_the_run_has_started() {
    let path = std::env::temp_dir().join(format!("steerage-notify-{}", std::process::id()));
    let _ = fs::remove_file(&path);
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(HANG)).unwrap();
    let mut run = command(&["count", "synthetic:packets=10"]).env("NOTIFY_SOCKET", &path).spawn().unwrap();
    let mut text = [0; 64];
    let length = socket.recv(&mut text).unwrap();
    assert_eq!(&text[..length], b"READY=1");
    assert_eq!(run.wait().unwrap().code(), Some(0));
    fs::remove_file(&path).unwrap();
    // It is not an error if the socket that `NOTIFY_SOCKET` names does not exist.
    let output = command(&["count", "synthetic:packets=10"]).env("NOTIFY_SOCKET", &path).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
}
