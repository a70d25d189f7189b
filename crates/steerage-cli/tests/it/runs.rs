//! Tests of runs that succeed, and of their reports.

use serde_json::{Value, json};

use crate::program::{report, run, sum};

fn of_cpus(report: &Value, key: &str) -> Vec<u64> {
    report["snapshot"]["cpus"].as_array().unwrap().iter().map(|cpu| cpu[key].as_u64().unwrap()).collect()
}

#[test]
fn a_number_of_packets() {
    let report = report(&["count", "-c", "100000", "--virtual-cpus", "2"]);
    let expected = json!({ "schema": 2, "type": "report", "version": env!("CARGO_PKG_VERSION"), "ended_by": "packets",
        "app": {}, "capture": null });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&report[key], value, "{key}");
    }
    let expected = json!({ "received": 100_000, "received_bytes": 6_400_000, "delivered": 100_000, "dropped": {}, "in_flight": 0,
        "reordered": null, "verdicts": { "consumed": 100_000, "discarded": 0, "kept": 0, "transmitted": 0 } });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&report["snapshot"][key], value, "{key}");
    }
    assert_eq!(report["snapshot"]["queues"][0]["error"], json!(null));
    assert_eq!(sum(&report["handled_bytes"]), 6_400_000);
    assert!(report["snapshot"]["seconds"].as_f64().unwrap() > 0.0);
    let started = report["started"].as_str().unwrap();
    assert!(started.len() == "2026-11-21T04:15:35.284060Z".len() && started.ends_with('Z'), "{started}");
}

#[test]
fn an_input_that_ends_first() {
    let report = report(&["count", "synthetic:packets=1000,queues=3", "-c", "1001", "--virtual-cpus", "2"]);
    assert_eq!((&report["ended_by"], &report["snapshot"]["received"]), (&json!("input"), &json!(1000)));
    assert_eq!(report["snapshot"]["queues"].as_array().unwrap().len(), 3);
}

#[test]
fn a_time() {
    let report = report(&["count", "synthetic:rate=1000", "--virtual-cpus", "1", "--seconds", "0.001"]);
    assert_eq!(report["ended_by"], "seconds");
    assert!(report["snapshot"]["seconds"].as_f64().unwrap() >= 0.001);
}

#[test]
fn many_cpus_and_queues_in_order() {
    let device = "synthetic:queues=4,zipf=1.1,mix=udp4+tcp4+udp6+tcp6+vlan";
    for cpus in ["1", "2", "4", "16"] {
        let report = report(&["count", device, "--virtual-cpus", cpus, "-c", "200000", "--strict"]);
        assert_eq!(
            (&report["snapshot"]["delivered"], &report["snapshot"]["reordered"]),
            (&json!(200_000), &json!(0)),
            "{cpus} CPUs"
        );
        assert_eq!(report["snapshot"]["cpus"].as_array().unwrap().len().to_string(), cpus);
        assert_eq!(report["snapshot"]["pages"], report["snapshot"]["pages_free"], "{cpus} CPUs");
    }
}

#[test]
fn masks_say_who_works() {
    let count = ["count", "-c", "20000", "--virtual-cpus", "3"];
    let processed = |more: &[&str]| of_cpus(&report(&[&count, more].concat()), "processed");
    assert_eq!(processed(&["--rps-cpus", "0"]), [20_000, 0, 0]);
    assert_eq!(processed(&["--rps-cpus", "4"]), [0, 0, 20_000]);
    assert_eq!(processed(&["--rps-cpus-list", "1"]), [0, 20_000, 0]);
    assert_eq!(processed(&["--rps-cpus", "6"])[0], 0);
    assert_eq!(processed(&["--cpus", "1"]), [20_000]);
    let collector = report(&[&count[..], &["--cpus", "1-2", "--rx-cpu", "0"]].concat());
    assert_eq!(of_cpus(&collector, "polled"), [20_000, 0, 0]);
    assert_eq!(of_cpus(&collector, "processed")[0], 0);
    assert_eq!(collector["snapshot"]["queues"][0]["rps_cpus_list"], "1-2");
}

#[test]
fn queues_have_masks_of_their_own() {
    let masks = |args: &[&str]| {
        let report = report(&[args, &["--virtual-cpus", "3", "--policy", "hash", "--check-order"]].concat());
        let queues = report["snapshot"]["queues"].as_array().unwrap();
        let masks: Vec<String> =
            queues.iter().map(|queue| queue["rps_cpus_list"].as_str().unwrap().to_owned()).collect();
        (masks.join(" "), of_cpus(&report, "processed"))
    };
    let two = ["count", "synthetic:queues=2,packets=20000", "--rx-cpu", "0"];
    // The masks of the command line apply from the first packet on.
    let (both, processed) = masks(&[&two[..], &["--rps-cpus", "rx-0=2", "--rps-cpus", "rx-1=4"]].concat());
    assert_eq!((both.as_str(), processed), ("1 2", vec![0, 10_000, 10_000]));
    // A queue without its own mask uses the mask for all queues.
    let (one, processed) = masks(&[&two[..], &["--rps-cpus-list", "rx-1=2", "--rps-cpus-list", "1"]].concat());
    assert_eq!((one.as_str(), processed), ("1 2", vec![0, 10_000, 10_000]));
    assert_eq!(masks(&[&two[..], &["--rps-cpus", "synthetic/rx-1=6"]].concat()).0, "0-2 1-2");
    // An empty mask switches steering off for a queue.
    let (off, processed) = masks(&[&two[..], &["--rps-cpus", "rx-0=0", "--rps-cpus", "rx-1=4"]].concat());
    assert_eq!((off.as_str(), processed), ("0 2", vec![10_000, 0, 10_000]));
    // With several devices, options use the devices' names in the control tree (here
    // `synthetic.2`).
    let devices = ["count", "synthetic:packets=10000", "synthetic:packets=20000", "--rx-cpu", "0"];
    let (second, processed) = masks(&[&devices[..], &["--rps-cpus", "synthetic.2/rx-0=4", "--rps-cpus", "2"]].concat());
    assert_eq!((second.as_str(), processed), ("1 2", vec![0, 10_000, 20_000]));
}

#[test]
fn hashes_by_name() {
    let key = "6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa";
    let hash = |more: &[&str]| {
        let report = report(&[&["count", "-c", "1000", "--virtual-cpus", "2", "--check-order"], more].concat());
        report["snapshot"]["queues"][0]["hash"].as_str().unwrap().to_owned()
    };
    assert_eq!(hash(&["--hash", "siphash"]), "siphash-1-3");
    assert_eq!(hash(&["--hash", "siphash", "--hash-key", key]), "siphash-1-3");
    assert_eq!(hash(&["--hash", "toeplitz-table"]), "toeplitz-table");
    assert!(hash(&["--hash", "toeplitz"]).starts_with("toeplitz-"));
    assert!(["aes", "siphash-1-3"].contains(&hash(&["--hash-key", key]).as_str()));
}

#[test]
fn strict_is_about_every_packet() {
    assert_eq!(report(&["count", "-c", "1000", "--virtual-cpus", "2", "--strict"])["snapshot"]["reordered"], 0);
    // No CPU can receive one frame per nanosecond.
    let lossy = ["count", "synthetic:rate=1000000000,packets=10000000", "--virtual-cpus", "2", "--json"];
    let lost = run(&[&lossy[..], &["--strict"]].concat());
    assert_eq!(lost.code, Some(3), "{lost:?}");
    assert!(lost.complaint().starts_with("steerage: --strict: "), "{lost:?}");
    let report = lost.report();
    assert_eq!(report["snapshot"]["received"], 10_000_000);
    assert!(report["snapshot"]["dropped"]["device"].as_u64().unwrap() > 0);
    assert_eq!(run(&lossy).code, Some(0));
}

#[test]
fn the_page_for_people() {
    let ran = run(&["count", "-c", "10000", "--virtual-cpus", "2", "--rps-cpus", "2", "--check-order"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    let lines: Vec<&str> = ran.out.lines().collect();
    assert!(lines[0].starts_with("synthetic  10,000 packets  640,000 bytes  in "), "{}", lines[0]);
    assert_eq!(
        lines[1..6],
        [
            "",
            "cpus        0: receives   1: 10,000 (100.0 %)",
            "queues      rx-0 on CPU 0, all to CPU 1",
            "received    10,000 = delivered 10,000 + dropped 0 + in flight 0",
            "order       checked, 0 out of order",
        ]
    );
    assert_eq!(lines.len(), 6, "{lines:#?}");
    // The report shows memory and order only with `-v`.
    let ran = run(&["count", "-c", "10000", "--virtual-cpus", "2", "--rps-cpus", "2", "-v"]);
    let more: Vec<&str> = ran.out.lines().skip(5).collect();
    assert!(more[0].starts_with("order       not checked") && more[1].starts_with("memory      "), "{ran:?}");
    assert!(more[2].starts_with("            backlogs ") && more.iter().all(|line| line.len() <= 80), "{ran:?}");
    assert_eq!(run(&["count", "-c", "10", "--virtual-cpus", "1", "-q"]).out, "");
    assert_eq!(run(&["count", "-c", "10", "--virtual-cpus", "1", "-q", "--json"]).out.lines().count(), 1);
}

/// The JSON keys are in the order of the schema, which helps people who read the report.
#[test]
fn keys_stand_in_the_order_of_the_schema() {
    let ran = run(&["count", "-c", "10", "--virtual-cpus", "1", "--json"]);
    let mut rest = ran.out.as_str();
    for key in "schema type version started ended_by snapshot seconds received received_bytes delivered verdicts dropped \
                in_flight reordered queues device kind mode queue cpu hash rps_cpus_list received delivered dropped in_flight \
                hashed unparsed pool error cpus cpu polled handed_in processed inline dropped busy_seconds rounds backlog \
                wakes_sent wakes_received wakes_for_control outputs moves groups pages memory app handled_bytes capture \
                sandbox traffic"
        .split_whitespace()
    {
        let (_, behind) = rest.split_once(&format!("\"{key}\":")).unwrap_or_else(|| panic!("{key} in {rest}"));
        rest = behind;
    }
}

#[test]
fn every_key_of_intervals_and_drop_reason_is_documented() {
    fn keys_of(value: &Value, keys: &mut Vec<String>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| {
                keys.push(key.clone());
                keys_of(value, keys);
            }),
            Value::Array(items) => items.iter().for_each(|item| keys_of(item, keys)),
            _ => {}
        }
    }
    let docs = include_str!("../../../../docs/report.md");
    let mut keys: Vec<String> =
        steerage::stats::DropReason::ALL.iter().map(|reason| reason.name().to_owned()).collect();
    let ran = run(&["meter", "synthetic:packets=10", "--virtual-cpus", "1", "-t", "0", "--interval", "1h", "--json"]);
    keys_of(&serde_json::from_str(ran.out.lines().next().unwrap()).unwrap(), &mut keys);
    assert!(keys.iter().any(|key| key == "interval_seconds"));
    for key in keys {
        assert!(docs.contains(&format!("| `{key}` |")), "{key}");
    }
}

#[test]
fn help_and_version() {
    for args in [&["--help"][..], &["count", "--help"], &["help", "count"]] {
        let ran = run(args);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
        assert!(ran.out.contains("Examples:") && !ran.out.contains('\u{1b}'), "{ran:?}");
    }
    assert_eq!(run(&["--version"]).out, format!("steerage {}\n", env!("CARGO_PKG_VERSION")));
}
