//! The screen of `top`, and its model with sequences of snapshots.

use std::path::Path;

use ratatui_core::backend::TestBackend;
use ratatui_core::buffer::Buffer;
use ratatui_core::style::Color;
use ratatui_core::terminal::Terminal;
use serde_json::{Value, json};
use steerage::Snapshot;

use super::keys::{Mode, SortBy, Ui};
use super::model::{Bucket, Model, Seen};
use super::screen::{self, Colours};

/// One queue receives 1000 packets per second, and two CPUs handle them alternately.
fn report(seconds: u64) -> Value {
    let cpu = |number: u64, busy: f64| {
        json!({ "cpu": number, "processed": 500 * seconds, "inline": if number == 0 { 500 * seconds } else { 0 },
            "dropped": {}, "busy_seconds": busy * seconds as f64, "backlog": 12, "wakes_received": 7 * seconds })
    };
    let snapshot = json!({
        "seconds": seconds as f64, "received": 1000 * seconds, "received_bytes": 64_000 * seconds, "delivered": 1000 * seconds, "dropped": {},
        "in_flight": 3, "reordered": 0,
        "queues": [{ "device": "eth1", "queue": 0, "cpu": 0, "hash": "aes", "received": 1000 * seconds, "dropped": {},
            "rps_cpus_list": "0-1", "pool": { "alloc_fast": 900 * seconds, "alloc_slow": 100 * seconds, "alloc_empty": 0 } }],
        "cpus": [cpu(0, 0.25), cpu(1, 0.95)],
        "outputs": [], "moves": { "buckets": 0, "slices": 0, "by_cause": {} }, "pages": 100, "pages_free": 40, "groups": [],
    });
    json!({ "schema": 2, "type": "report", "version": "0.1.0", "started": "2026-11-21T17:00:00Z", "snapshot": snapshot })
}

fn seen(report: Value) -> Seen {
    Seen::of(report).unwrap()
}

fn model() -> Model {
    let mut model = Model::default();
    (1..=2).for_each(|seconds| model.take(seen(report(seconds))));
    model.take_buckets(0, (0..4096).map(|bucket| Bucket { cpu: bucket / 2048, packets: 1 }).collect());
    model
}

fn with(mut report: Value, changes: &[(&str, Value)]) -> Value {
    for (path, value) in changes {
        *report.pointer_mut(path).unwrap_or_else(|| panic!("{path}")) = value.clone();
    }
    report
}

fn said(model: &Model) -> Vec<&str> {
    model.events.iter().rev().map(|event| event.what.as_str()).collect()
}

fn drawn(model: &Model, ui: &Ui, colours: Colours, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen::draw(frame, model, ui, colours)).unwrap();
    terminal.backend().buffer().clone()
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width);
    let text = |cells: &[ratatui_core::buffer::Cell]| cells.iter().map(|cell| cell.symbol()).collect::<String>();
    buffer.content.chunks(width).map(|cells| text(cells).trim_end().to_owned()).collect()
}

#[test]
fn rates_are_differences_over_the_instances_own_time() {
    let mut model = model();
    // The rates are correct even if a snapshot arrives late.
    model.take(seen(with(report(6), &[("/snapshot/cpus/1/processed", json!(5000))])));
    assert_eq!((model.interval().as_secs(), model.rate(Snapshot::received)), (4, 1000.0));
    let cpus = model.cpus();
    assert_eq!((cpus[0].rate, cpus[0].busy, cpus[0].own, cpus[0].wakes), (500.0, 0.25, Some(1.0), 7.0));
    assert_eq!((cpus[1].rate, cpus[1].own), (1000.0, Some(0.0)));
    assert!((cpus[1].share - 2.0 / 3.0).abs() < 1e-9 && (cpus[1].busy - 0.95).abs() < 1e-9);
    assert_eq!(model.queues()[0].cache_hits, Some(0.9));
    // No time has passed since the previous snapshot.
    model.take(seen(report(6)));
    assert_eq!((model.rate(Snapshot::received), model.cpus()[0].rate), (0.0, 0.0));
}

#[test]
fn what_came_before_the_first_look_is_a_mean() {
    let mut model = Model::default();
    model.take(seen(report(10)));
    assert_eq!((model.rate(Snapshot::received), model.cpus()[0].busy), (1000.0, 0.25));
    assert!(model.events.is_empty());
}

#[test]
fn another_run_begins_anew() {
    let mut model = model();
    model.lose("no run answers at x".to_owned());
    model.lose("no run answers at x".to_owned());
    assert_eq!(model.gone.as_deref(), Some("no run answers at x"));
    model.take(seen(with(report(1), &[("/started", json!("2026-11-21T18:00:00Z"))])));
    assert_eq!((model.gone.as_deref(), model.rate(Snapshot::received)), (None, 1000.0));
    assert_eq!(said(&model), ["the run is gone", "a run is there again"]);
    // The same run now reports lower counters than before.
    model.take(seen(with(report(3), &[("/started", json!("2026-11-21T18:00:00Z"))])));
    model.take(seen(with(report(4), &[("/started", json!("2026-11-21T18:00:00Z")), ("/snapshot/received", json!(8))])));
    assert_eq!(model.rate(Snapshot::received), 2.0);
    assert_eq!(said(&model).last(), Some(&"another run"));
}

#[test]
fn events_tell_what_changed() {
    let mut model = model();
    let drops = |seconds, packets| {
        let both = json!({ "backlog_full": packets, "device": 5 });
        let of_cpu = json!({ "backlog_full": packets });
        with(
            report(seconds),
            &[
                ("/snapshot/queues/0/dropped", both.clone()),
                ("/snapshot/dropped", both),
                ("/snapshot/cpus/1/dropped", of_cpu),
            ],
        )
    };
    model.take(seen(drops(3, 10)));
    // Only the beginning and the end of a series of drops are events.
    model.take(seen(drops(4, 20)));
    model.take(seen(drops(5, 20)));
    let moved = json!({ "mask": 1024, "cpu_died": 0 });
    let changes = [
        ("/snapshot/queues/0/rps_cpus_list", json!("")),
        ("/snapshot/moves/by_cause", moved),
        ("/snapshot/cpus/0/deaths", json!(1)),
    ];
    let mut last = drops(6, 20);
    last["snapshot"]["cpus"][0]["deaths"] = json!(0);
    model.take(seen(with(last, &changes)));
    let expected = [
        "drops began: backlog_full, CPU 1",
        "drops began: device, eth1 rx-0",
        "drops ended: device, eth1 rx-0",
        "drops ended: backlog_full, CPU 1",
        "eth1 rx-0: mask 0-1 is now none",
        "1,024 buckets moved (mask)",
        "CPU 0: declared dead",
    ];
    assert_eq!(said(&model), expected);
    assert_eq!(model.events.iter().filter(|event| event.is_bad).count(), 3);
}

/// The host of a virtual machine may move its CPUs, so the screen shows only facts that are
/// certain.
#[test]
fn cpus_that_a_host_moves_are_told() {
    let mut model = model();
    let apart = |seconds, nanos: &[u64]| {
        let groups: Vec<Value> =
            nanos.iter().map(|nanos| json!({ "policy": "balance", "findings": { "apart_ns": nanos } })).collect();
        seen(with(report(seconds), &[("/snapshot/groups", json!(groups))]))
    };
    let shown = |model: &Model| lines(&drawn(model, &Ui::default(), Colours::Yes, 80, 24))[3].clone();
    assert_eq!(shown(&model), "");
    for (seconds, nanos) in [(3, &[45][..]), (4, &[60]), (5, &[60, 210]), (6, &[60, 190]), (7, &[40, 50])] {
        model.take(apart(seconds, nanos));
    }
    assert_eq!(shown(&model), "a cache line takes 50 ns from CPU to CPU");
    let expected =
        ["CPUs were moved: a cache line takes 210 ns, not 60", "CPUs were moved: a cache line takes 50 ns, not 190"];
    assert_eq!(said(&model), expected);
    model.take(seen(with(
        report(8),
        &[("/snapshot/groups", json!([{ "policy": "hash", "findings": { "apart_ns": null } }]))],
    )));
    assert_eq!((shown(&model), said(&model).len()), (String::new(), 2));
}

/// docs/top.md shows this screen.
#[test]
fn a_screen_of_80_by_24() {
    let screen = lines(&drawn(&model(), &Ui::default(), Colours::Yes, 80, 24));
    let expected = [
        "steerage 0.1.0  up 2.0 s  eth1",
        "received 1.0 kpps  dropped 0 pps (0.0 %)  delivered 1.0 kpps  512.0 kbit/s",
        "in flight 3  reordered 0  moved 0 buckets  pages free 40 of 100",
        "",
        "[CPU]       rate  share  busy                own   backlog  wakes/s   drops/s",
    ];
    assert_eq!(&screen[..5], expected, "{screen:#?}");
    assert!(screen[5].starts_with("    0    500 pps   50 %  [##......]  25 %"), "{screen:#?}");
    assert!(screen[6].contains("[########]  95 %    0 %        12        7         0"), "{screen:#?}");
    assert_eq!(screen[23], "q quit  s sort  up/down queue  m mask  PgUp/PgDn CPUs  h help");
    let strip = screen.iter().position(|line| *line == format!("  {}{}", "0".repeat(32), "1".repeat(32)));
    assert!(strip.is_some(), "{screen:#?}");
    assert!(
        screen.iter().any(|line| line.starts_with("> eth1 rx-0") && line.ends_with("90 %  0-1 by aes")),
        "{screen:#?}"
    );
}

#[test]
fn no_size_is_too_small() {
    let mut many = report(1);
    many["snapshot"]["cpus"] =
        (0..128).map(|cpu| with(report(1)["snapshot"]["cpus"][0].clone(), &[("/cpu", json!(cpu))])).collect();
    many["snapshot"]["queues"] =
        (0..40).map(|queue| with(report(1)["snapshot"]["queues"][0].clone(), &[("/queue", json!(queue))])).collect();
    let mut crowded = Model::default();
    crowded.take(seen(many));
    crowded.take_buckets(0, vec![Bucket { cpu: 127, packets: 0 }; 4096]);
    let modes = [Mode::Watch, Mode::Help, Mode::Mask("0-3".to_owned())];
    for model in [&Model::default(), &model(), &crowded] {
        for mode in &modes {
            let ui = Ui { mode: mode.clone(), queue: 39, first_cpu: 127, sort: SortBy::Busy, ..Ui::default() };
            for (width, height) in [(0, 0), (1, 1), (2, 1), (1, 40), (3, 3), (10, 5), (80, 24), (120, 40), (300, 100)] {
                drawn(model, &ui, Colours::Yes, width, height);
            }
        }
    }
    // The screen shows some CPUs and queues, and says how many more there are.
    let screen = lines(&drawn(&crowded, &Ui::default(), Colours::No, 80, 24));
    assert_eq!(screen.iter().filter(|line| line.trim_start().ends_with(" more")).count(), 2, "{screen:#?}");
    assert!(screen.iter().any(|line| line.starts_with("  buckets of")), "{screen:#?}");
}

/// The second flow has `packets` packets of 100 bytes each.
fn with_flows(seconds: u64, packets: u64) -> Value {
    let flow = |kind: &str, port: u16, last: &str, packets: u64| {
        json!({ "first": "2026-11-21T17:00:00.5Z", "last": format!("2026-11-21T17:00:{last}Z"), "kind": kind,
            "source": "10.0.0.1", "source_port": port, "destination": "fd00::1", "destination_port": 80,
            "packets": packets, "bytes": 100 * packets, "packets_back": 0, "bytes_back": 0 })
    };
    let mut report = report(seconds);
    report["app"] = json!({ "flows": { "active": 2, "total": 3, "evicted": 0, "lost": 0 } });
    report["traffic"] = json!({ "top": [flow("icmp", 7, "09.5", 5000), flow("udp", 5, "01.5", packets)] });
    report
}

#[test]
fn the_rate_of_a_flow_is_that_since_its_counts_changed() {
    let mut model = Model::default();
    let mut rate = |seconds, packets| {
        model.take(seen(with_flows(seconds, packets)));
        model.flows[1].rates
    };
    // The rates of a new flow are averages since its first packet, over at least one second.
    assert_eq!(rate(10, 20), [2000.0, 20.0]);
    assert_eq!(rate(12, 80), [3000.0, 30.0]);
    // A meter may publish new counts more rarely than `top` reads reports. Without new counts, the
    // rate stays the same for some time, and is then 0.
    assert_eq!(rate(13, 80), [3000.0, 30.0]);
    assert_eq!(rate(14, 140), [3000.0, 30.0]);
    assert_eq!([rate(17, 140), rate(18, 140)], [[3000.0, 30.0], [0.0, 0.0]]);
    // The rates of the previous run are discarded.
    assert_eq!(rate(1, 30), [3000.0, 30.0]);
}

#[test]
fn flows_are_sorted_by_keys() {
    let mut model = Model::default();
    [(1, 20), (2, 9020)].into_iter().for_each(|(seconds, packets)| model.take(seen(with_flows(seconds, packets))));
    let mut ui = Ui { flows_first: true, ..Ui::default() };
    let first = |ui: &Ui| screen::lines(&model, ui, 80, Some(24))[7].clone();
    assert_eq!(screen::lines(&model, &ui, 80, None)[5], "  2 active  3 so far  0 evicted  0 not written");
    let udp = "  7.2 Mbit/s 9000 udp   10.0.0.1:5 [fd00::1]:80    9020 902000   1.0";
    let words = |line: String| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
    assert_eq!(words(first(&ui)), words(udp.to_owned()));
    for (key, shown) in [('d', "icmp 10.0.0.1 fd00::1 "), ('p', " udp "), ('d', " icmp "), ('b', " udp ")] {
        assert!(ui.sorts(key) && words(first(&ui)).contains(shown), "{key}: {}", first(&ui));
    }
    assert!(!ui.sorts('x'));
    let columns = screen::lines(&model, &ui, 80, None).iter().position(|line| line.starts_with("[CPU]")).unwrap();
    ui.flows_first = false;
    assert!(screen::lines(&model, &ui, 80, None)[4].starts_with("[CPU]") && columns > 4);
}

#[test]
fn the_width_is_used() {
    const DEVICE: &str = "synthetic:rate=100000,flows=5000,zipf=1.1";
    const FAR: [&str; 2] = ["2001:db8:1111:2222:3333:4444:5555:6666", "2001:db8:1111:2222:3333:4444:5555:7777"];
    let mut model = Model::default();
    for seconds in [10, 12] {
        let mut report = with_flows(seconds, 10_000 * seconds);
        let snapshot = &mut report["snapshot"];
        let cpu = snapshot["cpus"][1].clone();
        snapshot["cpus"] = (0..20).map(|number| with(cpu.clone(), &[("/cpu", json!(number))])).collect();
        snapshot["queues"][0]["device"] = json!(DEVICE);
        let flows = &mut report["traffic"]["top"];
        let ends = [("udp", ["198.51.100.200", "203.0.113.100"]), ("tcp", FAR)];
        for (at, (kind, [source, destination])) in [1, 0].into_iter().zip(ends) {
            (flows[at]["kind"], flows[at]["source_port"]) = (json!(kind), json!(49152));
            (flows[at]["source"], flows[at]["destination"]) = (json!(source), json!(destination));
        }
        model.take(seen(report));
    }
    model.take_buckets(0, vec![Bucket { cpu: 0, packets: 1 }; 4096]);
    let ui = Ui { flows_first: true, ..Ui::default() };
    for (width, across, cells) in [(80, 1, 64), (120, 1, 64), (200, 2, 128)] {
        let all = screen::lines(&model, &ui, width.into(), None);
        assert!(all.iter().all(|line| line.chars().count() <= width.into()), "{width}: {all:#?}");
        let screen = lines(&drawn(&model, &ui, Colours::No, width, 60));
        assert_eq!(screen[..all.len()], all, "{width}");
        let has = |word: &str, line: &str| line.split_whitespace().any(|other| other == word);
        let row = |word: &str| all.iter().find(|line| has(word, line)).unwrap_or_else(|| panic!("{word}: {all:#?}"));
        let udp: Vec<&str> = row("udp").split_whitespace().collect();
        assert_eq!((udp[..2].join(" "), udp[3]), ("8.0 Mbit/s".to_owned(), "udp"), "{udp:?}");
        assert!(["10000", "10.0K"].contains(&udp[2]), "{udp:?}");
        assert_eq!(udp[4..6], ["198.51.100.200:49152", "203.0.113.100:80"], "{width}");
        let [near, far] = FAR.map(|address| row("tcp").contains(&format!("[{address}]:")));
        assert_eq!((near, far), (width >= 120, width >= 120), "{width}: {all:#?}");
        let has_durations = all.iter().any(|line| line.contains(" destination ") && line.ends_with(" seconds"));
        assert_eq!(has_durations, width == 200, "{width}: {all:#?}");
        let name = if width == 80 { "synthetic:rate.." } else { DEVICE };
        assert!(all.iter().any(|line| line.starts_with(&format!("> {name} rx-0 "))), "{width}: {all:#?}");
        let cpus = all.iter().position(|line| line.starts_with("[CPU]")).unwrap();
        let rows = &all[cpus + 1..cpus + 1 + 20 / across];
        assert!(rows.iter().all(|row| row.matches(" 95 %").count() == across), "{width}: {rows:#?}");
        assert!(all[cpus + 1 + 20 / across].is_empty(), "{width}: {all:#?}");
        assert!(all.contains(&format!("  {}", "0".repeat(cells))), "{width}: {all:#?}");
    }
    // The low and wide screen shows only some of the 20 CPUs.
    let screen = lines(&drawn(&model, &Ui::default(), Colours::No, 200, 12));
    let shown = screen.iter().filter(|line| line.contains(" 95 %")).count();
    assert!(screen.iter().any(|line| *line == format!("{:>8} more", 20 - 2 * shown)), "{shown}: {screen:#?}");
}

/// Each value that shows a problem has a sign with the meaning of its colour.
#[test]
fn it_is_readable_without_colours() {
    let mut model = model();
    let lost = json!({ "backlog_full": 500 });
    model.take(seen(with(report(3), &[("/snapshot/dropped", lost.clone()), ("/snapshot/cpus/1/dropped", lost)])));
    let plain = drawn(&model, &Ui::default(), Colours::No, 80, 24);
    let coloured = drawn(&model, &Ui::default(), Colours::Yes, 80, 24);
    assert!(plain.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    assert!(coloured.content.iter().any(|cell| cell.fg == Color::Red));
    assert_eq!(lines(&plain), lines(&coloured));
    let screen = lines(&plain);
    assert!(screen[1].contains("dropped 500 pps (50.0 %) !"), "{screen:#?}");
    assert!(screen[6].ends_with("500 !") && !screen[5].contains('!'), "{screen:#?}");
    assert!(screen.iter().any(|line| line.starts_with("! ") && line.ends_with("drops began: backlog_full, CPU 1")));
}

#[test]
fn a_name_cannot_write_to_the_terminal() {
    let mut model = Model::default();
    model.take(seen(with(report(1), &[("/snapshot/queues/0/device", json!("a\x1b[2Jb\nc"))])));
    let text = screen::lines(&model, &Ui::default(), 80, None).join("\n");
    assert!(!text.contains('\x1b') && text.contains("a\\u{1b}[2Jb\\nc"), "{text}");
}

#[test]
fn a_run_that_is_gone_is_told_of() {
    let mut model = model();
    model.lose("no run answers at /run/x.sock: gone".to_owned());
    let screen = lines(&drawn(&model, &Ui::default(), Colours::No, 80, 24));
    assert!(screen[0].contains("  GONE  ") && screen[23].ends_with("gone; q quits"), "{screen:#?}");
    let ui = Ui { mode: Mode::Mask("0-3".to_owned()), ..Ui::default() };
    let screen = lines(&drawn(&model, &ui, Colours::No, 80, 24));
    assert_eq!(screen[23], "CPUs for eth1 rx-0: 0-3_  (Enter writes, Esc leaves)");
}

#[test]
fn the_documentation_has_each_column() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/top.md");
    let page = std::fs::read_to_string(page).unwrap();
    for column in ["rate", "share", "busy", "own", "backlog", "wakes/s", "drops/s", "cache"] {
        assert!(page.contains(&format!("| `{column}` |")), "{column}");
    }
}

#[test]
fn a_cpu_that_does_not_return_and_an_output_that_is_stuck_are_seen() {
    let mut model = Model::default();
    for seconds in 1..=2 {
        let mut report = report(seconds);
        report["snapshot"]["cpus"][1]["handler_seconds"] = json!(12.3);
        report["snapshot"]["outputs"] = json!([{ "device": "pipe", "packets": 10, "bytes": 600, "held": 4321,
            "dropped": { "tx_full": 50 * seconds } }]);
        model.take(seen(report));
    }
    let lines = lines(&drawn(&model, &Ui::default(), Colours::No, 80, 40));
    assert!(lines.iter().any(|line| line == "! CPU 1 has not returned for 12 s"), "{lines:#?}");
    let pipe = lines.iter().find(|line| line.trim_start().starts_with("pipe")).expect("the output has a row");
    assert!(pipe.contains(" 4,321 ") && pipe.ends_with("50 !"), "{pipe}");
}

#[test]
fn counters_of_the_packet_function_have_rows() {
    let mut model = Model::default();
    let counter = |name: &str, total: u64| json!({ "name": name, "help": "", "unit": "packets", "total": total, "by_cpu": [total] });
    for (seconds, passed) in [(1, 1000), (3, 4000)] {
        let mut report = report(seconds);
        report["snapshot"]["counters"] = json!([counter("passed", passed), counter("a\x1b[2J", 1)]);
        model.take(seen(report));
    }
    let lines = lines(&drawn(&model, &Ui::default(), Colours::No, 80, 40));
    let passed = lines.iter().position(|line| line.starts_with("  passed ")).expect("the counter has a row");
    let words = |at: usize| lines[at].split_whitespace().collect::<Vec<_>>();
    assert_eq!(words(passed), ["passed", "1,500", "4,000", "packets"]);
    assert_eq!(words(passed - 1), ["counter", "per", "second", "total", "unit"]);
    assert_eq!(words(passed + 1), ["a\\u{1b}[2J", "0", "1", "packets"]);
}

/// The keys of an unknown schema may have other meanings, so `top` shows no numbers.
#[test]
fn another_schema_is_refused_in_a_line() {
    let refused = Seen::of(with(report(1), &[("/schema", json!(1)), ("/version", json!("0.0.9"))])).unwrap_err();
    assert!(refused.contains("steerage 0.0.9 with schema 1") && refused.contains("use the `steerage`"), "{refused}");
    assert!(!refused.contains('\n') && Seen::of(json!({})).is_err());
}
