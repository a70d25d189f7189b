//! Tests that `steerage meter --names` finds the names that tshark finds.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{skip, tshark};

use crate::program::run;

/// The names in a flow, by CSV column.
type Names = BTreeMap<&'static str, String>;

/// The names in each flow, by the endpoints of the flow.
type Flows = BTreeMap<[String; 4], Names>;

const COLUMNS: [&str; 7] = ["dns_query", "dns_type", "dns_rcode", "dns_answer", "tls_sni", "tls_alpn", "http_host"];

fn metered(capture: &Path, csv: &Path, more: &[&str]) -> Flows {
    let args = ["meter", capture.to_str().unwrap(), "-q", "--virtual-cpus", "2", "--inactive", "1d", "--active", "1d"];
    let args = [&args[..], more, &["--flows", csv.to_str().unwrap()]].concat();
    let ran = run(&args);
    // Some captures are truncated.
    assert!(matches!(ran.code, Some(0 | 1)), "{ran:?}");
    let text = fs::read_to_string(csv).unwrap();
    let mut lines = text.lines();
    let columns: Vec<&str> = lines.next().unwrap().split(',').collect();
    let mut flows = Flows::new();
    for line in lines {
        // In this CSV file, only lists of protocols are in quotes.
        let line = line.replace("\"h2,http/1.1\"", "h2;http/1.1");
        let row: Vec<&str> = line.split(',').collect();
        assert_eq!(row.len(), columns.len(), "{line}");
        let value = |name: &str| row[columns.iter().position(|column| *column == name).unwrap()].to_owned();
        let names = COLUMNS.map(|name| (name, value(name))).into_iter().filter(|(_, value)| !value.is_empty());
        let names: Names = names.collect();
        if !names.is_empty() {
            flows.insert(["source", "source_port", "destination", "destination_port"].map(value), names);
        }
    }
    flows
}

/// Returns the flows with their names, from tshark's output for each packet.
fn dissected(capture: &Path) -> Option<Flows> {
    let fields = [
        "ip.src",
        "ipv6.src",
        "ip.dst",
        "ipv6.dst",
        "udp.srcport",
        "tcp.srcport",
        "udp.dstport",
        "tcp.dstport",
        "dns.id",
        "dns.flags.response",
        "dns.flags.rcode",
        "dns.qry.name",
        "dns.qry.type",
        "dns.a",
        "dns.aaaa",
        "dns.cname",
        "tls.handshake.extensions_server_name",
        "tls.handshake.extensions_alpn_str",
        "http.host",
        "http.request",
        "dns.count.answers",
    ];
    let (mut flows, mut queries, mut firsts) = (Flows::new(), BTreeMap::new(), BTreeMap::new());
    for row in tshark::tshark_reassembled(capture, &fields)? {
        let either = |one: usize, other: usize| if row[one].is_empty() { row[other].clone() } else { row[one].clone() };
        let ends = [[either(0, 1), either(4, 5)], [either(2, 3), either(6, 7)]];
        let [[source, source_port], [destination, destination_port]] = ends.clone();
        let back = [destination.clone(), destination_port.clone(), source.clone(), source_port.clone()];
        let key = [source, source_port, destination, destination_port];
        // The source of a flow is the sender of its first packet.
        let key = if firsts.contains_key(&back) { back } else { key };
        firsts.insert(key.clone(), ());
        let mut found = Names::new();
        if !row[8].is_empty() && (ends[0][1] == "53" || ends[1][1] == "53") {
            let is_response = matches!(row[9].as_str(), "1" | "True");
            let known: Option<String> = queries.get(&key).cloned();
            if known.is_none() {
                queries.insert(key.clone(), row[8].clone());
                found.insert("dns_query", row[11].clone());
                found.insert("dns_type", row[12].clone());
            }
            if is_response && known.is_none_or(|id| id == row[8]) {
                found.insert("dns_rcode", row[10].clone());
                // In tshark's lists of names and addresses, the additional records come after the
                // answer of a DNS message.
                let answers = [&row[15], &row[13], &row[14]].map(|list| list.replace(',', " ")).join(" ");
                let count = row[20].parse().unwrap();
                found.insert("dns_answer", answers.split_whitespace().take(count).collect::<Vec<_>>().join(" "));
            }
        }
        found.insert("tls_sni", row[16].clone());
        found.insert("tls_alpn", row[17].replace(',', ";"));
        if !row[19].is_empty() {
            found.insert("http_host", row[18].clone());
        }
        found.retain(|_, value| !value.is_empty());
        if !found.is_empty() {
            flows.entry(key).or_default().extend(found);
        }
    }
    Some(flows)
}

#[test]
fn names_are_those_of_tshark() {
    let directory = Scratch::new();
    let captures = tshark::captures();
    if captures.is_empty() {
        return;
    }
    let mut with_names = 0;
    for path in captures {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // tshark decrypts QUIC's Initial packets, but `meter` does not.
        if name.starts_with("quic") {
            continue;
        }
        let Some(expected) = dissected(&path) else { return };
        assert_eq!(metered(&path, &directory.join(format!("{name}.csv")), &["--names"]), expected, "{name}");
        with_names += expected.len();
    }
    assert!(with_names >= 4, "{with_names}");
}

#[test]
fn names_of_generated_traffic_are_those_of_tshark() {
    let directory = Scratch::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/names_traffic.py");
    for seed in ["1", "2", "3"] {
        let [capture, csv] = ["pcap", "csv"].map(|end| directory.join(format!("{seed}.{end}")));
        let Ok(python) = Command::new("python3").arg(&script).arg(seed).arg(&capture).status() else {
            return skip("python3 is absent");
        };
        assert!(python.success());
        let Some(expected) = dissected(&capture) else { return };
        let flows = metered(&capture, &csv, &["--names"]);
        for (key, names) in &expected {
            assert_eq!(flows.get(key), Some(names), "seed {seed}: {key:?}");
        }
        assert_eq!(flows.len(), expected.len());
        for name in COLUMNS {
            assert!(expected.values().filter(|names| names.contains_key(name)).count() > 20, "{name}");
        }
        assert_eq!(metered(&capture, &csv, &[]), Flows::new());
    }
}

#[test]
fn names_are_exported() {
    let directory = Scratch::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/names_traffic.py");
    let [capture, csv, ipfix] = ["names.pcap", "names.csv", "names.ipfix"].map(|name| directory.join(name));
    let Ok(python) = Command::new("python3").arg(&script).arg("4").arg(&capture).status() else {
        return skip("python3 is absent");
    };
    assert!(python.success());
    let flows = metered(&capture, &csv, &["--names", "--export", ipfix.to_str().unwrap()]);
    let fields = [
        ("dns_query", "cflow.pie.ntop.dns_query"),
        ("dns_type", "cflow.pie.ntop.dns_query_type"),
        ("dns_rcode", "cflow.pie.ntop.dns_ret_code"),
        ("dns_answer", "cflow.pie.ntop.dns_response"),
        ("tls_sni", "cflow.pie.ntop.ssl_server_name"),
        ("http_host", "cflow.pie.ntop.http_host"),
    ];
    let Some(messages) = tshark::tshark(&ipfix, &fields.map(|(_, field)| field)) else { return };
    for (nth, (name, field)) in fields.into_iter().enumerate() {
        let mut found: Vec<&str> = messages.iter().flat_map(|message| message[nth].split(',')).collect();
        let mut expected: Vec<&str> = flows.values().filter_map(|names| names.get(name)).map(String::as_str).collect();
        found.retain(|value| !value.is_empty());
        found.sort_unstable();
        expected.sort_unstable();
        assert!(expected.len() > 20, "{name}");
        assert_eq!(found, expected, "{field}");
    }
}
