//! Selects the settings that are worth measuring, sorted by the throughput that the cost model of
//! the policy `balance` predicts ([`predict`]). The model only decides which setting is measured
//! first. The measurement decides which setting is kept.

use std::cmp::Reverse;

use steerage::policy::{Costs, RegimeKind, Workers, predict};
use steerage::{CpuId, CpuMask};

use crate::distance::Distances;
use crate::facts::{Facts, Flows};
use crate::plan::{Value, Wish};

/// The maximum number of settings that are compared with the present setting. A comparison takes
/// two minutes by default, so that all comparisons together take at most a quarter of an hour.
pub const CANDIDATES_MAX: usize = 6;

/// `tune` and `explain` suggest the fewest CPUs whose predicted throughput reaches this share of
/// the highest predicted throughput.
const NEAR_THE_MOST: f64 = 0.9;

/// The value of `rps_sock_flow_entries` that the kernel's documentation suggests for a server of
/// moderate load (Documentation/networking/scaling.rst).
pub const SOCK_FLOW_ENTRIES: u64 = 32_768;

/// The assumed time in nanoseconds in which the kernel receives a packet: a sixth of the 2,600 ns
/// in which the kernel forwards a packet (lab/notes/interfaces.md).
const RECEIVE_NS: f64 = 400.0;
const SOFTIRQ_NS: f64 = 2_600.0;

/// The assumed times in nanoseconds of handing a packet over to another CPU, and of fetching the
/// packet on that CPU: first if the two CPUs share a cache, then if they do not. In the kernel,
/// both times are ten times as long as with steerage's rings. The kernel takes a lock for each
/// packet, and once per poll interrupts the CPU that gets the packets.
const CROSSINGS_NS: [(f64, f64); 2] = [(100.0, 130.0), (310.0, 270.0)];

/// The number of polls without packets after which the card may interrupt again, and the time in
/// nanoseconds between polls. A packet waits for at most 20 us for the next poll, which is less
/// than the interrupt delay of most cards. After 200 us without packets, the card may interrupt
/// again.
const DEFER_POLLS: u64 = 10;
const FLUSH_NS: u64 = 20_000;

/// A setting of the kernel that is worth measuring.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The setting in words, for the user.
    pub name: String,
    /// The values that the candidate sets.
    pub wish: Wish,
    /// The predicted packets per second, or `None` if the model does not cover the setting.
    pub predicted: Option<f64>,
}

impl Candidate {
    pub(crate) fn new(name: impl Into<String>, wish: Wish, predicted: Option<f64>) -> Self {
        Self { name: name.into(), wish, predicted }
    }
}

/// Returns the candidates for the CPUs of RPS (`rps_cpus`), the highest predicted throughput first.
pub fn masks(facts: &Facts) -> Vec<Candidate> {
    let model = Model::of(facts);
    let mut found = vec![Candidate::new("RPS off", rps(&CpuMask::new()), Some(model.inline()))];
    let mut add = |name: String, mask: CpuMask| {
        let wish = rps(&mask);
        if !mask.is_empty() && found.iter().all(|other| other.wish != wish) {
            found.push(Candidate::new(name, wish, Some(model.spread(&mask))));
        }
    };
    for with in [true, false] {
        if let Some(mask) = model.suggested(with) {
            let receiver = if with { "with" } else { "without" };
            add(format!("RPS to CPUs {mask}, {receiver} the CPU that receives"), mask);
        }
    }
    add(format!("RPS to all CPUs, {}", facts.cpus), facts.cpus.clone());
    found.sort_by_key(|candidate| Reverse(candidate.predicted.map(|rate| rate as u64)));
    found
}

/// Returns the candidates that are measured after the CPUs for RPS are chosen: each candidate turns
/// RFS, threaded NAPI or deferred interrupts on, or off if the feature is on. RFS needs
/// `rps_sock_flow_entries`, which a candidate may change only if `global` is true.
pub fn refinements(facts: &Facts, global: bool) -> Vec<Candidate> {
    let mut found = Vec::new();
    let entries = if facts.sock_flow_entries == 0 { SOCK_FLOW_ENTRIES } else { facts.sock_flow_entries };
    if facts.sock_flow_entries > 0 && facts.queue_flow_entries > 0 {
        found.push(Candidate::new("RFS off", Wish::default().set("rps_flow_cnt", Value::Number(0)), None));
    } else if facts.sock_flow_entries > 0 || global {
        // The kernel's documentation recommends dividing the entries of RFS among the queues. The
        // kernel rounds a queue's entries up to a power of two.
        let each = (entries / facts.queues.0 as u64).max(1).next_power_of_two();
        let wish = Wish::default().set("rps_flow_cnt", Value::Number(each));
        let wish = match facts.sock_flow_entries {
            0 => wish.set("rps_sock_flow_entries", Value::Number(entries)),
            _ => wish,
        };
        found.push(Candidate::new("RFS", wish, None));
    }
    if let Some(threaded) = facts.threaded {
        let name = if threaded { "NAPI without threads" } else { "threaded NAPI" };
        found.push(Candidate::new(name, Wish::default().set("threaded", Value::Number((!threaded).into())), None));
    }
    // A virtual interface has no interrupts to defer.
    if let Some((polls, flush)) = facts.deferral.filter(|_| facts.driver.is_some()) {
        let (name, polls, flush) = match (polls, flush) {
            (0, 0) => ("deferred interrupts", DEFER_POLLS, FLUSH_NS),
            _ => ("interrupts at once", 0, 0),
        };
        let wish = Wish::default().set("napi_defer_hard_irqs", Value::Number(polls));
        found.push(Candidate::new(name, wish.set("gro_flush_timeout", Value::Number(flush)), None));
    }
    found
}

fn rps(mask: &CpuMask) -> Wish {
    Wish::default().set("rps_cpus", Value::Cpus(mask.clone()))
}

/// The cost model of `balance` with the kernel's costs on this machine.
struct Model<'a> {
    facts: &'a Facts,
    costs: Costs,
    receivers: CpuMask,
    /// The CPUs that do not receive packets, sorted by their distance to the first receiving CPU.
    others: Vec<CpuId>,
    far: CpuMask,
}

impl<'a> Model<'a> {
    fn of(facts: &'a Facts) -> Self {
        let first = facts.receivers.first().copied().or_else(|| facts.cpus.first());
        let receivers: CpuMask = facts.receivers.iter().copied().chain(first).collect();
        let idle: CpuMask = facts.cpus.iter().filter(|cpu| !receivers.contains(*cpu)).collect();
        let others: Vec<CpuId> = first.map_or(Vec::new(), |first| facts.topology.joining_order(first, &idle));
        let far = first.map_or(CpuMask::new(), |first| Distances::of(&facts.topology, first, &idle).far);
        let softirq = facts.softirq_ns.unwrap_or(SOFTIRQ_NS);
        let receive = RECEIVE_NS.min(softirq / 2.0);
        let costs = Costs::exact(receive, 0.0, softirq - receive, &CROSSINGS_NS);
        Self { facts, costs, receivers, others, far }
    }

    fn owners(&self) -> f64 {
        self.receivers.len().max(1) as f64
    }

    fn inline(&self) -> f64 {
        predict(&self.costs, RegimeKind::Inline, self.owners(), &[]).packets_per_second()
    }

    /// Returns the predicted throughput if all receive queues have the RPS mask `mask`. The model
    /// assumes that one CPU handles the largest flow, and that the other flows are divided equally,
    /// as in the kernel.
    fn spread(&self, mask: &CpuMask) -> f64 {
        let even = 1.0 / mask.len() as f64;
        let largest = match self.facts.flows {
            Flows::Seen { largest, .. } => largest.max(even),
            Flows::NotSeen(_) => even,
        };
        let rest = if mask.len() > 1 { (1.0 - largest) / (mask.len() - 1) as f64 } else { 0.0 };
        let others = mask.iter().filter(|cpu| !self.receivers.contains(*cpu)).enumerate();
        let worker = |(nth, cpu): (usize, CpuId)| {
            let share = Some(if nth == 0 { largest } else { rest });
            Workers { capacity: 1.0, class: usize::from(self.far.contains(cpu)), share }
        };
        let workers: Vec<Workers> = others.map(worker).collect();
        predict(&self.costs, RegimeKind::Spread, self.owners(), &workers).packets_per_second()
    }

    /// Returns the smallest set of CPUs whose predicted throughput is near the highest predicted
    /// throughput. If `with` is true, the returned set includes the receiving CPUs.
    fn suggested(&self, with: bool) -> Option<CpuMask> {
        let mask = |count: usize| -> CpuMask {
            let receivers = self.receivers.iter().filter(|_| with);
            receivers.chain(self.others.iter().copied().take(count)).collect()
        };
        let masks: Vec<(f64, CpuMask)> =
            (1..=self.others.len()).map(|count| (self.spread(&mask(count)), mask(count))).collect();
        let most = masks.iter().map(|(rate, _)| *rate).fold(0.0, f64::max);
        masks.into_iter().find(|(rate, _)| *rate >= NEAR_THE_MOST * most).map(|(_, mask)| mask)
    }
}

#[cfg(test)]
mod tests {
    use steerage::topology::Topology;

    use super::*;
    use crate::facts::Card;

    fn facts(cpus: usize, receivers: &[u16], softirq_ns: f64, flows: Option<(usize, f64)>) -> Facts {
        let topology = Topology::even(cpus);
        Facts {
            interface: "eth0".to_owned(),
            driver: None,
            queues: (receivers.len(), receivers.len()),
            card: Card::default(),
            cpus: topology.online().clone(),
            topology,
            receivers: receivers.iter().copied().map(CpuId).collect(),
            threaded: Some(false),
            sock_flow_entries: 0,
            queue_flow_entries: 0,
            softirq_ns: Some(softirq_ns),
            interrupted: Vec::new(),
            is_recent: false,
            deferral: Some((0, 0)),
            drops: Vec::new(),
            time_squeeze: 0,
            flows: flows.map_or(Flows::NotSeen(String::new()), |(count, largest)| Flows::Seen { count, largest }),
        }
    }

    fn names(facts: &Facts) -> Vec<String> {
        masks(facts).into_iter().map(|candidate| candidate.name).collect()
    }

    #[test]
    fn one_queue_with_heavy_work_is_spread() {
        let found = masks(&facts(4, &[0], 4_000.0, None));
        assert_eq!(
            found.iter().map(|candidate| candidate.name.as_str()).collect::<Vec<_>>(),
            [
                "RPS to CPUs 1-3, without the CPU that receives",
                "RPS to CPUs 0-3, with the CPU that receives",
                "RPS off"
            ]
        );
        // The model predicts that each of the three CPUs needs 130 ns to fetch a packet, and 3,600
        // ns to handle it.
        let best = found[0].predicted.unwrap();
        assert!((best - 3e9 / 3_730.0).abs() < 1.0, "{best}");
        // The model predicts that the receiving CPU handles a quarter of the packets, and hands
        // over the rest to other CPUs. Receiving a packet takes 400 ns, and handing a packet over
        // takes 100 ns.
        let with = found[1].predicted.unwrap();
        assert!((with - 1e9 / (400.0 + 900.0 + 75.0)).abs() < 1.0, "{with}");
        assert_eq!(found[2].predicted.unwrap().round(), 250_000.0);
    }

    #[test]
    fn a_queue_for_each_cpu_is_best_without_rps() {
        let receivers: Vec<u16> = (0..64).collect();
        assert_eq!(names(&facts(64, &receivers, 3_000.0, None)), ["RPS off", "RPS to all CPUs, 0-63"]);
        // If a packet needs little work, handing it over to another CPU costs more than it saves.
        assert_eq!(names(&facts(2, &[0], 150.0, None))[0], "RPS off");
    }

    #[test]
    fn one_flow_does_not_become_faster_on_more_cpus() {
        let many = masks(&facts(16, &[3], 4_000.0, Some((3, 0.96))));
        let apart = many.iter().find(|candidate| candidate.name.contains("without")).unwrap();
        assert_eq!(apart.wish, rps(&[0].into_iter().map(CpuId).collect()), "{many:?}");
    }

    #[test]
    fn few_flows_reach_few_cpus() {
        let rate = |flows| masks(&facts(16, &[0], 4_000.0, flows))[0].predicted.unwrap();
        let (two, unknown) = (rate(Some((2, 0.5))), rate(None));
        assert!(two < 2.1 * 1e9 / 3_730.0 && unknown > 2.0 * two, "{two} {unknown}");
        assert!(rate(Some((1_000, 0.01))) > 2.0 * two);
    }

    #[test]
    fn deferred_interrupts_are_for_cards() {
        let veth = facts(4, &[0], 1_000.0, None);
        let wishes = |facts: &Facts| {
            let found = refinements(facts, false).into_iter().map(|candidate| candidate.wish);
            found.filter(|wish| wish.0.contains_key("gro_flush_timeout")).collect::<Vec<_>>()
        };
        assert_eq!(wishes(&veth), []);
        let card = Facts { driver: Some("ice".to_owned()), ..veth };
        let both = |polls, flush| {
            let wish = Wish::default().set("napi_defer_hard_irqs", Value::Number(polls));
            wish.set("gro_flush_timeout", Value::Number(flush))
        };
        assert_eq!(wishes(&card), [both(10, 20_000)]);
        // The interrupt deferral that the administrator has set may be bad, so turning it off is a
        // candidate.
        assert_eq!(wishes(&Facts { deferral: Some((2, 200_000)), ..card.clone() }), [both(0, 0)]);
        assert_eq!(wishes(&Facts { deferral: None, ..card }), []);
    }

    #[test]
    fn rfs_needs_its_table() {
        let facts = facts(4, &[0, 1, 2], 1_000.0, None);
        let names = |facts: &Facts, global| {
            refinements(facts, global).into_iter().map(|candidate| candidate.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&facts, false), ["threaded NAPI"]);
        let found = refinements(&facts, true);
        let wish = Wish::default().set("rps_flow_cnt", Value::Number(16_384));
        assert_eq!(found[0].wish, wish.set("rps_sock_flow_entries", Value::Number(32_768)));
        let on = Facts { sock_flow_entries: 1024, queue_flow_entries: 512, threaded: None, ..facts };
        assert_eq!(names(&on, false), ["RFS off"]);
    }

    #[test]
    fn a_machine_without_facts_has_only_one_candidate() {
        let facts = Facts { cpus: CpuMask::new(), receivers: Vec::new(), ..facts(1, &[], 1_000.0, None) };
        assert_eq!(names(&facts), ["RPS off"]);
    }
}
