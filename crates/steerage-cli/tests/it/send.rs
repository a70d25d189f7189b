//! `steerage send`: all packets arrive, and the report matches them.

use std::path::Path;

use serde_json::json;
use steerage_fixtures::cable::Net;

use crate::program::{Started, command, report, run};

fn place(name: &str) -> String {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name).to_str().unwrap().to_owned()
}

#[test]
fn a_file_is_made_and_sent_again_in_its_order() {
    let (made, copy) = (place("made.pcapng"), place("sent.pcapng"));
    let first = report(&["send", &format!("pcap:{made}"), "synthetic:packets=300,flows=7", "--virtual-cpus", "2"]);
    assert_eq!((&first["outputs"][0]["packets"], &first["cpus"][1]["processed"]), (&json!(300), &json!(0)));
    let again = report(&["send", &format!("pcap:{copy}"), &made, "--loop", "3", "--virtual-cpus", "2"]);
    assert_eq!((&again["outputs"][0]["packets"], &again["received"]), (&json!(900), &json!(900)));
    // The copy has the same packets three times. Only the section and interface blocks before them
    // differ.
    let (made, copy) = (std::fs::read(made).unwrap(), std::fs::read(copy).unwrap());
    let packets = &made[60..];
    assert!(copy[60..] == [packets, packets, packets].concat()[..], "{} {}", made.len(), copy.len());
}

#[test]
fn what_an_interface_sends_the_other_end_receives() {
    let Some(net) = Net::new() else { return };
    for (cpus, steering) in [("1", &["--rate", "max"][..]), ("2", &["--rate", "max", "--rps-cpus", "3"]), ("1", &[])] {
        let args =
            ["count", "near0", "-Q", "in", "-f", "udp dst port 9", "-c", "200", "--virtual-cpus", "2", "--json", "-v"];
        let counting = Started::of(net.near(|| command(&args).spawn().unwrap()));
        let args = ["send", "far0", "synthetic:packets=200,flows=20", "--virtual-cpus", cpus, "--json"];
        let sent = net.far(|| run(&[&args[..], steering].concat()));
        assert_eq!(sent.code, Some(0), "{sent:?}");
        let sent = sent.report();
        assert_eq!((&sent["outputs"][0]["packets"], &sent["outputs"][0]["kind"]), (&json!(200), &json!("af_packet")));
        let counted = counting.end();
        assert_eq!(counted.report()["received"], 200, "{counted:?}");
    }
}

#[test]
fn what_cannot_be_sent_is_said() {
    for (wrong, what) in [
        (&["send", "nowhere"][..], "write pcap:FILE"),
        (&["send", "pcap:a{0..1}"], "send has one"),
        (&["send", "pcap:a", "--rate", "0"], "from 1 to"),
        (&["send", "pcap:a", "--loop", "0"], "from 1 to"),
        (&["send", "pcap:a", "--rate", "5", "--pace"], "cannot be used with"),
    ] {
        let ran = run(wrong);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.complaint().contains(what), "{ran:?}");
    }
}
