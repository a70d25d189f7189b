//! Tests `--export` with real collectors: nfcapd of nfdump, and nfacctd of pmacct. The collectors
//! must store the same sums as steerage's CSV file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use steerage_fixtures::namespaces::free_port;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{HANG, skip, tshark, until};

use crate::program::{Ends, report};

/// Captures with fragments, ICMP, TCP, IPv6, tunnels, and VLAN tags.
const CAPTURES: [&str; 7] = [
    "afs.pcap",
    "dns_tcp.pcap",
    "quic_handshake.pcap",
    "vxlan.pcap",
    "mpls-traceroute.pcap",
    "various_gre.pcap",
    "802.1ad_QinQ.pcap",
];

/// The packets and octets of each flow direction. The key is the source address and port, the
/// destination address and port, and the protocol.
pub(crate) type Directions = BTreeMap<(String, String, String, String, String), (u64, u64)>;

/// Reads the IP flows of steerage's CSV file. ICMP flows have no ports, because collectors show the
/// ICMP type in place of the ports.
fn directions(csv: &Path) -> Directions {
    let mut all = Directions::new();
    let text = fs::read_to_string(csv).unwrap();
    for row in text.lines().skip(1) {
        let row: Vec<&str> = row.split(',').collect();
        if row[3].is_empty() {
            continue;
        }
        let ports = if matches!(row[3], "1" | "58") { ["0", "0"] } else { [row[5], row[7]] };
        for (key, packets, octets) in [
            ([row[4], ports[0], row[6], ports[1]], row[9], row[11]),
            ([row[6], ports[1], row[4], ports[0]], row[12], row[14]),
        ] {
            add(&mut all, key, row[3], packets.parse().unwrap(), octets.parse().unwrap());
        }
    }
    all
}

fn add(all: &mut Directions, key: [&str; 4], protocol: &str, packets: u64, octets: u64) {
    if packets > 0 {
        let [source, source_port, destination, destination_port] = key.map(str::to_owned);
        let key = (source, source_port, destination, destination_port, protocol.to_owned());
        let sums = all.entry(key).or_default();
        (sums.0, sums.1) = (sums.0 + packets, sums.1 + octets);
    }
}

/// Returns the bytes in the receive buffer of a UDP port, or `None` if no process listens on the
/// port.
fn waiting(port: u16) -> Option<u64> {
    let sockets = fs::read_to_string("/proc/net/udp").unwrap();
    let address = format!("0100007F:{port:04X}");
    let socket =
        sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find(|socket| socket[1] == address)?;
    let (_, received) = socket[4].split_once(':')?;
    u64::from_str_radix(received, 16).ok()
}

/// Exports the flows of a capture to a collector, which is ready when its log contains `ready`.
/// Waits until the collector has read all flows, and returns the collector with the report of the
/// run.
pub(crate) fn collect(
    collector: &mut Command,
    port: u16,
    log: &Path,
    ready: &str,
    args: &[&str],
) -> Option<(Ends, Value)> {
    let name = collector.get_program().to_string_lossy().into_owned();
    let path = log;
    let log = File::create(log).unwrap();
    let started = collector.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn();
    let Ok(child) = started else {
        skip(&format!("{name} is absent: install the packages nfdump and pmacct"));
        return None;
    };
    let child = Ends(child);
    let says = || fs::read_to_string(path).is_ok_and(|text| text.contains(ready));
    until("the collector listens", || waiting(port).is_some() && says());
    let report = report(args);
    for output in report["app"]["flows"]["outputs"].as_array().unwrap() {
        assert_eq!((&output["written"], &output["lost"]), (&report["app"]["flows"]["total"], &0.into()), "{output}");
    }
    until("the collector reads", || waiting(port) == Some(0));
    Some((child, report))
}

pub(crate) fn end(child: &mut Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
    until("the collector ends", || child.try_wait().unwrap().is_some());
}

/// nfcapd stores both directions of a flow in one record.
#[test]
fn nfcapd_counts_what_the_csv_counts() {
    for name in CAPTURES {
        let Some(capture) = tshark::capture(name) else { return };
        let (directory, port) = (Scratch::new(), free_port());
        let (csv, collected) = (directory.join("flows.csv"), directory.join("collected"));
        fs::create_dir(&collected).unwrap();
        let to = format!("ipfix://127.0.0.1:{port}");
        let mut nfcapd = Command::new("nfcapd");
        nfcapd.args(["-b", "127.0.0.1", "-p", &port.to_string(), "-t", "3600", "-w"]).arg(&collected);
        let args = ["meter", capture.to_str().unwrap(), "--virtual-cpus", "2"];
        let args = [&args[..], &["--flows", csv.to_str().unwrap(), "--export", &to]].concat();
        let log = directory.join("log");
        let Some((mut nfcapd, _)) = collect(&mut nfcapd, port, &log, "Startup nfcapd", &args) else { return };
        end(&mut nfcapd, Signal::SIGTERM);
        let shown = Command::new("nfdump")
            .args(["-q", "-N", "-6", "-o", "fmt:%sa,%sp,%da,%dp,%pr,%ipkt,%ibyt,%opkt,%obyt", "-R"])
            .arg(&collected)
            .output()
            .unwrap();
        let mut found = Directions::new();
        for line in String::from_utf8(shown.stdout).unwrap().lines() {
            let row: Vec<&str> = line.split(',').map(str::trim).collect();
            let &[source, source_port, destination, destination_port, protocol, ..] = &row[..] else {
                panic!("{line}");
            };
            // nfdump prints frames without an IP header with the source address 0.0.0.0.
            if source == "0.0.0.0" {
                continue;
            }
            let ports = if matches!(protocol, "1" | "58") { ["0", "0"] } else { [source_port, destination_port] };
            let number = |nth: usize| row[nth].parse::<u64>().unwrap_or_else(|error| panic!("{error}: {line}"));
            add(&mut found, [source, ports[0], destination, ports[1]], protocol, number(5), number(6));
            add(&mut found, [destination, ports[1], source, ports[0]], protocol, number(7), number(8));
        }
        assert_eq!(found, directions(&csv), "{name}");
    }
}

/// nfacctd gets a record for each direction of a flow.
#[test]
fn nfacctd_counts_what_the_csv_counts() {
    for name in ["afs.pcap", "vxlan.pcap"] {
        let Some(capture) = tshark::capture(name) else { return };
        let (directory, port) = (Scratch::new(), free_port());
        let [csv, printed] = ["flows.csv", "printed.csv"].map(|name| directory.join(name));
        let mut nfacctd = nfacctd(&directory, port, &printed);
        let to = format!("ipfix://127.0.0.1:{port}?biflow=no");
        let args = ["meter", capture.to_str().unwrap(), "--virtual-cpus", "2"];
        let args = [&args[..], &["--flows", csv.to_str().unwrap(), "--export", &to]].concat();
        let log = directory.join("log");
        let Some((mut nfacctd, _)) = collect(&mut nfacctd, port, &log, NFACCTD_IS_READY, &args) else { return };
        // nfacctd does not print records that it has read shortly before its end.
        let prints = || fs::read_to_string(&log).unwrap().matches("Purging cache - END").count();
        let before = prints();
        until("nfacctd looks for something to print", || prints() >= before + 2);
        end(&mut nfacctd, Signal::SIGINT);
        let expected = directions(&csv);
        let start = Instant::now();
        while printed_so_far(&printed) != expected && start.elapsed() < HANG {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(printed_so_far(&printed), expected, "{name}");
    }
}

/// The log line of nfacctd's printing process when it is ready.
pub(crate) const NFACCTD_IS_READY: &str = "cache entries";

/// Returns the command that starts nfacctd with its default receive buffer. nfacctd prints its
/// records each second.
pub(crate) fn nfacctd(directory: &Path, port: u16, printed: &Path) -> Command {
    let config = directory.join("nfacctd.conf");
    fs::write(
        &config,
        format!(
            "daemonize: false\nnfacctd_ip: 127.0.0.1\nnfacctd_port: {port}\nplugins: print[a]\n\
             aggregate[a]: src_host, dst_host, src_port, dst_port, proto\nprint_output[a]: csv\n\
             print_output_file[a]: {}\nprint_refresh_time[a]: 1\nprint_output_file_append[a]: true\n\
             nfacctd_time_new: true\n",
            printed.display()
        ),
    )
    .unwrap();
    let mut nfacctd = Command::new("nfacctd");
    nfacctd.arg("-f").arg(&config);
    nfacctd
}

pub(crate) fn printed_so_far(csv: &Path) -> Directions {
    let mut found = Directions::new();
    let text = fs::read_to_string(csv).unwrap_or_default();
    for line in text.lines().filter(|line| !line.starts_with("SRC_IP")) {
        let row: Vec<&str> = line.split(',').collect();
        // nfacctd may not have finished the last line of its output.
        let [source, destination, source_port, destination_port, protocol, packets, octets] = row[..] else { continue };
        let key = [source, source_port, destination, destination_port];
        let names = [("icmp", "1"), ("tcp", "6"), ("udp", "17"), ("ipv6-icmp", "58")];
        let protocol = names.iter().find(|(name, _)| *name == protocol).map_or(protocol, |(_, number)| number);
        add(&mut found, key, protocol, packets.parse().unwrap_or(0), octets.parse().unwrap_or(0));
    }
    found
}
