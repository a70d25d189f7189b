//! Compares the simulation of many CPUs with measurements on two real CPUs, and with a second run
//! of the simulation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use steerage::policy::PathCosts;
use steerage_lab::predict::{Rates, WORK_MIN, off};
use steerage_sim::{Machine, Profile};

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_steerage-lab")).args(args).stdin(Stdio::null()).output().unwrap()
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn rates(table: &str) -> Vec<Rates> {
    let text = fs::read_to_string(path("results").join(table)).unwrap();
    let rows = text.lines().skip(1).map(|line| {
        // In these CSV files, only the heading has quoted cells with commas.
        let cells: Vec<f64> = line.split(',').take(5).map(|cell| cell.parse().unwrap()).collect();
        Rates { work: cells[0], none: cells[1], other: cells[2], hash: cells[3], balance: cells[4] }
    });
    rows.collect()
}

/// The simulation uses costs from the experiment `path`, and the work per packet from the measured
/// rate of one CPU.
#[test]
fn two_cpus_do_what_the_simulation_says() {
    let near = ("scale/zen5.toml", "text/rps-amd.csv", false, WORK_MIN);
    let far = ("scale/zen5.toml", "text/rps-far.csv", true, WORK_MIN);
    // With 50 ns of work per packet, the Xeon's rate with steering by hash is 11 % lower than
    // predicted.
    let xeon = ("scale/xeon.toml", "text/rps-xeon.csv", false, 2.0 * WORK_MIN);
    for (costs, table, is_far, least) in [near, far, xeon] {
        let profile = Profile::parse(&fs::read_to_string(path(costs)).unwrap()).unwrap();
        let rows = rates(table);
        assert!(rows.len() >= 6, "{table}");
        for row in rows.iter().filter(|row| row.work >= least) {
            let ratios = row.predicted(&profile, is_far).unwrap().over(row);
            assert!(off(ratios) <= 1.0, "{table}, {} ns: {ratios:?}", row.work);
        }
    }
}

#[test]
fn the_files_have_the_costs_that_explain_assumes() {
    for name in ["xeon.toml", "zen4.toml", "zen5.toml"] {
        let profile = Profile::parse(&fs::read_to_string(path("scale").join(name)).unwrap()).unwrap();
        assert_eq!(profile.path() == PathCosts::MEASURED, name == "zen5.toml", "{name}: {profile:?}");
    }
    let machine = Machine::parse(&fs::read_to_string(path("scale/server.toml")).unwrap()).unwrap();
    assert_eq!(machine.cpus(), 1024);
}

#[test]
fn the_same_command_prints_the_same_lines() {
    let once = |seed| lab(&["scale-traffic", "--quick", "--seed", seed]);
    let (one, again, other) = (once("7"), once("7"), once("8"));
    assert!(one.status.success(), "{}", String::from_utf8_lossy(&one.stderr));
    assert!(one.stdout == again.stdout && one.stdout != other.stdout);
    let text = String::from_utf8(one.stdout).unwrap();
    assert!(text.lines().all(|line| line.contains("\"simulated\":") && !line.contains("\"machine\":")), "{text}");
}

#[test]
fn a_wrong_file_is_named() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let wrong = folder.join("wrong.toml");
    fs::write(&wrong, "receive = 1.0\n").unwrap();
    let wrong = wrong.to_str().unwrap();
    for (args, said) in [
        (["scale", "--profile", wrong], "a profile: "),
        (["scale", "--machine", wrong], "a description of a machine: "),
        (["scale", "--machine", "/nowhere"], "/nowhere"),
        (["predict", wrong, "--profile=/nowhere"], "/nowhere"),
        (["predict", wrong, "--profile=scale/zen5.toml"], "wrong.toml"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_steerage-lab"))
            .args(args)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && err.lines().count() == 1 && err.contains(said), "{args:?}: {err}");
    }
}

#[test]
fn this_machine_makes_a_profile() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return;
    }
    let output = lab(&["profile", "--quick"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let profile = Profile::parse(std::str::from_utf8(&output.stdout).unwrap()).unwrap();
    assert!(profile.line[1] >= profile.line[0] && profile.woken > 0.0, "{profile:?}");
}

#[test]
fn runs_are_compared_with_the_prediction() {
    let profile = Profile::parse(&fs::read_to_string(path("scale/zen5.toml")).unwrap()).unwrap();
    let measured = Rates { work: 500.0, none: 2.0, other: 2.0, hash: 3.9, balance: 3.9 };
    let said = measured.predicted(&profile, false).unwrap();
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("predicted.jsonl");
    let check = |hash: f64| {
        let series = [
            ("no steering", said.none),
            ("one other CPU", said.other),
            ("all CPUs, hash", hash),
            ("balance", said.balance),
        ];
        let line = |(series, mpps): (&str, f64)| {
            serde_json::json!({"experiment": "rps", "series": series, "x": 500, "apart_ns": [50, 51], "values": {"mpps": mpps}}).to_string()
        };
        fs::write(&file, series.map(line).join("\n")).unwrap();
        lab(&["predict", file.to_str().unwrap(), "--profile", path("scale/zen5.toml").to_str().unwrap()])
    };
    let right = check(said.hash);
    let text = String::from_utf8(right.stdout).unwrap();
    assert!(right.status.success() && text.contains("500  near"), "{text}");
    let wrong = check(said.hash * 1.2);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(String::from_utf8(wrong.stderr).unwrap().contains("off by 1.7 times"));
}
