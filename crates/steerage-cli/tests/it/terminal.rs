//! Tests the program on a terminal: its messages, and the live table, which the program must erase
//! completely.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use nix::pty::openpty;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use steerage_fixtures::capture::pcap;

use crate::program::command;

fn on_terminal(args: &[&str]) -> (Child, File) {
    let pty = openpty(None, None).unwrap();
    let child = command(args).stderr(pty.slave).env("TERM", "xterm").spawn().unwrap();
    (child, File::from(pty.master))
}

/// Reads what the program draws until `wanted` appears, or until the output ends.
fn screen(terminal: &mut File, wanted: Option<&str>) -> String {
    let mut seen = Vec::new();
    let mut part = [0; 4096];
    // If no process can write to the terminal, reading it returns EIO.
    while let Ok(length @ 1..) = terminal.read(&mut part) {
        seen.extend(&part[..length]);
        if wanted.is_some_and(|wanted| String::from_utf8_lossy(&seen).contains(wanted)) {
            break;
        }
    }
    String::from_utf8(seen).unwrap()
}

fn out_of(mut child: Child) -> String {
    let mut out = String::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_string(&mut out).unwrap();
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    out
}

#[test]
fn the_live_table_is_gone_at_the_end() {
    // At this rate, a backlog holds the packets of a second, so that no packets are dropped if a
    // loaded machine does not run a CPU for a moment.
    let endless = ["count", "synthetic:rate=1000", "--virtual-cpus", "2", "--seconds", "0", "--policy", "hash"];
    let (child, mut terminal) = on_terminal(&endless);
    let drawn = screen(&mut terminal, Some("\x1b[?7h"));
    let lines: Vec<&str> = drawn.lines().collect();
    // The live table contains the lines of `top`, and a line with packet counts.
    assert!(lines[0].starts_with("\x1b[?7lsteerage ") && lines[1].starts_with("received "), "{drawn:?}");
    for start in ["[CPU] ", "    1 ", "> synthetic:rate"] {
        assert!(lines.iter().any(|line| line.starts_with(start)), "{start} in {drawn:?}");
    }
    assert!(lines[lines.len() - 2].ends_with(" packets received, 0 dropped"), "{drawn:?}");
    // The live table may be drawn again before the signal is handled, so only the end of the output
    // is certain.
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let rest = screen(&mut terminal, None);
    let all = drawn + &rest;
    let (_, last) = all.rsplit_once("\x1b[?7l").unwrap();
    assert!(last.ends_with(&format!("\r\x1b[{}A\x1b[J", last.matches('\n').count())), "{last:?}");
    let out = out_of(child);
    assert!(out.starts_with("synthetic:rate=1000  ") && !out.contains('\x1b'), "{out:?}");
}

#[test]
fn endless_traffic_says_when_it_will_stop() {
    let (child, mut terminal) = on_terminal(&["count", "synthetic:rate=20000", "--virtual-cpus", "1"]);
    let note = screen(&mut terminal, Some("\n"));
    assert!(note.starts_with("10 s of synthetic traffic (--seconds 0 for no end"), "{note:?}");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    screen(&mut terminal, None);
    out_of(child);
}

/// A run that ends immediately draws no table.
#[test]
fn a_short_run_leaves_standard_error_alone() {
    for more in [&["-c", "10"][..], &["--seconds", "0.001"], &["--quiet", "--seconds", "0.001"]] {
        let (child, mut terminal) = on_terminal(&[&["count", "--virtual-cpus", "1"], more].concat());
        assert_eq!(screen(&mut terminal, None), "");
        out_of(child);
    }
}

/// Writes a capture. The frames of the capture have 1400 random bytes, and are one second apart.
fn capture(name: &str, frames: u32) -> PathBuf {
    let mut state = 1_u64;
    let mut random = || {
        // The random numbers are from Knuth's MMIX generator.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let file = pcap((0..frames).map(|second| (second, 0, [0; 1400].map(|_: u8| random()))));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, file).unwrap();
    path
}

/// The progress display counts bytes on disk, so the compressed one of the two files counts with
/// its compressed size.
#[test]
fn progress_is_by_the_bytes_of_all_files() {
    let (plain, packed) = (capture("progress-1.pcap", 3000), capture("progress-2.pcap", 3000));
    assert!(Command::new("gzip").args(["-1", "-f", "-k"]).arg(&packed).status().unwrap().success());
    let packed = packed.with_extension("pcap.gz");
    let stored = fs::metadata(&plain).unwrap().len() + fs::metadata(&packed).unwrap().len();
    let expected = format!(" % of {:.1} MiB read, ", stored as f64 / f64::from(1 << 20));
    for command in ["count", "meter"] {
        // At the recorded speed, reading both files would take an hour and a half.
        let files = [plain.to_str().unwrap(), packed.to_str().unwrap()];
        let (child, mut terminal) = on_terminal(&[command, files[0], files[1], "--pace", "--virtual-cpus", "1"]);
        let drawn = screen(&mut terminal, Some(" left"));
        let (before, left) = drawn.split_once(&expected).unwrap_or_else(|| panic!("{expected} in {drawn:?}"));
        let part: u32 = before.rsplit(' ').next().unwrap().parse().unwrap();
        assert!((1..50).contains(&part) && left.contains(" left"), "{drawn:?}");
        kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
        screen(&mut terminal, None);
        out_of(child);
    }
}

/// The summary of `parallel` replaces the progress line.
#[test]
fn the_progress_of_jobs_is_drawn_and_erased() {
    let file = capture("progress-jobs.pcap", 3000);
    let expected = format!(" % of {:.1} MiB  ", fs::metadata(&file).unwrap().len() as f64 / f64::from(1 << 20));
    let jobs = ["parallel", file.to_str().unwrap(), "--pace", "-j", "2", "--", "sh", "-c", "cat >/dev/null"];
    let (child, mut terminal) = on_terminal(&jobs);
    let drawn = screen(&mut terminal, Some(" left  2 jobs"));
    assert!(drawn.contains(&expected), "{expected} in {drawn:?}");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let rest = screen(&mut terminal, None);
    let summary = rest.rsplit("\r\x1b[K").next().unwrap_or_default();
    assert!(summary.starts_with(" job ") && !summary.contains(" left "), "{rest:?}");
    assert_eq!(out_of(child), "");
}

#[test]
fn the_time_left_is_told_where_there_is_an_end() {
    let (child, mut terminal) =
        on_terminal(&["count", "synthetic:rate=1000", "--virtual-cpus", "1", "--seconds", "86400"]);
    let drawn = screen(&mut terminal, Some(" left"));
    assert!(drawn.contains(" dropped; 23:5"), "{drawn:?}");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    screen(&mut terminal, None);
    out_of(child);
}

#[test]
fn the_live_table_and_intervals_share_a_terminal() {
    let pty = openpty(None, None).unwrap();
    let args = ["count", "synthetic:rate=20000", "--virtual-cpus", "1", "--seconds", "0", "--interval", "700ms"];
    let mut started = command(&args);
    let child = started.stdout(pty.slave.try_clone().unwrap()).stderr(pty.slave).env("TERM", "xterm").spawn().unwrap();
    // Closes the file descriptors for the terminal in the test process.
    drop(started);
    let mut terminal = File::from(pty.master);
    // The live table is drawn, erased, and drawn again after a report.
    let mut drawn = screen(&mut terminal, Some("\x1b[?7h"));
    while !drawn.contains("\x1b[J20") {
        drawn += &screen(&mut terminal, Some("\x1b[?7h"));
    }
    let (_, below) = drawn.split_once("\x1b[J20").unwrap();
    let (report, table) = below.split_once('\n').unwrap();
    assert!(report.contains(" packets ") && table.starts_with("\x1b[?7lsteerage "), "{drawn:?}");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    screen(&mut terminal, None);
    out_of(child);
}

/// Without a command, the program prints to a terminal which features the machine supports, and
/// three examples. To a pipe, it prints the help.
#[test]
fn without_a_command_a_terminal_shows_a_start() {
    let pty = openpty(None, None).unwrap();
    let mut child = command(&[]).stdout(pty.slave).env("TERM", "xterm").spawn().unwrap();
    let page = screen(&mut File::from(pty.master), None).replace("\r\n", "\n");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(
        page.starts_with("steerage ") && page.contains("\n  kernel        Linux ") && page.contains("\n  missing "),
        "{page}"
    );
    let (_, commands) = page.split_once("\nThree commands to try:\n").unwrap();
    let commands: Vec<&str> = commands.lines().filter(|line| line.starts_with("  s")).collect();
    assert!(commands.len() == 3 && commands[1] == "  steerage meter FILE.pcap", "{page}");
    let piped = crate::program::run(&[]);
    assert!(piped.code == Some(2) && piped.err.contains("Usage: steerage") && piped.out.is_empty(), "{piped:?}");
}

#[test]
fn doctor_fits_a_terminal() {
    let shown = |no_colour: &str| {
        let size = nix::pty::Winsize { ws_row: 24, ws_col: 60, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let mut child =
            command(&["doctor"]).stdout(pty.slave).env("TERM", "xterm").env("NO_COLOR", no_colour).spawn().unwrap();
        let page = screen(&mut File::from(pty.master), None).replace("\r\n", "\n");
        assert_eq!(child.wait().unwrap().code(), Some(0));
        page
    };
    let plain = shown("1");
    // `doctor` moves a command or a path to the next line instead of dividing it.
    let long = plain.lines().filter(|line| line.chars().count() > 60);
    assert!(long.into_iter().all(|line| line.split_whitespace().any(|word| word.len() > 38)), "{plain}");
    let missing = plain.lines().filter(|line| line.starts_with("missing ")).count();
    let coloured = shown("");
    assert_eq!(
        (coloured.matches("\x1b[31mmissing\x1b[0m ").count(), plain.contains('\x1b')),
        (missing, false),
        "{coloured:?}"
    );
}
