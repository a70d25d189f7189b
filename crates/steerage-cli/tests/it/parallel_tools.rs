//! Tests `steerage parallel` with common tools. Except for the order of lines, the merged output of
//! the jobs must equal the output of a single process.

use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;
use steerage_fixtures::cable::{FAR, NEAR, Net};
use steerage_fixtures::{is_installed, scratch::Scratch, skip, tshark};

use crate::parallel::{jobs, summary};
use crate::program::{Started, command, report, run};

/// Fields whose values depend only on the packets of one flow.
const FLOW_LOCAL: [&str; 14] = [
    "frame.time_epoch",
    "frame.len",
    "frame.cap_len",
    "ip.src",
    "ipv6.src",
    "tcp.seq",
    "tcp.ack",
    "tcp.analysis.flags",
    "tcp.analysis.ack_rtt",
    "tcp.analysis.bytes_in_flight",
    "http.time",
    "dns.time",
    "dns.qry.name",
    "_ws.col.Info",
];

/// A capture in which a packet's timestamp is out of range. In the job's input, a packet with an
/// invalid timestamp has the time at which steerage passed the packet on.
const WITHOUT_A_TIME: &str = "bad-time.pcapng";

/// Returns real captures, the capture in `examples`, and a generated capture. Each test generates
/// its own capture, because each generated capture has other packet times.
fn captures(scratch: &Scratch) -> Vec<PathBuf> {
    let made = scratch.join("parallel-tools.pcapng");
    report(&["send", &format!("pcap:{}", made.display()), "synthetic:flows=300,packets=5000,mix=udp4+tcp6"]);
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/demo.pcapng");
    let found = tshark::all_captures().into_iter().filter(|capture| !capture.ends_with(WITHOUT_A_TIME));
    found.chain([examples, made]).collect()
}

/// Returns the sorted lines. Frame numbers are removed, because each job numbers only its own
/// frames.
fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(without_frame_numbers).collect();
    lines.sort_unstable();
    lines
}

/// Removes frame numbers, as in `(reply in 12)`, `(Call In 3)` and `[Reassembled in #12]`.
fn without_frame_numbers(line: &str) -> String {
    let line = line.replace(" In ", " in ");
    let mut parts = line.split_inclusive(" in ");
    let first = parts.next().unwrap_or_default().to_owned();
    first + &parts.map(|part| part.trim_start_matches(|c: char| c == '#' || c.is_ascii_digit())).collect::<String>()
}

/// Runs a single process of the tool on the whole capture. Returns `None` if the tool is missing.
fn alone(tool: &[&str], file: &Path) -> Option<String> {
    let Ok(output) = Command::new(tool[0]).args(&tool[1..]).arg(file).output() else {
        skip(&format!("{} is absent", tool[0]));
        return None;
    };
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn assert_same(one: &str, jobs: &str, name: &str) {
    let (one, jobs) = (sorted(one), sorted(jobs));
    let differ = one.iter().zip(&jobs).find(|(one, jobs)| one != jobs);
    assert!(one.len() == jobs.len() && differ.is_none(), "{name}: {} and {} lines, {differ:?}", one.len(), jobs.len());
}

#[test]
fn what_tshark_says_is_that_of_one_process() {
    let mut tool = vec!["tshark", "-n", "-T", "fields", "-E", "occurrence=a"];
    tool.extend(FLOW_LOCAL.iter().flat_map(|field| ["-e", *field]));
    tool.push("-r");
    let scratch = Scratch::new();
    for capture in captures(&scratch) {
        let Some(one) = alone(&tool, &capture) else { return };
        let name = capture.to_str().unwrap();
        // For the Rx protocol of AFS, tshark matches replies with calls in other flows.
        let key = if name.ends_with("afs.pcap") { "hosts" } else { "flow" };
        let ran =
            run(&[&["parallel", name, "--key", key, "-j", "3", "-q", "--json", "--"], &tool[..], &["-"]].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_eq!(summary(&ran)["delivered"].as_u64(), Some(one.lines().count() as u64), "{name}");
        assert_same(&one, &ran.out, name);
    }
}

#[test]
fn the_lines_of_tcpdump_are_those_of_one_process() {
    let scratch = Scratch::new();
    // For AFS, tcpdump matches replies with calls between other hosts.
    for capture in captures(&scratch).iter().filter(|capture| !capture.ends_with("afs.pcap")) {
        let name = capture.to_str().unwrap();
        let tool = ["tcpdump", "-n", "-tt", "-r"];
        let Some(one) = alone(&tool, capture) else { return };
        let ran = run(&[&["parallel", name, "-j", "2", "-q", "--json", "--"], &tool[..], &["-"]].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_same(&one, &ran.out, name);
    }
}

/// Returns the time and the bytes of each frame, as tcpdump prints them.
fn frames(capture: &Path) -> Vec<String> {
    let output =
        Command::new("tcpdump").args(["-n", "-tt", "--nano", "-e", "-xx", "-r"]).arg(capture).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.replace("\n\t", " ").lines().map(str::to_owned).collect()
}

fn is_sorted_by_time(frames: &[String]) -> bool {
    frames.is_sorted_by_key(|frame| frame.split(' ').next().map(str::to_owned))
}

/// Captures on standard output are merged into one capture, sorted by time.
#[test]
fn captures_that_tools_write_are_one_file() {
    let scratch = Scratch::new();
    let capture = captures(&scratch).pop().unwrap();
    let name = capture.to_str().unwrap();
    let tools: [&[&str]; 4] = [
        &["tcpdump", "-n", "-Z", "root", "-w", "-", "-r"],
        &["tcpdump", "-n", "-Z", "root", "--nano", "-w", "-", "-r"],
        &["tshark", "-n", "-w", "-", "-F", "pcapng", "-r"],
        &["tshark", "-n", "-w", "-", "-F", "nsecpcap", "-r"],
    ];
    for tool in tools {
        let Ok(one) = Command::new(tool[0]).args(&tool[1..]).arg(&capture).output() else {
            return skip(&format!("{} is absent", tool[0]));
        };
        let (alone, all) = (scratch.join("alone"), scratch.join("all"));
        std::fs::write(&alone, one.stdout).unwrap();
        let mut expected = frames(&alone);
        assert!(expected.len() == 5000, "{tool:?}: {}", expected.len());
        for order in [&[][..], &["--order", "time"], &["-k"]] {
            let arguments = [&["parallel", name, "-j", "3", "-q"], order, &["--"], tool, &["-"]].concat();
            let output = command(&arguments).output().unwrap();
            assert!(output.status.success(), "{tool:?} {order:?}: {}", String::from_utf8_lossy(&output.stderr));
            std::fs::write(&all, output.stdout).unwrap();
            let mut merged = frames(&all);
            assert_eq!(is_sorted_by_time(&merged), order != ["-k"], "{tool:?} {order:?}");
            merged.sort_unstable();
            expected.sort_unstable();
            assert!(merged == expected, "{tool:?} {order:?}: {} packets", merged.len());
            if tool.contains(&"pcapng") && order != ["-k"] {
                let info = Command::new("capinfos").arg(&all).output().unwrap();
                let info = String::from_utf8(info.stdout).unwrap();
                assert!(info.contains("Number of interfaces in file: 1\n"), "{info}");
            }
        }
    }
}

/// tshark's JSON outputs are merged into one array. tshark's output for Elasticsearch consists of
/// pairs of lines, which stay together. A merged table has one header line, and its lines are
/// sorted if they begin with a time.
#[test]
fn the_formats_of_tshark_are_merged() {
    let scratch = Scratch::new();
    let capture = captures(&scratch).pop().unwrap();
    let name = capture.to_str().unwrap();
    let ran = |order: &[&str], format: &[&str]| {
        let tshark = ["tshark", "-n", "-r", "-"];
        run(&[&["parallel", name, "-j", "3", "-q"], order, &["--"], &tshark, format].concat())
    };
    if Command::new("tshark").arg("-v").output().is_err() {
        return skip("tshark is absent");
    }
    let fields = ["-e", "frame.time_epoch", "-e", "ip.src"];
    for order in [&[][..], &["-k"]] {
        let json = ran(order, &[&["-T", "json", "--no-duplicate-keys"], &fields[..]].concat());
        let packets: Vec<serde_json::Value> =
            serde_json::from_str(&json.out).unwrap_or_else(|error| panic!("{error}: {json:?}"));
        assert_eq!((json.code, packets.len()), (Some(0), 5000));
    }
    for order in [&[][..], &["--order", "time"]] {
        let ek = ran(order, &[&["-T", "ek"], &fields[..]].concat());
        let lines: Vec<serde_json::Value> = ek.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((ek.code, lines.len()), (Some(0), 10_000), "{}", ek.err);
        assert!(lines.chunks(2).all(|pair| pair[0]["index"].is_object() && pair[1]["layers"].is_object()));
        let times: Vec<&str> = lines.iter().filter_map(|line| line["timestamp"].as_str()).collect();
        assert_eq!((times.len(), times.is_sorted()), (5000, !order.is_empty()), "{order:?}");
    }
    let columns = ran(&["--order", "time"], &[&["-T", "fields", "-E", "header=y"], &fields[..]].concat());
    let lines: Vec<&str> = columns.out.lines().collect();
    assert_eq!((lines[0], lines.len()), ("frame.time_epoch\tip.src", 5001), "{}", columns.err);
    assert!(lines[1..].is_sorted_by_key(|line| line.split('\t').next()));
    let refused = ran(&[], &["-T", "pdml"]);
    assert!(refused.code == Some(255) && refused.err.contains("an XML document"), "{refused:?}");
}

#[test]
fn a_job_without_output_does_not_hold_captures_back() {
    let scratch = Scratch::new();
    let capture = captures(&scratch).pop().unwrap();
    if !is_installed("tcpdump", "tcpdump") {
        return;
    }
    let over = scratch.join("over");
    let first =
        format!("[ {{n}} = 1 ] && {{ touch {0}; exit 0; }}; while [ ! -e {0} ]; do sleep 0.02; done", over.display());
    for script in ["[ {n} = 1 ] && exec cat >/dev/null", &first] {
        let job = ["--", "sh", "-c", &format!("{script}; exec tcpdump -n -r - -Z root -w -")];
        let output = command(&[&["parallel", capture.to_str().unwrap(), "-j", "2", "--json"], &job[..]].concat())
            .output()
            .unwrap();
        let all = scratch.join("all");
        std::fs::write(&all, &output.stdout).unwrap();
        let merged = frames(&all).len();
        assert!(merged > 1000 && merged < 5000, "{script}: {merged} {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The captures of the editcap jobs are merged. The summaries of the capinfos jobs are printed one
/// after another.
#[test]
fn editcap_and_capinfos_are_merged_as_the_table_says() {
    let scratch = Scratch::new();
    let capture = captures(&scratch).pop().unwrap();
    if !is_installed("editcap", "tshark") {
        return;
    }
    let from = ["parallel", capture.to_str().unwrap(), "-j", "2", "-q"];
    let output = command(&[&from[..], &["--", "editcap", "-", "-"]].concat()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all = scratch.join("all");
    std::fs::write(&all, output.stdout).unwrap();
    let merged = frames(&all);
    assert!(merged.len() == 5000 && is_sorted_by_time(&merged), "{} packets", merged.len());
    let summaries = run(&[&from[..], &["-k", "--", "capinfos", "-M", "-c", "-"]].concat());
    let packets =
        summaries.out.lines().filter_map(|line| line.strip_prefix("Number of packets:")?.trim().parse::<u64>().ok());
    assert_eq!(packets.sum::<u64>(), 5000, "{summaries:?}");
}

/// tcpdump may print several lines for a packet.
#[test]
fn the_lines_of_tcpdump_are_sorted_by_time() {
    let scratch = Scratch::new();
    let capture = captures(&scratch).pop().unwrap();
    for options in [&["-tt"][..], &["-tttt", "-v"], &["-tt", "-x"]] {
        let tool = [&["tcpdump", "-n", "--nano"], options, &["-r"]].concat();
        let Some(one) = alone(&tool, &capture) else { return };
        let name = capture.to_str().unwrap();
        let ran = run(&[&["parallel", name, "-j", "3", "-q", "--order", "time", "--"], &tool[..], &["-"]].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        // Packets with the same time may be printed in any order.
        let packets = |text: &str| -> Vec<String> {
            text.replace("\n\t", " ").replace("\n    ", " ").lines().map(str::to_owned).collect()
        };
        let (mut merged, mut expected) = (packets(&ran.out), packets(&one));
        let time_len = if options[0] == "-tttt" { 29 } else { 20 };
        assert!(merged.is_sorted_by_key(|packet| packet.get(..time_len).map(str::to_owned)), "{options:?}");
        merged.sort_unstable();
        expected.sort_unstable();
        assert!(merged.len() == 5000 && merged == expected, "{options:?}: {} packets", merged.len());
    }
}

/// Returns the flows that nfdump finds, one line for each flow.
fn nfdumped(directory: &Path) -> Vec<String> {
    let fields = "fmt:%ts %te %pr %sap %dap %pkt %byt";
    let output = Command::new("nfdump").args(["-q", "-N", "-o", fields, "-R"]).arg(directory).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let mut flows: Vec<String> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    flows.sort();
    flows
}

/// The command is from docs/parallel.md.
#[test]
fn nfpcapd_reads_a_file_of_its_own() {
    let scratch = Scratch::new();
    let capture = captures(&scratch).pop().unwrap();
    let (alone, split) = (scratch.join("alone"), scratch.join("split"));
    std::fs::create_dir(&alone).unwrap();
    let Ok(output) = Command::new("nfpcapd").arg("-r").arg(&capture).arg("-w").arg(&alone).output() else {
        return skip("nfpcapd is absent: install the package nfdump");
    };
    assert!(output.status.success(), "{output:?}");
    let job = format!("mkdir -p {0}/{{n}} && exec nfpcapd -r {{file}} -w {0}/{{n}}", split.display());
    let from = ["parallel", capture.to_str().unwrap(), "-j", "2", "-q", "--json"];
    let ran = run(&[&from[..], &["--", "sh", "-c", &job]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(jobs(&summary(&ran)).iter().all(|job| job["packets"].as_u64().unwrap() > 0));
    let flows = nfdumped(&alone);
    assert!(flows.len() == 300 && nfdumped(&split) == flows, "{} flows", flows.len());
}

#[test]
fn jobs_get_packets_without_their_tunnels() {
    let tunnels = ["vxlan", "geneve", "various_gre", "mpls-over-udp", "gso-ipv4-vxlan-ipv4", "gso-ipv6-geneve-ipv6"];
    for name in tunnels {
        let Some(capture) = tshark::capture(&format!("{name}.pcap")) else { return };
        let fields = ["frame.time_epoch", "ip.src", "ip.dst", "ip.id", "ipv6.src", "ipv6.dst", "tcp.seq_raw"];
        // These tshark fields contain no inner addresses of ARP packets in a tunnel.
        let mut tool = vec!["tshark", "-n", "-T", "fields", "-E", "occurrence=l", "-Y", "not arp"];
        tool.extend(fields.iter().flat_map(|field| ["-e", *field]));
        let Some(inner) = alone(&[&tool[..], &["-r"]].concat(), &capture) else { return };
        let from = ["parallel", capture.to_str().unwrap(), "--strip-tunnels", "-j", "2", "-q", "--"];
        // A packet whose tunnel headers were removed has only one IP header.
        tool[5] = "occurrence=a";
        let ran = run(&[&from[..], &tool, &["-r", "-"]].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_same(&inner, &ran.out, name);
    }
}

fn send_datagrams(net: &Net, count: usize) {
    net.far(|| {
        let sockets: Vec<_> = (0..32).map(|_| std::net::UdpSocket::bind((FAR, 0)).unwrap()).collect();
        for nth in 0..count {
            sockets[nth % sockets.len()].send_to(&[nth as u8; 32], (NEAR, 9)).unwrap();
        }
    });
}

#[test]
fn an_interface_is_split_while_it_receives() {
    if !is_installed("tcpdump", "tcpdump") {
        return;
    }
    let Some(net) = Net::new() else { return };
    let arguments = ["parallel", "near0", "-Q", "in", "-f", "udp", "-j", "2", "-c", "600", "--json", "-v"];
    let job = ["--", "tcpdump", "-n", "-l", "-r", "-"];
    let run = net.near(|| Started::of(command(&[&arguments[..], &job].concat()).spawn().unwrap()));
    send_datagrams(&net, 600);
    let ran = run.end();
    assert_eq!((ran.code, ran.out.lines().count()), (Some(0), 600), "{ran:?}");
    let summary = summary(&ran);
    assert_eq!((&summary["delivered"], &summary["lost"]), (&600.into(), &0.into()));
    assert!(jobs(&summary).iter().all(|job| job["packets"].as_u64().unwrap() > 0), "{summary}");
}

#[test]
fn an_interface_of_its_own_is_a_job_s_input_too() {
    if !is_installed("tcpdump", "tcpdump") {
        return;
    }
    let Some(net) = Net::new() else { return };
    let arguments = ["parallel", "near0", "-Q", "in", "-f", "udp", "-j", "2", "--json", "-v"];
    let job = ["--", "sh", "-c", "echo $STEERAGE_JOB $(grep -c {tap} /proc/net/dev); exec sleep 1000"];
    let mut run = net.near(|| Started::of(command(&[&arguments[..], &job].concat()).spawn().unwrap()));
    let mut said = [run.line(), run.line()];
    said.sort();
    assert_eq!(said, ["1 1\n", "2 1\n"]);
    send_datagrams(&net, 100);
    run.signal(Signal::SIGINT);
    let ran = run.end();
    // An interface as input never ends, so SIGTERM must have ended both jobs.
    assert_eq!(ran.code, Some(2), "{ran:?}");
}
