//! The metrics server from a client's point of view.

use std::collections::{BTreeSet, VecDeque};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use steerage::device::{Capabilities, Completions, DeviceCounts, Opened, Polled, Region, RxQueue};
use steerage::{
    Batch, Builder, Cpu, CpuId, DeviceError, Handler, Input, Instance,
    stats::{CpuCounter, DropReason, MoveCause},
};
use steerage_control::metrics::{self, Listener, Metric, Server, Source, names};
use steerage_control::{CpuView, Options, SETTLE_MAX, Tree};
use steerage_fixtures::cable::{NEAR, Net};
use steerage_fixtures::handlers::Nothing;
use steerage_fixtures::{HANG, exposition, until};
use steerage_sim::TrafficOptions;

use crate::common::owner;

const CROWD: usize = 40;

fn traffic(name: &str, frames: u64) -> Input {
    let options = TrafficOptions {
        queues: 2,
        flows: 100,
        zipf: 0.0,
        frames,
        can_wait: true,
        chained_once_in: 0,
        gap: Duration::ZERO,
        seed: 1,
    };
    Input::new(name, "simulated", options.input().queues)
}

fn instance(inputs: Vec<Input>) -> Instance<Nothing> {
    let builder = Builder::new().virtual_cpus(3).check_order(true);
    inputs.into_iter().fold(builder, Builder::input).build(|_| Nothing).unwrap()
}

fn serve(instance: &Instance<Nothing>, more: Vec<Metric>) -> (SocketAddr, Server) {
    serve_at(Listener::bind("metrics", "127.0.0.1:0".parse().unwrap()).unwrap(), instance, more)
}

fn serve_at(listener: Listener, instance: &Instance<Nothing>, more: Vec<Metric>) -> (SocketAddr, Server) {
    let source = Source::new(instance.handle()).version("1.2.3").more(Box::new(move || more.clone()));
    (listener.address(), listener.serve(source).unwrap())
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    stream
}

fn ask(stream: &mut TcpStream, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(address: SocketAddr) -> String {
    let answer = ask(&mut connect(address), "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    body.to_owned()
}

#[test]
fn the_page_is_the_ledger() {
    const FRAMES: u64 = 10_000;
    // One device's name has every character that must be escaped. The first and the last device
    // have the same name.
    let odd = "a\"b\\c\nd";
    let instance = instance(vec![traffic("traffic", FRAMES), traffic(odd, FRAMES), traffic("traffic", FRAMES)]);
    let (address, server) = serve(
        &instance,
        vec![
            Metric::gauge("apples", "On the tree.", 3),
            Metric::counter("apples_eaten", "By anybody.", 2),
            Metric::counters("apples_fallen", "To the ground.", "side", [("north", 1), ("south", 4)]),
        ],
    );
    let running = instance.start().unwrap();
    let handle = running.handle();
    exposition::read(&get(address));
    handle.set_rps_cpus(&[CpuId(1)].into_iter().collect()).unwrap();
    let ledger = running.join().snapshot;
    let text = get(address);
    drop(server);
    exposition::check_with_promtool(&text);
    let page = exposition::read(&text);

    assert_eq!(page.get("steerage_build_info{version=\"1.2.3\"}"), 1.0);
    for device in ["traffic", "traffic.2", "a\\\"b\\\\c\\nd"] {
        for queue in 0..2 {
            let series = format!("steerage_received_packets_total{{device=\"{device}\",queue=\"{queue}\"}}");
            assert_eq!(page.get(&series), FRAMES as f64);
        }
    }
    assert_eq!(page.sum("steerage_received_bytes_total"), ledger.received_bytes() as f64);
    assert_eq!(page.sum("steerage_delivered_packets_total"), 6.0 * FRAMES as f64);
    assert_eq!(page.sum("steerage_dropped_packets_total") + page.sum("steerage_in_flight_packets"), 0.0);
    let busy: Duration = ledger.cpus.iter().map(|cpu| cpu.busy).sum();
    assert!((page.sum("steerage_cpu_busy_seconds_total") - busy.as_secs_f64()).abs() < 1e-6, "{page:#?}");
    for cpu in &ledger.cpus {
        let of = |name: &str| page.get(&format!("steerage_{name}{{cpu=\"{}\"}}", cpu.cpu));
        let counts = [
            ("cpu_processed_packets_total", cpu.processed),
            ("cpu_inline_packets_total", cpu.inline),
            ("wakeups_total", cpu.wakes_received),
            ("wakeups_for_control_total", cpu.wakes_for_control),
            ("time_squeeze_total", cpu.time_squeeze),
            ("backlog_packets", 0),
        ];
        counts.into_iter().for_each(|(name, count)| assert_eq!(of(name), count as f64, "{name}"));
    }
    let moved = format!("steerage_bucket_moves_total{{cause=\"{}\"}}", MoveCause::Mask.name());
    assert_eq!(page.get(&moved), ledger.moves.of(MoveCause::Mask) as f64);
    assert_eq!([page.get("steerage_apples"), page.get("steerage_apples_eaten_total")], [3.0, 2.0]);
    assert_eq!(page.get("steerage_apples_fallen_total{side=\"south\"}"), 4.0);

    // The page must have all metrics except the metrics that this instance or its devices do not
    // have.
    let mut served = page.families;
    let some = ["steerage_unevenness", "steerage_cpu_distance_seconds", "steerage_device_events_total"];
    let absent = |name: &String| name.starts_with("steerage_output_") || some.contains(&name.as_str());
    served.retain(|name| !absent(name) && !name.starts_with("steerage_apples"));
    served.extend(names().into_iter().filter(absent));
    let (mut served, mut known) = (served, names());
    served.sort();
    known.sort();
    assert_eq!(served, known);
}

struct Seen(CpuCounter);

impl Handler for Seen {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        self.0.add(batch.len() as u64);
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

#[test]
fn a_program_of_ones_own_has_its_own_prefix_and_counters() {
    let builder = Builder::new().virtual_cpus(3).input(traffic("traffic", 1000));
    let seen = builder.counters().add("seen", "Packets that the function saw.", "packets").unwrap();
    let instance = builder.build(move |cpu| Seen(seen.on(cpu))).unwrap();
    let handle = instance.handle();
    let listener = Listener::bind("metrics", "127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.address();
    let _server = listener.serve(Source::new(instance.handle()).prefix("limiter").version("4")).unwrap();
    instance.start().unwrap().join();
    let text = get(address);
    exposition::check_with_promtool(&text);
    let page = exposition::read(&text);
    assert_eq!([page.sum("limiter_seen_packets_total"), page.sum("limiter_received_packets_total")], [2000.0; 2]);
    assert_eq!(page.get("limiter_build_info{version=\"4\"}"), 1.0);
    assert!(!text.contains("steerage_"), "{text}");
    // The server's page and `metrics::text` agree, except for the time and the metrics that are not
    // in the ledger.
    let stable = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.contains("_uptime_") && !line.contains("_build_info"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(stable(&metrics::text(&handle.snapshot(), "limiter")), stable(&text));
}

/// A queue that receives nothing, but has the same counters as an AF_XDP queue.
struct Counting(Arc<DeviceCounts>);

impl RxQueue for Counting {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64)
    }

    fn open(&mut self, _: &Arc<Region>) -> Result<Opened, DeviceError> {
        let mut opened = Opened::default();
        opened.counts = Some(Arc::clone(&self.0));
        Ok(opened)
    }

    fn poll(&mut self, _: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        (0..3).for_each(|nth| self.0.raise_to(nth, 7 + nth as u64));
        Ok(Polled::Ended)
    }
}

#[test]
fn counts_of_a_device_are_shown_one_by_one() {
    let counts = Arc::new(DeviceCounts::new(&["rx_ring_full", "rx_fill_ring_empty_descs", "rx_invalid_descs"]));
    let instance = instance(vec![Input::new("ring", "test", vec![Box::new(Counting(counts))])]);
    let (address, server) = serve(&instance, Vec::new());
    let options = Options { machine: CpuView::new(3), uid: owner(), queues_off: Vec::new(), settle_max: SETTLE_MAX };
    let tree = Tree::new(instance.handle(), options);
    instance.start().unwrap().join();
    let page = exposition::read(&get(address));
    drop(server);
    for (name, count) in [("rx_ring_full", 7), ("rx_fill_ring_empty_descs", 8), ("rx_invalid_descs", 9)] {
        let series = format!("steerage_device_events_total{{device=\"ring\",queue=\"0\",event=\"{name}\"}}");
        assert_eq!(page.get(&series), f64::from(count));
        let path = format!("sys/class/net/ring/queues/rx-0/statistics/{name}");
        assert_eq!(tree.read(tree.find(&path).unwrap()).unwrap(), format!("{count}\n"));
    }
}

#[test]
fn whoever_holds_connections_keeps_nobody_out() {
    let instance = instance(vec![traffic("traffic", 1)]);
    let (address, server) = serve(&instance, Vec::new());
    // Some clients stay silent, some send half a request, and some never read.
    let mut silent: Vec<TcpStream> = (0..CROWD).map(|_| connect(address)).collect();
    let mut half: Vec<TcpStream> = (0..CROWD).map(|_| connect(address)).collect();
    half.iter_mut().for_each(|stream| stream.write_all(b"GET /met").unwrap());
    let mut greedy: Vec<TcpStream> = (0..CROWD).map(|_| connect(address)).collect();
    greedy.iter_mut().for_each(|stream| stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\nGET /metrics").unwrap());
    exposition::read(&get(address));
    let oldest = &mut silent[0];
    assert!(matches!(oldest.read(&mut [0]), Ok(0) | Err(_)));

    for wrong in [
        "\x16\x03\x01\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n",
        "POST /metrics HTTP/1.1\r\nContent-Length: 9\r\n\r\nsomething",
    ] {
        let answer = ask(&mut connect(address), wrong);
        assert!(answer.starts_with("HTTP/1.1 4") && answer.contains("\r\nContent-Length: "), "{answer}");
    }
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(5000));
    assert!(ask(&mut connect(address), &long).starts_with("HTTP/1.1 431 "));
    let head = ask(&mut connect(address), "HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    exposition::read(&get(address));

    let mut last = connect(address);
    drop(server);
    assert!(matches!(last.read(&mut [0]), Ok(0) | Err(_)));
    // A child process that another test forks holds the listening socket until it executes a
    // program.
    let start = Instant::now();
    while TcpStream::connect(address).is_ok() {
        assert!(start.elapsed() < HANG, "it is served still");
    }
}

/// While one host floods the metrics server, a slow client of another host gets its answer.
#[test]
fn a_host_that_floods_keeps_only_itself_out() {
    const ROUNDS: usize = 5;
    /// The number of the flood's connections during one request of the other host: twice the number
    /// of clients that the server accepts.
    const MEANWHILE: u64 = 32;
    /// The time for which a client may be silent. On a busy machine, the flood may last as long as
    /// a client may be silent.
    const MAY_BE_SILENT: Duration = Duration::from_secs(1);
    let Some(net) = Net::new() else { return };
    let instance = instance(vec![traffic("traffic", 1)]);
    let listener = net.near(|| Listener::bind("metrics", SocketAddr::new(NEAR.parse().unwrap(), 0)).unwrap());
    let (address, server) = serve_at(listener, &instance, Vec::new());
    let (made, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let start = Instant::now();
    let flood = || {
        let mut held = VecDeque::new();
        while !over.load(Ordering::Relaxed) {
            held.push_back(connect(address));
            made.fetch_add(1, Ordering::Relaxed);
            if held.len() > CROWD {
                held.pop_front();
            }
        }
    };
    /// Stops the flood when dropped, even if the test fails.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let _ends = Ends(&over);
        scope.spawn(|| net.far(flood));
        let mut rounds = 0;
        while rounds < ROUNDS {
            let connected = Instant::now();
            let mut quiet = net.near(|| connect(address));
            let before = made.load(Ordering::Relaxed);
            until("the flood goes on", || made.load(Ordering::Relaxed) >= before + MEANWHILE);
            let asked = quiet.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
            let mut answer = String::new();
            let read = asked.and_then(|()| quiet.read_to_string(&mut answer));
            let is_served = read.is_ok() && answer.starts_with("HTTP/1.1 200 ");
            if !is_served && connected.elapsed() >= MAY_BE_SILENT {
                assert!(start.elapsed() < HANG, "the flood is too slow");
                continue;
            }
            assert!(is_served, "after {rounds} rounds: {read:?} {answer}");
            rounds += 1;
        }
    });
    drop(server);
}

#[test]
fn a_strange_host_is_refused() {
    let instance = instance(vec![traffic("traffic", 1)]);
    let listener = Listener::bind("metrics", "127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.address();
    let listener = listener.answering_to(&["router.example".to_owned()]);
    let _server = listener.serve(Source::new(instance.handle())).unwrap();
    let status = |host: &str| {
        let answer = ask(&mut connect(address), &format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        answer["HTTP/1.1 ".len()..][..3].to_owned()
    };
    assert_eq!(
        ["router.example", "127.0.0.1", "192.0.2.1:9000", "rebound.example"].map(status),
        ["200", "200", "200", "421"]
    );
}

#[test]
fn an_address_that_cannot_be_had_is_told_in_a_line() {
    let first = Listener::bind("metrics", "127.0.0.1:0".parse().unwrap()).unwrap();
    let taken = first.address();
    let error = Listener::bind("metrics", taken).unwrap_err().to_string();
    assert!(error.contains(&format!("cannot serve metrics at {taken}")) && error.contains("choose another"), "{error}");
    let error = Listener::bind("metrics", "192.0.2.1:0".parse().unwrap()).unwrap_err().to_string();
    assert!(error.contains("no such address") && !error.contains('\n'), "{error}");
}

fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_lowercase() && c != '_');
    let is_metric = |word: &&str| word.starts_with("steerage_") && !["steerage_", "steerage_control"].contains(word);
    words.filter(is_metric).collect()
}

#[test]
fn documents_name_what_there_is() {
    let known = names();
    let known: BTreeSet<&str> = known.iter().map(String::as_str).collect();
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
    let page = std::fs::read_to_string(format!("{docs}/metrics.md")).unwrap();
    // The page also describes metrics of handlers, which the program `steerage` defines.
    let told = named(&page);
    assert!(known.is_subset(&told), "{:?}", known.difference(&told));
    let dashboard = std::fs::read_to_string(format!("{docs}/../packaging/grafana.json")).unwrap();
    let parsed: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    assert!(parsed["panels"].as_array().unwrap().len() > 10);
    let shown = named(&dashboard);
    assert!(shown.is_subset(&told), "{:?}", shown.difference(&told));
    let report = std::fs::read_to_string(format!("{docs}/report.md")).unwrap();
    for reason in DropReason::ALL {
        assert!(report.contains(&format!("\n| `{}` |", reason.name())), "{}", reason.name());
    }
}
