//! Alerts on flows that match rules: `cargo run --release -p steerage-device --example ids_live --
//! rules.txt eth0`. The tutorial docs/write-an-ids.md consists of this program.
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fs, time::Duration};

use steerage::flow::{PacketClock, Part, Table};
use steerage::messages::TakesMessages;
use steerage::{Batch, BucketId, Builder, Cpu, FlowKey, Handler, Input, Timestamp, WallTime};
use steerage_device::{af_packet::AfPacketOptions, capture::CaptureOptions};

/// A rule has a port and a number of packets. A rule matches a flow to the rule's port as soon as
/// the flow's client has sent that number of packets.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    port: u16,
    packets: u64,
    name: String,
}

type Rules = Arc<[Rule]>;

/// Parses rules such as `23 1 telnet`: a port, a number of packets, and a name. A `#` begins a
/// comment.
fn parse(text: &str) -> Result<Rules, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let rule = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let (port, packets) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Rule { port, packets, name: words.next()?.to_owned() })
    };
    lines.map(|line| rule(line).ok_or_else(|| format!("`{line}` is no rule: write such as `23 1 telnet`"))).collect()
}

/// A flow is forgotten if it has no packets for the time `IDLE`, measured by the timestamps of
/// packets. A CPU knows at most `FLOWS_MAX` flows, and ignores further flows.
const IDLE: Duration = Duration::from_secs(60);
const FLOWS_MAX: usize = 1_000_000;

/// The maximum number of alerts that wait to be printed. Further alerts are counted and dropped,
/// because a CPU must not wait.
const ALERTS_MAX: usize = 1024;

#[derive(Default)]
struct Flow {
    packets: u64,
    alerted: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct Alert {
    time: WallTime,
    flow: FlowKey,
    rule: String,
}

/// The report of a CPU at the end of the run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) alerts: u64,
    pub(crate) alerts_lost: u64,
    pub(crate) expired: u64,
}

/// The handler. Each CPU has its own.
struct Ids {
    rules: Rules,
    flows: Table<FlowKey, Flow, WallTime>,
    clock: PacketClock,
    alerts: SyncSender<Alert>,
    done: Done,
}

impl Ids {
    fn new(rules: Rules, alerts: SyncSender<Alert>) -> Self {
        let flows = Table::new(FLOWS_MAX, IDLE);
        Self { rules, flows, clock: PacketClock::default(), alerts, done: Done::default() }
    }

    /// Forgets idle flows. To find idle flows, each call checks about `most` flows.
    fn expire(&mut self, most: usize) {
        self.flows.expire(self.clock.now(), most, |_key, _flow| self.done.expired += 1);
    }
}

impl Handler for Ids {
    type Moved = Part<FlowKey, Flow, WallTime>;
    type Report = Done;

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        for packet in batch.iter_mut() {
            let time = self.clock.see(packet.time(), cpu.now());
            let Some(key) = packet.flow_key() else { continue };
            let Some(port) = key.destination().map(|to| to.port()) else { continue };
            if !self.rules.iter().any(|rule| rule.port == port) {
                continue;
            }
            let Some(flow) = self.flows.entry(packet.bucket(), key, time) else { continue };
            flow.packets += 1;
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
        self.expire(10_000);
        Some(cpu.now() + Duration::from_millis(100))
    }

    fn bucket_leaves(&mut self, bucket: BucketId) -> Option<Self::Moved> {
        self.flows.leave(bucket)
    }

    fn bucket_arrives(&mut self, bucket: BucketId, flows: Self::Moved) {
        self.flows.arrive(bucket, flows);
    }

    fn finish(mut self, _cpu: &mut Cpu) -> Done {
        self.expire(usize::MAX);
        self.done
    }
}

impl TakesMessages for Ids {
    type Message = Rules;

    fn message(&mut self, rules: Rules, _cpu: &mut Cpu) {
        self.rules = rules;
    }
}

/// The interval at which the main thread checks for alerts and new rules, and the number of checks
/// after which it prints statistics.
const CHECK: Duration = Duration::from_millis(100);
const STATISTICS_EVERY: u32 = 10;

fn locked(rules: &Mutex<Rules>) -> MutexGuard<'_, Rules> {
    rules.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs until the input ends or `stop` is set. Passes each line that should be printed to the
/// function `say`.
pub(crate) fn run(
    inputs: Vec<Input>,
    rules: &Path,
    stop: &AtomicBool,
    mut say: impl FnMut(String),
) -> Result<Done, Box<dyn Error>> {
    let mut text = fs::read_to_string(rules)?;
    let newest = Arc::new(Mutex::new(parse(&text)?));
    let of_cpus = Arc::clone(&newest);
    let (sender, alerts) = mpsc::sync_channel(ALERTS_MAX);
    let builder = inputs.into_iter().fold(Builder::new(), Builder::input);
    let make = move |_cpu| Ids::new(locked(&of_cpus).clone(), sender.clone());
    let (instance, post) = builder.build_with_messages(8, make)?;
    let running = instance.start()?;
    let handle = running.handle();
    let shown = |Alert { time, flow, rule }: Alert| format!("ALERT {time} {rule}: {flow}");
    for check in 1_u32.. {
        let finished = handle.wait_finished(CHECK);
        alerts.try_iter().for_each(|alert| say(shown(alert)));
        if finished {
            break;
        }
        if stop.load(Ordering::Relaxed) {
            handle.stop();
        }
        if check % STATISTICS_EVERY == 0 {
            let snapshot = handle.snapshot();
            say(format!("{} packets, {} dropped", snapshot.received(), snapshot.dropped().total()));
        }
        let now = fs::read_to_string(rules).unwrap_or_else(|_| text.clone());
        if now == text {
            continue;
        }
        match parse(&now) {
            Ok(new) => {
                *locked(&newest) = Arc::clone(&new);
                if !post.to_all(&new).is_empty() {
                    continue; // Too many messages wait for a CPU: the next check tries again.
                }
                say(format!("new rules: {}", new.len()));
            }
            Err(why) => say(format!("{why}; the old rules stay")),
        }
        text = now;
    }
    let outcome = running.join();
    outcome.notes().into_iter().for_each(&mut say);
    let mut sum = Done::default();
    for (_cpu, done) in outcome.reports {
        sum.alerts += done.alerts;
        sum.alerts_lost += done.alerts_lost;
        sum.expired += done.expired;
    }
    // The CPUs may have found more alerts between the last check and the end of the run.
    alerts.try_iter().for_each(|alert| say(shown(alert)));
    Ok(sum)
}

const FILTER: &str = "tcp or udp";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(rules), Some(device)) = (arguments.next(), arguments.next()) else {
        return Err("write the file of rules, and an interface or a capture: rules.txt eth0".into());
    };
    let files = CaptureOptions::new().filter(FILTER);
    let live = |interface: &str| Ok(AfPacketOptions::new(interface).filtered(FILTER)?);
    let inputs = steerage_device::open_all_with(&[device], &files, live)?.inputs;
    // The first Ctrl-C stops the run. The second Ctrl-C kills the process.
    let stop = Arc::new(AtomicBool::new(false));
    let interrupt = signal_hook::consts::SIGINT;
    signal_hook::flag::register_conditional_shutdown(interrupt, 1, Arc::clone(&stop))?;
    signal_hook::flag::register(interrupt, Arc::clone(&stop))?;
    let done = run(inputs, Path::new(&rules), &stop, |line| println!("{line}"))?;
    println!("{} alerts ({} not shown), {} flows expired", done.alerts, done.alerts_lost, done.expired);
    Ok(())
}

#[cfg(test)]
mod tests {
    use steerage::flow::wire::FrameBuilder;
    use steerage::messages::{Post, WithMessages};
    use steerage::testing::{Frame, HandlerTester};

    use super::*;

    /// A UDP datagram between the two given ports, received at the given time in seconds.
    fn datagram(from: u16, to: u16, second: u64) -> Frame {
        let frame = FrameBuilder::udp(([10, 0, 0, 1], from), ([10, 0, 0, 2], to)).frame(b"hello");
        Frame::new(frame).with_time(WallTime::from_nanos(second * 1_000_000_000))
    }

    #[test]
    fn a_flow_alerts_once_and_is_forgotten_when_it_is_idle() {
        let rules = parse("# well-known\n23 2 telnet\n").unwrap();
        let (sender, alerts) = mpsc::sync_channel(10);
        let mut tester = HandlerTester::new(move |_cpu| Ids::new(Arc::clone(&rules), sender.clone()));
        tester.handle([datagram(4000, 23, 1), datagram(4000, 80, 1)]);
        assert_eq!(alerts.try_iter().count(), 0, "one packet is not enough");
        tester.handle([datagram(4000, 23, 2), datagram(4000, 23, 3)]);
        let found: Vec<Alert> = alerts.try_iter().collect();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].rule.as_str(), found[0].time), ("telnet", WallTime::from_nanos(2_000_000_000)));
        // An hour passes by the timestamps of packets, so the flow counts as a new flow.
        tester.handle([datagram(4001, 80, 3600)]);
        tester.advance(Duration::from_secs(1));
        tester.handle([datagram(4000, 23, 3601)]);
        assert_eq!(alerts.try_iter().count(), 0);
        assert_eq!(tester.finish().report, Done { alerts: 1, alerts_lost: 0, expired: 1 });
    }

    #[test]
    fn new_rules_apply_from_the_next_batch_on() {
        let (sender, alerts) = mpsc::sync_channel(10);
        let post = Post::new(1);
        let of_cpu = post.clone();
        let make = move |cpu| WithMessages::new(cpu, Ids::new(Rules::default(), sender.clone()), &of_cpu);
        let mut tester = HandlerTester::new(make);
        post.connect(tester.control());
        tester.handle([datagram(4000, 23, 1)]);
        assert!(post.to_all(&parse("23 1 telnet").unwrap()).is_empty());
        tester.advance(Duration::ZERO);
        tester.handle([datagram(4000, 23, 2)]);
        assert_eq!(alerts.try_iter().count(), 1);
    }
}
