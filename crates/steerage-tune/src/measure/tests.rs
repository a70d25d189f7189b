use std::collections::BTreeMap;

use steerage::topology::Topology;
use steerage::{CpuId, CpuMask};

use super::*;
use crate::facts::{Card, CpuCounts};
use crate::knob::Knob;
use crate::plan::{Change, Value};

/// A simulated load per second: packets, lost packets, and the busy ticks of CPUs 0 and 1.
type Load = (u64, u64, [u64; 2]);

struct Machine {
    loads: BTreeMap<&'static str, Load>,
    knob: &'static str,
    counted: Sample,
    milliseconds: u64,
    /// The time at which the user ends the measurement, in milliseconds.
    end: u64,
    set: Vec<(u64, &'static str)>,
}

impl Machine {
    fn new(knob: &'static str, loads: &[(&'static str, Load)]) -> Self {
        let cpus = [0, 1].map(|cpu| (CpuId(cpu), CpuCounts::default())).into();
        Self {
            loads: loads.iter().copied().collect(),
            knob,
            counted: Sample { cpus, ..Sample::default() },
            milliseconds: 0,
            end: u64::MAX,
            set: Vec::new(),
        }
    }

    fn search(&mut self, candidates: &[&'static str]) -> Search {
        let topology = Topology::even(2);
        let facts = Facts {
            interface: "veth0".to_owned(),
            driver: None,
            queues: (1, 1),
            card: Card::default(),
            cpus: CpuMask::new(),
            topology,
            receivers: vec![CpuId(0)],
            threaded: None,
            sock_flow_entries: 0,
            queue_flow_entries: 0,
            softirq_ns: None,
            interrupted: Vec::new(),
            is_recent: false,
            deferral: None,
            drops: Vec::new(),
            time_squeeze: 0,
            flows: crate::facts::Flows::NotSeen(String::new()),
        };
        let candidate = |value: &&'static str| Candidate {
            name: (*value).to_owned(),
            wish: Wish::default().set("rps_cpus", Value::Text((*value).to_owned())),
            predicted: None,
        };
        let candidates: Vec<Candidate> = candidates.iter().map(candidate).collect();
        let mut reported = 0;
        let found = search(self, &facts, candidates, &Options::default(), &mut |_| reported += 1).unwrap();
        assert_eq!(reported, found.compared.len());
        found
    }
}

impl Site for Machine {
    fn plan(&mut self, wish: &Wish) -> Plan {
        let Some(Value::Text(new)) = wish.0.get("rps_cpus") else { return Plan::default() };
        let (knob, old) = (Knob("rps_cpus".to_owned()), self.knob.to_owned());
        let change = Change { stage: "rps_cpus", knob, old, new: new.clone(), why: "" };
        let changes = if change.old == change.new { Vec::new() } else { vec![change] };
        Plan { changes, ..Plan::default() }
    }

    fn apply(&mut self, setting: &Setting) -> Result<(), TuneError> {
        for (knob, value) in &setting.0 {
            let Some(known) = self.loads.keys().find(|known| *known == value) else {
                let error = std::io::ErrorKind::PermissionDenied.into();
                return Err(TuneError::Write { knob: knob.clone(), value: value.clone(), error });
            };
            if self.knob != *known {
                self.knob = known;
                self.set.push((self.milliseconds, known));
            }
        }
        Ok(())
    }

    fn sample(&mut self) -> Sample {
        self.counted.clone()
    }

    fn wait(&mut self, time: Duration) -> bool {
        let passed = time.as_millis() as u64;
        self.milliseconds += passed;
        self.counted.uptime = self.milliseconds / 10;
        let (packets, lost, ticks) = self.loads[self.knob];
        self.counted.packets += packets * passed / 1_000;
        self.counted.lost += lost * passed / 1_000;
        for (cpu, ticks) in (0..).zip(ticks) {
            let counts = self.counted.cpus.get_mut(&CpuId(cpu)).unwrap();
            counts.softirq += ticks * passed / 1_000;
            counts.all += passed / 10;
        }
        self.milliseconds < self.end
    }
}

fn reasons(search: &Search) -> Vec<(&str, bool, Reason)> {
    let one = |one: &Comparison| {
        let verdict = one.verdict.as_ref().unwrap();
        (verdict.keep, verdict.reason)
    };
    search.compared.iter().map(|compared| (compared.name.as_str(), one(compared).0, one(compared).1)).collect()
}

#[test]
fn what_helps_is_kept_and_the_rest_taken_back() {
    let loads = [
        ("0", (100_000, 0, [60, 0])),
        ("3", (100_000, 0, [40, 40])),
        ("2", (100_000, 0, [20, 60])),
        ("1", (100_000, 0, [60, 0])),
    ];
    let mut machine = Machine::new("0", &loads);
    let found = machine.search(&["1", "3", "2", "0", "unknown"]);
    assert_eq!(
        reasons(&Search { compared: found.compared[..4].to_vec(), ..Search::default() }),
        [
            ("1", false, Reason::Noise),
            ("3", true, Reason::Evenness),
            ("2", false, Reason::Evenness),
            ("0", false, Reason::Evenness)
        ]
    );
    assert_eq!(machine.knob, "3");
    assert!(found.compared[4].refused.as_ref().unwrap().contains("cannot set rps_cpus to unknown"), "{found:?}");
    assert_eq!(found.kept().map(|plan| plan.changes[0].new.as_str()).collect::<Vec<_>>(), ["3"]);
    // In this case, the best setting is already active.
    assert_eq!(machine.search(&["3", "1"]).kept().count(), 0);
    // Five seconds pass between two changes, unless the second change undoes the first.
    let set = &machine.set;
    for pair in set.windows(2) {
        assert!(pair[1].0 - pair[0].0 >= 5_000 || pair[1].0 == pair[0].0, "{set:?}");
    }
}

/// An RPS mask often makes all CPUs busier without a gain.
#[test]
fn an_unhelpful_mask_is_taken_off() {
    let loads = [("0", (100_000, 0, [30, 30])), ("3", (100_000, 0, [55, 55]))];
    let mut machine = Machine::new("3", &loads);
    assert_eq!(reasons(&machine.search(&["0"])), [("0", true, Reason::Evenness)]);
    assert_eq!(machine.knob, "0");
}

#[test]
fn at_the_limit_throughput_decides() {
    let loads = [("0", (100_000, 50_000, [99, 0])), ("3", (150_000, 0, [90, 70])), ("2", (90_000, 60_000, [99, 50]))];
    let mut machine = Machine::new("0", &loads);
    let found = machine.search(&["3", "2"]);
    assert_eq!(reasons(&found), [("3", true, Reason::Throughput), ("2", false, Reason::Drops)]);
    assert_eq!((machine.knob, found.compared[0].verdict.as_ref().unwrap().at_limit), ("3", true));
}

#[test]
fn drops_end_a_window_at_once() {
    let mut machine = Machine::new("0", &[("0", (100_000, 0, [50, 0])), ("3", (100_000, 500, [10, 10]))]);
    assert_eq!(reasons(&machine.search(&["3"])), [("3", false, Reason::Drops)]);
    assert_eq!(machine.set, [(6_000, "3"), (7_500, "0")]);
}

/// Tests a sender without a rate limit, through a veth. With RPS, most packets are lost, but more
/// packets are handled than without RPS.
#[test]
fn a_sender_without_a_limit_does_not_hide_the_better_mask() {
    let loads = [("0", (42_000, 0, [99, 0])), ("2", (75_000, 210_000, [80, 99])), ("1", (42_000, 240_000, [99, 30]))];
    let mut machine = Machine::new("0", &loads);
    let found = machine.search(&["1", "2"]);
    assert_eq!(reasons(&found), [("1", false, Reason::Drops), ("2", true, Reason::Throughput)]);
    assert_eq!(machine.knob, "2");
}

#[test]
fn an_end_restores_everything() {
    let loads = [("0", (100_000, 0, [60, 0])), ("3", (100_000, 0, [40, 40])), ("2", (100_000, 0, [20, 60]))];
    // The user ends the measurement during the first window (after 3 s), or during the second
    // candidate (after 80 s).
    for end in [3_000, 80_000] {
        let mut machine = Machine::new("0", &loads);
        machine.end = end;
        let found = machine.search(&["3", "2"]);
        assert!(found.interrupted && machine.knob == "0", "{found:?}");
    }
}

#[test]
fn a_silent_interface_is_not_measured_for_minutes() {
    let mut machine = Machine::new("0", &[("0", (3, 0, [0, 0])), ("3", (3, 0, [0, 0]))]);
    assert_eq!(reasons(&machine.search(&["3"])), [("3", false, Reason::TooFew)]);
    assert!(machine.milliseconds < 15_000 && machine.knob == "0");
}

#[test]
fn at_most_six_are_measured() {
    let names = ["0", "1", "2", "3", "4", "5", "6", "7"];
    let loads = names.map(|name| (name, (100_000, 0, [50, 50])));
    let found = Machine::new("0", &loads).search(&names);
    assert_eq!((found.compared.len(), found.left_out), (CANDIDATES_MAX, vec!["7".to_owned()]));
}
