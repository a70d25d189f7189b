//! Tests the files and pipes from which jobs read packets. The files have no names, and each file
//! belongs to one job. If a job does not get all of its packets, the run fails.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use steerage_fixtures::{is_root, scratch::Scratch, until};

use crate::parallel::{PACKETS, capture, jobs, summary};
use crate::program::{Ends, Ran, children, command, run};

fn within(directory: &Path, options: &[&str], script: &str) -> Ran {
    let arguments = [&["parallel", capture(), "-j", "2", "--json"], options, &["--", "sh", "-c", script]].concat();
    Ran::of(command(&arguments).env("TMPDIR", directory).output().unwrap())
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().count() == 0
}

/// Returns true if the process has an open file without a name (as with `O_TMPFILE`) in
/// `directory`.
fn has_unnamed_file(process: u32, directory: &Path) -> bool {
    let links = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    links
        .filter_map(|link| fs::read_link(link.path()).ok())
        .any(|file| file.starts_with(directory) && file.to_string_lossy().ends_with("(deleted)"))
}

#[test]
fn a_run_that_is_killed_leaves_nothing_behind() {
    for options in [&["--", "wc", "-c", "{file}"][..], &["--", "wc", "-c", "{fifo}"], &["-k", "--", "cat"]] {
        let scratch = Scratch::new();
        // The pipe to the run's standard input stays open, so the run waits for more input.
        let mut parallel = command(&[&["parallel", "-", "-j", "2", "-q"], options].concat());
        let mut run = Ends(parallel.env("TMPDIR", &*scratch).stdin(Stdio::piped()).spawn().unwrap());
        let input = run.stdin.take().unwrap();
        let id = run.id();
        if options.contains(&"{fifo}") {
            // Each job has an input pipe, in addition to the pipes for standard output and standard
            // error.
            until("the jobs have started", || children(id).len() == 2);
        } else {
            until("the files are open", || has_unnamed_file(id, &scratch));
        }
        assert!(is_empty(&scratch), "{options:?}");
        run.kill().unwrap();
        run.wait().unwrap();
        drop(input);
        assert!(is_empty(&scratch), "{options:?}");
    }
}

/// Each process that opens the job's input file reads the file from its beginning.
#[test]
fn a_file_is_opened_again_and_by_other_programs() {
    let scratch = Scratch::new();
    let script =
        "test -f {file} || exit 9; wc -c <{file}; cat {file} | wc -c; sh -c 'sh -c \"wc -c\" <{file}'; wc -c <{file}";
    let ran = within(&scratch, &["--tag"], script);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for job in ["1", "2"] {
        let of_job = |line: &str| line.strip_prefix(job)?.trim().parse::<u64>().ok();
        let sizes: Vec<u64> = ran.out.lines().filter_map(of_job).collect();
        assert!(sizes.len() == 4 && sizes.iter().all(|size| *size == sizes[0] && *size > 100_000), "{ran:?}");
    }
    let ran = within(&scratch, &[], "test -p {fifo} && exec wc -c {fifo}");
    assert_eq!((ran.code, ran.out.lines().count()), (Some(0), 2), "{ran:?}");
    assert!(is_empty(&scratch));
}

/// A job may also inherit descriptors of other programs from the test process.
#[test]
fn a_job_inherits_its_own_input_and_not_that_of_another_job() {
    let scratch = Scratch::new();
    for (place, kind) in [("{file}", "(deleted)"), ("{fifo}", "pipe:")] {
        let script = "echo own $(readlink {}); cd /proc/$$/fd; for fd in *; do echo has $(readlink $fd); done; cat {} >/dev/null";
        let ran = within(&scratch, &["--tag"], &script.replace("{}", place));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let lines =
            |start: String| ran.out.lines().filter_map(move |line| line.strip_prefix(&start).map(str::to_owned));
        for (job, other) in [(1, 2), (2, 1)] {
            let own = lines(format!("{job}\town ")).next().unwrap();
            assert!(own.contains(kind), "{ran:?}");
            assert!(lines(format!("{job}\thas ")).any(|link| link == own), "{ran:?}");
            assert!(lines(format!("{other}\thas ")).all(|link| link != own), "{ran:?}");
        }
    }
}

/// A child process of the job is still running and has the job's input pipe open.
#[test]
fn a_program_that_is_left_behind_does_not_keep_the_run() {
    let scratch = Scratch::new();
    let script = "sleep 1000 >/dev/null 2>&1 & echo $!; head -c 1000 {fifo} >/dev/null";
    let ran = within(&scratch, &[], script);
    let left: Vec<&str> = ran.out.lines().collect();
    left.iter().for_each(|process| drop(Command::new("kill").arg(process).status()));
    assert_eq!((ran.code, left.len()), (Some(2), 2), "{ran:?}");
    assert!(ran.err.contains("it ended before the end of its input"), "{ran:?}");
}

#[test]
fn a_job_that_ends_early_fails_with_the_reason() {
    let scratch = Scratch::new();
    let ran = within(&scratch, &["-q"], "[ {n} = 1 ] || exec cat >/dev/null; head -c 1000 >/dev/null");
    let summary = summary(&ran);
    assert_eq!((ran.code, &summary["failed"]), (Some(1), &1.into()), "{ran:?}");
    let [early, whole] = jobs(&summary).as_slice() else { panic!("{summary}") };
    assert_eq!((&early["exit_status"], &whole["incomplete"]), (&0.into(), &serde_json::Value::Null));
    assert_eq!(early["incomplete"], "it ended before the end of its input");
    assert!(ran.err.contains("job 1 exited with 0, but did not get"), "{ran:?}");
    // The input never ends, but the run ends when its jobs have ended.
    let endless = ["parallel", "synthetic", "--seconds", "0", "-j", "2", "--json", "--", "true"];
    let ran = run(&endless);
    assert_eq!(ran.code, Some(2), "{ran:?}");
}

#[test]
fn a_full_directory_of_temporary_files_is_named_and_no_job_gets_a_part() {
    if !is_root() {
        return;
    }
    let scratch = Scratch::new();
    let script = format!(
        "mount -t tmpfs -o size=256k none {0} && TMPDIR={0} exec {1} parallel {2} -j 2 --json -- wc -c {{file}}",
        scratch.display(),
        env!("CARGO_BIN_EXE_steerage"),
        capture()
    );
    let ran = Ran::of(Command::new("unshare").args(["-m", "sh", "-c", &script]).output().unwrap());
    let summary = summary(&ran);
    let lost = summary["lost"].as_u64().unwrap();
    assert_eq!((ran.code, ran.out.as_str()), (Some(255), ""), "{ran:?}");
    assert!(lost > 0 && summary["delivered"].as_u64().unwrap() + lost == PACKETS, "{summary}");
    let complaint = ran.err.lines().last().unwrap();
    let wanted = format!("cannot write the packets of 2 jobs to a file in {}: No space left", scratch.display());
    assert!(complaint.contains(&wanted) && complaint.contains("set TMPDIR"), "{ran:?}");
    for job in jobs(&summary) {
        assert!(job["exit_status"].is_null() && job["signal"].is_null(), "{job}");
        assert!(job["incomplete"].as_str().unwrap().contains("No space left"), "{job}");
    }

    // The output of job 2 is stored as long as job 1 runs.
    let job = "-j 2 -k -q -- sh -c 'cat >/dev/null; [ {n} = 2 ] || exec sleep 1000; yes | head -c 4000000'";
    let kept = script.replace("-j 2 --json -- wc -c {file}", job);
    let ran = Ran::of(Command::new("unshare").args(["-m", "sh", "-c", &kept]).output().unwrap());
    assert_eq!(ran.code, Some(255), "{}", ran.err);
    assert!(ran.err.contains("cannot keep the output of a job in"), "{}", ran.err);
}

#[test]
fn a_directory_of_temporary_files_that_is_missing_is_named() {
    for options in [&["--", "cat", "{file}"][..], &["-k", "--", "cat"]] {
        let mut parallel = command(&[&["parallel", capture(), "-j", "2"], options].concat());
        let ran = Ran::of(parallel.env("TMPDIR", "/nowhere").output().unwrap());
        assert_eq!(ran.code, Some(255), "{ran:?}");
        assert!(ran.complaint().contains("cannot make a temporary file in /nowhere"), "{ran:?}");
    }
}
