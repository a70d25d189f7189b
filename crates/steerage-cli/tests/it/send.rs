//! Tests that all packets of `steerage send` arrive, and that the report counts them.

use std::path::Path;

use serde_json::json;
use steerage::flow::wire::{IpHeader, ethertype, protocol};
use steerage_fixtures::cable::Net;
use steerage_fixtures::is_installed;

use crate::program::{Started, command, report, run};

fn place(name: &str) -> String {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name).to_str().unwrap().to_owned()
}

#[test]
fn a_file_is_made_and_sent_again_in_its_order() {
    let (made, copy) = (place("made.pcapng"), place("sent.pcapng"));
    let first = report(&["send", &format!("pcap:{made}"), "synthetic:packets=300,flows=7", "--virtual-cpus", "2"]);
    assert_eq!(
        (&first["snapshot"]["outputs"][0]["packets"], &first["snapshot"]["cpus"][1]["processed"]),
        (&json!(300), &json!(0))
    );
    let again = report(&["send", &format!("pcap:{copy}"), &made, "--loop", "3", "--virtual-cpus", "2"]);
    assert_eq!(
        (&again["snapshot"]["outputs"][0]["packets"], &again["snapshot"]["received"]),
        (&json!(900), &json!(900))
    );
    // After the blocks for the section and the interface, the copy contains the packets of the
    // capture three times.
    let (made, copy) = (std::fs::read(made).unwrap(), std::fs::read(copy).unwrap());
    let packets = &made[60..];
    assert!(copy[60..] == [packets, packets, packets].concat()[..], "{} {}", made.len(), copy.len());
}

#[test]
fn what_an_interface_sends_the_other_end_receives() {
    if !is_installed("tcpdump", "tcpdump") {
        return;
    }
    let Some(net) = Net::new() else { return };
    for (cpus, steering) in [("1", &["--rate", "max"][..]), ("2", &["--rate", "max", "--rps-cpus", "3"]), ("1", &[])] {
        let args =
            ["count", "near0", "-Q", "in", "-f", "udp dst port 9", "-c", "200", "--virtual-cpus", "2", "--json", "-v"];
        let counting = Started::of(net.near(|| command(&args).spawn().unwrap()));
        let args = ["send", "far0", "synthetic:packets=200,flows=20", "--virtual-cpus", cpus, "--json"];
        let sent = net.far(|| run(&[&args[..], steering].concat()));
        assert_eq!(sent.code, Some(0), "{sent:?}");
        let sent = sent.report();
        assert_eq!(
            (&sent["snapshot"]["outputs"][0]["packets"], &sent["snapshot"]["outputs"][0]["kind"]),
            (&json!(200), &json!("af_packet"))
        );
        let counted = counting.end();
        assert_eq!(counted.report()["snapshot"]["received"], 200, "{counted:?}");
    }
}

#[test]
fn what_cannot_be_sent_is_said() {
    for (wrong, what) in [
        (&["send", "nowhere"][..], "there is no interface of that name"),
        (&["send", "zz.pcap"], "for a capture file, write pcap: before its name"),
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

/// Writes a pcap with nanoseconds and the link type `link`. `packets` lists the captured and the
/// original length of each packet. Each packet is an IPv4 packet to 10.0.0.2, after an Ethernet
/// header if `link` is Ethernet.
fn pcap(name: &str, link: u32, packets: &[(usize, usize)]) -> String {
    let path = place(name);
    let word = |bytes: &mut Vec<u8>, word: u32| bytes.extend_from_slice(&word.to_le_bytes());
    let mut bytes = Vec::new();
    [0xa1b2_3c4d, 0x0004_0002, 0, 0, 262_144, link].into_iter().for_each(|each| word(&mut bytes, each));
    for (captured, wire) in packets {
        [1, 0, *captured as u32, *wire as u32].into_iter().for_each(|each| word(&mut bytes, each));
        let mut packet = vec![0; *captured];
        let at = if link == 1 { 14 } else { 0 };
        IpHeader::new([10, 0, 0, 1], [10, 0, 0, 2], protocol::UDP).write(&mut packet[at..], 20).unwrap();
        if link == 1 {
            packet[12..14].copy_from_slice(&ethertype::IPV4.to_be_bytes());
        }
        bytes.extend_from_slice(&packet);
    }
    std::fs::write(&path, bytes).unwrap();
    path
}

/// The second capture contains only packets that the interface can send.
#[test]
fn what_is_not_sent_fails_the_run_and_says_why() {
    let Some(net) = Net::new() else { return };
    let fits = pcap("fits.pcap", 1, &[(60, 60); 4]);
    let long = pcap("long.pcap", 1, &[(2000, 2000), (60, 60), (1600, 1600)]);
    let cut = pcap("send-cut.pcap", 1, &[(60, 1000); 5]);
    let raw = pcap("raw.pcap", 101, &[(60, 60); 7]);
    let send = |files: &[&str]| net.far(|| run(&[&["send", "far0", "--rate", "max", "--json"], files].concat()));
    let ran = send(&[&long, &cut, &raw, &fits]);
    let report = ran.report();
    let wanted = json!({"tx_too_long": 2, "tx_cut": 5, "tx_link_type": 7});
    assert_eq!((ran.code, &report["snapshot"]["dropped"]), (Some(1), &wanted), "{ran:?}");
    assert_eq!(
        (&report["snapshot"]["outputs"][0]["dropped"], &report["snapshot"]["outputs"][0]["packets"]),
        (&wanted, &json!(5))
    );
    let said = "14 of 19 packets were not sent: 2 tx_too_long, 7 tx_link_type, 5 tx_cut";
    assert!(ran.complaint().contains(said), "{ran:?}");
    let ran = send(&[&fits]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    // The interface refuses all packets.
    assert_eq!(send(&[&cut]).code, Some(1));
    assert_eq!(send(&[&cut, "--strict"]).code, Some(3));
}
