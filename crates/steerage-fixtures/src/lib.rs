//! Tools that the tests of several crates share. The tools create network namespaces that send
//! packets, generate captures, read captures with tshark, and wait for conditions. The crate also
//! contains small packet handlers.

pub mod cable;
pub mod capture;
pub mod exposition;
pub mod handlers;
pub mod manual_clock;
pub mod namespaces;
pub mod queues;
pub mod scratch;
pub mod tshark;

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::panic;
use std::process::Command;
use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};

use steerage::Snapshot;

/// The longest time that a test waits for a condition. A test waits this long only if the code
/// under test hangs.
pub const HANG: Duration = Duration::from_secs(120);

const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Waits until the function `done` returns true. Panics after [`HANG`].
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < HANG, "in vain: {what}");
        thread::sleep(LOOK_EVERY);
    }
}

/// Returns whether the environment variable `CI` is set. With `CI`, no test may skip.
pub fn in_ci() -> bool {
    env::var_os("CI").is_some()
}

/// Prints to standard error why a test is skipped. If the environment variable `CI` is set, this
/// function fails the test.
pub fn skip(why: &str) {
    assert!(!in_ci(), "a test would skip, and CI is set: {why}");
    report_skip(why);
}

/// Prints why a test is skipped, and records the reason in a file. At the end of `cargo test`,
/// xtask/tests/skipped.rs prints all recorded reasons.
pub(crate) fn report_skip(why: &str) {
    let _ = writeln!(io::stderr(), "skipped: {why}");
    // If the file with the reason cannot be written, the error is ignored. Each test binary writes
    // the reasons to its own file. The file's name begins with the identifier of the process that
    // runs the tests.
    let Some(folder) = env::current_exe().ok().and_then(|test| Some(test.ancestors().nth(2)?.join("skipped-tests")))
    else {
        return;
    };
    let _ = fs::create_dir_all(&folder);
    let name = format!("{}-{}", std::os::unix::process::parent_id(), std::process::id());
    if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(folder.join(name)) {
        let _ = writeln!(file, "{}", why.lines().next().unwrap_or_default());
    }
}

/// Prints why a test is skipped that needs the features of Debian's kernel. In CI, the test does
/// not fail, because the CI machine cannot install a kernel. If the environment variable
/// `STEERAGE_VLANS` is set, the kernel supports the tests that need Debian's kernel. If
/// `STEERAGE_VLANS` is set, a test that would be skipped fails.
pub fn skip_on_this_kernel(why: &str) {
    assert!(env::var_os("STEERAGE_VLANS").is_none(), "a test would skip under Debian's kernel: {why}");
    report_skip(&format!("{why}; `bash .ci/full other_kernel cards` starts Debian's kernel"));
}

/// Returns whether the program `program` of the Debian package `package` is in a directory of
/// `PATH`. If the program `program` is missing, the caller skips its test. In CI, the test then
/// fails.
pub fn is_installed(program: &str, package: &str) -> bool {
    let folders = env::var_os("PATH").unwrap_or_default();
    let there = env::split_paths(&folders).any(|folder| folder.join(program).is_file());
    if !there {
        skip(&format!("{program} is absent: install the package {package}"));
    }
    there
}

/// The user identifier of `nobody` in Debian. Tests use `nobody` as a user other than root.
pub const NOBODY: u32 = 65534;

/// Returns whether this process runs as root. If this process does not run as root, a caller that
/// needs root skips its test. In CI, the test then fails.
pub fn is_root() -> bool {
    let root = fs::metadata("/proc/self").expect("proc is mounted").uid() == 0;
    if !root {
        skip("this test needs root");
    }
    root
}

/// Suppresses the error output of panics whose message contains "planted". All other panics are
/// shown. `quiet_panics` affects the panics of the whole process.
pub fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !info.to_string().contains("planted") {
                loud(info);
            }
        }));
    });
}

/// The environment variable that holds the name of the test that a child process runs: see
/// [`in_own_process`].
const OWN_PROCESS: &str = "STEERAGE_TEST_IN_OWN_PROCESS";

/// Runs the test with this name (`module::test`) in a child process. When the test has passed in
/// the child process, the function returns false in the parent process. In the child process,
/// `in_own_process` returns true. In the child process, the caller then runs the test. No other
/// test runs there.
///
/// Use `in_own_process` for tests that measure or change a property of the whole process, such as
/// its memory or its threads.
pub fn in_own_process(test: &str) -> bool {
    if env::var(OWN_PROCESS).is_ok_and(|name| name == test) {
        return true;
    }
    let program = env::current_exe().expect("the path of the test binary");
    let output = Command::new(program).args(["--exact", test, "--nocapture"]).env(OWN_PROCESS, test).output();
    let output = output.expect("the test binary can be run again");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    // If the name of the test is wrong, the child process runs no test and reports no failure.
    assert!(output.status.success() && out.contains("1 passed"), "{test} in its own process: {out}{err}");
    let _ = io::stderr().write_all(&output.stderr);
    false
}

/// Checks the ledger (the counters of packets) of a run that has ended. The ledger must account for
/// each packet. No page may be missing, and no packet may have been reordered.
pub fn assert_at_rest(ledger: &Snapshot) {
    assert_eq!(ledger.received(), ledger.delivered() + ledger.dropped().total());
    assert_eq!((ledger.in_flight(), ledger.pages_free), (0, ledger.pages));
    assert!(ledger.queues.iter().all(|queue| queue.reordered.is_none_or(|reordered| reordered == 0)), "reordered");
}
