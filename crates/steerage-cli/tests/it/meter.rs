//! Tests the report, the files and the errors of `steerage meter`.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use steerage::flow::wire::FrameBuilder;
use steerage_fixtures::capture::pcap;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::tshark;

use crate::program::{Started, command, objects, report, run, sum};

/// The Unix time of the first packet: 2023-11-14 22:13:20 UTC.
const START: u32 = 1_700_000_000;

fn udp(from: (u8, u16), to: (u8, u16), bytes: usize) -> Vec<u8> {
    FrameBuilder::udp(([10, 0, 0, from.0], from.1), ([10, 0, 0, to.0], to.1)).frame_of(bytes)
}

/// The time of each frame is in seconds after `START`.
fn capture(directory: &Path, frames: &[(u32, Vec<u8>)]) -> String {
    let file = pcap(frames.iter().map(|(second, frame)| (START + second, 250_000, frame)));
    let path = directory.join("capture.pcap");
    fs::write(&path, file).unwrap();
    path.to_str().unwrap().to_owned()
}

/// A UDP request with two replies, a second request that is repeated after ten minutes, and an ARP
/// packet.
fn conversation(directory: &Path) -> String {
    let mut arp = vec![0xff; 60];
    arp[6..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 8, 6]);
    capture(
        directory,
        &[
            (0, udp((1, 5000), (2, 53), 80)),
            (1, udp((2, 53), (1, 5000), 500)),
            (2, udp((2, 53), (1, 5000), 400)),
            (3, arp),
            (4, udp((3, 7), (4, 9), 1200)),
            (604, udp((3, 7), (4, 9), 100)),
        ],
    )
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.filter(|name| name != "capture.pcap").collect();
    names.sort();
    names
}

fn read(directory: &Path, name: &str) -> String {
    fs::read_to_string(directory.join(name)).unwrap()
}

const HEADER: &str = "first,last,kind,protocol,source,source_port,destination,destination_port,ethertype,packets,bytes,\
    ip_bytes,packets_back,bytes_back,ip_bytes_back,tcp_flags,tcp_flags_back,vlan,vlan_inner,tunnel,tunnel_id,end,\
    handshake_us,retransmitted,retransmitted_back,out_of_order,out_of_order_back,zero_windows,zero_windows_back,\
    resets,resets_back,closed_by,icmp_type,icmp_code,dns_query,dns_type,dns_rcode,dns_answer,tls_sni,tls_alpn,http_host";

const ROWS: [&str; 4] = [
    "2023-11-14T22:13:20.250000000Z,2023-11-14T22:13:22.250000000Z,udp,17,10.0.0.1,5000,10.0.0.2,53,,1,80,66,2,900,872,,,,,,,idle,,,,,,,,,,,,,,,,,,,",
    "2023-11-14T22:13:23.250000000Z,2023-11-14T22:13:23.250000000Z,link,,02:00:00:00:00:01,,ff:ff:ff:ff:ff:ff,,2054,1,60,0,0,0,0,,,,,,,idle,,,,,,,,,,,,,,,,,,,",
    "2023-11-14T22:13:24.250000000Z,2023-11-14T22:13:24.250000000Z,udp,17,10.0.0.3,7,10.0.0.4,9,,1,1200,1186,0,0,0,,,,,,,idle,,,,,,,,,,,,,,,,,,,",
    "2023-11-14T22:23:24.250000000Z,2023-11-14T22:23:24.250000000Z,udp,17,10.0.0.3,7,10.0.0.4,9,,1,100,86,0,0,0,,,,,,,forced,,,,,,,,,,,,,,,,,,,",
];

#[test]
fn the_flows_with_the_most_bytes() {
    let directory = Scratch::new();
    let ran = run(&["meter", &conversation(&directory), "--virtual-cpus", "2", "-t", "3"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(
        lines[2..7],
        [
            "4 flows (udp 3, link 1), 0 evicted",
            "start  duration  proto  source             destination        packets  bytes  replies  reply-bytes",
            "4.000   600.000  udp    10.0.0.3:7         10.0.0.4:9               2   1300        0            0",
            "0.000     2.000  udp    10.0.0.1:5000      10.0.0.2:53              1     80        2          900",
            "3.000     0.000  link   02:00:00:00:00:01  ff:ff:ff:ff:ff:ff        1     60        0            0",
        ],
        "{ran:?}"
    );
    assert!(lines[7].is_empty() && lines[8].starts_with("cpus "), "{ran:?}");
    // On a narrow terminal, the columns shrink, so that no line wraps except the first, which
    // contains the path of the capture.
    let narrow = command(&["meter", &conversation(&directory), "--virtual-cpus", "2"]).env("COLUMNS", "80").output();
    let narrow = String::from_utf8(narrow.unwrap().stdout).unwrap();
    assert!(narrow.lines().skip(1).all(|line| line.len() <= 80), "{narrow}");
    assert!(narrow.contains(" 2.0 udp   10.0.0.1:5000     10.0.0.2:53 "), "{narrow}");
}

#[test]
fn the_report_has_them_too() {
    let directory = Scratch::new();
    let capture = conversation(&directory);
    let whole = report(&["meter", &capture, "--virtual-cpus", "2"]);
    let top = whole["traffic"]["top"].as_array().unwrap();
    let bytes = top.iter().map(|flow| flow["bytes"].as_u64().unwrap() + flow["bytes_back"].as_u64().unwrap());
    assert_eq!(bytes.collect::<Vec<_>>(), [1200, 980, 100, 60]);
    let expected = json!({ "first": "2023-11-14T22:13:23.250000000Z", "last": "2023-11-14T22:13:23.250000000Z",
        "kind": "link", "protocol": null, "source": "02:00:00:00:00:01", "source_port": null,
        "destination": "ff:ff:ff:ff:ff:ff", "destination_port": null, "ethertype": 2054, "packets": 1, "bytes": 60,
        "ip_bytes": 0, "packets_back": 0, "bytes_back": 0, "ip_bytes_back": 0, "tcp_flags": null,
        "tcp_flags_back": null, "vlan": null, "vlan_inner": null, "tunnel": null, "tunnel_id": null, "end": "idle",
        "handshake_us": null, "retransmitted": null, "retransmitted_back": null, "out_of_order": null,
        "out_of_order_back": null, "zero_windows": null, "zero_windows_back": null, "resets": null,
        "resets_back": null, "closed_by": null, "icmp_type": null, "icmp_code": null,
        "dns_query": null, "dns_type": null, "dns_rcode": null, "dns_answer": null, "tls_sni": null,
        "tls_alpn": null, "http_host": null });
    assert_eq!(top[3], expected);
    let counts = ["total", "evicted", "lost"].map(|key| whole["app"]["flows"][key].as_u64().unwrap());
    assert_eq!(counts, [4, 0, 0]);
    assert_eq!(sum(&whole["handled_bytes"]), 2340);

    let one = report(&["meter", &capture, "--virtual-cpus", "1", "--max-flows", "1", "-t", "0"]);
    assert_eq!(one["app"]["flows"], json!({ "active": 0, "total": 4, "evicted": 2, "lost": 0, "outputs": [] }));
    // With timeouts of more than ten minutes, the repeated request belongs to the flow of the
    // original request.
    let patient = report(&["meter", &capture, "--virtual-cpus", "1", "--inactive", "20m", "--active", "1h"]);
    assert_eq!(patient["app"]["flows"]["total"], 3);
    // The flow with the repeated request lasts from 22:13:24 to 22:23:24, and is cut at 22:15.
    let total = |more: &[&str]| {
        let args = ["meter", &capture, "--virtual-cpus", "1", "--inactive", "20m", "--active", "15m"];
        report(&[&args[..], more].concat())["app"]["flows"]["total"].as_u64().unwrap()
    };
    assert_eq!((total(&[]), total(&["--active-clock"])), (3, 4));
}

#[test]
fn all_flows_in_a_file() {
    let directory = Scratch::new();
    let capture = conversation(&directory);
    let [csv, jsonl] = ["flows.csv", "flows.jsonl"].map(|name| directory.join(name).to_str().unwrap().to_owned());
    report(&["meter", &capture, "--virtual-cpus", "1", "--flows", &csv]);
    report(&["meter", &capture, "--virtual-cpus", "4", "--flows", &jsonl]);
    assert_eq!(names(&directory), ["flows.csv", "flows.jsonl"]);

    let csv = read(&directory, "flows.csv");
    let mut rows: Vec<&str> = csv.lines().collect();
    assert_eq!(rows.remove(0), HEADER);
    rows.sort_unstable();
    assert_eq!(rows, ROWS);
    // The JSON keys are the CSV's columns. The flows in the JSON file may have another order than
    // in the CSV file.
    let text = read(&directory, "flows.jsonl");
    let mut objects = objects(&text);
    objects.sort_by_key(|object| object["first"].as_str().unwrap().to_owned());
    for (object, row) in objects.iter().zip(ROWS) {
        let values = HEADER.split(',').map(|column| match &object[column] {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            number => number.to_string(),
        });
        assert_eq!(values.collect::<Vec<_>>().join(","), row);
    }
    assert!(text.starts_with("{\"first\":"), "{text}");
}

#[test]
fn a_file_without_flows_has_its_header() {
    let directory = Scratch::new();
    let capture = capture(&directory, &[]);
    report(&["meter", &capture, "--flows", directory.join("flows.csv").to_str().unwrap(), "--virtual-cpus", "1"]);
    assert_eq!(read(&directory, "flows.csv"), format!("{HEADER}\n"));
}

#[test]
fn standard_output_is_for_the_flows_alone() {
    let directory = Scratch::new();
    let capture = conversation(&directory);
    let meter = ["meter", &capture, "--virtual-cpus", "1", "--flows", "-"];
    let ran = run(&meter);
    assert_eq!((ran.code, ran.out.lines().count(), ran.out.lines().next()), (Some(0), 5, Some(HEADER)), "{ran:?}");
    assert!(ran.err.contains("4 flows (udp 3, link 1), 0 evicted"), "{ran:?}");

    let quiet = run(&[&meter[..], &["--json", "-q"]].concat());
    assert_eq!((quiet.code, quiet.err.as_str(), objects(&quiet.out).len()), (Some(0), "", 4), "{quiet:?}");
    let beside = run(&[&meter[..], &["--json"]].concat());
    assert_eq!(objects(&beside.err)[0]["app"]["flows"]["total"], 4);
}

#[test]
fn a_file_for_each_period_of_the_capture() {
    let directory = Scratch::new();
    let capture = conversation(&directory);
    let pattern = directory.join("%Y-%m-%d/flows-%H%M.csv").to_str().unwrap().to_owned();
    report(&["meter", &capture, "--virtual-cpus", "1", "--flows", &pattern, "--rotate", "5m"]);
    let day = directory.join("2023-11-14");
    assert_eq!(names(&directory), ["2023-11-14"]);
    assert_eq!(names(&day), ["flows-2210.csv", "flows-2220.csv"]);
    assert_eq!(["flows-2210.csv", "flows-2220.csv"].map(|name| read(&day, name).lines().count()), [4, 2]);

    let frames: Vec<_> = (0..10).map(|minute| (60 * minute, udp((minute as u8, 1), (200, 2), 100))).collect();
    let capture = self::capture(&directory, &frames);
    fs::remove_dir_all(day).unwrap();
    let pattern = directory.join("flows-%T.jsonl").to_str().unwrap().to_owned();
    let made =
        report(&["meter", &capture, "--virtual-cpus", "1", "--flows", &pattern, "--rotate", "2m", "--inactive", "1"]);
    // The first packet, at 22:13:20, is in the period that begins at 22:12.
    let expected = [
        "flows-22:12:00.jsonl",
        "flows-22:14:00.jsonl",
        "flows-22:16:00.jsonl",
        "flows-22:18:00.jsonl",
        "flows-22:20:00.jsonl",
        "flows-22:22:00.jsonl",
    ];
    assert_eq!(names(&directory), expected);
    let flows: Vec<usize> = expected.iter().map(|name| objects(&read(&directory, name)).len()).collect();
    assert_eq!((flows, &made["app"]["flows"]["total"]), (vec![1, 2, 2, 2, 2, 1], &json!(10)));
}

#[test]
fn periods_of_the_same_name_are_an_error() {
    let directory = Scratch::new();
    let frames: Vec<_> = (0..3).map(|day| (86_400 * day, udp((day as u8, 1), (200, 2), 100))).collect();
    let capture = capture(&directory, &frames);
    let pattern = directory.join("%H%M.csv").to_str().unwrap().to_owned();
    let ran = run(&["meter", &capture, "--virtual-cpus", "1", "--flows", &pattern, "--rotate", "1h", "--json"]);
    assert_eq!((ran.code, &ran.report()["ended_by"]), (Some(1), &json!("error")), "{ran:?}");
    assert!(ran.complaint().contains("%Y%m%d-%H%M"), "{ran:?}");
}

#[test]
fn what_cannot_be_written_ends_the_run() {
    let directory = Scratch::new();
    let capture = conversation(&directory);
    fs::write(directory.join("file"), "").unwrap();
    for name in ["file/flows.csv", "file/%H%M.csv", "file/%H/%M.csv"] {
        let flows = directory.join(name).to_str().unwrap().to_owned();
        let ran = run(&["meter", &capture, "--virtual-cpus", "1", "--flows", &flows]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{ran:?}");
        assert!(ran.complaint().contains("cannot write flows to") && ran.err.contains("file"), "{ran:?}");
    }
    // The run has endless input, and writes flows to a full disk.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let args = ["meter", "synthetic:flows=100000", "--seconds", "0", "--max-flows", "1000", "--virtual-cpus", "2"];
    let ran = command(&[&args[..], &["--flows", "-", "-q"]].concat()).stdout(Stdio::from(full)).output().unwrap();
    let err = String::from_utf8(ran.stderr).unwrap();
    assert_eq!((ran.status.code(), err.lines().count()), (Some(1), 1), "{err}");
    assert!(err.starts_with("steerage: cannot write flows to standard output: No space left on device"), "{err}");
}

#[test]
fn who_reads_no_more_has_seen_enough() {
    let args = ["meter", "synthetic:flows=100000", "--seconds", "0", "--max-flows", "1000", "--virtual-cpus", "1"];
    let run = Started::new(&[&args[..], &["--flows", "-", "-q"]].concat());
    let ran = run.close_out().end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

/// When the user stops the run, the program waits for the reader of its output only for a limited
/// time.
#[test]
fn a_reader_that_stalls_does_not_hold_up_a_stop() {
    // Synthetic traffic without a rate can pause, so the CPUs wait until flow records are written.
    // Traffic with a rate cannot pause.
    for device in ["synthetic:flows=100000", "synthetic:flows=100000,rate=1000000"] {
        let args = ["meter", device, "--seconds", "0", "--max-flows", "5000", "--virtual-cpus", "2"];
        let mut run = Started::new(&[&args[..], &["--flows", "-", "--json"]].concat());
        // After the first 5000 lines, there are more flow records than fit into the pipe.
        (0..5000).for_each(|_| assert!(run.line().starts_with('{')));
        run.signal(Signal::SIGINT);
        // The program prints the report first, and then the reason for the exit code.
        let report: Value = serde_json::from_str(&run.error_line()).unwrap();
        assert_eq!(report["ended_by"], "error", "{device}");
        let why = run.error_line();
        assert!(why.starts_with("steerage: cannot write flows to standard output: its reader stopped reading, and "));
        assert_eq!(run.end_unread(), Some(1), "{device}");
    }
}

/// After the end of its input, a run waits for the reader of its output, such as a pager, until the
/// user stops the run.
#[test]
fn a_reader_may_take_its_time() {
    let args = ["meter", "synthetic:packets=400000,flows=10000", "--virtual-cpus", "2", "--flows", "-", "--json", "-q"];
    let mut run = Started::new(&args);
    assert!(run.line().starts_with('{'));
    run.signal(Signal::SIGINT);
    let why = run.error_line();
    assert!(why.starts_with("steerage: cannot write flows to standard output: its reader stopped reading"), "{why}");
    assert_eq!(run.end_unread(), Some(1));

    let mut patient = Started::new(&args);
    // The pipe has room for only a few hundred lines.
    let lines = std::iter::from_fn(|| Some(patient.line()).filter(|line| !line.is_empty())).count();
    assert_eq!((lines, patient.end().code), (10_000, Some(0)));
}

#[test]
fn a_run_that_is_stopped_completes_its_file() {
    let directory = Scratch::new();
    let flows = directory.join("flows.jsonl").to_str().unwrap().to_owned();
    let args = ["meter", "synthetic:flows=50,rate=100000", "--seconds", "0", "--virtual-cpus", "2", "--json"];
    let mut run = Started::new(&[&args[..], &["--flows", &flows]].concat());
    run.signal(Signal::SIGUSR1);
    let before: Value = serde_json::from_str(&run.line()).unwrap();
    // A report during the run may contain active flows. Only the last report lists the largest of
    // all flows.
    assert!(before["traffic"]["top"].as_array().is_none_or(|top| top.iter().all(|flow| flow["end"] == "active")));
    run.signal(Signal::SIGINT);
    let ran = run.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let report: Value = serde_json::from_str(ran.out.lines().last().unwrap()).unwrap();
    let objects = objects(&read(&directory, "flows.jsonl"));
    let packets: u64 = objects.iter().map(|flow| flow["packets"].as_u64().unwrap()).sum();
    assert_eq!(
        (Some(packets), Some(objects.len() as u64)),
        (report["snapshot"]["delivered"].as_u64(), report["app"]["flows"]["total"].as_u64())
    );
}

#[test]
fn a_wrong_command_line_is_2() {
    for args in [
        "--flows flows.txt",
        "--flows flows",
        "--flows flows-%Q.csv",
        "--flows flows.csv --rotate 5m",
        "--flows - --rotate 5m",
        "--flows %F.csv --rotate 10ms",
        "--rotate 5m",
        "--active 0",
        "--inactive soon",
        "--max-flows 0",
        "--max-flows 16777217",
        "-t -1",
        "--sample 100",
        "--sample 1:0",
        "-t 10001",
    ] {
        let ran = run(&[&["meter", "synthetic:packets=1"], &args.split(' ').collect::<Vec<_>>()[..]].concat());
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{args}: {ran:?}");
        ran.complaint();
    }
    let ran = run(&["meter", "--flows", "flows.txt"]);
    let expected = "steerage: --flows flows.txt: write a name that ends in .csv, .jsonl, .ipfix or .parquet, or - for standard output";
    assert_eq!(ran.complaint(), expected);
}

/// A sample contains all packets of a flow or none, whichever CPU counts the flow. The IPFIX
/// records contain the sampling rate.
#[test]
fn a_sample_of_flows_is_of_whole_flows() {
    let directory = Scratch::new();
    let [csv, ipfix] = ["flows.csv", "flows.ipfix"].map(|name| directory.join(name).to_str().unwrap().to_owned());
    let device = "synthetic:packets=200000,flows=5000";
    let all = report(&["meter", device, "--virtual-cpus", "3", "--flows", &csv]);
    let rows = |text: String| -> std::collections::BTreeSet<String> {
        // The times in records differ between runs.
        text.lines().skip(1).map(|row| row.splitn(3, ',').nth(2).unwrap().to_owned()).collect()
    };
    let every = rows(read(&directory, "flows.csv"));
    let args = ["meter", device, "--virtual-cpus", "3", "--flows", &csv, "--export", &ipfix, "--sample", "1:10"];
    let sample = report(&args);
    let some = rows(read(&directory, "flows.csv"));
    assert_eq!((&all["app"]["flows"]["sample"], &sample["app"]["flows"]["sample"]), (&Value::Null, &json!(10)));
    assert_eq!(every.len() as u64, all["app"]["flows"]["total"].as_u64().unwrap());
    // A sample of 1 of 10 from 5000 flows has a mean of 500 and a standard deviation of 21.
    assert!((350..650).contains(&some.len()) && some.len() as u64 == sample["app"]["flows"]["total"], "{}", some.len());
    assert!(some.is_subset(&every));
    assert_eq!(sample["snapshot"]["delivered"], 200_000);
    let fields = ["cflow.sampling_size", "cflow.sampling_population", "cflow.flow_selector_algorithm"];
    let Some(messages) = tshark::tshark(Path::new(&ipfix), &fields) else { return };
    assert!(messages.contains(&["1", "10", "6"].map(str::to_owned).to_vec()), "{messages:?}");
}

/// The expected counts are from `tshark -T fields -e frame.len -e ip.src ...`, with later fragments
/// in the flow of their first fragment.
#[test]
fn afs_in_a_page() {
    let Some(afs) = tshark::capture("afs.pcap") else { return };
    for cpus in ["1", "2", "4"] {
        let ran = run(&["meter", afs.to_str().unwrap(), "--virtual-cpus", cpus, "-t", "1", "--inactive", "1h"]);
        let lines: Vec<&str> = ran.out.lines().collect();
        assert_eq!(
            lines[2..5],
            [
                "18 flows (udp 14, icmp 4), 0 evicted",
                " start  duration  proto  source              destination         packets  bytes  replies  reply-bytes",
                "32.127    65.749  udp    131.151.32.21:7001  131.151.1.146:7000       41   4223      208       291112",
            ],
            "{ran:?}"
        );
    }
}

/// `.ci/parquet` checks the values in Parquet files.
#[test]
fn parquet_is_in_every_build() {
    let scratch = Scratch::new();
    for option in ["--flows", "--export"] {
        let file = scratch.join("flows.parquet");
        let ran =
            run(&["meter", "synthetic:packets=10,flows=1", option, file.to_str().unwrap(), "--virtual-cpus", "1"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let bytes = fs::read(&file).unwrap();
        assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1") && bytes.len() > 1000, "{bytes:?}");
        fs::remove_file(&file).unwrap();
    }
}

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/demo.pcapng");

/// Several flow records may belong to one flow.
#[test]
fn the_records_of_a_flow_are_one_line() {
    let table = |args: &[&str]| {
        let ran = run(&[&["meter", DEMO, "--virtual-cpus", "1", "-t", "40"], args].concat());
        let lines = ran.out.lines().skip(3).take_while(|line| !line.is_empty());
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let (whole, cut) = (table(&[]), table(&["--active", "1"]));
    assert!(whole.len() == 41 && whole == cut, "{whole:#?}\n{cut:#?}");
    let hosts = table(&["--by", "host", "--active", "1"]);
    assert!(hosts[0].starts_with("host ") && hosts[0].ends_with("rate  of bytes"), "{hosts:#?}");
    assert!(hosts[1].starts_with("10.20.0.45 ") && hosts[1].ends_with("  56.6 %"), "{hosts:#?}");
}

#[test]
fn flow_files_are_read_again() {
    let scratch = Scratch::new();
    let whole = run(&["meter", DEMO, "--virtual-cpus", "1", "-t", "3"]);
    let whole: Vec<&str> = whole.out.lines().skip(4).take(3).map(|line| line.split("  vlan").next().unwrap()).collect();
    for name in ["flows.csv", "flows.jsonl"] {
        let file = scratch.join(name);
        let file = file.to_str().unwrap();
        run(&["meter", DEMO, "-q", "--names", "--active", "1", "--flows", file]);
        let again = run(&["meter", file, "-t", "3"]);
        let lines: Vec<&str> = again.out.lines().collect();
        assert!(lines[0].ends_with("  1,000 packets  479,907 bytes  4.2 s (918.4 kbit/s)"), "{again:?}");
        assert_eq!(lines[3..6], whole, "{again:?}");
        assert_eq!(lines[6], "... and 89 more (-t)");
        for by in ["host", "port", "net", "name"] {
            let again = run(&["meter", file, file, "--by", by, "--json", "-t", "1000"]);
            let sums: Value = serde_json::from_str(&again.out).unwrap_or_else(|error| panic!("{error}: {again:?}"));
            let groups = sums["groups"].as_array().unwrap();
            let bytes: u64 = groups
                .iter()
                .map(|group| group["bytes"].as_u64().unwrap() + group["bytes_back"].as_u64().unwrap())
                .sum();
            // The list of hosts counts each flow twice, once for each of its two hosts.
            let times = match by {
                "host" => 2..=2,
                "net" => 1..=2,
                _ => 1..=1,
            };
            let of_both = 2 * 479_907_u64;
            assert!(times.contains(&(bytes / of_both)) && sums["bytes"] == of_both, "{by}: {bytes} {sums}");
            assert_eq!(
                (sums["packets"].as_u64(), sums["count"].as_u64()),
                (Some(2000), Some(groups.len() as u64)),
                "{by}"
            );
        }
    }
    let bad = scratch.join("bad.csv");
    fs::write(&bad, "a,b\n1,2\n").unwrap();
    for (file, why) in [
        (bad.to_str().unwrap(), "line 2 is no flow of steerage meter"),
        ("no-such.jsonl", "No such file"),
        ("f.ipfix", ""),
    ] {
        let ran = run(&["meter", file]);
        assert!(ran.code == Some(1) && ran.complaint().contains(why), "{ran:?}");
    }
}
