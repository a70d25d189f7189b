//! Tests that `steerage doctor` prints one line for each check, or JSON, even if the machine lacks
//! programs or features that the checks need.

use std::process::Command;

use serde_json::Value;
use steerage_fixtures::cable::Net;

use crate::program::{Ran, command, run};

#[test]
fn each_finding_is_a_line() {
    let ran = run(&["doctor"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    assert!(ran.out.lines().count() >= 10, "{ran:?}");
    for line in ran.out.lines() {
        assert!(["ok      ", "missing ", "-       "].iter().any(|state| line.starts_with(state)), "{line}");
    }
}

#[test]
fn an_interface_is_looked_at_too() {
    let ran = run(&["doctor", "lo", "--json"]);
    assert_eq!((ran.code, ran.err.as_str(), ran.out.lines().count()), (Some(0), "", 1), "{ran:?}");
    let found: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&found["type"], &found["schema"]), (&"doctor".into(), &2.into()));
    assert_eq!((&found["interface"]["name"], &found["interface"]["driver"]), (&"lo".into(), &Value::Null));
    for finding in found["findings"].as_array().unwrap() {
        let state = finding["state"].as_str().unwrap();
        assert!(["ok", "missing", "info"].contains(&state), "{finding}");
        assert!(state != "missing" || finding["fix"].as_str().is_some_and(|fix| !fix.is_empty()), "{finding}");
    }
    let ran = run(&["doctor", "no\nsuch"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.complaint().contains("there is no interface no\\nsuch: `ip link`"), "{ran:?}");
}

#[test]
fn without_tcpdump_both_say_what_to_install() {
    let output = command(&["doctor"]).env("PATH", "/nowhere").output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(out.contains("missing filters       there is no tcpdump"), "{out}");
    let output = command(&["count", "lo", "-f", "not port 22"]).env("PATH", "/nowhere").output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), err.lines().count()), (Some(1), 1), "{err}");
    assert!(err.contains("install the package tcpdump"), "{err}");
}

/// `doctor` does not call a mask wrong, because only a measurement shows whether a mask helps.
#[test]
fn a_mask_that_explain_advises_is_not_called_wrong() {
    let Some(net) = Net::new() else { return };
    let program = command(&[]).get_program().to_string_lossy().into_owned();
    let text =
        format!("echo 1 | tee /sys/class/net/near0/queues/rx-0/rps_cpus >/dev/null && exec {program} doctor near0");
    let ran = Ran::of(Command::new("ip").args(["netns", "exec", &net.near, "sh", "-c", &text]).output().unwrap());
    let line = ran.out.lines().find(|line| line.starts_with("-       rps_cpus ")).unwrap_or_else(|| panic!("{ran:?}"));
    assert!(line.contains("the kernel steers rx-0 1: steerage tune near0 measures whether that helps"), "{line}");
    assert!(!ran.out.contains("echo 0"), "{ran:?}");
}
