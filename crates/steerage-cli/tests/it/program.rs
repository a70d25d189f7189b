use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::ops::{Deref, DerefMut};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use steerage::stats::DropReason;
use steerage_fixtures::until;

/// Returns a command that runs the program with empty standard input.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_steerage"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Like [`command`], but words such as `TMPDIR=/tmp` before the command set environment variables,
/// as in a shell.
pub(crate) fn command_in(words: &[&str]) -> Command {
    let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    let variable = |word: &&str| word.split_once('=').is_some_and(|(name, _)| is_name(name));
    let count = words.iter().take_while(|word| variable(word)).count();
    let mut command = command(&words[count..]);
    command.envs(words[..count].iter().filter_map(|word| word.split_once('=')));
    command
}

#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn run(args: &[&str]) -> Ran {
    Ran::of(command(args).output().expect("the program was built with this test"))
}

impl Ran {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Returns the report, which must be the only JSON object on standard output. The counts in the
    /// report must balance.
    pub(crate) fn report(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "{self:?}");
        let report: Value = serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        assert_balanced(&report);
        report
    }

    /// Returns the error message, which must be the only line on standard error.
    pub(crate) fn complaint(&self) -> &str {
        let line = self.err.strip_suffix('\n').unwrap_or_else(|| panic!("{self:?}"));
        assert!(!line.contains('\n') && line.starts_with("steerage: ") && line.len() > 30, "{self:?}");
        line
    }
}

/// Runs the program, which must succeed, and returns its report.
pub(crate) fn report(args: &[&str]) -> Value {
    let ran = run(&[args, &["--json"]].concat());
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    ran.report()
}

pub(crate) fn sum(value: &Value) -> u64 {
    value.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum()
}

/// Checks that a live run dropped packets only because the machine was too busy.
pub(crate) fn assert_lost_only_under_load(report: &Value) {
    let drops = report["snapshot"]["dropped"].as_object().unwrap();
    let by_load = ["device", "backlog_full", "flow_limit", "moving", "revoked", "tx_full"];
    assert!(drops.keys().all(|reason| by_load.contains(&reason.as_str())), "{report}");
}

/// Checks that the ledger accounts for every packet: in total, for each queue and for each CPU.
pub(crate) fn assert_balanced(report: &Value) {
    let count = |of: &Value, key: &str| of[key].as_u64().unwrap_or_else(|| panic!("{key} in {of}"));
    let balances = |of: &Value| {
        let accounted = count(of, "delivered") + sum(&of["dropped"]) + count(of, "in_flight");
        assert_eq!(count(of, "received"), accounted, "{of}");
    };
    let ended = !report["ended_by"].is_null();
    let report = &report["snapshot"];
    balances(report);
    assert_eq!(sum(&report["verdicts"]), count(report, "delivered"));
    let (queues, cpus) = (report["queues"].as_array().unwrap(), report["cpus"].as_array().unwrap());
    queues.iter().for_each(balances);
    for key in ["received", "received_bytes", "delivered", "in_flight"] {
        assert_eq!(queues.iter().map(|queue| count(queue, key)).sum::<u64>(), count(report, key), "{key}");
    }
    for cpu in cpus {
        assert!(count(cpu, "inline") <= count(cpu, "processed"), "{cpu}");
    }
    if ended && count(report, "in_flight") == 0 {
        let of_all = |key| cpus.iter().map(|cpu| count(cpu, key)).sum::<u64>();
        assert_eq!(of_all("inline") + of_all("handed_in"), of_all("processed"), "{report}");
        let of_handlers = [DropReason::Revoked, DropReason::HandlerPanicked];
        let after_handler = of_handlers.into_iter().chain(DropReason::OF_OUTPUTS);
        let after_handler = after_handler.map(|reason| report["dropped"][reason.name()].as_u64().unwrap_or(0));
        assert_eq!(of_all("processed"), count(report, "delivered") + after_handler.sum::<u64>(), "{report}");
    }
}

/// Returns the objects of text with one JSON object in each line.
pub(crate) fn objects(lines: &str) -> Vec<Value> {
    lines.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// Returns the child processes of a process.
pub(crate) fn children(process: u32) -> Vec<Pid> {
    let is_child = |id: &i32| {
        let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        status.lines().any(|line| line.strip_prefix("PPid:").is_some_and(|id| id.trim() == process.to_string()))
    };
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    processes.filter(is_child).map(Pid::from_raw).collect()
}

/// A child process that is killed when its test ends, even if the test fails.
pub(crate) struct Ends(pub(crate) Child);

impl Deref for Ends {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Ends {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        // `kill` does nothing if the process has ended and its exit status was read.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) struct Started {
    child: Ends,
    out: BufReader<ChildStdout>,
    err: BufReader<std::process::ChildStderr>,
    /// The lines that the run wrote to standard error before it listened for signals.
    said: Vec<String>,
}

impl Started {
    /// Starts a run with `-v`, and waits until it listens for signals.
    pub(crate) fn new(args: &[&str]) -> Self {
        Self::of(command(&[args, &["-v"]].concat()).spawn().unwrap())
    }

    /// Waits until `child` listens for signals. `child` must have been started with `-v`.
    pub(crate) fn of(child: Child) -> Self {
        let mut child = Ends(child);
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut said: Vec<String> = Vec::new();
        while said.last().is_none_or(|line| !line.contains("signals are listened to")) {
            let mut line = String::new();
            assert_ne!(err.read_line(&mut line).unwrap(), 0, "it ended before it was ready: {said:?}");
            said.push(line);
        }
        Self { child, out, err, said }
    }

    /// Returns the lines on standard error before the run listened for signals.
    pub(crate) fn said(&self) -> &[String] {
        &self.said
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    pub(crate) fn signal_to_end(&mut self, signal: Signal) {
        until(&format!("{signal} ends the run"), || {
            self.signal(signal);
            self.child.try_wait().unwrap().is_some()
        });
    }

    /// Stops the run, which must succeed, and returns its report.
    pub(crate) fn stop(self, signal: Signal) -> Value {
        self.signal(signal);
        let ran = self.end();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.report()
    }

    /// Stops the run with SIGINT. At the end, no packet may be in flight, no packet may have been
    /// reordered, and all pages must be free.
    pub(crate) fn stop_at_rest(self) -> Value {
        let report = self.stop(Signal::SIGINT);
        assert_eq!(
            (&report["snapshot"]["reordered"], &report["snapshot"]["in_flight"]),
            (&json!(0), &json!(0)),
            "{report}"
        );
        assert_eq!(report["snapshot"]["pages"], report["snapshot"]["pages_free"]);
        report
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line
    }

    /// Returns the next line on standard error. Skips the lines that `-v` adds.
    pub(crate) fn error_line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.err.read_line(&mut line).unwrap(), 0, "it ended without another line");
            if ![" INFO ", " WARN "].iter().any(|level| line.contains(level)) {
                return line;
            }
        }
    }

    /// Reads one byte, from standard output, and leaves all other bytes in the pipe.
    pub(crate) fn byte(&mut self) -> u8 {
        let mut byte = [0];
        self.out.get_mut().read_exact(&mut byte).unwrap();
        byte[0]
    }

    pub(crate) fn close_out(self) -> Unread {
        let Self { child, out, err, .. } = self;
        drop(out);
        Unread { child, err }
    }

    /// Returns the exit code, and the unread rest of standard output and standard error.
    pub(crate) fn end(mut self) -> Ran {
        let mut out = String::new();
        self.out.read_to_string(&mut out).unwrap();
        Ran { out, ..Unread { child: self.child, err: self.err }.end() }
    }

    pub(crate) fn end_unread(self) -> Option<i32> {
        let Self { mut child, out, err, .. } = self;
        let code = child.wait().unwrap().code();
        drop((out, err));
        code
    }
}

pub(crate) struct Unread {
    child: Ends,
    err: BufReader<std::process::ChildStderr>,
}

impl Unread {
    /// Sends the signal repeatedly until the run has ended. While another test starts a program,
    /// the child process briefly has a copy of the pipe's reading end, so the run can still write
    /// to the closed pipe.
    pub(crate) fn signal_to_death(&mut self, signal: Signal) {
        while self.child.try_wait().unwrap().is_none() {
            kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
            std::thread::yield_now();
        }
    }

    pub(crate) fn end(mut self) -> Ran {
        let mut err = String::new();
        self.err.read_to_string(&mut err).unwrap();
        Ran { code: self.child.wait().unwrap().code(), out: String::new(), err }
    }
}
