//! Runs small programs as jobs, without the program steerage.

use std::collections::HashSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use steerage::flow::{Layers, dissect};
use steerage::{Builder, FlowKey, packet::each};
use steerage_capture::CaptureOptions;
use steerage_device::Opened;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{HANG, quiet_panics, until};
use steerage_parallel::{Collect, Error, InputInfo, Options, Parallel, run};

const PACKETS: u64 = 2_000;
const FLOWS: usize = 100;

fn input(packets: u64) -> Opened {
    let input = format!("synthetic:flows={FLOWS},packets={packets},mix=udp4+tcp6");
    steerage_device::open_all(&[input], &CaptureOptions::new()).unwrap()
}

fn options(command: &str, results: &Path) -> Options {
    let collect = Collect::Results(results.to_owned());
    Options { collect, ..Options::new(3, ["sh", "-c", command]) }
}

fn flows(capture: &Path) -> HashSet<FlowKey> {
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let adds = Arc::clone(&seen);
    let add = each(move |packet| {
        let flow = dissect(packet.data(), packet.link(), Layers::default()).key.both_directions();
        adds.lock().unwrap().insert(flow);
    });
    let input = steerage_capture::open(capture).unwrap();
    Builder::new().virtual_cpus(1).input(input).build(add).unwrap().start().unwrap().join();
    Arc::into_inner(seen).unwrap().into_inner().unwrap()
}

/// If the run has no sandbox, the program of a job starts when the job's file is complete.
#[test]
fn each_flow_is_whole_in_one_job_however_packets_get_there() {
    for command in ["cat", "cat {fifo}", "cat {file}"] {
        let results = Scratch::new();
        let summary = run(options(command, &results), input(PACKETS)).unwrap();
        assert_eq!((summary.packets, summary.delivered, summary.lost), (PACKETS, PACKETS, 0), "{command}");
        let jobs = (1..=3).map(|job| flows(&results.join(format!("{job}/stdout"))));
        let jobs: Vec<HashSet<FlowKey>> = jobs.collect();
        assert!(jobs.iter().all(|flows| !flows.is_empty()), "{command}");
        let all: HashSet<&FlowKey> = jobs.iter().flatten().collect();
        assert_eq!((all.len(), jobs.iter().map(HashSet::len).sum::<usize>()), (FLOWS, FLOWS), "{command}");
    }
}

#[test]
fn a_job_that_fails_or_reads_only_a_part_is_an_error() {
    let results = Scratch::new();
    // Each job gets more packets than fit into its pipe.
    let failed = |command: &str| match run(options(command, &results), input(10 * PACKETS)) {
        Err(Error::Failed { failed, jobs: 3 }) => failed,
        other => panic!("{other:?}"),
    };
    assert_eq!(failed("cat > /dev/null; test {n} != 2"), 1);
    assert_eq!(failed("head -c 24 > /dev/null"), 3);
    assert_eq!(fs::read(results.join("2/stderr")).unwrap(), b"");
}

#[test]
fn a_command_that_cannot_run_is_refused_before_packets_flow() {
    let both = Options::new(2, ["cat", "{fifo}", "{file}"]);
    assert!(matches!(Parallel::check(&both), Err(Error::Wrong(_))));
    let missing = Options::new(2, ["./no-such-program"]);
    let error = run(missing, input(PACKETS)).unwrap_err();
    assert!(matches!(&error, Error::Start { program, .. } if program == "./no-such-program"), "{error}");
}

/// `attend` may never be called, for example because the instance could not be built.
#[test]
fn jobs_end_with_a_run_that_is_not_attended() {
    let results = Scratch::new();
    let mut parallel = Parallel::new(options("echo $$; exec sleep 60", &results)).unwrap();
    let outputs = parallel.start(InputInfo::default()).unwrap();
    let mut processes = Vec::new();
    until("all jobs run", || {
        let process = |job| fs::read_to_string(results.join(format!("{job}/stdout"))).unwrap();
        processes = (1..=3).map(process).collect();
        processes.iter().all(|process| process.ends_with('\n'))
    });
    drop((parallel, outputs));
    for process in processes {
        assert!(!Path::new("/proc").join(process.trim()).exists(), "{process}");
    }
}

#[test]
fn a_panic_of_the_caller_does_not_wait_for_the_jobs() {
    quiet_panics();
    let (ended, has_ended) = mpsc::channel();
    thread::spawn(move || {
        let mut parallel = Parallel::new(Options::new(2, ["cat"])).unwrap();
        let outputs = parallel.start(InputInfo::default()).unwrap();
        let panics = move || -> Result<(), Error> {
            drop(outputs);
            panic!("planted")
        };
        let attended = catch_unwind(AssertUnwindSafe(|| parallel.attend(&|| {}, panics).map(drop)));
        ended.send(attended.is_err()).unwrap();
    });
    assert!(has_ended.recv_timeout(HANG).unwrap());
}
