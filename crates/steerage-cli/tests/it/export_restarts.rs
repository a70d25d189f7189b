//! Tests an IPFIX collector that is restarted repeatedly while flow records arrive. The run must
//! lose no packet, and its report must account for each flow record.
//!
//! By default, the test restarts the collector three times, once per second. With
//! `STEERAGE_EXPORT_SECONDS=600`, the collector restarts every 10 s for 600 s.
//! `STEERAGE_EXPORT_RATE` sets the packets per second. Each packet becomes a flow record.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use steerage_fixtures::namespaces::{bind_when_free, listen_when_free};

use crate::export::{Decoder, OPTIONS, Set, enlarge_buffer, messages, output};
use crate::program::Started;

/// The time from the end of one collector process to the start of the next.
const AWAY: Duration = Duration::from_millis(500);
/// The time after which the collector checks whether it should end.
const LOOK: Duration = Duration::from_millis(50);

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

/// Returns the time from one restart to the next, and the number of restarts.
fn restarts() -> (Duration, u64) {
    match setting("STEERAGE_EXPORT_SECONDS", 0) {
        0 => (Duration::from_secs(1), 3),
        seconds => (Duration::from_secs(10), (seconds / 10).max(1)),
    }
}

#[derive(Debug, Default)]
struct Collected {
    restarts: u64,
    flows: u64,
    options: u64,
    /// The number of records that are missing, according to gaps in the sequence numbers.
    missing: u64,
    /// The sequence number of the next message if no record is missing.
    next: u32,
    /// The last statistics that the exporter sent: how many flow records it has sent, and how many
    /// it could not send.
    stated: Option<(u64, u64)>,
}

impl Collected {
    fn take(&mut self, decoder: &mut Decoder, sequence: u32, sets: &[Set]) {
        let (flows, options) = decoder.records(sets);
        self.missing += u64::from(sequence.wrapping_sub(self.next));
        self.next = sequence.wrapping_add((flows + options) as u32);
        (self.flows, self.options) = (self.flows + flows as u64, self.options + options as u64);
        // The options records contain the exporter's id, how many messages, records and bytes it
        // has sent, and how many records it did not send.
        for (_, bytes) in sets.iter().filter(|(id, _)| *id == OPTIONS) {
            let number = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
            self.stated = Some((number(12), number(28)));
        }
    }
}

fn run(to: &str, collector: impl FnOnce(&Stop) -> Collected + Send + 'static) -> (Value, Collected) {
    let stop = Arc::new(Stop::default());
    let of_collector = Arc::clone(&stop);
    let collector = thread::spawn(move || collector(&of_collector));
    // Each flow has a packet every 2 s and ends 1 s after its packet, so each packet becomes a flow
    // record. The records of the run's last two seconds arrive together. They take 200 kB of the
    // collector's socket buffer, and fit even if the collector gets no CPU time.
    let rate = setting("STEERAGE_EXPORT_RATE", 500);
    let device = format!("synthetic:flows={},rate={rate}", 2 * rate);
    // The run has one CPU, because the backlog of a second CPU could overflow when the machine
    // stalls for seconds.
    let args = ["meter", &device, "--inactive", "1", "--seconds", "0", "--virtual-cpus", "1", "--json", "--export", to];
    let started = Started::new(&args);
    // The last collector runs until the end of the test.
    while !stop.is_last.load(Ordering::Relaxed) && !collector.is_finished() {
        thread::sleep(LOOK);
    }
    let report = started.stop(Signal::SIGINT);
    stop.ended.store(true, Ordering::Relaxed);
    (report, collector.join().unwrap())
}

#[derive(Debug, Default)]
struct Stop {
    /// True if the test does not restart the running collector any more.
    is_last: AtomicBool,
    ended: AtomicBool,
}

impl Stop {
    /// Call this when a collector is running. `after` is the number of restarts so far.
    fn is_there(&self, after: u64) {
        self.is_last.store(after >= restarts().1, Ordering::Relaxed);
    }

    fn is_over(&self, since: Instant) -> bool {
        !self.is_last.load(Ordering::Relaxed) && since.elapsed() + AWAY >= restarts().0
    }
}

fn say(text: std::fmt::Arguments<'_>) {
    // `writeln!` fails only if standard error is closed.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Checks that no packet was lost. Returns how many flow records were metered, written and lost,
/// and the report's output.
fn counts(report: &Value, to: &str) -> (u64, u64, u64, Value) {
    assert_eq!(report["snapshot"]["dropped"], serde_json::json!({}), "{report}");
    assert_eq!(report["snapshot"]["received"], report["snapshot"]["delivered"], "{report}");
    let output = output(report, to);
    let [total, written, lost] =
        [&report["app"]["flows"]["total"], &output["written"], &output["lost"]].map(|count| count.as_u64().unwrap());
    assert_eq!(written + lost, total, "{output}");
    (total, written, lost, output.clone())
}

/// With UDP, gaps in the sequence numbers show how many flow records were lost on the way to a
/// collector.
#[test]
fn export_restarts_udp() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = format!("ipfix://{}", socket.local_addr().unwrap());
    let (report, collected) = run(&format!("{to}?refresh=1s"), move |stop| collect_datagrams(socket, stop));
    let (total, written, lost, output) = counts(&report, &to);
    let Collected { restarts, flows, options, missing, next, stated } = collected;
    say(format_args!(
        "udp: {restarts} restarts, {} packets, {total} records: {flows} arrived, {missing} missing with options, {lost} lost; {output}",
        report["snapshot"]["received"]
    ));
    assert_eq!(stated, Some((written, lost)), "the exporter and the report agree");
    // Each message with options records contains two options records.
    let options_sent = u64::from(next) - written;
    assert!(flows <= written && options <= options_sent && options_sent % 2 == 0, "{flows} {options} {options_sent}");
    assert_eq!(missing, (written - flows) + (options_sent - options));
    assert!(restarts > 0 && flows > 0 && output["refusals"].as_u64().unwrap() > 0, "{output}");
}

fn waited(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn collect_datagrams(mut socket: UdpSocket, stop: &Stop) -> Collected {
    let address = socket.local_addr().unwrap();
    let (mut all, mut buffer) = (Collected::default(), vec![0; 65_535]);
    loop {
        enlarge_buffer(&socket);
        socket.set_read_timeout(Some(LOOK)).unwrap();
        let (since, mut decoder) = (Instant::now(), Decoder::default());
        stop.is_there(all.restarts);
        while !stop.is_over(since) {
            // On the loopback interface, the socket has every datagram that was sent before `ended`
            // was set.
            let ended = stop.ended.load(Ordering::Relaxed);
            match socket.recv(&mut buffer) {
                Ok(length) => {
                    let (header, sets) = messages(&buffer[..length]).remove(0);
                    all.take(&mut decoder, header.sequence, &sets);
                }
                Err(error) if waited(&error) && ended => return all,
                Err(_) => {}
            }
        }
        drop(socket);
        all.restarts += 1;
        thread::sleep(AWAY);
        socket = bind_when_free(address);
    }
}

/// With TCP, each connection to a collector has its own sequence numbers.
#[test]
fn export_restarts_tcp() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("ipfix+tcp://{}", listener.local_addr().unwrap());
    let (report, collected) = run(&to, move |stop| collect_connections(listener, stop));
    let (total, written, lost, output) = counts(&report, &to);
    let Collected { restarts, flows, options, missing, stated, .. } = collected;
    say(format_args!(
        "tcp: {restarts} restarts, {} packets, {total} records: {flows} arrived, {} in broken connections, {lost} lost; {output}",
        report["snapshot"]["received"],
        written - flows
    ));
    assert_eq!(stated, Some((written, lost)), "the exporter and the report agree");
    assert_eq!(missing, 0, "{options} options");
    assert!(restarts > 0 && flows > 0 && flows <= written, "{flows} of {written}");
    assert!(output["connections"].as_u64().unwrap() >= restarts, "{output}");
}

fn collect_connections(mut listener: TcpListener, stop: &Stop) -> Collected {
    let address = listener.local_addr().unwrap();
    let mut all = Collected::default();
    loop {
        let (mut stream, _) = listener.accept().unwrap();
        stop.is_there(all.restarts);
        stream.set_read_timeout(Some(LOOK)).unwrap();
        let (since, mut decoder, mut bytes, mut buffer) = (Instant::now(), Decoder::default(), Vec::new(), [0; 65_536]);
        all.next = 0;
        while !stop.is_over(since) {
            match stream.read(&mut buffer) {
                Ok(0) => return all,
                Ok(length) => bytes.extend_from_slice(&buffer[..length]),
                Err(error) if waited(&error) || error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("{error}"),
            }
            let mut read = 0;
            for (header, sets) in messages(&bytes) {
                all.take(&mut decoder, header.sequence, &sets);
                read += header.length;
            }
            bytes.drain(..read);
        }
        all.restarts += 1;
        drop((stream, listener));
        thread::sleep(AWAY);
        listener = listen_when_free(address);
    }
}
