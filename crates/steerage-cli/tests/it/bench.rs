//! `steerage bench`: runs its experiments for times that are too short for figures. The tests check
//! that the experiments work, not how fast anything is.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;

use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use serde_json::Value;

use crate::program::{Started, run};

/// The experiments that need nothing but CPUs, in the order in which they run.
const ANYWHERE: [&str; 14] = [
    "rps",
    "rps-cpus",
    "delay",
    "handoff",
    "late-metadata",
    "late-metadata-loss",
    "late-metadata-drop",
    "page-cache",
    "page-cache-frames",
    "page-cache-size",
    "page-cache-path",
    "path",
    "hash",
    "meter",
];

fn array<'a>(of: &'a Value, key: &str) -> &'a [Value] {
    of[key].as_array().unwrap_or_else(|| panic!("{key} in {of}"))
}

fn text<'a>(of: &'a Value, key: &str) -> &'a str {
    of[key].as_str().unwrap_or_else(|| panic!("{key} in {of}"))
}

fn texts(of: &Value, key: &str) -> Vec<String> {
    array(of, key).iter().map(|one| one.as_str().unwrap().to_owned()).collect()
}

/// Checks that each series was run, or that the report says why not. Each metric must be measured,
/// and each chart must have data.
fn assert_whole(experiment: &Value) {
    let samples = array(experiment, "samples");
    let skipped = texts(experiment, "skipped");
    let was_run = |series: &str| samples.iter().any(|sample| text(sample, "series") == series);
    for pair in array(experiment, "compared") {
        for series in [text(pair, "of"), text(pair, "over")] {
            let said = skipped.iter().any(|line| line.starts_with(&format!("{series}: ")));
            assert!(was_run(series) != said, "{series}: {skipped:?}");
        }
    }
    let measured = |metric: &str| samples.iter().any(|sample| sample["values"][metric].is_number());
    for metric in array(experiment, "metrics") {
        assert!(measured(text(metric, "name")), "{metric}");
    }
    for chart in array(experiment, "charts") {
        if text(chart, "kind") == "distribution" {
            let has_steps = |sample: &Value| sample["latencies"].as_array().is_some_and(|steps| !steps.is_empty());
            assert!(samples.iter().any(has_steps), "{chart}");
        } else {
            assert!(measured(text(chart, "metric")), "{chart}");
        }
    }
    for sample in samples {
        let name = text(experiment, "name");
        assert_eq!((text(sample, "experiment"), sample["round"].as_u64()), (name, Some(0)));
        assert_eq!(sample["x"].is_number(), !text(experiment, "x").is_empty(), "{sample}");
        let values = sample["values"].as_object().unwrap();
        assert!(values.values().all(|value| value.as_f64().is_some_and(|value| value >= 0.0)), "{sample}");
    }
}

#[test]
fn all_experiments_come_to_one_report() {
    let page = std::env::temp_dir().join(format!("steerage-{}-bench.html", std::process::id()));
    let ran = run(&["bench", "all", "--quick", "--json", "--html", page.to_str().unwrap()]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    let html = fs::read_to_string(&page).unwrap();
    fs::remove_file(&page).unwrap();
    let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let machine = &report["machine"];
    assert!(machine["cpus"].as_u64().unwrap() >= 1 && machine["seconds"].as_f64().unwrap() > 0.0, "{machine}");
    let command = text(machine, "command");
    assert!(command.starts_with("steerage bench all --quick --json --html "), "{machine}");
    assert!(["cpu", "kernel", "version"].iter().all(|key| !text(machine, key).is_empty()), "{machine}");
    let started = text(machine, "started");
    assert!(started.len() == 20 && started.ends_with('Z'), "{started}");
    let (rr, others) = array(&report, "experiments").split_last().unwrap();
    assert_eq!(others.iter().map(|one| text(one, "name")).collect::<Vec<_>>(), ANYWHERE);
    for experiment in others {
        if machine["cpus"] != 1 {
            assert_eq!(texts(experiment, "skipped"), [""; 0]);
            assert_whole(experiment);
        }
        assert!(html.contains(text(experiment, "title")), "{experiment}");
    }
    assert_eq!(text(rr, "name"), "rr");
    if machine["cpus"] == 1 {
        assert!(array(rr, "samples").is_empty() && texts(rr, "skipped")[0].contains("takes 2 CPUs"), "{rr}");
    } else if geteuid().is_root() {
        assert_whole(rr);
    } else {
        assert!(array(rr, "samples").is_empty() && texts(rr, "skipped")[0].contains("take root"), "{rr}");
    }
}

#[test]
fn one_is_told_as_text() {
    let ran = run(&["bench", "hash", "--quick", "--cpus", "0"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    for said in ["$ steerage bench hash --quick --cpus 0", "VXLAN", "key and hash", "ns a frame"] {
        assert!(ran.out.contains(said), "{said}: {}", ran.out);
    }
}

#[test]
fn what_takes_two_cpus_is_skipped_on_one() {
    let ran = run(&["bench", "meter", "--quick", "--cpus", "0", "--json"]);
    let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let meter = &report["experiments"][0];
    let skipped =
        ["steerage, 2 CPUs", "2 CPUs, by hash"].map(|name| format!("{name}: it takes 2 CPUs, and there are 1"));
    assert_eq!(texts(meter, "skipped"), skipped);
    assert!(array(meter, "samples").iter().all(|sample| text(sample, "placement") == "alone"), "{meter}");
    let path = run(&["bench", "path", "--quick", "--cpus", "0"]);
    assert_eq!((path.code, path.out.as_str()), (Some(1), ""));
    assert!(path.complaint().contains("it takes 2 CPUs"), "{path:?}");
}

#[test]
fn the_path_is_told_in_a_line_for_each_aim() {
    let ran = run(&["bench", "path", "--summary", "--quick"]);
    if ran.err.contains("it takes 2 CPUs") {
        return;
    }
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    let (last, rows) =
        ran.out.lines().collect::<Vec<_>>().split_last().map(|(last, rows)| (*last, rows.to_vec())).unwrap();
    assert!(last.starts_with("forward by AF_XDP: "), "{}", ran.out);
    // Runs in which the host moved the CPUs are left out, so there may be few rows. On a host whose
    // CPUs were always near, one line says so, and there is no row of far CPUs.
    let (never_far, rows): (Vec<&str>, Vec<&str>) = rows.into_iter().partition(|row| row.contains("were not far"));
    let places: &[&str] = if never_far.is_empty() { &["near  ", "far   "] } else { &["near  "] };
    let is_row = |row: &&str| places.iter().any(|place| row.starts_with(place)) && row.contains(" ns; ");
    assert!(never_far.len() <= 1, "{}", ran.out);
    assert!(rows.iter().all(is_row), "{}", ran.out);
}

#[test]
fn an_interrupt_ends_it_with_what_there_is() {
    let run = Started::new(&["bench", "meter", "--quick", "--rounds", "1000", "--json"]);
    run.signal(Signal::SIGINT);
    let ran = run.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let meter = &report["experiments"][0];
    let count = array(meter, "samples").len();
    assert!((1..8000).contains(&count), "{count}");
    assert!(texts(meter, "skipped").iter().any(|line| line.contains("was interrupted")), "{meter}");
}

#[test]
fn what_cannot_be_is_refused() {
    for args in [
        "bench nonsense",
        "bench rps --rounds 0",
        "bench rps --rounds 1001",
        "bench rps --seconds 0",
        "bench rps --seconds 0.0001",
        "bench rps --cpus x",
        "bench rps 10.0.0.2:5000",
        "bench rr --udp",
        "bench rr 127.0.0.1:9 --rounds 3",
        "bench rr 127.0.0.1:9 --html report.html",
    ] {
        let ran = run(&args.split_whitespace().collect::<Vec<_>>());
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{args}: {ran:?}");
        ran.complaint();
    }
    let unwritable = run(&["bench", "hash", "--quick", "--html", "/nonexistent/report.html"]);
    assert_eq!(unwritable.code, Some(1));
    assert!(unwritable.complaint().contains("/nonexistent/report.html"), "{unwritable:?}");
}

/// The program runs without the capability that namespaces need, as root or as another user.
#[test]
fn rr_says_what_it_lacks() {
    let mut command = Command::new("setpriv");
    command.arg("--bounding-set=-sys_admin").arg(env!("CARGO_BIN_EXE_steerage"));
    if !geteuid().is_root() {
        command = Command::new(env!("CARGO_BIN_EXE_steerage"));
    }
    let output = command.args(["bench", "rr", "--quick", "--json"]).stdin(Stdio::null()).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]), "{err}");
    let lacks = match thread::available_parallelism().unwrap().get() {
        1 => "takes 2 CPUs",
        _ => "take root (sudo steerage bench rr)",
    };
    assert!(err.lines().count() == 1 && err.contains(lacks), "{err}");
}
