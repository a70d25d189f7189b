//! Tests the sandbox of `tune`, which a separate process enters in a network namespace.

use std::env;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

use steerage::{CpuId, CpuMask};
use steerage_fixtures::cable::Net;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::skip;
use steerage_tune::{Value, Wish};

use super::*;
use crate::args;

/// The environment variable with the directory of undo files, for the process in the sandbox.
const INSIDE: &str = "STEERAGE_TEST_TUNE";

const QUEUES: &str = "/sys/class/net/near0/queues";

/// Returns the files that the process tries to open for writing, each with true if the sandbox must
/// allow that.
fn attempts(is_watch: bool) -> Vec<(String, bool)> {
    let queues = |name: &str| format!("{QUEUES}/{name}");
    vec![
        (queues("rx-0/rps_cpus"), true),
        ("/proc/sys/net/core/rps_default_mask".to_owned(), true),
        // With `--watch`, `tune` also sets the values of queues that appear later.
        (queues("rx-0/rps_flow_cnt"), is_watch),
        ("/sys/class/net/near0/threaded".to_owned(), false),
        ("/sys/class/net/near0/tx_queue_len".to_owned(), false),
        ("/sys/class/net/near0/ifalias".to_owned(), false),
        ("/sys/class/net/lo/queues/rx-0/rps_cpus".to_owned(), false),
        ("/proc/sys/net/core/somaxconn".to_owned(), false),
        ("/proc/sys/net/ipv4/ip_forward".to_owned(), false),
        ("/proc/sys/kernel/core_pattern".to_owned(), false),
        ("/proc/self/oom_score_adj".to_owned(), false),
    ]
}

/// Prints `PATH true` or `PATH false` for each file that the process tries to open.
fn inside(directory: &Path) {
    let line = env::var("STEERAGE_TEST_LINE").unwrap();
    let args = match args::parse(line.split(' ').map(Into::into)).unwrap().command {
        args::Command::Tune(args) => args,
        other => panic!("{other:?}"),
    };
    let mut machine = Machine::new();
    let all: CpuMask = [CpuId(0)].into_iter().collect();
    let wish = Wish::default().set("rps_cpus", Value::Cpus(all.clone())).set("rps_default_mask", Value::Cpus(all));
    let plan = Stages::default().with(Scope::Global).plan(&mut machine, "near0", &wish);
    let undo = Undo::begin(directory, &mut machine, "near0", &[&plan]).unwrap();
    confine(&args, &machine, directory, &[undo]).unwrap();
    for (path, _) in attempts(args.watch) {
        let opened = File::options().write(true).open(&path);
        let denied = opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
        assert!(opened.is_ok() || denied, "{path}: {opened:?}");
        writeln!(io::stdout(), "{path} {}", opened.is_ok()).unwrap();
    }
    let undo_file = fs::write(directory.join("new"), "").is_ok();
    writeln!(io::stdout(), "undo file {undo_file}").unwrap();
    for path in ["/etc/passwd", "/proc/1/environ", "/proc/kcore"] {
        writeln!(io::stdout(), "read {path} {}", File::open(path).is_ok()).unwrap();
    }
}

#[test]
fn only_the_files_of_the_stages_can_be_written() {
    if let Some(directory) = env::var_os(INSIDE) {
        return inside(Path::new(&directory));
    }
    let Some(net) = Net::new() else { return };
    for line in ["steerage tune near0 --apply --global", "steerage tune near0 --watch --global"] {
        let directory = Scratch::new();
        let test = "command::tune::tests::only_the_files_of_the_stages_can_be_written";
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &net.near]).arg(env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
        let ran = command.env(INSIDE, &*directory).env("STEERAGE_TEST_LINE", line).output().unwrap();
        assert!(ran.status.success(), "{ran:?}");
        let said = String::from_utf8(ran.stdout).unwrap();
        if said.contains("read /etc/passwd true") {
            return skip("this kernel has no Landlock");
        }
        for (path, expected) in attempts(line.contains("--watch")) {
            assert!(said.contains(&format!("{path} {expected}\n")), "{line}: {path} {expected}: {said}");
        }
        assert!(said.contains("undo file true\n"), "{said}");
        for path in ["/proc/1/environ", "/proc/kcore"] {
            assert!(said.contains(&format!("read {path} false\n")), "{said}");
        }
    }
}
