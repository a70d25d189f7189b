//! Tools that the tests of several crates share.

pub mod cable;
pub mod capture;
pub mod exposition;
pub mod handlers;
pub mod manual_clock;
pub mod namespaces;
pub mod queues;
pub mod scratch;
pub mod seccomp;
pub mod tshark;

use std::env;
use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::panic;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use steerage::Snapshot;

/// The longest time that a test waits for a condition, if the code under test hangs.
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

/// Returns a name for a file or a network namespace. No other call returns the same name, even in
/// another process.
pub(crate) fn own_name() -> String {
    static OF_PROCESS: OnceLock<u32> = OnceLock::new();
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // Process IDs return, and a test process that was killed leaves its files. So each process also
    // has a random number: the keys of a `RandomState` are random.
    let random = OF_PROCESS.get_or_init(|| RandomState::new().hash_one(0) as u32);
    format!("{}-{random:08x}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Returns whether the environment variable `CI` is set. If `CI` is set, no test may be skipped.
pub fn in_ci() -> bool {
    env::var_os("CI").is_some()
}

/// Prints why a test is skipped. Fails the test if the environment variable `CI` is set.
pub fn skip(why: &str) {
    assert!(!in_ci(), "a test would skip, and CI is set: {why}");
    report_skip(why);
}

/// Prints why a test is skipped, and records the reason in a file. At the end of `cargo test`,
/// xtask/tests/skipped.rs prints all recorded reasons.
pub(crate) fn report_skip(why: &str) {
    let _ = writeln!(io::stderr(), "skipped: {why}");
    // The file's name has the process IDs of this test binary and of the process that started it.
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

/// Prints why a test that needs Debian's kernel is skipped. CI cannot install a kernel, so the test
/// does not fail in CI. The test fails if the environment variable `STEERAGE_VLANS` is set, which
/// promises that Debian's kernel runs.
pub fn skip_on_this_kernel(why: &str) {
    assert!(env::var_os("STEERAGE_VLANS").is_none(), "a test would skip under Debian's kernel: {why}");
    report_skip(&format!("{why}; `bash .ci/full other_kernel cards` starts Debian's kernel"));
}

/// Returns whether a program is in `PATH`. If the program is missing, the caller skips its test,
/// and in CI, the test fails.
pub fn is_installed(program: &str, package: &str) -> bool {
    let folders = env::var_os("PATH").unwrap_or_default();
    let there = env::split_paths(&folders).any(|folder| folder.join(program).is_file());
    if !there {
        skip(&format!("{program} is absent: install the package {package}"));
    }
    there
}

/// Returns the number of packets that the kernel has dropped at full input queues of CPUs since the
/// machine started. All tests on this machine share the input queues, including tests in network
/// namespaces.
pub fn dropped_by_the_kernel() -> u64 {
    let table = fs::read_to_string("/proc/net/softnet_stat").expect("proc is mounted");
    let dropped = table.lines().filter_map(|row| row.split_whitespace().nth(1));
    dropped.map(|hex| u64::from_str_radix(hex, 16).expect("a hexadecimal number")).sum()
}

/// The user identifier of `nobody` in Debian. Tests use `nobody` as a user other than root.
pub const NOBODY: u32 = 65534;

/// Returns whether this process is root. If the process is not root, the caller skips its test, and
/// in CI, the test fails.
pub fn is_root() -> bool {
    let root = fs::metadata("/proc/self").expect("proc is mounted").uid() == 0;
    if !root {
        skip("this test needs root");
    }
    root
}

/// Hides the output of this process's panics whose message contains "planted".
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

const OWN_PROCESS: &str = "STEERAGE_TEST_IN_OWN_PROCESS";

/// Runs the test `module::test` in a child process, without other tests. Returns true in the child,
/// where the caller runs the test, and false in the parent after the test has passed.
///
/// Use this function for tests that measure or change a whole process, such as its memory or
/// threads.
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

/// Checks the counts of a run that has ended: each received packet was delivered or counted as
/// dropped, each page is back in the page pool, and no packet was reordered.
pub fn assert_at_rest(ledger: &Snapshot) {
    assert_eq!(ledger.received(), ledger.delivered() + ledger.dropped().total());
    assert_eq!((ledger.in_flight(), ledger.pages_free), (0, ledger.pages));
    assert!(ledger.queues.iter().all(|queue| queue.reordered.is_none_or(|reordered| reordered == 0)), "reordered");
}
