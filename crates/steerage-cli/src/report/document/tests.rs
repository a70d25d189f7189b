//! Tests that a report can be read again, that docs/report.md describes all of its keys, and that a
//! public report has no addresses.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use steerage::stats::{
    CostEstimate, Counters, CpuSnapshot, DropReason, Drops, Elephant, Findings, GroupSnapshot, OutputSnapshot,
    QueueError, QueueSnapshot, RegimeEstimate, Totals,
};
use steerage::{CpuId, FlowKey};

use super::*;

const PAGE: &str = include_str!("../../../../../docs/report.md");

const SOURCE: &str = "192.0.2.1:1000";

fn flow(source: &str) -> FlowKey {
    FlowKey::v4(source.parse().unwrap(), "198.51.100.2:443".parse().unwrap(), 6)
}

/// Returns a snapshot in which no count is 0 and no list is empty.
fn snapshot() -> Snapshot {
    let mut dropped = Drops::default();
    dropped.add(DropReason::BacklogFull, 3);
    let mut error = QueueError::default();
    (error.message, error.offset) = ("in: cannot read".to_owned(), Some(24));

    let mut queue = QueueSnapshot::default();
    (queue.device, queue.kind, queue.mode, queue.hash) =
        ("in".to_owned(), "capture".into(), "copy".into(), "aes".into());
    (queue.received, queue.delivered, queue.dropped) = (10, 7, dropped);
    (queue.rps_cpus, queue.reordered) = (vec![CpuId(0), CpuId(3)], Some(0));
    (queue.device_counts, queue.error) = (vec![("rx_ring_full".into(), 5)], Some(error));

    let mut cpu = CpuSnapshot::default();
    (cpu.cpu, cpu.dropped, cpu.others) = (CpuId(3), dropped, 0.25);
    (cpu.busy, cpu.in_handler) = (Duration::from_micros(1_500_001), Some(Duration::from_millis(7)));

    let mut output = OutputSnapshot::default();
    (output.device, output.kind, output.dropped) = ("out".to_owned(), "pcap".into(), dropped);
    output.error = Some("out: cannot write".to_owned());

    let mut findings = Findings::default();
    (findings.uneven, findings.apart, findings.would_move) = (Some(1.25), Some(Duration::from_nanos(58)), Some(9));
    (findings.regime, findings.reason) = ("spread".into(), "measured".into());
    findings.costs = vec![CostEstimate::new("work", 100.25, 1.5)];
    findings.regimes = vec![RegimeEstimate::new("spread", 2, 1e6, 5.0, 9e5)];
    let elephants = vec![Elephant::new(7, 0.75, Some(flow(SOURCE))), Elephant::new(8, 0.5, None)];

    let mut snapshot = Snapshot::default();
    snapshot.elapsed = Duration::from_micros(2_000_001);
    snapshot.totals = Totals::of(std::slice::from_ref(&queue));
    (snapshot.queues, snapshot.cpus, snapshot.outputs) = (vec![queue], vec![cpu], vec![output]);
    let counters = Counters::new();
    counters.add("passed", "Packets within their rate.", "packets").unwrap().on(CpuId(3)).add(6);
    snapshot.counters = counters.snapshot(&[CpuId(3)]);
    snapshot.moves.count(steerage::stats::MoveCause::Joined, 4);
    snapshot.notes = vec!["CPU 3: the handler panicked once".to_owned()];
    snapshot.groups = vec![GroupSnapshot::new("balance", vec![0], vec![CpuId(0)], elephants, findings)];
    snapshot
}

/// Returns a report that contains the counts of all commands, and no empty list.
fn document() -> Document {
    let time = Time(WallTime::from_nanos(1_700_000_000_000_000_001));
    let mut document =
        Document::new(SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_001), None, snapshot());
    document.ended_by = Some(EndedBy::Packets);
    document.app = App { flows: Some(FlowCounters::filled()), forward: Some(ForwardReport::filled()) };
    document.handled_bytes = BTreeMap::from([(0, 640), (17, 1)]);
    document.capture = Some(Recorded {
        links: vec!["ethernet".to_owned()],
        first: Some(time),
        last: Some(time),
        recorded_seconds: Some(0.5),
        bytes_total: Some(100),
        ..Recorded::default()
    });
    document.sandbox = Some(Sandbox { seccomp: true, landlock: "full".into() });
    document
}

fn report(audience: Audience) -> Value {
    let document = document();
    let traffic = Traffic { top: None, elephants: ElephantFlow::of_all(&document.snapshot) };
    serde_json::from_str(&document.line(&traffic, audience).unwrap()).unwrap()
}

/// Collects the paths of all values, objects and arrays in a report, such as
/// `snapshot.queues[].device`.
fn paths(value: &Value, path: &str, all: &mut BTreeSet<String>, free: &BTreeSet<String>) {
    if !path.is_empty() && !path.ends_with("[]") {
        all.insert(path.to_owned());
    }
    match value {
        // The keys of the objects in `free` are names, such as drop reasons, devices or CPUs.
        Value::Object(of) if free.contains(path) => assert!(of.values().all(Value::is_u64), "{path}: {value}"),
        Value::Object(of) => of.iter().for_each(|(key, value)| {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            paths(value, &path, all, free);
        }),
        Value::Array(of) => of.iter().for_each(|value| match value {
            Value::Object(_) => paths(value, &format!("{path}[]"), all, free),
            _ => assert!(value.is_u64() || value.is_string(), "{path}: {value}"),
        }),
        _ => {}
    }
}

/// Returns the paths that docs/report.md lists, and the paths of objects whose keys are names. Such
/// objects have no table.
fn documented() -> (BTreeSet<String>, BTreeSet<String>) {
    let section = PAGE.split_once("## As JSON\n").unwrap().1.split_once("\n### ").unwrap().0;
    let (mut all, mut objects, mut parent) = (BTreeSet::new(), BTreeSet::new(), String::new());
    let mut tables = BTreeSet::new();
    for line in section.lines() {
        if let Some(row) = line.strip_prefix("| `") {
            let (key, meaning) = row.split_once("` | ").unwrap();
            let path = if parent.is_empty() { key.to_owned() } else { format!("{parent}.{key}") };
            if meaning.starts_with("object") {
                objects.insert(path.clone());
            }
            assert!(all.insert(path.clone()), "{path} is described twice");
        } else if let Some(heading) = line.strip_prefix('`') {
            parent = heading.split_once('`').unwrap().0.to_owned();
            tables.insert(parent.clone());
        }
    }
    (all, objects.difference(&tables).cloned().collect())
}

#[test]
fn the_page_describes_each_key_and_no_other() {
    let (documented, free) = documented();
    let mut written = BTreeSet::new();
    paths(&report(Audience::Private), "", &mut written, &free);
    let undocumented: Vec<_> = written.difference(&documented).collect();
    let unknown: Vec<_> = documented.difference(&written).collect();
    assert_eq!((undocumented, unknown), (vec![], vec![]), "not in docs/report.md, and only there");
}

/// Every list of the filled report has an entry, so that the test of docs/report.md sees the keys
/// of entries.
#[test]
fn nothing_in_the_filled_report_is_empty() {
    fn check(value: &Value, path: &str) {
        match value {
            Value::Null => assert_eq!(path, ".traffic.top", "it is null"),
            Value::String(text) => assert!(!text.is_empty(), "{path} is empty"),
            Value::Array(of) => {
                assert!(!of.is_empty(), "{path} is empty");
                of.iter().for_each(|value| check(value, &format!("{path}[]")));
            }
            Value::Object(of) => {
                assert!(!of.is_empty(), "{path} is empty");
                of.iter().for_each(|(key, value)| check(value, &format!("{path}.{key}")));
            }
            Value::Bool(_) | Value::Number(_) => {}
        }
    }
    check(&report(Audience::Private), "");
}

#[test]
fn what_is_written_is_read_again() {
    for audience in [Audience::Private, Audience::Public] {
        let (read, traffic) = Document::read::<Value>(report(audience)).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), report(Audience::Public));
        assert_eq!(traffic.map(|traffic| traffic.elephants.len()), (audience == Audience::Private).then_some(1));
    }
}

/// `top` also reads the reports of programs that use the library steerage.
#[test]
fn the_report_of_a_library_has_the_same_keys() {
    let input = steerage::testing::input([[0; 60]; 10]);
    let builder = steerage::Builder::new().virtual_cpus(1).input(input);
    builder.counters().add("passed", "", "").unwrap().on(CpuId(0)).add(6);
    let handle = builder.build(steerage::packet::each(|_packet| {})).unwrap().handle();
    let own: Value = serde_json::from_str(&steerage_control::reports(handle)(Audience::Private)).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(keys(&own), keys(&report(Audience::Private)));
    assert_eq!(keys(&own["traffic"]), keys(&report(Audience::Private)["traffic"]));
    let (read, traffic) = Document::read::<Value>(own).unwrap();
    assert_eq!((read.snapshot.counters[0].total, read.snapshot.cpus.len()), (6, 1));
    assert!(read.started > SystemTime::UNIX_EPOCH && traffic.is_some());
}

/// Other versions of the program with this schema may write more keys or fewer.
#[test]
fn keys_may_come_and_go() {
    let mut report = report(Audience::Public);
    report["snapshot"]["queues"][0]["new"] = json!({ "count": 1 });
    report["snapshot"]["dropped"]["new_reason"] = json!(1);
    report["snapshot"]["cpus"][0].as_object_mut().unwrap().remove("busy_seconds");
    let (read, _) = Document::read::<Value>(report).unwrap();
    assert_eq!((read.snapshot.cpus[0].busy, read.snapshot.queues[0].received), (Duration::ZERO, 10));
}

/// Without a limit on lists, a malicious process could fill the memory of `top` with lists of CPUs.
#[test]
fn more_parts_than_a_run_has_are_refused() {
    let lists = ["queues", "cpus", "outputs", "counters", "groups"].map(|list| format!("/snapshot/{list}"));
    for at in lists.iter().map(String::as_str).chain(["/traffic/top"]) {
        let mut many = report(Audience::Private);
        let mut fill = |entries| {
            *many.pointer_mut(at).unwrap() = vec![json!({}); entries].into();
            Document::read::<Value>(many.clone())
        };
        fill(LIST_MAX).unwrap();
        let refused = fill(LIST_MAX + 1).unwrap_err();
        assert!(refused.contains("10001 entries") && !refused.contains('\n'), "{at}: {refused}");
    }
}

/// The addresses of an elephant (a flow that fills a CPU) are private.
#[test]
fn the_flow_of_an_elephant_is_not_for_everybody() {
    let elephants = |report: &Value| report["snapshot"]["groups"][0]["elephants"].clone();
    let (private, public) = (report(Audience::Private), report(Audience::Public));
    assert_eq!(private["traffic"]["elephants"], json!([{ "group": 0, "bucket": 7, "flow": flow(SOURCE).to_string() }]));
    assert_eq!(public.get("traffic"), None);
    assert_eq!(elephants(&public), elephants(&private));
    assert_eq!(elephants(&public), json!([{ "bucket": 7, "load": 0.75 }, { "bucket": 8, "load": 0.5 }]));
    assert!(!public.to_string().contains("192.0.2.1") && private.to_string().contains("192.0.2.1"), "{public}");
}
