//! Why the advice is what it is.

use std::time::Duration;

use serde::Serialize;
use steerage::flow::HeaderKind;
use steerage::{CpuId, CpuMask};

use super::commands::BacklogMax;
use super::model::{BUSY_MAX, Choice, Costs, Way};
use super::{Elephant, Machine, Rate, RateFrom, cpu, named};
use crate::report::explain::{OfTraffic, advice, tunnels};
use crate::report::units::{self, grouped, packets_a_second};

/// Tunnels in UDP or behind labels: the kernel's flow hash does not look into them (`__skb_get_hash`, `net/core/flow_dissector.c`).
const HIDDEN_FROM_THE_KERNEL: [HeaderKind; 3] = [HeaderKind::Vxlan, HeaderKind::Geneve, HeaderKind::GtpU];

/// In the words of the page.
#[derive(Debug, Serialize)]
pub(super) struct Reasons {
    pub(super) cpus: String,
    pub(super) mask: String,
    pub(super) busiest: String,
    pub(super) elephants: String,
    pub(super) hash: String,
    /// Of the backlogs, and of the interface's own queues, where there is something to say.
    pub(super) queues: Option<String>,
}

impl Reasons {
    pub(super) fn of(
        traffic: &OfTraffic,
        choice: &Choice,
        costs: &Costs,
        elephants: &[Elephant],
        stuck: bool,
        backlog: Option<BacklogMax>,
    ) -> Self {
        let (best, machine) = (&choice.best, &traffic.circumstances.machine);
        Self {
            cpus: why_so_many(traffic, choice, costs),
            mask: why_these(best, machine),
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

/// `1,234 ns` up to 10 us, `123.4 us`, `12.3 ms`, and longer ones as elsewhere.
fn short(time: Duration) -> String {
    match time.as_nanos() as u64 {
        ns @ ..10_000 => format!("{} ns", grouped(ns)),
        ns @ ..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        _ => units::time(time),
    }
}

/// `at 1.2 Mpps, as recorded`.
fn at(rate: &Rate) -> String {
    let from = match rate.from {
        RateFrom::Listening => "as listened to",
        RateFrom::Recording => "as recorded, on average",
        RateFrom::Asked => "as asked for",
    };
    format!("at {}, {from},", packets_a_second(rate.packets_a_second))
}

fn why_so_many(traffic: &OfTraffic, choice: &Choice, costs: &Costs) -> String {
    let Choice { best, one, is_enough } = choice;
    let count = best.cpus.len();
    let most = percents(BUSY_MAX);
    let more = if count == traffic.circumstances.machine.order.len() { "there are no more" } else { "more add little" };
    let speed_up = one.load_ns / best.load_ns;
    let limit = match (count, best.receiver_is_busiest) {
        (1, _) => "it",
        (_, true) => "the CPU that receives",
        (_, false) => "the busiest of the others",
    };
    let Some(rate) = &traffic.circumstances.rate else {
        return match count {
            1 => "no rate is known; more CPUs would not do more of this".to_owned(),
            _ => format!("no rate is known; {count} do {speed_up:.1} times what one does, and {more}"),
        };
    };
    let load = |way: &Way| percents(way.load(Some(rate.packets_a_second)).unwrap_or(0.0));
    let at = at(rate);
    match (is_enough, count) {
        (Some(true), 1) => {
            let room_ns = (BUSY_MAX * 1e9 / rate.packets_a_second - costs.receive_ns).max(0.0);
            let room = short(Duration::from_nanos(room_ns as u64));
            format!("{at} it is {} busy; up to {room} of work a packet it stays below {most}", load(best))
        }
        (Some(true), _) => {
            format!("{at} one would be {} busy, and of {count} {limit} is {}, below {most}", load(one), load(best))
        }
        (_, 1) => format!("{at} it would be {} busy, and more CPUs would not do more of this", load(one)),
        (..) => format!(
            "{at} one would be {} busy, and of {count} {limit} {}, which is more than {most}, but {more}",
            load(one),
            load(best)
        ),
    }
}

fn why_these(way: &Way, machine: &Machine) -> String {
    let receiver = machine.order[0];
    if way.cpus.len() == 1 {
        return format!("{}: what is not handed over costs no cache lines", cpu(receiver));
    }
    let along = if way.mask.contains(receiver) {
        "receives and works along"
    } else {
        "receives, which is all that it has time for"
    };
    let others: CpuMask = way.cpus.iter().filter(|cpu| *cpu != receiver).collect();
    let mut says = format!("{}: {} {along}; {}", named(&way.mask), cpu(receiver), how_near(&others, machine, receiver));
    let second = machine.siblings.and(&others);
    if !second.is_empty() {
        says += &format!("; {} second thread(s) of cores in use, for want of cores", named(&second));
    }
    says
}

fn how_near(others: &CpuMask, machine: &Machine, receiver: CpuId) -> String {
    let far = machine.far.and(others);
    let measured = machine.measured.map_or(String::new(), |(nearest, farthest)| {
        let (nearest, farthest) = (nearest.as_nanos(), farthest.as_nanos());
        let range = if nearest == farthest { nearest.to_string() } else { format!("{nearest} to {farthest}") };
        format!(" (a cache line takes {range} ns one way, measured)")
    });
    let to = cpu(receiver);
    match (far.is_empty(), far == *others) {
        (true, _) if machine.is_known => format!("the others are near to it{measured}"),
        (true, _) => "the others are taken to be near to it".to_owned(),
        (_, true) => format!("the others share no cache with it{measured}"),
        _ => format!("{} share no cache with {to}, and come last{measured}", named(&far)),
    }
}

fn busiest(way: &Way) -> String {
    match way.spread {
        1 => "all of the packets are with one CPU".to_owned(),
        spread => {
            let (busiest, balanced, even) =
                (percents(way.busiest), percents(way.balanced), percents(1.0 / spread as f64));
            format!(
                "one CPU has {busiest} of the packets by an even map, as the kernel's; once balanced {balanced}; {even} would be even"
            )
        }
    }
}

fn of_elephants(way: &Way, elephants: &[Elephant], stuck: bool) -> String {
    let spread = way.spread.max(2);
    let Some(Elephant { flow, share }) = elephants.first() else {
        return match way.spread {
            1 => "none that matters to one CPU".to_owned(),
            _ => format!("none: no flow has more than 1/{spread} of the packets"),
        };
    };
    let (count, share) = (elephants.len(), percents(*share));
    let limited = if stuck { ". That is more than its CPU can do: a flow limit has the others live" } else { "" };
    format!(
        "{count} flow(s) with more than 1/{spread} of the packets; {share} are of {flow}, and stay on one CPU{limited}"
    )
}

/// Whether the hash that network cards come with would have the two directions of flows on different queues.
pub(super) fn is_torn(traffic: &OfTraffic) -> bool {
    advice::torn(traffic) > 0
}

fn hash(traffic: &OfTraffic, way: &Way) -> String {
    if way.cpus.len() == 1 {
        return "no choice to make".to_owned();
    }
    let mut says = vec!["steerage's own (--hash auto)".to_owned()];
    let survey = &traffic.survey;
    let inner = survey.flows.iter().filter(|flow| flow.in_tunnel).count();
    let outer = survey.outer_flows;
    if inner > outer && traffic.layers == steerage::flow::Layers::Inner {
        let (inner, outer) = (grouped(inner as u64), grouped(outer as u64));
        says.push(format!("it looks into tunnels, where {inner} flows are, {outer} outside"));
        let hidden = |kind: &HeaderKind| HIDDEN_FROM_THE_KERNEL.contains(kind);
        if tunnels(survey).iter().any(|(kind, _)| hidden(kind)) {
            says.push("the kernel's does not".to_owned());
        }
    }
    if is_torn(traffic) {
        says.push(
            "flows go both ways, and stay together by it; a card's own hash, by which the kernel goes where there is one, would \
             tear them (rxhash off)"
                .to_owned(),
        );
    }
    if says.len() == 1 {
        says.push("nothing here that another hash would miss".to_owned());
    }
    says.join("; ")
}

fn queues(traffic: &OfTraffic, way: &Way, backlog: Option<BacklogMax>) -> Option<String> {
    let mut says = Vec::new();
    let enough = traffic.circumstances.interfaces.iter().find(|interface| interface.queues >= way.cpus.len().max(2));
    if let Some(interface) = enough {
        let (name, queues) = (&interface.name, interface.queues);
        says.push(format!("{name} has {queues} of its own: the kernel's RPS adds nothing where each has a CPU"));
    }
    if let Some(BacklogMax(packets)) = backlog.filter(|_| way.cpus.len() > 1) {
        says.push(format!("{} packets may wait, as many as come in a time slice of 4 ms", grouped(packets)));
    }
    (!says.is_empty()).then(|| says.join("; "))
}
