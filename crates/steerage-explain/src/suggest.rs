//! Advises how many CPUs, which mask and which hash to use, for steerage and for the kernel's RPS.
//! The advice depends on the traffic, and on costs that were measured on other machines.

mod commands;
mod cpu_count;
mod reasons;

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use steerage::policy::{RegimeKind, Workers, predict};
use steerage::{CpuId, CpuMask};
use steerage_text::{grouped, packets_a_second};

use super::advice;
use super::basis::AdviceBasis;
use super::explained::{TrafficExplanation, is_ip};
use super::kernel::Advised;
use commands::{Commands, Parallel, backlog_max};
use cpu_count::{Assignment, AssumedCosts, BUSY_MAX, Choice};
use reasons::Reasons;

/// The assumed time of the packet function per packet. steerage's own packet functions take 30 to
/// 100 ns, and the kernel forwards an IP packet in 2,500 ns (steerage help performance).
const WORK_ASSUMED: Duration = Duration::from_micros(1);

/// The minimum share of a CPU's time that counts as available for packets, even if other work takes
/// nearly all of the time.
const BUSY_LEAST: f64 = 0.05;

/// The packets of a CPU with other work are spread only if the CPU spends at least this share of
/// its time in softirq.
const SOFTIRQ_MIN: f64 = 0.1;

/// Returns the largest share of time that the busiest CPU may spend on packets. The other work of
/// the receiving CPU is subtracted.
fn busy_max(basis: &AdviceBasis) -> f64 {
    let hot = basis.kernel.as_ref().and_then(|load| Some((load, load.busiest()?)));
    let hot = hot.map(|(load, hot)| (hot.busy, load.softirq_of(&hot)));
    // If packets take little of the CPU's time, spreading them frees almost no time.
    let other = hot.filter(|(_, own)| *own >= SOFTIRQ_MIN).map_or(0.0, |(busy, own)| busy - own);
    (BUSY_MAX - other).max(BUSY_LEAST)
}

#[derive(Debug, Serialize)]
pub(super) struct Suggestion {
    /// The advised number of CPUs includes the CPU that receives.
    cpus: usize,
    cpu_list: String,
    of: usize,
    receive_cpu: u16,
    /// The mask in the format of `rps_cpus`. 0 means no steering.
    mask: String,
    /// The busiest CPU's share of the packets if all CPUs have equal shares of the buckets.
    /// `balanced`: the busiest CPU's share after the policy has balanced the CPUs.
    busiest: f64,
    balanced: f64,
    /// The packet rate per second, if known.
    rate: Option<f64>,
    /// The load of the busiest CPU. If the load is above 1, the CPU cannot keep up.
    load: Option<f64>,
    /// The load of a single CPU that receives and handles all packets.
    load_of_one: Option<f64>,
    /// The speed-up of the advised CPUs over one CPU.
    speed_up: f64,
    /// The predicted maximum packet rate of each regime (inline, collector, spread), the
    /// recommended regime first.
    regimes: Vec<Regime>,
    elephants: Vec<Elephant>,
    reasons: Reasons,
    assumed: Assumed,
    commands: Commands,
    /// The parts of the advice that also apply to the kernel's own steering.
    #[serde(skip)]
    pub(super) advised: Advised,
}

/// A flow with a larger share of the packets than one divided by the number of CPUs.
#[derive(Debug, Serialize)]
struct Elephant {
    flow: String,
    share: f64,
}

#[derive(Debug, Serialize)]
struct Regime {
    regime: &'static str,
    cpus: usize,
    /// The predicted packets per second.
    predicted: f64,
}

impl Regime {
    fn of(way: &Assignment) -> Self {
        let regime = match (way.cpus.len(), way.spread) {
            (1, _) => "inline",
            (2, 1) => "collector",
            _ => "spread",
        };
        Self { regime, cpus: way.cpus.len(), predicted: way.throughput }
    }

    /// Returns the advised regime (inline, collector or spread), and then the other regimes with
    /// one and two CPUs.
    fn all(choice: &Choice) -> Vec<Self> {
        let best = Self::of(&choice.best);
        let others = [Some(&choice.one), choice.collector.as_ref()].into_iter().flatten().map(Self::of);
        let others: Vec<Self> = others.filter(|other| other.regime != best.regime).collect();
        [best].into_iter().chain(others).collect()
    }
}

#[derive(Debug, Serialize)]
struct Assumed {
    work_ns: u64,
    /// True if the user has stated the packet function's time per packet.
    work_told: bool,
    /// True if the time per packet is that of the kernel's own work, as measured during this run.
    work_measured: bool,
    #[serde(flatten)]
    costs: AssumedCosts,
}

impl Suggestion {
    /// Returns the advice, or `None` if there were no packets.
    pub(super) fn of(traffic: &TrafficExplanation) -> Option<Self> {
        let AdviceBasis { candidates, rate, work, .. } = &traffic.basis;
        if traffic.survey.all.packets == 0 || candidates.order.is_empty() {
            return None;
        }
        let assumed = AssumedCosts::of(!traffic.basis.interfaces.is_empty());
        let stated = work.map(|work| work.as_nanos() as f64);
        let measured = traffic.basis.kernel.as_ref().and_then(|load| load.packet_ns).filter(|_| stated.is_none());
        let work_ns = stated.or(measured).unwrap_or(WORK_ASSUMED.as_nanos() as f64);
        let costs = assumed.with_work(work_ns);
        let by_rate = rate.map(|rate| rate.packets_a_second);
        let choice = Choice::make(&traffic.survey.buckets, candidates, &costs, by_rate, busy_max(&traffic.basis));
        let elephants = elephants(traffic, &choice);
        let backlog = backlog_max(by_rate, choice.best.busiest);
        let overfills = |elephant: &Elephant| {
            let cpu = [Workers { capacity: 1.0, class: 0, share: Some(elephant.share) }];
            let most = predict(&costs, RegimeKind::Spread, f64::INFINITY, &cpu).packets_per_second();
            by_rate.is_some_and(|rate| rate >= most)
        };
        let stuck = elephants.first().is_some_and(overfills);
        let commands = Commands::of(traffic, &choice.best, backlog, stuck, advice::torn(traffic) > 0);
        let advised = Advised {
            cpus: choice.best.cpus.len(),
            of: candidates.order.len(),
            mask: choice.best.mask.clone(),
            load: choice.best.load(by_rate),
            is_enough: choice.is_enough != Some(false),
            largest: largest(traffic).filter(|(_, share)| *share > 0.5),
            commands: commands.kernel.clone(),
        };
        Some(Self {
            cpus: choice.best.cpus.len(),
            cpu_list: choice.best.cpus.to_list(),
            of: candidates.order.len(),
            receive_cpu: candidates.order[0].0,
            mask: choice.best.mask.to_bitmap(candidates.nr_cpu_ids),
            busiest: choice.best.busiest,
            balanced: choice.best.balanced,
            rate: by_rate,
            load: choice.best.load(by_rate),
            load_of_one: choice.one.load(by_rate),
            speed_up: choice.best.throughput / choice.one.throughput,
            regimes: Regime::all(&choice),
            reasons: Reasons::of(traffic, &choice, &assumed, &elephants, stuck, backlog),
            commands,
            advised,
            elephants,
            assumed: Assumed {
                work_ns: work_ns as u64,
                work_told: work.is_some(),
                work_measured: measured.is_some(),
                costs: assumed,
            },
        })
    }

    /// If `has_verdict` is true, the text leaves out the commands for the kernel's steering,
    /// because the verdict on the kernel's steering lists them.
    pub(super) fn page(&self, has_verdict: bool) -> String {
        let mut page = String::from("\n");
        let mut line = |about: &str, says: &str| {
            let _ = writeln!(page, "{about:<10} {says}");
        };
        let advice = match self.cpus {
            1 => "one CPU, no steering".to_owned(),
            cpus => format!("{cpus} CPUs of {}", self.of),
        };
        line("advice", &format!("{advice}: {}", self.reasons.cpus));
        let regimes = self.regimes.iter().map(|regime| {
            let how = match regime.regime {
                "spread" => format!("spread over {}", regime.cpus),
                "collector" => "if one CPU only receives".to_owned(),
                _ => "on one CPU".to_owned(),
            };
            format!("{} {how}", packets_a_second(regime.predicted))
        });
        line("predicted", &format!("at most {}", regimes.collect::<Vec<_>>().join(", ")));
        line("mask", &format!("{}, {}", self.mask, self.reasons.mask));
        line("busiest", &self.reasons.busiest);
        line("elephants", &self.reasons.elephants);
        line("hash", &self.reasons.hash);
        if let Some(queues) = &self.reasons.queues {
            line("queues", queues);
        }
        let AssumedCosts { receive_ns, hand_over_ns, take_over_ns, .. } = self.assumed.costs;
        let work = grouped(self.assumed.work_ns);
        let set = match (self.assumed.work_told, self.assumed.work_measured) {
            (true, _) => "",
            (_, true) => " (the kernel's, as measured; --work sets it)",
            _ => " (--work sets it)",
        };
        line(
            "assumed",
            &format!(
                "{work} ns of work per packet{set}, {receive_ns:.0} to receive it, {hand_over_ns:.0} to hand it to another CPU and \
                 {take_over_ns:.0} to take it there (steerage help performance)"
            ),
        );
        let kernel = if has_verdict { &[][..] } else { &self.commands.kernel };
        for (who, commands) in [("steerage", &self.commands.steerage[..]), ("kernel", kernel)] {
            for (at, command) in commands.iter().enumerate() {
                line(if at == 0 { who } else { "" }, command);
            }
        }
        if let Some(Parallel { command, speed_up }) = &self.commands.parallel {
            line("parallel", &format!("{command}: at most {speed_up:.1} times as fast as one TOOL"));
        }
        page
    }
}

/// Returns the flows with more packets than an even share, the largest flow first, or no flow if
/// one CPU is enough. If more CPUs would not be faster, a flow's packets are compared with half of
/// all packets, as with two CPUs.
fn elephants(traffic: &TrafficExplanation, choice: &Choice) -> Vec<Elephant> {
    let all = traffic.survey.all.packets as f64;
    let share = |packets: u64| packets as f64 / all;
    let even = 1.0 / choice.best.spread.max(2) as f64;
    let is_one_enough = choice.best.cpus.len() == 1 && choice.is_enough == Some(true);
    let largest = traffic.largest().into_iter().filter(|flow| is_ip(flow) && !is_one_enough);
    let large = largest.take_while(|flow| share(flow.weight.packets) > even);
    large.map(|flow| Elephant { flow: flow.flow.to_string(), share: share(flow.weight.packets) }).collect()
}

/// Returns the largest flow, and its share of the packets.
fn largest(traffic: &TrafficExplanation) -> Option<(String, f64)> {
    let flow = traffic.survey.flows.iter().filter(|flow| is_ip(flow)).max_by_key(|flow| flow.weight.packets)?;
    let share = flow.weight.packets as f64 / traffic.survey.all.packets.max(1) as f64;
    Some((flow.flow.to_string(), share))
}

fn named(cpus: &CpuMask) -> String {
    format!("CPU{} {cpus}", if cpus.len() == 1 { "" } else { "s" })
}

fn cpu(cpu: CpuId) -> String {
    format!("CPU {cpu}")
}

#[cfg(test)]
mod tests;
