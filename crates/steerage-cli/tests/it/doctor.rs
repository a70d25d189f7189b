//! `steerage doctor`: prints a line for each check, or JSON, whatever is missing on the machine.

use serde_json::Value;
use steerage_fixtures::scratch::Scratch;

use crate::program::{Started, command, run};

#[test]
fn each_finding_is_a_line() {
    let ran = run(&["doctor"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    assert!(ran.out.lines().count() >= 10, "{ran:?}");
    for line in ran.out.lines() {
        assert!(["ok    ", "lack  ", "-     "].iter().any(|state| line.starts_with(state)), "{line}");
    }
}

#[test]
fn an_interface_is_looked_at_too() {
    let ran = run(&["doctor", "lo", "--json"]);
    assert_eq!((ran.code, ran.err.as_str(), ran.out.lines().count()), (Some(0), "", 1), "{ran:?}");
    let found: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&found["type"], &found["schema"]), (&"doctor".into(), &1.into()));
    assert_eq!((&found["interface"]["name"], &found["interface"]["driver"]), (&"lo".into(), &Value::Null));
    for finding in found["findings"].as_array().unwrap() {
        let state = finding["state"].as_str().unwrap();
        assert!(["ok", "lack", "info"].contains(&state), "{finding}");
        assert!(state != "lack" || finding["mend"].as_str().is_some_and(|mend| !mend.is_empty()), "{finding}");
    }
    let ran = run(&["doctor", "no\nsuch"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.complaint().contains("there is no interface no\\nsuch: `ip link`"), "{ran:?}");
}

#[test]
fn without_tcpdump_both_say_what_to_install() {
    let output = command(&["doctor"]).env("PATH", "/nowhere").output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(out.contains("lack  filters       there is no tcpdump"), "{out}");
    let output = command(&["count", "lo", "-f", "not port 22"]).env("PATH", "/nowhere").output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), err.lines().count()), (Some(1), 1), "{err}");
    assert!(err.contains("install the package tcpdump"), "{err}");
}

/// The bundle has facts about the machine, the interface and a run. It has nothing that identifies
/// a machine.
#[test]
fn a_bundle_has_a_run_and_no_addresses() {
    let folder = Scratch::new();
    let file = folder.join("bundle.json");
    let mut run_of = command(&["count", "synthetic:rate=20000", "--seconds", "0", "-q", "-v"]);
    let started = Started::of(run_of.env("STEERAGE_RUNTIME_DIR", &*folder).spawn().unwrap());
    let output = command(&["doctor", "lo", "--bundle", file.to_str().unwrap()])
        .env("STEERAGE_RUNTIME_DIR", &*folder)
        .output()
        .unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    drop(started);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(!text.contains("127.0.0.1") && !text.contains("00:00:00:00:00:00"), "{text}");
    let bundle: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&bundle["type"], &bundle["doctor"]["interface"]["name"]), (&"bundle".into(), &"lo".into()));
    let sandbox = bundle["doctor"]["findings"].as_array().unwrap().iter().find(|one| one["about"] == "sandbox");
    assert!(sandbox.is_some(), "{text}");
    let of_run = &bundle["facts"]["runs"][0];
    assert_eq!(of_run["device-0/kind"], "synthetic", "{of_run}");
    assert!(of_run["device-0/queues/rx-0/rps_cpus"].is_string(), "{of_run}");
    assert!(bundle["facts"]["interface"]["counts"]["rx_packets"].is_string(), "{text}");
    let failed = run(&["doctor", "--bundle", "/nowhere/bundle.json"]);
    assert_eq!(failed.code, Some(1));
    assert!(failed.complaint().contains("--bundle: cannot write /nowhere/bundle.json"), "{failed:?}");
}
