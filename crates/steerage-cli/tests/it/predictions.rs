//! The predictions of `steerage explain` about captures match the results of the other commands and
//! of tshark.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use steerage::flow::Layers;
use steerage::{
    Builder, Hash,
    flow::{FlowHasher, HashKey},
};
use steerage_explain::Analyze;
use steerage_fixtures::{is_installed, tshark};
use steerage_router::Forwarding;

use crate::explain::{KEY, explained};
use crate::program::run;

/// Successive captures are tested with 2 to 8 CPUs in turn.
fn cpus_for(nth: usize) -> usize {
    2 + nth % 7
}

/// Captures in the folder next to the workspace, including captures that once showed a defect.
fn captures() -> Vec<String> {
    tshark::all_captures().iter().map(|path| path.to_str().unwrap().to_owned()).collect()
}

fn capture(name: &str) -> Option<String> {
    captures().into_iter().find(|path| path.ends_with(name))
}

/// Returns the explanation of a capture, or `None` if nothing can be read. Only the readable part
/// of a truncated capture is explained.
fn explanation(args: &[&str]) -> Option<Value> {
    let ran = run(&[&["explain"], args, &["--hash-key", KEY, "--json"]].concat());
    (!ran.out.is_empty()).then(|| serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}")))
}

/// Returns the number of packets for each CPU, as `explain --for` predicts.
fn predicted(capture: &str, command: &str, cpus: usize) -> Option<Vec<u64>> {
    let explained = explanation(&[capture, "--for", command, "--virtual-cpus", &cpus.to_string()])?;
    let spread = explained["traffic"]["spread"].as_array().unwrap().clone();
    let row = spread.into_iter().find(|row| row["cpus"] == json!(cpus)).unwrap();
    Some(serde_json::from_value(row["packets"].clone()).unwrap())
}

fn handled(capture: &str, command: &[&str], cpus: usize) -> Vec<u64> {
    let cpus = cpus.to_string();
    let args = [capture, "--virtual-cpus", &cpus, "--policy", "hash", "--hash-key", KEY, "--json", "-q"];
    let ran = run(&[command, &args].concat());
    let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    report["snapshot"]["cpus"].as_array().unwrap().iter().map(|cpu| cpu["processed"].as_u64().unwrap()).collect()
}

#[test]
fn packets_of_count_meter_and_fanout_go_where_explain_says() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let to = format!("pcap:{}", folder.join("predictions.pcapng").display());
    let commands: [(&str, &[&str]); 3] =
        [("count", &["count"]), ("meter", &["meter"]), ("fanout", &["fanout", "--to", &to])];
    for (nth, capture) in captures().iter().enumerate() {
        for (at, (name, command)) in commands.iter().enumerate() {
            let cpus = cpus_for(nth + at);
            let Some(predicted) = predicted(capture, name, cpus) else { continue };
            assert_eq!(handled(capture, command, cpus), predicted, "{capture}, {name}, {cpus} CPUs");
        }
    }
}

/// `forward` needs interfaces, so its packet function runs on the captures, with an empty routing
/// table.
#[test]
fn packets_of_forward_go_where_explain_says() {
    let hasher = FlowHasher::keyed(&KEY.parse::<HashKey>().unwrap());
    for (nth, capture) in captures().iter().enumerate() {
        let cpus = cpus_for(nth);
        let Some(predicted) = predicted(capture, "forward", cpus) else { continue };
        let input = steerage_device::open(capture).unwrap();
        let forwarding = Forwarding::new(vec![0]).unwrap();
        let builder = Builder::new().virtual_cpus(cpus).policy(Hash).hash(hasher.clone()).input(input);
        let outcome = builder.build(move |_cpu| forwarding.handler()).unwrap().start().unwrap().join();
        let handled: Vec<u64> = outcome.snapshot.cpus.iter().map(|cpu| cpu.processed).collect();
        assert_eq!(handled, predicted, "{capture}, {cpus} CPUs");
    }
}

#[test]
fn only_forward_separates_the_directions_of_a_connection() {
    let Some(capture) = capture("one-connection.pcap") else { return };
    for (command, flows) in [("count", 1), ("meter", 1), ("fanout", 1), ("forward", 2)] {
        let explained = explanation(&[&capture, "--for", command]).unwrap();
        assert_eq!((&explained["for"], &explained["both_directions"]), (&json!(command), &json!(flows == 1)));
        assert_eq!(explained["traffic"]["flows"], json!(flows), "{command}");
    }
    let there = "tcp 192.168.122.155:51001 > 216.239.138.68:80";
    let back = "tcp 216.239.138.68:80 > 192.168.122.155:51001";
    let hash = |flow: &str, command: &str| explanation(&[flow, "--for", command]).unwrap()["flow"]["hash"].clone();
    assert_eq!(hash(there, "count"), hash(back, "count"));
    assert_ne!(hash(there, "forward"), hash(back, "forward"));
    let advised = |command: &str| explanation(&[&capture, "--for", command]).unwrap()["traffic"]["suggestion"].clone();
    for (command, runs) in [("meter", "steerage meter "), ("forward", "steerage forward IFACE --cpus")] {
        let advised = advised(command)["commands"]["steerage"][0].as_str().unwrap().to_owned();
        assert!(advised.starts_with(runs), "{advised}");
    }
}

/// The capture contains three fragments of one datagram, in order. Only the first fragment has
/// ports.
#[test]
fn a_later_fragment_is_explained_by_its_flow() {
    let Some(capture) = capture("explain-frag.pcap") else { return };
    let flow = "tcp 1.1.1.1:12345 > 2.2.2.2:8080";
    let named = explained(&[flow, "--hash-key", KEY])["flow"].clone();
    for number in ["1", "2", "3"] {
        let explained = explanation(&[&capture, "--packet", number]).unwrap();
        let traffic = &explained["traffic"];
        assert_eq!((&traffic["packets"], &traffic["flows"], &traffic["fragments"]), (&json!(3), &json!(1), &json!(3)));
        assert_eq!((&traffic["largest"][0]["flow"], &traffic["largest"][0]["packets"]), (&json!(flow), &json!(3)));
        for field in ["flow", "key", "hash", "bucket", "cpus"] {
            assert_eq!(traffic["packet"][field], named[field], "{number}: {field}");
        }
    }
}

/// Some of the flows are fragmented datagrams.
#[test]
fn the_keys_of_all_flows_were_hashed() {
    for capture in captures() {
        keys_were_hashed::<true>(&capture);
        keys_were_hashed::<false>(&capture);
    }
}

fn keys_were_hashed<const BOTH: bool>(capture: &str) {
    let hasher = FlowHasher::keyed(&KEY.parse::<HashKey>().unwrap());
    let Ok(input) = steerage_device::open(capture) else { return };
    let builder = Builder::new().virtual_cpus(1).always_hash(true).hash(hasher.clone()).input(input);
    let by = hasher.clone();
    let instance = builder.build(move |_cpu| Analyze::<BOTH>::new(by.clone(), Layers::Inner, 1)).unwrap();
    for (_cpu, surveyed) in instance.start().unwrap().join().reports {
        for flow in surveyed.flows {
            assert_eq!(hasher.hash(&flow.key), flow.hash, "{capture}: {flow:?}");
        }
    }
}

#[test]
fn the_keys_of_the_largest_flows_were_hashed() {
    for capture in captures() {
        for command in ["count", "forward"] {
            let Some(explained) = explanation(&[&capture, "--for", command]) else { continue };
            for flow in explained["traffic"]["largest"].as_array().unwrap() {
                let key = flow["key"].as_str().unwrap();
                if key.starts_with("bytes ") || key.starts_with("link ") {
                    continue;
                }
                let named = explanation(&[key, "--for", command]).unwrap();
                assert_eq!(named["flow"]["bucket"], flow["bucket"], "{capture}, {command}: {key}");
            }
        }
    }
}

#[test]
fn the_speed_ups_agree() {
    for capture in captures() {
        for command in ["count", "forward"] {
            let Some(explained) = explanation(&[&capture, "--for", command, "-t", "1"]) else { continue };
            let traffic = &explained["traffic"];
            let Some(largest) = traffic["largest"][0]["packets"].as_u64() else { continue };
            let by_flow = traffic["packets"].as_u64().unwrap() as f64 / largest as f64;
            let notes = traffic["notes"].as_array().unwrap().iter().map(|note| note.as_str().unwrap());
            let elephants = notes.clone().find(|note| note.starts_with("elephants"));
            let shown = traffic["largest"][0]["flow"].as_str().unwrap();
            if ["link ", "bytes ", "packets ", "empty "].iter().any(|word| shown.starts_with(word)) {
                let together = notes.clone().any(|note| note.contains(" The largest part that stays together"));
                assert_eq!(together, by_flow < 8.0, "{capture}: {traffic}");
            } else {
                assert_eq!(elephants.is_some(), by_flow < 8.0, "{capture}: {traffic}");
            }
            // The notes of `explain` round the speed-up to a tenth.
            let said = elephants.map(|note| {
                let (before, _) = note.split_once(" times at most").unwrap();
                before.rsplit(' ').next().unwrap().parse::<f64>().unwrap() + 0.05
            });
            for row in traffic["spread"].as_array().unwrap() {
                let speed_up = row["speed_up"].as_f64().unwrap();
                assert!(said.is_none_or(|said| speed_up <= said), "{capture}: {row}, {said:?}");
                assert!(speed_up <= by_flow + 1e-9, "{capture}: {row}, {by_flow}");
                let busiest = row["packets"].as_array().unwrap().iter().map(|packets| packets.as_f64().unwrap());
                let busiest = busiest.fold(0.0, f64::max) / traffic["packets"].as_f64().unwrap();
                assert!((busiest - row["busiest_packets"].as_f64().unwrap()).abs() < 1e-9, "{row}");
            }
        }
    }
}

fn lines_of_tshark(args: &[&str]) -> Option<Vec<String>> {
    let output = Command::new("tshark").args(args).output().ok()?;
    Some(String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect())
}

/// Returns the sorted pair of endpoints of each packet, or `None` if the capture has packets other
/// than TCP and UDP.
fn ends_by_tshark(capture: &str) -> Option<BTreeSet<[String; 2]>> {
    let fields =
        ["ip.src", "ipv6.src", "tcp.srcport", "udp.srcport", "ip.dst", "ipv6.dst", "tcp.dstport", "udp.dstport"];
    let fields = fields.into_iter().flat_map(|field| ["-e", field]);
    // Reads only the first occurrence of a field, because quoted and inner packets have their own
    // endpoints.
    let args = ["-n", "-r", capture, "-T", "fields", "-E", "occurrence=f"];
    let args: Vec<&str> = args.into_iter().chain(fields).collect();
    let lines = lines_of_tshark(&args)?;
    let ends = lines.iter().map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        let end = |fields: &[&str]| {
            let port = if fields[2].is_empty() { fields[3] } else { fields[2] };
            (!port.is_empty()).then(|| format!("{}{} {port}", fields[0], fields[1]))
        };
        let mut ends = [end(&fields[..4])?, end(&fields[4..])?];
        ends.sort();
        Some(ends)
    });
    ends.collect()
}

/// `meter` counts an ICMP error as a flow, but steering assigns the error to the flow of the quoted
/// packet. If the fragment table is full, fragments count as separate flows. The table gets full at
/// a time that depends on the clock of the receive path in `explain`, and on the packets'
/// timestamps in `meter`.
#[test]
fn flows_are_those_of_meter_and_of_tshark() {
    if !is_installed("tshark", "tshark") {
        return;
    }
    let (mut by_meter, mut by_tshark) = (0, 0);
    for capture in captures() {
        // With timeouts of 30,000 days, all flows last until the end of the capture.
        let long = ["--inactive", "30000days", "--active", "30000days", "--virtual-cpus", "2", "--policy", "hash"];
        let ran = run(&[&["meter", &capture, "--json", "-q"], &long[..]].concat());
        if ran.code != Some(0) {
            continue;
        }
        let metered = ran.report();
        let explained = explanation(&[&capture]).unwrap();
        let traffic = &explained["traffic"];
        let flows = traffic["flows"].as_u64().unwrap();
        let errors = "icmp.type in {3, 4, 5, 11, 12} || icmpv6.type < 128";
        let errors = lines_of_tshark(&["-n", "-r", &capture, "-Y", errors]).unwrap().len() as u64;
        if metered["snapshot"]["queues"][0]["fragments_full"] == json!(0) {
            let metered = metered["app"]["flows"]["total"].as_u64().unwrap();
            let most = flows + errors;
            assert!(
                (flows..=most).contains(&metered),
                "{capture}: {flows} flows, {errors} errors; meter has {metered}"
            );
            by_meter += usize::from(errors == 0);
        }
        let is_plain = traffic["outer_flows"] == json!(0) && traffic["fragments"] == json!(0) && errors == 0;
        if let Some(ends) = ends_by_tshark(&capture).filter(|ends| is_plain && !ends.is_empty()) {
            assert_eq!(flows, ends.len() as u64, "{capture}");
            by_tshark += 1;
        }
    }
    assert!(
        captures().is_empty() || (by_meter > 20 && by_tshark > 5),
        "compared with meter: {by_meter}, tshark: {by_tshark}"
    );
}
