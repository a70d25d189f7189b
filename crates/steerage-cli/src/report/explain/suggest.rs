//! What to do with this traffic: how many CPUs, which mask and which hash, for steerage and for the kernel's own RPS.
//!
//! It is arithmetic on what was seen and on costs that were measured elsewhere; the report names each assumption.

mod commands;
mod machine;
mod model;
mod reasons;

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;
use steerage::CpuId;

use super::OfTraffic;
use crate::function::Function;
use crate::report::units::grouped;
pub(crate) use commands::Interface;
use commands::{BacklogMax, Commands};
pub(crate) use machine::Machine;
use model::{Choice, Costs};
use reasons::Reasons;

/// The work on a packet where nobody tells, in ns: steerage's own functions take 30 to 100 ns, the kernel forwards IP in 2,500
/// (docs/performance.md).
const WORK_ASSUMED: Duration = Duration::from_micros(1);

/// How many packets came in which time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) packets_a_second: f64,
    pub(crate) from: RateFrom,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RateFrom {
    /// An interface, while it was listened to.
    Listening,
    /// A capture's times.
    Recording,
    /// It was asked for.
    Asked,
}

/// What the advice is based on, besides the traffic.
#[derive(Debug)]
pub(crate) struct Circumstances {
    /// The command that is to run.
    pub(crate) function: Function,
    pub(crate) machine: Machine,
    pub(crate) rate: Option<Rate>,
    /// What the packet function does with a packet, as its user says.
    pub(crate) work: Option<Duration>,
    /// What was named to receive from.
    pub(crate) devices: Vec<String>,
    /// Of these the interfaces.
    pub(crate) interfaces: Vec<Interface>,
}

/// The advice.
#[derive(Debug, Serialize)]
pub(crate) struct Suggestion {
    /// How many CPUs, the one that receives among them.
    cpus: usize,
    cpu_list: String,
    /// How many there are.
    of: usize,
    receive_cpu: u16,
    /// Over which packets are spread, as the kernel writes it; 0 for no steering.
    mask: String,
    /// The largest share of the packets that one CPU would have of an even map, and once buckets were balanced.
    busiest: f64,
    balanced: f64,
    /// Packets a second; `null` where it is not known.
    rate: Option<f64>,
    /// How busy the busiest CPU would be, of its time; above 1 it would not keep up.
    load: Option<f64>,
    /// The same of one CPU that does all.
    load_of_one: Option<f64>,
    /// How many times what one CPU does.
    speed_up: f64,
    elephants: Vec<Elephant>,
    reasons: Reasons,
    assumed: Assumed,
    commands: Commands,
}

/// A flow that has more than its CPU's share.
#[derive(Debug, Serialize)]
struct Elephant {
    flow: String,
    share: f64,
}

#[derive(Debug, Serialize)]
struct Assumed {
    work_ns: u64,
    /// Whether it was told and not assumed.
    work_told: bool,
    #[serde(flatten)]
    costs: Costs,
}

impl Suggestion {
    /// For this traffic; nothing where there was none.
    pub(crate) fn of(traffic: &OfTraffic) -> Option<Self> {
        let Circumstances { machine, rate, work, .. } = &traffic.circumstances;
        if traffic.survey.all.packets == 0 || machine.order.is_empty() {
            return None;
        }
        let costs = Costs::of(!traffic.circumstances.interfaces.is_empty());
        let work_ns = work.unwrap_or(WORK_ASSUMED).as_nanos() as f64;
        let by_rate = rate.map(|rate| rate.packets_a_second);
        let choice = Choice::make(&traffic.survey.buckets, machine, &costs, work_ns, by_rate);
        let elephants = elephants(traffic, &choice);
        let backlog = BacklogMax::of(by_rate, choice.best.busiest);
        let overfills = |elephant: &Elephant| {
            by_rate.is_some_and(|rate| rate * elephant.share * (work_ns + costs.take_over_ns) >= 1e9)
        };
        let stuck = elephants.first().is_some_and(overfills);
        Some(Self {
            cpus: choice.best.cpus.len(),
            cpu_list: choice.best.cpus.to_list(),
            of: machine.order.len(),
            receive_cpu: machine.order[0].0,
            mask: choice.best.mask.to_bitmap(machine.nr_cpu_ids),
            busiest: choice.best.busiest,
            balanced: choice.best.balanced,
            rate: by_rate,
            load: choice.best.load(by_rate),
            load_of_one: choice.one.load(by_rate),
            speed_up: choice.one.load_ns / choice.best.load_ns,
            reasons: Reasons::of(traffic, &choice, &costs, &elephants, stuck, backlog),
            commands: Commands::of(&traffic.circumstances, &choice.best, backlog, stuck, reasons::is_torn(traffic)),
            elephants,
            assumed: Assumed { work_ns: work_ns as u64, work_told: work.is_some(), costs },
        })
    }

    /// The advice for people: a line for each thing.
    pub(crate) fn page(&self) -> String {
        let mut page = String::from("\n");
        let mut line = |about: &str, says: &str| {
            let _ = writeln!(page, "{about:<10} {says}");
        };
        let advice = match self.cpus {
            1 => "one CPU, no steering".to_owned(),
            cpus => format!("{cpus} CPUs of {}", self.of),
        };
        line("advice", &format!("{advice}: {}", self.reasons.cpus));
        line("mask", &format!("{}, {}", self.mask, self.reasons.mask));
        line("busiest", &self.reasons.busiest);
        line("elephants", &self.reasons.elephants);
        line("hash", &self.reasons.hash);
        if let Some(queues) = &self.reasons.queues {
            line("queues", queues);
        }
        let Costs { receive_ns, hand_over_ns, take_over_ns, .. } = self.assumed.costs;
        let work = grouped(self.assumed.work_ns);
        let set = if self.assumed.work_told { "" } else { " (--work sets it)" };
        line(
            "assumed",
            &format!(
                "{work} ns of work per packet{set}, {receive_ns} to receive it, {hand_over_ns} to hand it to another CPU and \
                 {take_over_ns} to take it there (docs/performance.md)"
            ),
        );
        for (who, commands) in [("steerage", &self.commands.steerage), ("kernel", &self.commands.kernel)] {
            for (at, command) in commands.iter().enumerate() {
                line(if at == 0 { who } else { "" }, command);
            }
        }
        page
    }
}

/// Flows with more than an even share of the packets, the largest first. None matters if one CPU is enough. If more CPUs would
/// not help, the shares of two CPUs count.
fn elephants(traffic: &OfTraffic, choice: &Choice) -> Vec<Elephant> {
    let all = traffic.survey.all.packets as f64;
    let share = |packets: u64| packets as f64 / all;
    let even = 1.0 / choice.best.spread.max(2) as f64;
    let is_one_enough = choice.best.cpus.len() == 1 && choice.is_enough == Some(true);
    let largest = traffic.largest().into_iter().filter(|_| !is_one_enough);
    let large = largest.take_while(|flow| share(flow.weight.packets) > even);
    large.map(|flow| Elephant { flow: flow.flow.to_string(), share: share(flow.weight.packets) }).collect()
}

/// `CPU 3`, `CPUs 0-3`.
fn named(cpus: &steerage::CpuMask) -> String {
    format!("CPU{} {cpus}", if cpus.len() == 1 { "" } else { "s" })
}

fn cpu(cpu: CpuId) -> String {
    format!("CPU {cpu}")
}

#[cfg(test)]
mod tests;
