//! The advice of `steerage explain`, compared with calculations by these tests and with results of
//! tshark.

use std::collections::BTreeMap;
use std::fs;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use steerage_fixtures::cable::{FAR, NEAR, Net};
use steerage_fixtures::capture::pcap;
use steerage_fixtures::{skip, tshark};

use crate::explain::{KEY, explained, udp};
use crate::program::{Started, command, report, run};

/// Writes a capture with `elephant` packets of one flow, spread evenly among `others` packets of
/// each of 197 other flows. The packet rate is 1 Mpps.
fn written(name: &str, elephant: usize, others: usize) -> (PathBuf, Vec<u8>) {
    let mut sources: Vec<u8> = (3..200).flat_map(|source| vec![source; others]).collect();
    let every = (sources.len() / elephant.max(1)).max(1);
    for at in 0..elephant {
        sources.insert((at * (every + 1)).min(sources.len()), 1);
    }
    let records = sources.iter().zip(0..).map(|(source, microseconds)| (0, microseconds, udp(*source, 200)));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, pcap(records)).unwrap();
    (path, sources)
}

/// Computes the Toeplitz hash of network cards bit by bit, for a packet that [`written`] creates.
fn toeplitz(source: u8) -> u32 {
    let key: Vec<u8> = (0..40).map(|at| u8::from_str_radix(&KEY[2 * at..2 * at + 2], 16).unwrap()).collect();
    let bit = |bytes: &[u8], at: usize| u32::from(bytes[at / 8] >> (7 - at % 8) & 1);
    let input = [10, 0, 0, source, 10, 0, 0, 200, 0, 9, 0, 9];
    let window = |from: usize| (from..from + 32).fold(0, |window, at| window << 1 | bit(&key, at));
    (0..96).filter(|at| bit(&input, *at) == 1).fold(0, |hash, at| hash ^ window(at))
}

/// Returns the busiest CPU's share of the packets if the CPUs have equal shares of the buckets.
fn busiest(sources: &[u8], cpus: u32) -> f64 {
    let mut packets = BTreeMap::<u32, usize>::new();
    for source in sources {
        *packets.entry((toeplitz(*source) >> 20) * cpus / 4096).or_default() += 1;
    }
    *packets.values().max().unwrap() as f64 / sources.len() as f64
}

fn suggestion(args: &[&str]) -> Value {
    explained(args)["traffic"]["suggestion"].clone()
}

#[test]
fn shares_are_those_of_the_hash() {
    for (elephant, work, name) in [(0, "2us", "even"), (2_000, "500", "elephant"), (300, "100", "light")] {
        let (path, sources) = written(&format!("suggest-{name}.pcap"), elephant, 10);
        let args = [path.to_str().unwrap(), "--hash", "toeplitz", "--virtual-cpus", "16", "--work", work];
        let advice = suggestion(&args);
        let mask = u32::from_str_radix(advice["mask"].as_str().unwrap(), 16).unwrap();
        let cpus = mask.count_ones().max(1);
        assert_eq!(advice["busiest"].as_f64(), Some(busiest(&sources, cpus)), "{name}: {advice}");
        let rate = advice["rate"].as_f64().unwrap();
        assert!((rate - 1e6).abs() < 1.0, "{name}: {advice}");
        // The other flows have at most a 197th of the packets each, so none of them is an elephant.
        let elephants = advice["elephants"].as_array().unwrap();
        let share = elephant as f64 / sources.len() as f64;
        assert_eq!(elephants.len(), usize::from(share > 1.0 / f64::from(cpus)), "{name}: {advice}");
        if let Some(elephant) = elephants.first() {
            assert_eq!(
                (&elephant["flow"], elephant["share"].as_f64()),
                (&json!("udp 10.0.0.1:9 > 10.0.0.200:9"), Some(share))
            );
        }
        let load = advice["load"].as_f64().unwrap();
        assert!(advice["load_of_one"].as_f64().unwrap() >= load, "{name}: {advice}");
        assert!(load <= 0.7 || name == "elephant", "{name}: {advice}");
    }
}

/// The command that the output of `explain` recommends must have the effect that the output
/// predicts.
#[test]
fn the_page_is_what_the_guide_shows() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let options = ["--hash", "toeplitz", "--virtual-cpus", "8", "--work", "5ms"];
    let ran =
        command(&[&["explain", "examples/demo.pcapng"], &options[..]].concat()).current_dir(&root).output().unwrap();
    let page = String::from_utf8(ran.stdout).unwrap();
    let (_, advice) = page.split_once("\nadvice ").unwrap_or_else(|| panic!("{page}"));
    assert_eq!(format!("advice {advice}"), include_str!("suggestion.txt"), "{page}");
    let guide = include_str!("../../../../docs/explain.md");
    assert!(guide.contains(include_str!("suggestion.txt")), "docs/explain.md shows another page");
    assert!(ran.status.success() && ran.stderr.is_empty());

    let path = root.join("examples/demo.pcapng");
    let advice = suggestion(&[&[path.to_str().unwrap()], &options[..]].concat());
    let to_run = advice["commands"]["steerage"][0].as_str().unwrap().to_owned();
    let words: Vec<&str> = to_run.split(' ').skip(1).collect();
    let done = report(&[&words[..], &["--virtual-cpus", "8"]].concat());
    let worked = done["snapshot"]["cpus"].as_array().unwrap().len();
    assert_eq!((worked, &done["snapshot"]["received"]), (advice["cpus"].as_u64().unwrap() as usize, &json!(1_000)));
}

#[test]
fn what_is_told_decides() {
    let (path, _) = written("suggest-told.pcap", 0, 10);
    let path = path.to_str().unwrap();
    let cpus = |args: &[&str]| suggestion(&[&[path, "--virtual-cpus", "64"], args].concat())["cpus"].as_u64().unwrap();
    assert_eq!([cpus(&["--work", "100"]), cpus(&["--work", "600"])], [1, 1]);
    assert!(cpus(&["--work", "5us"]) >= 8);
    let one = suggestion(&[path, "--virtual-cpus", "1", "--work", "10us"]);
    assert_eq!((&one["cpus"], &one["mask"], &one["elephants"]), (&json!(1), &json!("0"), &json!([])));
    assert!(suggestion(&["synthetic", "-c", "1000", "--virtual-cpus", "4"])["rate"].is_null());
    assert_eq!(suggestion(&["synthetic:rate=5000000", "-c", "1000", "--virtual-cpus", "4"])["rate"], json!(5e6));
    let wrong = run(&["explain", path, "--work", "quick"]);
    assert_eq!(wrong.code, Some(2));
}

/// A command for the kernel's steering appears only if the recorded traffic would fill a CPU.
#[test]
fn a_capture_ends_with_the_command_that_divides_it() {
    let (path, sources) = written("suggest-parallel.pcap", 0, 10);
    let path = path.to_str().unwrap();
    let args = ["explain", path, "--hash", "toeplitz", "--virtual-cpus", "4", "--work", "100"];
    let light = suggestion(&args[1..])["commands"].clone();
    assert_eq!((light["kernel"].as_array().unwrap().len(), &light["steerage"][1]), (0, &Value::Null), "{light}");
    let speed_up = light["parallel"]["speed_up"].as_f64().unwrap();
    assert!((speed_up - 1.0 / busiest(&sources, 4)).abs() < 1e-9, "{light}");
    let page = run(&args).out;
    let wanted = format!("steerage parallel {path} -j 4 -- TOOL: at most {speed_up:.1} times as fast as one TOOL\n");
    assert!(page.ends_with(&wanted) && !page.contains("\nkernel "), "{page}");
    let heavy = suggestion(&[&args[1..7], &["5us"]].concat());
    assert!(!heavy["commands"]["kernel"].as_array().unwrap().is_empty(), "{heavy}");
    let synthetic = suggestion(&["synthetic", "-c", "1000", "--virtual-cpus", "4"]);
    assert_eq!(synthetic["commands"]["parallel"], Value::Null);
}

/// Fragments count for the flow of their datagram. ICMP errors count for the flow of the quoted
/// packet, whose ports tshark prints.
#[test]
fn elephants_are_those_that_tshark_counts() {
    let Some(afs) = tshark::capture("afs.pcap") else { return };
    // The threshold of an elephant depends on the recommended number of CPUs, and this number
    // depends on the hash key. With the key of this test, `explain` recommends four CPUs.
    let by = ["--hash", "siphash", "--hash-key", KEY, "--virtual-cpus", "8", "--work", "1s"];
    let advice = suggestion(&[&[afs.to_str().unwrap()], &by[..]].concat());
    let elephants = advice["elephants"].as_array().unwrap();
    let of_ports = elephants.iter().find(|one| one["flow"].as_str().unwrap().contains(":7021")).unwrap();
    let frames = |filter: &str| {
        let tshark = Command::new("tshark").args(["-n", "-Y", filter, "-r", afs.to_str().unwrap()]).output();
        tshark.map(|output| String::from_utf8(output.stdout).unwrap().lines().count())
    };
    let Ok(of_flow) = frames("udp.port == 7021 && udp.port == 1799") else {
        return skip("tshark is absent: install the package tshark");
    };
    assert_eq!(of_ports["share"].as_f64(), Some(of_flow as f64 / frames("frame").unwrap() as f64));
}

/// The kernel must accept the recommended settings.
#[test]
fn an_interface_is_advised_on() {
    let Some(net) = Net::new() else { return };
    let open = net.near(|| UdpSocket::bind((NEAR, 9)).unwrap());
    let args = ["explain", "near0", "-c", "1000", "-Q", "in", "--work", "1s", "--json", "-v"];
    let started = Started::of(net.near(|| command(&args).spawn().unwrap()));
    net.far(|| {
        let sockets: Vec<UdpSocket> = (0..40).map(|_| UdpSocket::bind((FAR, 0)).unwrap()).collect();
        for socket in sockets.iter().cycle().take(1_000) {
            socket.send_to(&[0; 100], (NEAR, 9)).unwrap();
        }
    });
    let ran = started.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let explained: Value = serde_json::from_str(&ran.out).unwrap();
    let traffic = &explained["traffic"];
    assert_eq!((&traffic["packets"], &traffic["flows"]), (&json!(1_000), &json!(40)));
    // A veth driver supports all metadata that an XDP program can request: hash, time and VLAN tag.
    let reports =
        "near0 also reports a flow hash, the time at which it received the packet (on the card's clock), the VLAN tag";
    let notes = traffic["notes"].as_array().unwrap();
    assert!(notes.iter().any(|note| note.as_str().unwrap().contains(reports)), "{notes:?}");
    let advice = &traffic["suggestion"];
    assert!(advice["rate"].as_f64().unwrap() > 0.0, "{advice}");
    for kernel in advice["commands"]["kernel"].as_array().unwrap() {
        let line = kernel.as_str().unwrap();
        let Some((mask, path)) = line.strip_prefix("echo ").and_then(|line| line.split_once(" | sudo tee /sys/"))
        else {
            continue;
        };
        // `ip netns exec` runs the commands with the /sys of the network namespace.
        let shell = format!("echo {mask} > /sys/{path} && cat /sys/{path}");
        let written = Command::new("ip").args(["netns", "exec", &net.near, "sh", "-c", &shell]).output().unwrap();
        assert!(written.status.success(), "{line}: {written:?}");
        assert_eq!(String::from_utf8(written.stdout).unwrap().trim(), mask, "{line}");
    }
    let set = advice["commands"]["steerage"][1].as_str().unwrap();
    assert_eq!(
        set,
        format!("steerage set sys/class/net/near0/queues/rx-0/rps_cpus {}", advice["mask"].as_str().unwrap())
    );
    drop(open);
}

/// If no packets arrive, `explain` ends and gives no advice.
#[test]
fn an_interface_on_which_nothing_comes() {
    let Some(net) = Net::new() else { return };
    let ran = net.near(|| command(&["explain", "near0", "--seconds", "0.2", "--json"]).output().unwrap());
    let explained: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!((&explained["traffic"]["packets"], &explained["traffic"]["suggestion"]), (&json!(0), &Value::Null));
}
