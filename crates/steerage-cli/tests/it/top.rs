//! `steerage top` prints one table to a pipe. On a terminal, `top` draws a screen and reacts to
//! keys.

use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Instant;

use nix::pty::{Winsize, openpty};
use nix::sys::signal::Signal;
use serde_json::Value;
use steerage::stats::CpuCounter;
use steerage::{Batch, Builder, Cpu, Handler};
use steerage_control::{Listening, Options, Tree, reports};
use steerage_fixtures::{HANG, until};

use crate::program::{Started, run};

/// An endless run with its own control socket.
struct Watched {
    run: Started,
    socket: PathBuf,
}

impl Watched {
    fn new(name: &str) -> Self {
        Self::of("count", name)
    }

    fn of(command: &str, name: &str) -> Self {
        let socket = std::env::temp_dir().join(format!("steerage-{}-{name}.sock", std::process::id()));
        // At this rate, a backlog holds the packets of a second, so that no packets are dropped if a
        // loaded machine does not run a CPU for a moment.
        let endless = [
            command,
            "synthetic:rate=1000,flows=50",
            "--virtual-cpus",
            "2",
            "--seconds",
            "0",
            "--json",
            "--policy",
            "hash",
        ];
        let run = Started::new(&[&endless[..], &["--socket", socket.to_str().unwrap()]].concat());
        Self { run, socket }
    }

    fn mask(&mut self) -> String {
        self.run.signal(Signal::SIGUSR1);
        let report: Value = serde_json::from_str(&self.run.line()).unwrap();
        report["snapshot"]["queues"][0]["rps_cpus_list"].as_str().unwrap().to_owned()
    }

    fn end(self) {
        self.run.signal(Signal::SIGINT);
        assert_eq!(self.run.end().code, Some(0));
        assert!(!self.socket.exists());
    }
}

/// Before `top` can show flows, `meter` must have scanned its flow table once.
#[test]
fn the_largest_flows_of_a_meter() {
    let mut watched = Watched::of("meter", "flows");
    let start = Instant::now();
    let flows = loop {
        assert!(start.elapsed() < HANG, "no flows are shown");
        watched.run.signal(Signal::SIGUSR1);
        let report: Value = serde_json::from_str(&watched.run.line()).unwrap();
        if let Some(top) = report["traffic"]["top"].as_array() {
            break top.clone();
        }
    };
    assert!(!flows.is_empty() && flows.len() <= 10, "{flows:?}");
    let bytes: Vec<u64> = flows.iter().map(|flow| flow["bytes"].as_u64().unwrap()).collect();
    assert!(bytes.is_sorted_by(|one, next| one >= next) && bytes[0] > 0, "{bytes:?}");
    let ran = run(&["top", "--interval", "50ms", "--to", watched.socket.to_str().unwrap()]);
    let rows = ran.out.lines().filter(|line| line.contains("bit/s") && line.contains(" udp ")).count();
    assert!(rows > 0 && ran.out.lines().all(|line| line.chars().count() <= 80), "{ran:?}");
    watched.end();
}

#[test]
fn one_table_into_a_pipe() {
    let watched = Watched::new("once");
    let ran = run(&["top", "--interval", "50ms", "--to", watched.socket.to_str().unwrap()]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    let lines: Vec<&str> = ran.out.lines().collect();
    assert!(lines[0].starts_with("steerage 0.") && lines[0].contains("synthetic:rate=1000,flows=50"), "{ran:?}");
    assert!(lines[1].starts_with("received ") && lines[1].contains("  dropped 0 pps (0.0 %)  "), "{ran:?}");
    assert!(lines[4].starts_with("[CPU] ") && lines[5].starts_with("    0 ") && lines[6].starts_with("    1 "));
    let strip = lines.iter().position(|line| line.starts_with("  buckets of synthetic:")).unwrap() + 2;
    assert_eq!(lines[strip], format!("  {}{}", "0".repeat(32), "1".repeat(32)));
    assert!(lines.iter().all(|line| line.chars().count() <= 80) && !ran.out.contains('\x1b'), "{ran:?}");
    watched.end();

    let ran = run(&["top", "--once", "--to", "/nowhere/at-all.sock"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.complaint().contains("no run answers at /nowhere/at-all.sock"), "{ran:?}");
}

/// A program on a terminal of 80 columns and 24 lines, which is killed when its test ends.
struct OnTerminal {
    child: Child,
    keys: File,
    screen: Receiver<String>,
    seen: String,
}

impl OnTerminal {
    fn new(args: &[&str]) -> Self {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let slave = || Stdio::from(pty.slave.try_clone().unwrap());
        let mut command = Command::new(env!("CARGO_BIN_EXE_steerage"));
        command.args(args).env("TERM", "xterm").env_remove("NO_COLOR");
        let child = command.stdin(slave()).stdout(slave()).stderr(slave()).spawn().unwrap();
        drop((pty.slave, command));
        let keys = File::from(pty.master);
        let (mut from, (seen_in, screen)) = (keys.try_clone().unwrap(), mpsc::channel());
        // A full terminal buffer would block the program. If no process can write to the terminal,
        // reading it returns EIO.
        thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut part) {
                if seen_in.send(String::from_utf8_lossy(&part[..length]).into_owned()).is_err() {
                    return;
                }
            }
        });
        Self { child, keys, screen, seen: String::new() }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the program has drawn `wanted`. The program redraws no unchanged cells, which
    /// may be blank, so `wanted` must contain no spaces.
    fn wait_for(&mut self, wanted: &str) {
        while !self.seen.contains(wanted) {
            let more = self.screen.recv().unwrap_or_else(|_| panic!("it ended without {wanted}: {:?}", self.seen));
            self.seen.push_str(&more);
        }
    }

    fn end(mut self) -> (String, Option<i32>) {
        let code = self.child.wait().unwrap().code();
        let mut seen = std::mem::take(&mut self.seen);
        while let Ok(more) = self.screen.recv() {
            seen.push_str(&more);
        }
        (seen, code)
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        // `kill` does nothing if the process has ended and its exit status was read.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_mask_is_changed_from_the_screen() {
    let mut watched = Watched::new("screen");
    assert_eq!(watched.mask(), "0-1");
    let mut top = OnTerminal::new(&["top", "--interval", "20ms", "--to", watched.socket.to_str().unwrap()]);
    top.wait_for("[CPU]");
    top.wait_for("rx-0");
    top.press("m1\r");
    while watched.mask() != "1" {
        thread::yield_now();
    }
    // `top` continues after the end of the run.
    watched.end();
    top.wait_for("GONE");
    top.press("q");
    let (seen, code) = top.end();
    assert_eq!(code, Some(0), "{seen:?}");
    // `top` leaves the alternate screen, and shows the cursor again.
    assert!(seen.contains("\x1b[?1049h") && seen.contains("\x1b[?1049l") && seen.contains("\x1b[?25h"), "{seen:?}");
}

fn plain_lines(seen: &str) -> Vec<String> {
    let mut text = String::new();
    let mut characters = seen.chars();
    while let Some(c) = characters.next() {
        if c != '\x1b' {
            text.push(c);
        } else if characters.next() == Some('[') {
            // The first letter in an escape sequence for a terminal ends the sequence.
            let _ = characters.by_ref().find(|c| c.is_ascii_alphabetic());
        }
    }
    text.split(['\r', '\n']).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn meter_shows_flows_live_and_has_keys() {
    let mut meter =
        OnTerminal::new(&["meter", "synthetic:rate=20000,flows=50", "--virtual-cpus", "2", "--seconds", "0"]);
    meter.wait_for("sort by: r rate");
    meter.wait_for(" packets received, ");
    for key in ["b", "p", "d", "r"] {
        meter.seen.clear();
        meter.press(key);
        meter.wait_for("sort by: r rate");
    }
    meter.press("q");
    let (seen, code) = meter.end();
    assert_eq!(code, Some(0), "{seen:?}");
    let lines = plain_lines(&seen);
    // The first line of the report contains the name of the device, and may have any length.
    let mut others = lines.iter().filter(|line| !line.starts_with("synthetic:"));
    assert!(others.all(|line| line.chars().count() <= 80 && line.is_ascii()), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains(" udp ") && line.contains("bit/s")), "{lines:#?}");
    // The report replaces the live table, and must fit the terminal except for its first line.
    let report = lines.iter().position(|line| line.starts_with("50 flows (udp 50)")).expect("the report");
    assert!(lines[report + 1].contains(" proto ") && lines[report + 2].contains(" udp "), "{lines:#?}");
}

#[test]
fn a_report_for_scripts() {
    let watched = Watched::new("json");
    let to = watched.socket.to_str().unwrap();
    let ran = run(&["top", "--once", "--json", "--to", to]);
    assert_eq!((ran.code, ran.err.as_str(), ran.out.lines().count()), (Some(0), "", 1), "{ran:?}");
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&report["type"], &report["ended_by"]), (&Value::from("report"), &Value::Null));
    let get = |path: &str| -> Value {
        let ran = run(&["get", "--json", path, "--to", to]);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
        serde_json::from_str(&ran.out).unwrap()
    };
    let mask = get("sys/class/net/synthetic/queues/rx-0/rps_cpus_list");
    assert_eq!(mask["value"], "0-1", "{mask}");
    let paths = get("/");
    assert!(paths["paths"].as_array().unwrap().iter().any(|path| path == "steerage/received"), "{paths}");
    watched.end();
}

struct Seen(CpuCounter);

impl Handler for Seen {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        self.0.add(batch.len() as u64);
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

#[test]
fn the_counters_of_a_program_of_ones_own() {
    let socket = std::env::temp_dir().join(format!("steerage-{}-own.sock", std::process::id()));
    let listening = Listening::bind(&socket).unwrap();
    let input = steerage_device::open("synthetic:rate=20000,flows=50").unwrap();
    let builder = Builder::new().virtual_cpus(2).input(input);
    let seen = builder.counters().add("seen", "Packets that the function saw.", "packets").unwrap();
    let of_test = seen.clone();
    let running = builder.build(move |cpu| Seen(seen.on(cpu))).unwrap().start().unwrap();
    let tree = Arc::new(Tree::new(running.handle(), Options::default()));
    let serving = listening.serve(tree, reports(running.handle())).unwrap();
    until("packets are counted", || of_test.total() > 0);
    let to = socket.to_str().unwrap();
    let ran = run(&["top", "--interval", "50ms", "--to", to]);
    let row = ran.out.lines().find(|line| line.starts_with("  seen ")).unwrap_or_else(|| panic!("no row: {ran:?}"));
    let words: Vec<&str> = row.split_whitespace().collect();
    assert!(matches!(words[..], ["seen", _, total, "packets"] if total != "0"), "{row}");
    let ran = run(&["top", "--json", "--once", "--to", to]);
    let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("no report: {ran:?}"));
    let counter = &report["snapshot"]["counters"][0];
    let by_cpu: u64 = counter["by_cpu"].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum();
    assert!(by_cpu > 0 && counter["total"] == by_cpu && counter["name"] == "seen", "{counter}");
    drop(serving);
    running.handle().stop();
    running.join();
}
