use std::time::Duration;

use serde::Serialize;
use steerage::CpuMask;
use steerage_text::{counted, grouped, packets_a_second};

use super::cpu_count::{Assignment, AssumedCosts, Choice};
use super::{Elephant, cpu, named};
use crate::advice;
use crate::basis::{Rate, RateFrom};
use crate::candidates::CandidateCpus;
use crate::explained::TrafficExplanation;

#[derive(Debug, Serialize)]
pub(super) struct Reasons {
    pub(super) cpus: String,
    pub(super) mask: String,
    pub(super) busiest: String,
    pub(super) elephants: String,
    pub(super) hash: String,
    /// The sentence about backlogs and the interface's receive queues, if they matter.
    pub(super) queues: Option<String>,
}

impl Reasons {
    pub(super) fn of(
        traffic: &TrafficExplanation,
        choice: &Choice,
        costs: &AssumedCosts,
        elephants: &[Elephant],
        stuck: bool,
        backlog: Option<u64>,
    ) -> Self {
        let (best, candidates) = (&choice.best, &traffic.basis.candidates);
        Self {
            cpus: why_so_many(traffic, choice, costs),
            mask: why_these(best, candidates),
            busiest: busiest(best),
            elephants: of_elephants(best, elephants, stuck),
            hash: hash(traffic, best),
            queues: queues(traffic, best, backlog),
        }
    }
}

fn percents(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Formats a time. Times below 1 ms have a shorter form than in other reports: `1,234 ns`, `123.4
/// us`.
fn short(time: Duration) -> String {
    match time.as_nanos() as u64 {
        ns @ ..10_000 => format!("{} ns", grouped(ns)),
        ns @ ..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        _ => steerage_text::time(time),
    }
}

fn at(rate: &Rate) -> String {
    let from = match rate.from {
        RateFrom::Listening => "as seen just now",
        RateFrom::Recording => "the recording's average",
        RateFrom::Asked => "as asked for",
    };
    format!("at {} ({from})", packets_a_second(rate.packets_a_second))
}

fn why_so_many(traffic: &TrafficExplanation, choice: &Choice, costs: &AssumedCosts) -> String {
    let Choice { best, one, is_enough, .. } = choice;
    let count = best.cpus.len();
    let most = percents(choice.busy_max);
    let is_all = count == traffic.basis.candidates.order.len();
    let more = if is_all { "there are no more CPUs" } else { "more CPUs would add little" };
    let speed_up = best.throughput / one.throughput;
    let limit = if best.receiver_is_busiest { "the CPU that receives" } else { "the busiest of the other CPUs" };
    let Some(rate) = &traffic.basis.rate else {
        return match count {
            1 => "the rate is not known; more CPUs would not handle more packets".to_owned(),
            _ => format!(
                "the rate is not known; with receiving, {count} CPUs handle {speed_up:.1} times as many packets as one, and {more}"
            ),
        };
    };
    let load = |way: &Assignment| percents(way.load(Some(rate.packets_a_second)).unwrap_or(0.0));
    let at = at(rate);
    match (is_enough, count) {
        (Some(true), 1) => {
            let room_ns = (choice.busy_max * 1e9 / rate.packets_a_second - costs.path.receive).max(0.0);
            let room = short(Duration::from_nanos(room_ns as u64));
            format!("{at} it is {} busy, and it stays below {most} with up to {room} of work per packet", load(best))
        }
        (Some(true), _) => {
            format!(
                "{at} one CPU would be {} busy; with {count}, {limit} is {} busy, below {most}",
                load(one),
                load(best)
            )
        }
        (_, 1) => format!("{at} it would be {} busy, but more CPUs would not handle more packets", load(one)),
        (..) => format!(
            "{at} one CPU would be {} busy; with {count}, {limit} is {} busy, above {most}, but {more}",
            load(one),
            load(best)
        ),
    }
}

fn why_these(way: &Assignment, candidates: &CandidateCpus) -> String {
    let receiver = candidates.order[0];
    if way.cpus.len() == 1 {
        return format!("no steering: {} does everything, and no packet has to go to another CPU", cpu(receiver));
    }
    let along = if way.mask.contains(receiver) {
        "receives and works too"
    } else {
        "only receives, since it has no time for more"
    };
    let others: CpuMask = way.cpus.iter().filter(|cpu| *cpu != receiver).collect();
    let mut says = format!(
        "{}: {} {along}; {}",
        named(&way.mask),
        cpu(receiver),
        candidates.distances.of_others(&others, receiver)
    );
    let second = candidates.siblings.and(&others);
    if !second.is_empty() {
        says += &format!(
            "; there are too few free cores, so second threads of cores in use join as well: {}",
            named(&second)
        );
    }
    says
}

fn busiest(way: &Assignment) -> String {
    match way.spread {
        1 => "one CPU has all packets".to_owned(),
        spread => {
            let (busiest, balanced, even) =
                (percents(way.busiest), percents(way.balanced), percents(1.0 / spread as f64));
            format!(
                "the busiest CPU has {busiest} of the packets with an even map, which the kernel uses, and {balanced} once buckets \
                 are balanced; an even share would be {even}"
            )
        }
    }
}

fn of_elephants(way: &Assignment, elephants: &[Elephant], stuck: bool) -> String {
    let spread = way.spread.max(2);
    let Some(Elephant { flow, share }) = elephants.first() else {
        return match way.spread {
            1 => "none matters with one CPU".to_owned(),
            _ => format!("none: no flow has more than 1/{spread} of the packets"),
        };
    };
    let (count, share) = (elephants.len(), percents(*share));
    let have = match count {
        1 => "1 flow has".to_owned(),
        _ => format!("{count} flows each have"),
    };
    let limited =
        if stuck { ". That is more than one CPU can handle: a flow limit protects the other flows" } else { "" };
    format!("{have} more than 1/{spread} of the packets; {flow} has {share}, which stay on one CPU{limited}")
}

fn hash(traffic: &TrafficExplanation, way: &Assignment) -> String {
    if way.cpus.len() == 1 {
        return "none is needed with one CPU".to_owned();
    }
    let mut says = vec!["steerage's own (--hash auto)".to_owned()];
    let survey = &traffic.survey;
    let inner = survey.flows.iter().filter(|flow| flow.in_tunnel).count();
    let outer = survey.outer_flows;
    if inner > outer && traffic.layers == steerage::flow::Layers::Inner {
        let (inner, outer) = (counted(inner as u64, "flow"), grouped(outer as u64));
        says.push(format!("it looks into tunnels, which hold {inner}, with {outer} outside"));
    }
    let (ours, of_kernel) = (survey.flows.len(), survey.kernel_flows.len());
    if of_kernel < ours && traffic.layers == steerage::flow::Layers::Inner {
        let share = percents(advice::largest_of_kernel(survey) as f64 / survey.all.packets as f64);
        says.push(format!(
            "the kernel's own hash sees {} of {}, the largest with {share} of the packets",
            counted(of_kernel as u64, "flow"),
            grouped(ours as u64)
        ));
    }
    if advice::torn(traffic) > 0 {
        says.push(
            "it keeps both directions of a flow together; a network card's own hash would not, and the kernel uses that one if \
             there is one (rxhash off)"
                .to_owned(),
        );
    }
    if says.len() == 1 {
        says.push("another hash would do as well for this traffic".to_owned());
    }
    says.join("; ")
}

fn queues(traffic: &TrafficExplanation, way: &Assignment, backlog: Option<u64>) -> Option<String> {
    let mut says = Vec::new();
    let enough = traffic.basis.interfaces.iter().find(|interface| interface.queues >= way.cpus.len().max(2));
    if let Some(interface) = enough {
        let (name, queues) = (&interface.name, interface.queues);
        says.push(format!("{name} has {queues} receive queues: the kernel's RPS adds nothing if each queue has a CPU"));
    }
    if let Some(packets) = backlog.filter(|_| way.cpus.len() > 1) {
        says.push(format!(
            "a backlog of {} has room for what comes in a time slice of 4 ms",
            counted(packets, "packet")
        ));
    }
    (!says.is_empty()).then(|| says.join("; "))
}
