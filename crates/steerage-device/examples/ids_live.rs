//! Alerts on flows that match rules: `cargo run --release -p steerage-device --example ids_live --
//! rules.txt eth0`
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io, time::Duration};

use steerage::flow::PacketClock;
use steerage::{Batch, BucketId, Builder, Cpu, FlowKey, Handler, Input, Timestamp, WallTime};
use steerage_device::{af_packet::AfPacketOptions, capture::CaptureOptions};

/// A rule matches a flow to this port as soon as the flow's client has sent this many packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    port: u16,
    packets: u64,
    name: String,
}

/// Parses rules such as `23 1 telnet`: a port, a number of packets, and a name. A `#` begins a
/// comment.
pub(crate) fn parse(text: &str) -> Result<Vec<Rule>, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let rule = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let (port, packets) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Rule { port, packets, name: words.next()?.to_owned() })
    };
    lines.map(|line| rule(line).ok_or_else(|| format!("`{line}` is no rule: write such as `23 1 telnet`"))).collect()
}

#[derive(Debug, Default)]
pub(crate) struct SharedRules {
    /// `Release` and `Acquire`: a CPU that sees a new version finds the rules of that version, or
    /// newer rules, in the mutex.
    version: AtomicU64,
    rules: Mutex<Arc<Vec<Rule>>>,
}

impl SharedRules {
    pub(crate) fn replace(&self, rules: Vec<Rule>) {
        *self.rules.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
        self.version.fetch_add(1, Ordering::Release);
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Alert {
    time: WallTime,
    flow: FlowKey,
    rule: String,
}

/// A flow without packets for this long, measured in packet time, is removed.
const IDLE: Duration = Duration::from_secs(60);

/// The maximum number of alerts that wait to be printed. Further alerts are counted and dropped,
/// because a CPU must not wait.
const ALERTS_MAX: usize = 1024;

pub(crate) struct Flow {
    packets: u64,
    last: WallTime,
    alerted: bool,
}

/// The flows of one bucket, which move with the bucket to another CPU.
pub(crate) type Flows = HashMap<FlowKey, Flow>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) alerts: u64,
    pub(crate) alerts_lost: u64,
    pub(crate) expired: u64,
}

/// The handler. Each CPU has its own.
pub(crate) struct Ids {
    shared: Arc<SharedRules>,
    version: u64,
    rules: Arc<Vec<Rule>>,
    buckets: HashMap<BucketId, Flows>,
    clock: PacketClock,
    alerts: SyncSender<Alert>,
    done: Done,
}

impl Ids {
    pub(crate) fn new(shared: Arc<SharedRules>, alerts: SyncSender<Alert>) -> Self {
        let (version, rules, buckets) = (u64::MAX, Arc::default(), HashMap::new());
        Self { shared, version, rules, buckets, clock: PacketClock::default(), alerts, done: Done::default() }
    }

    /// Loads the newest rules. If another thread is replacing the rules, the CPU does not wait, and
    /// tries again with its next batch.
    fn update_rules(&mut self) {
        let version = self.shared.version.load(Ordering::Acquire);
        if version == self.version {
            return;
        }
        if let Ok(rules) = self.shared.rules.try_lock() {
            (self.rules, self.version) = (Arc::clone(&rules), version);
        }
    }

    fn expire(&mut self) {
        let now = self.clock.now();
        for flows in self.buckets.values_mut() {
            let before = flows.len();
            flows.retain(|_, flow| now.since(flow.last) < IDLE);
            self.done.expired += (before - flows.len()) as u64;
        }
        self.buckets.retain(|_, flows| !flows.is_empty());
    }
}

impl Handler for Ids {
    type Moved = Flows;
    type Report = Done;

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        self.update_rules();
        for packet in batch.iter_mut() {
            let time = self.clock.see(packet.time(), cpu.now());
            let Some(key) = packet.flow_key() else { continue };
            let Some(port) = key.destination().map(|to| to.port()) else { continue };
            if !self.rules.iter().any(|rule| rule.port == port) {
                continue;
            }
            let flows = self.buckets.entry(packet.bucket()).or_default();
            let flow = flows.entry(key).or_insert(Flow { packets: 0, last: time, alerted: false });
            (flow.packets, flow.last) = (flow.packets + 1, time);
            let matches = |rule: &&Rule| rule.port == port && flow.packets >= rule.packets;
            if let Some(rule) = self.rules.iter().find(matches).filter(|_| !flow.alerted) {
                flow.alerted = true;
                self.done.alerts += 1;
                let alert = Alert { time, flow: key, rule: rule.name.clone() };
                self.done.alerts_lost += u64::from(self.alerts.try_send(alert).is_err());
            }
        }
    }

    fn tick(&mut self, cpu: &mut Cpu) -> Option<Timestamp> {
        self.expire();
        Some(cpu.now() + Duration::from_secs(1))
    }

    fn bucket_leaves(&mut self, bucket: BucketId) -> Option<Flows> {
        self.buckets.remove(&bucket)
    }

    fn bucket_arrives(&mut self, bucket: BucketId, flows: Flows) {
        self.buckets.entry(bucket).or_default().extend(flows);
    }

    fn finish(mut self, _cpu: &mut Cpu) -> Done {
        self.expire();
        self.done
    }
}

/// The interval at which the main thread checks for alerts and new rules, and the number of checks
/// after which it prints statistics.
const LOOK: Duration = Duration::from_millis(100);
const STATISTICS_EVERY: u32 = 10;

/// Runs until the input ends or `stop` is set. Passes the lines to print to `say`.
pub(crate) fn run(
    inputs: Vec<Input>,
    rules: &Path,
    stop: &AtomicBool,
    mut say: impl FnMut(String),
) -> Result<Done, Box<dyn Error>> {
    let mut text = fs::read_to_string(rules)?;
    let shared = Arc::new(SharedRules::default());
    shared.replace(parse(&text)?);
    let (sender, alerts) = mpsc::sync_channel(ALERTS_MAX);
    let of_cpus = Arc::clone(&shared);
    let builder = inputs.into_iter().fold(Builder::new(), Builder::input);
    let running = builder.build(move |_cpu| Ids::new(Arc::clone(&of_cpus), sender.clone()))?.start()?;
    let handle = running.handle();
    let shown = |Alert { time, flow, rule }: Alert| format!("ALERT {time} {rule}: {flow}");
    for look in 1_u32.. {
        let finished = handle.wait_finished(LOOK);
        alerts.try_iter().for_each(|alert| say(shown(alert)));
        if finished {
            break;
        }
        if stop.load(Ordering::Relaxed) {
            handle.stop();
        }
        let now = fs::read_to_string(rules).unwrap_or_else(|_| text.clone());
        if now != text {
            match parse(&now) {
                Ok(new) => {
                    say(format!("new rules: {}", new.len()));
                    shared.replace(new);
                }
                Err(why) => say(format!("{why}; the old rules stay")),
            }
            text = now;
        }
        if look % STATISTICS_EVERY == 0 {
            let snapshot = handle.snapshot();
            say(format!("{} packets, {} dropped", snapshot.received(), snapshot.dropped().total()));
        }
    }
    let mut sum = Done::default();
    for (_cpu, done) in running.join().reports {
        sum.alerts += done.alerts;
        sum.alerts_lost += done.alerts_lost;
        sum.expired += done.expired;
    }
    // The CPUs may have found more alerts between the last check and the end.
    alerts.try_iter().for_each(|alert| say(shown(alert)));
    Ok(sum)
}

/// The kernel passes only packets that match this filter to the program.
const FILTER: &str = "tcp or udp";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(rules), Some(device)) = (arguments.next(), arguments.next()) else {
        return Err("write the file of rules, and an interface or a capture: ids_live rules.txt eth0".into());
    };
    let files = CaptureOptions::new().filter(FILTER);
    let live = |interface: &str| Ok(AfPacketOptions::new(interface).filtered(FILTER)?);
    let inputs = steerage_device::open_all_with(&[device], &files, live)?.inputs;
    // The first Ctrl-C stops the run, and the second one kills the program.
    let stop = Arc::new(AtomicBool::new(false));
    stop_at_ctrl_c(&stop)?;
    let done = run(inputs, Path::new(&rules), &stop, |line| println!("{line}"))?;
    println!("{} alerts ({} not shown), {} flows expired", done.alerts, done.alerts_lost, done.expired);
    Ok(())
}

fn stop_at_ctrl_c(stop: &Arc<AtomicBool>) -> io::Result<()> {
    let interrupt = signal_hook::consts::SIGINT;
    signal_hook::flag::register_conditional_shutdown(interrupt, 1, Arc::clone(stop))?;
    signal_hook::flag::register(interrupt, Arc::clone(stop)).map(drop)
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use steerage::testing::{Frame, HandlerTester};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn datagram(from: u16, to: u16, second: u64) -> Frame {
        let packet = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(from, to);
        let mut frame = Vec::new();
        packet.write(&mut frame, b"hello").unwrap();
        Frame::new(frame).with_time(WallTime::from_nanos(second * 1_000_000_000))
    }

    #[test]
    fn a_flow_alerts_once_and_is_forgotten_when_it_is_idle() {
        let shared = Arc::new(SharedRules::default());
        shared.replace(parse("# well-known\n23 2 telnet\n").unwrap());
        let (sender, alerts) = mpsc::sync_channel(10);
        let of_cpu = Arc::clone(&shared);
        let mut tester = HandlerTester::new(move |_cpu| Ids::new(Arc::clone(&of_cpu), sender.clone()));
        tester.handle([datagram(4000, 23, 1), datagram(4000, 80, 1)]);
        assert_eq!(alerts.try_iter().count(), 0, "one packet is not enough");
        tester.handle([datagram(4000, 23, 2), datagram(4000, 23, 3)]);
        let found: Vec<Alert> = alerts.try_iter().collect();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].rule.as_str(), found[0].time), ("telnet", WallTime::from_nanos(2_000_000_000)));
        // An hour of packet time passes, so the flow counts as a new flow.
        tester.handle([datagram(4001, 80, 3600)]);
        tester.advance(2 * SECOND);
        tester.handle([datagram(4000, 23, 3601)]);
        assert_eq!(alerts.try_iter().count(), 0);
        // New rules apply from the next batch on.
        shared.replace(parse("23 1 telnet").unwrap());
        tester.handle([datagram(4002, 23, 3602)]);
        assert_eq!(alerts.try_iter().count(), 1);
        assert_eq!(tester.finish().report, Done { alerts: 2, alerts_lost: 0, expired: 1 });
    }

    #[test]
    fn a_full_channel_costs_alerts_and_no_time() {
        let shared = Arc::new(SharedRules::default());
        shared.replace(parse("23 1 telnet").unwrap());
        let (sender, _alerts) = mpsc::sync_channel(1);
        let mut tester = HandlerTester::new(move |_cpu| Ids::new(Arc::clone(&shared), sender.clone()));
        tester.handle((0..5).map(|client| datagram(4000 + client, 23, 1)));
        assert_eq!(tester.finish().report, Done { alerts: 5, alerts_lost: 4, expired: 0 });
    }

    #[test]
    fn a_wrong_rule_is_named() {
        assert_eq!(parse("80 x web").unwrap_err(), "`80 x web` is no rule: write such as `23 1 telnet`");
        assert_eq!(parse("\n# nothing\n"), Ok(Vec::new()));
    }
}
