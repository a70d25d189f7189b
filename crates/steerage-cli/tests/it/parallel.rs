//! Tests that each job of `steerage parallel` gets whole flows, and that the run reports every lost
//! packet and every failed job.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use nix::sys::signal::Signal;
use serde_json::Value;
use steerage_fixtures::{NOBODY, is_root, scratch::Scratch, skip};

use crate::program::{Ran, Started, command, report, run};

pub(crate) const PACKETS: u64 = 20_000;

/// A capture with TCP and UDP over IPv4 and IPv6, which is written once for all tests.
pub(crate) fn capture() -> &'static str {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    let path = MADE.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("parallel.pcapng");
        let traffic = format!("synthetic:flows=500,packets={PACKETS},mix=udp4+tcp6");
        report(&["send", &format!("pcap:{}", path.display()), &traffic]);
        path
    });
    path.to_str().unwrap()
}

/// The summary is the last line of standard error.
pub(crate) fn summary(ran: &Ran) -> Value {
    let last = ran.err.lines().last().unwrap_or_default();
    let last = if last.starts_with('{') { last } else { ran.err.lines().rev().nth(1).unwrap_or_default() };
    let summary: Value = serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let sum = |key: &str| jobs(&summary).iter().map(|job| job[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("packets"), summary["delivered"].as_u64().unwrap());
    let count = |key: &str| summary[key].as_u64().unwrap();
    assert_eq!(count("packets"), count("delivered") + count("lost") + count("missed"), "{summary}");
    summary
}

pub(crate) fn jobs(summary: &Value) -> &Vec<Value> {
    summary["jobs"].as_array().unwrap()
}

fn parallel(options: &[&str], job: &[&str]) -> (Ran, Value) {
    let ran = run(&[&["parallel", capture(), "--json"], options, &["--"], job].concat());
    let summary = summary(&ran);
    (ran, summary)
}

fn shell(options: &[&str], script: &str) -> (Ran, Value) {
    parallel(options, &["sh", "-c", script])
}

#[test]
fn what_jobs_read_adds_up_to_what_was_delivered() {
    let count = [env!("CARGO_BIN_EXE_steerage"), "count", "-", "--json", "--virtual-cpus", "1"];
    for key in ["flow", "hosts", "source", "destination"] {
        for format in ["pcap", "pcap-ns", "pcapng"] {
            let (ran, summary) = parallel(&["-j", "3", "--tag", "--key", key, "--format", format], &count);
            assert_eq!((ran.code, &summary["delivered"], &summary["lost"]), (Some(0), &PACKETS.into(), &0.into()));
            assert_eq!(ran.out.lines().count(), 3, "{ran:?}");
            for line in ran.out.lines() {
                let (job, report) = line.split_once('\t').unwrap();
                let report: Value = serde_json::from_str(report).unwrap();
                let job = &jobs(&summary)[job.parse::<usize>().unwrap() - 1];
                assert_eq!(
                    (&report["snapshot"]["received"], &report["snapshot"]["received_bytes"]),
                    (&job["packets"], &job["bytes"]),
                    "{key}"
                );
            }
        }
    }
}

#[test]
fn sixty_four_jobs() {
    let (ran, summary) = parallel(&["-j", "64", "--format", "pcap"], &["wc", "-c"]);
    assert_eq!((ran.code, jobs(&summary).len()), (Some(0), 64), "{ran:?}");
    let read: u64 = ran.out.lines().map(|line| line.trim().parse::<u64>().unwrap()).sum();
    let bytes: u64 = jobs(&summary).iter().map(|job| job["bytes"].as_u64().unwrap()).sum();
    assert_eq!(read, 64 * 24 + PACKETS * 16 + bytes);
}

/// Without privileges, the pipes of a user may have at most 64 MiB together, so the last jobs get
/// smaller pipes.
#[test]
fn more_jobs_than_a_user_has_large_pipes() {
    if !is_root() {
        return skip("to be another user takes root");
    }
    let scratch = Scratch::new();
    let program = scratch.install("steerage", env!("CARGO_BIN_EXE_steerage"));
    scratch.install("capture", capture());
    let mut parallel = Command::new(&program);
    parallel.args(["parallel", "capture", "-j", "100", "--json", "--", "wc", "-c"]).current_dir(&*scratch);
    let ran = Ran::of(parallel.uid(NOBODY).gid(NOBODY).output().unwrap());
    let summary = summary(&ran);
    assert_eq!((ran.code, &summary["delivered"]), (Some(0), &PACKETS.into()), "{ran:?}");
    assert_eq!((ran.out.lines().count(), jobs(&summary).len()), (100, 100));
}

#[test]
fn a_job_that_is_killed_loses_its_own_packets_alone() {
    for (signal, name) in [("TERM", "SIGTERM"), ("KILL", "SIGKILL"), ("SEGV", "SIGSEGV")] {
        let script = format!(
            "if [ $STEERAGE_JOB = 2 ]; then head -c 100000 >&3; echo so it goes >&2; kill -{signal} $$; fi; cat >/dev/null"
        );
        let (ran, summary) = shell(&["-j", "3"], &format!("exec 3>/dev/null; {script}"));
        let job = &jobs(&summary)[1];
        assert_eq!((ran.code, &job["signal"], &summary["failed"]), (Some(1), &name.into(), &1.into()), "{ran:?}");
        assert!(job["packets"].as_u64().unwrap() > 0 && job["lost"]["tx_lost"].as_u64().unwrap() > 0, "{job}");
        let said = format!("steerage: job 2 was killed by {name}; its last line: so it goes\n");
        assert!(ran.err.contains(&said), "{ran:?}");
        assert!(ran.err.ends_with("steerage: 1 of 3 jobs failed\n"), "{ran:?}");
        for job in [&jobs(&summary)[0], &jobs(&summary)[2]] {
            assert_eq!((&job["exit_status"], &job["lost"]["tx_lost"]), (&0.into(), &0.into()));
        }
    }
}

#[test]
fn what_a_dead_job_had_not_read_is_counted_to_the_packet() {
    // A pcap file has a header of 24 bytes. The record of a packet has a header of 16 bytes.
    let (_, all) = shell(&["-j", "1", "--format", "pcap"], "cat >/dev/null");
    let bytes = all["jobs"][0]["bytes"].as_u64().unwrap() / PACKETS + 16;
    for packets in [0, 1, 1000] {
        let script = format!("dd bs=1 count={} 2>/dev/null >/dev/null", 24 + packets * bytes);
        let ran = run(&[
            "parallel",
            capture(),
            "--json",
            "-j",
            "1",
            "--format",
            "pcap",
            "-c",
            "5000",
            "--",
            "sh",
            "-c",
            &script,
        ]);
        let summary = summary(&ran);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let job = &jobs(&summary)[0];
        // In this capture, packets of TCP over IPv6 are longer than packets of UDP over IPv4.
        let read = job["packets"].as_u64().unwrap();
        assert!(read <= 2 * packets + 1 && (packets == 0 || read >= packets / 2), "{packets}: {job}");
    }
}

#[test]
fn jobs_that_exit_at_once_end_the_run_with_their_status() {
    let (ran, summary) = shell(&["-j", "3"], "if [ {n} = 1 ]; then exit 0; fi; cat >/dev/null");
    assert_eq!((ran.code, &summary["failed"]), (Some(1), &1.into()), "{ran:?}");
    assert!(ran.err.contains("steerage: job 1 exited with 0, but did not get"), "{ran:?}");
    assert!(summary["lost"].as_u64().unwrap() > 0);
    let (ran, summary) = shell(&["-j", "3"], "echo no >&2; exit 3");
    assert_eq!((ran.code, &summary["failed"]), (Some(3), &3.into()), "{ran:?}");
    assert!(ran.err.contains("steerage: job 2 exited with 3; its last line: no\n"), "{ran:?}");
}

/// The jobs name the capture, instead of reading their packets.
#[test]
fn jobs_that_read_the_capture_instead_of_their_packets_are_told_how() {
    let script = format!("cat {} >/dev/null", capture());
    let (ran, summary) = shell(&["-j", "2"], &script);
    assert_eq!((ran.code, &summary["delivered"], &summary["failed"]), (Some(2), &0.into(), &2.into()), "{ran:?}");
    let advice = "it ended before the end of its input; let it read standard input (-r -), or write {file}\n";
    assert_eq!(ran.err.matches(advice).count(), 2, "{ran:?}");
    assert_eq!(summary["verdict"], "all jobs failed, so their speed says nothing");
}

#[test]
fn a_job_that_never_reads_is_killed_if_asked() {
    let script = "if [ {n} = 2 ]; then exec sleep 1000; fi; cat >/dev/null; echo done";
    // The limit also applies to job 1, and to the start of its shell. On a loaded machine, job 1 may
    // get no CPU time for a second.
    let (ran, summary) = shell(&["-j", "2", "--job-timeout", "5s"], script);
    assert_eq!((ran.code, &summary["jobs"][1]["signal"]), (Some(1), &"SIGTERM".into()), "{ran:?}");
    assert_eq!((ran.out.as_str(), &summary["jobs"][1]["packets"]), ("done\n", &0.into()));
    assert!(ran.err.contains("killed because it read nothing (--job-timeout)"), "{ran:?}");
}

/// This test takes 30 s, but almost no CPU time.
#[test]
fn a_job_that_reads_nothing_for_30_s_is_named() {
    let script = "if [ {n} = 2 ]; then exec sleep 1000; fi; cat >/dev/null";
    let arguments = ["parallel", capture(), "-j", "2", "-v", "--json", "--", "sh", "-c", script];
    let mut run = Started::of(command(&arguments).spawn().unwrap());
    let line = run.error_line();
    assert_eq!(line, "steerage: job 2 has read nothing for 30.0 s; --job-timeout kills such a job\n");
    run.signal(Signal::SIGINT);
    let ran = run.end();
    // Only SIGTERM ends the job.
    assert_eq!((ran.code, &summary(&ran)["jobs"][1]["signal"]), (Some(1), &"SIGTERM".into()), "{ran:?}");
}

/// Job 2 begins to read only after job 1 has read its input to the end.
#[test]
fn a_slow_job_of_a_live_input_loses_its_own_packets_alone() {
    let scratch = Scratch::new();
    let script = format!(
        "if [ {{n}} = 1 ]; then cat >/dev/null; touch {0}/over; else while [ ! -e {0}/over ]; do sleep 0.1; done; cat >/dev/null; fi",
        scratch.display()
    );
    // Each job gets 45 MB at 15 MB/s, through a buffer of 32 MiB. The slow job loses packets. The
    // quick job loses no packets, even if other programs use the CPUs for two seconds.
    let traffic = "synthetic:rate=30000,packets=90000,flows=1000,size=1000";
    let ran = run(&["parallel", traffic, "-j", "2", "--json", "--", "sh", "-c", &script]);
    let summary = summary(&ran);
    let [quick, slow] = jobs(&summary).as_slice() else { panic!("{summary}") };
    assert_eq!(
        (ran.code, &quick["lost"]["tx_full"], &quick["lost"]["tx_lost"]),
        (Some(0), &0.into(), &0.into()),
        "{ran:?}"
    );
    assert!(slow["lost"]["tx_full"].as_u64().unwrap() > 0 && slow["packets"].as_u64().unwrap() > 0, "{summary}");
}

#[test]
fn lines_are_whole_and_jobs_in_their_order_if_asked() {
    let script = "cat >/dev/null; i=0; while [ $i -lt 300 ]; do printf '%s' \"$STEERAGE_JOB of \"; printf '%s\\n' $STEERAGE_JOBS; \
                  i=$((i+1)); done; printf 'the end'";
    let (ran, _) = shell(&["-j", "4"], script);
    assert_eq!(ran.out.lines().count(), 4 * 301);
    assert!(ran.out.lines().all(|line| line == "the end" || (1..=4).any(|job| line == format!("{job} of 4"))));
    let (ran, _) = shell(&["-j", "4", "--keep-order", "--tag"], script);
    let expected: String =
        (1..=4).map(|job| format!("{job}\t{job} of 4\n").repeat(300) + &format!("{job}\tthe end")).collect();
    assert!(ran.out == expected, "{}", ran.out);
}

#[test]
fn programs_that_do_not_read_standard_input_have_other_ways() {
    let (_, direct) = parallel(&["-j", "2", "--hash-key", &"5a".repeat(40)], &["wc", "-c"]);
    for way in ["{fifo}", "{file}"] {
        let (ran, summary) =
            shell(&["-j", "2", "--hash-key", &"5a".repeat(40), "--no-merge"], &format!("wc -c <{way}"));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        for nth in 0..2 {
            assert_eq!(summary["jobs"][nth]["packets"], direct["jobs"][nth]["packets"], "{way}");
        }
        assert!(ran.out.lines().all(|line| line.parse::<u64>().unwrap() > 100_000), "{ran:?}");
    }
}

#[test]
fn results_have_a_directory_for_each_job() {
    let scratch = Scratch::new();
    let script = "wc -c >own; echo to stdout; echo to stderr >&2; exit {n}";
    // `--results` creates only the last directory of its path.
    let ran = run(&["parallel", capture(), "--results", scratch.join("deep/out").to_str().unwrap(), "--", "true"]);
    assert!(ran.code == Some(255) && ran.err.contains("make it with mkdir -p"), "{ran:?}");
    let results = scratch.join("out");
    let (ran, _) = shell(&["-j", "2", "--results", results.to_str().unwrap()], script);
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{ran:?}");
    assert!(ran.err.contains("steerage: job 2 exited with 2; its last line: to stderr\n"), "{ran:?}");
    for job in ["1", "2"] {
        let read = |name: &str| fs::read_to_string(results.join(job).join(name)).unwrap();
        assert_eq!((read("stdout").as_str(), read("stderr").as_str()), ("to stdout\n", "to stderr\n"));
        assert!(read("own").trim().parse::<u64>().unwrap() > 100_000);
    }
}

#[test]
fn a_full_disk_fails_the_jobs_and_nothing_else() {
    if !is_root() {
        return skip("mounting takes root");
    }
    let scratch = Scratch::new();
    let mounted = format!(
        "mount -t tmpfs -o size=256k none {0} && exec {1} parallel {2} -j 2 --json --results {0} -- cat",
        scratch.display(),
        env!("CARGO_BIN_EXE_steerage"),
        capture()
    );
    let output = Command::new("unshare").args(["-m", "sh", "-c", &mounted]).output().unwrap();
    let ran = Ran::of(output);
    let summary = summary(&ran);
    assert_eq!((ran.code, &summary["failed"]), (Some(2), &2.into()), "{ran:?}");
    assert!(summary["lost"].as_u64().unwrap() > 0);

    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut parallel = command(&["parallel", capture(), "-j", "2", "-q", "--", "od"]);
    let ran = Ran::of(parallel.stdout(Stdio::from(full)).output().unwrap());
    assert_eq!(ran.code, Some(255), "{ran:?}");
    assert!(ran.err.contains("cannot write the output of the jobs to standard output: No space left"), "{ran:?}");
}

#[test]
fn a_reader_that_has_enough_is_no_error() {
    let mut parallel = command(&["parallel", capture(), "-j", "2", "-q", "--", "sh", "-c", "od; yes"]);
    let mut child = parallel.spawn().unwrap();
    drop(child.stdout.take());
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.err.matches("failed").count()), (Some(0), 0), "{ran:?}");
}

#[test]
fn an_interrupt_ends_the_input_and_jobs_finish() {
    let traffic = "synthetic:rate=20000";
    let job = "cat >/dev/null; echo it is over";
    let run =
        Started::of(command(&["parallel", traffic, "-j", "2", "-v", "--json", "--", "sh", "-c", job]).spawn().unwrap());
    run.signal(Signal::SIGINT);
    let ran = run.end();
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "it is over\nit is over\n"), "{ran:?}");
    // Synthetic traffic without a rate pauses while the jobs are slow. After SIGINT, the run ends
    // when the jobs have read all packets that were passed to them.
    let job = "cat >/dev/null; echo it is over";
    let endless = ["parallel", "synthetic", "--seconds", "0", "-j", "2", "-v", "--json", "--", "sh", "-c", job];
    let run = Started::of(command(&endless).spawn().unwrap());
    run.signal(Signal::SIGINT);
    let ran = run.end();
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "it is over\nit is over\n"), "{ran:?}");
    // A job that does not end after its input gets SIGTERM.
    let job = "trap 'echo ended; exit 0' TERM; while :; do sleep 0.1; done";
    let run =
        Started::of(command(&["parallel", traffic, "-j", "1", "-v", "--json", "--", "sh", "-c", job]).spawn().unwrap());
    run.signal(Signal::SIGINT);
    let ran = run.end();
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "ended\n"), "{ran:?}");
}

/// If SIGCHLD is ignored, the kernel does not record how a child process has ended.
#[test]
fn a_run_ends_if_nobody_knows_how_its_jobs_ended() {
    let mut command = Command::new("env");
    command.args([
        "--ignore-signal=CHLD",
        env!("CARGO_BIN_EXE_steerage"),
        "parallel",
        capture(),
        "-j",
        "2",
        "--json",
        "--",
        "wc",
        "-c",
    ]);
    let ran = Ran::of(command.output().unwrap());
    let summary = summary(&ran);
    assert_eq!((ran.code, &summary["failed"], ran.out.lines().count()), (Some(2), &2.into(), 2), "{ran:?}");
    assert!(ran.err.contains("this process ignores SIGCHLD: start it by `env --default-signal=CHLD`"), "{ran:?}");
}

#[test]
fn several_link_types_need_pcapng() {
    let raw = Path::new(env!("CARGO_TARGET_TMPDIR")).join("parallel-raw.pcap");
    let mut file = fs::File::create(&raw).unwrap();
    let words = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 101, 1, 2, 20, 20, 0x1400_0045, 0, 0x0000_1140, 1, 2];
    words.iter().for_each(|word| file.write_all(&word.to_le_bytes()).unwrap());
    let both = |more: &[&str]| {
        run(&[&["parallel", capture(), raw.to_str().unwrap(), "-j", "2", "-q", "--json"], more, &["--", "wc", "-c"]]
            .concat())
    };
    let ran = both(&["--format", "pcap"]);
    assert_eq!(ran.code, Some(255), "{ran:?}");
    assert!(ran.err.contains("add --format pcapng"), "{ran:?}");
    let ran = both(&[]);
    assert_eq!((ran.code, &summary(&ran)["delivered"]), (Some(0), &(PACKETS + 1).into()), "{ran:?}");
}

#[test]
fn mistakes_are_said_in_a_line() {
    for (arguments, said) in [
        (vec!["-j", "0", "--", "cat"], "write a number from 1 to 256"),
        (vec!["--", "no-such-program"], "cannot start no-such-program"),
        (vec!["--", "cat", "{fifo}", "{file}"], "leave the others out"),
        (vec!["--", "cat", "{tap}"], "{tap} is for live input"),
        (vec!["--tag", "--no-merge", "--", "cat"], "cannot be used with"),
        (vec!["--key", "colour", "--", "cat"], "invalid value 'colour'"),
    ] {
        let ran = run(&[&["parallel", capture()], arguments.as_slice()].concat());
        assert_eq!(ran.code, Some(255), "{ran:?}");
        assert!(ran.complaint().contains(said), "{ran:?}");
    }
    let ran = run(&["parallel", "no-such-file.pcap", "--", "cat"]);
    assert_eq!(ran.code, Some(255));
    assert!(ran.complaint().contains("no-such-file.pcap"), "{ran:?}");
}
