//! Tests that each constant of `Tuning` matters. If a constant is halved or doubled, the result of
//! at least one of these runs must leave its expected range.

use std::time::Duration;

use super::machine::Machine;
use super::some;
use crate::distances::is_same;
use crate::limits::Tuning;
use crate::policy::Policy;
use steerage_core::ids::MoveCause;
use steerage_flow::Timestamp;

const SECOND: Duration = Duration::from_secs(1);

type Run = (&'static str, fn(Tuning) -> f64, std::ops::RangeInclusive<f64>);

fn machine(cpus: usize, work: f64, tuning: Tuning) -> Machine {
    let mut machine = Machine::new(cpus, work, tuning);
    machine.noise = 0.0;
    machine
}

fn others(machine: &Machine) -> usize {
    machine.active().iter().filter(|cpu| **cpu != 0).count()
}

fn left_after(tuning: Tuning) -> f64 {
    let mut machine = machine(2, 1000.0, tuning);
    machine.run(SECOND * 3);
    machine = machine.at_rate(1e-6);
    let from = machine.now;
    machine.run(SECOND * 10);
    machine.changes.iter().find(|change| change.0 >= from).map_or(99.0, |change| change.0.since(from).as_secs_f64())
}

fn probes(receive: f64, work: f64, seconds: u32, tuning: Tuning) -> Vec<(f64, f64)> {
    let mut machine = machine(2, work, tuning);
    machine.path.receive = receive;
    machine.run(SECOND * seconds);
    let at = |change: &(Timestamp, MoveCause, usize)| change.0.since(Timestamp::ZERO).as_secs_f64();
    machine.changes.chunks_exact(2).map(|pair| (at(&pair[0]), at(&pair[1]) - at(&pair[0]))).collect()
}

fn between_probes(receive: f64, work: f64, seconds: u32, tuning: Tuning) -> f64 {
    let probes = probes(receive, work, seconds, tuning);
    probes.get(1).map_or(999.0, |probe| probe.0 - probes[0].0)
}

fn others_at(load: f64, tuning: Tuning) -> f64 {
    let mut machine = machine(16, 2000.0, tuning);
    machine = machine.at_rate(load / 2030.0);
    machine.run(SECOND * 3);
    others(&machine) as f64
}

fn threshold(mut low: f64, mut high: f64, happens: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..10 {
        let middle = (low + high) / 2.0;
        if happens(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

fn runs() -> Vec<Run> {
    vec![
        ("seconds until CPUs leave", left_after, 1.5..=2.1),
        ("seconds of a probe", |tuning| probes(30.0, 5.0, 5, tuning).first().map_or(0.0, |probe| probe.1), 0.09..=0.15),
        (
            "seconds between probes of what is a little worse",
            |tuning| between_probes(30.0, 4.0, 40, tuning),
            9.0..=15.0,
        ),
        ("seconds between probes of what is far worse", |tuning| between_probes(5.0, 0.5, 300, tuning), 100.0..=280.0),
        ("other CPUs for a load of 6", |tuning| others_at(6.0, tuning), 7.0..=9.0),
        (
            "load at which a CPU joins",
            |tuning| {
                threshold(0.3, 1.2, |load| {
                    let mut machine = machine(2, 1000.0, tuning);
                    machine = machine.at_rate(load / 1030.0);
                    machine.full_from = 0.3;
                    machine.run(SECOND);
                    others(&machine) > 0
                })
            },
            0.8..=0.9,
        ),
        (
            "load at which a CPU leaves",
            |tuning| {
                1.2 - threshold(0.2, 1.1, |less| {
                    let mut machine = machine(2, 1000.0, tuning);
                    machine.run(SECOND * 2);
                    machine = machine.at_rate((1.2 - less) / 1030.0);
                    machine.run(SECOND * 3);
                    others(&machine) == 0
                })
            },
            0.48..=0.6,
        ),
        (
            "full rounds from which on a CPU joins",
            |tuning| {
                threshold(0.05, 0.95, |full| {
                    let mut machine = machine(2, 1000.0, tuning);
                    machine.full = full;
                    machine.run(SECOND);
                    others(&machine) > 0
                })
            },
            0.2..=0.3,
        ),
        (
            "work that is handed over without a probe",
            |tuning| {
                threshold(1.0, 400.0, |work| {
                    let mut machine = machine(2, work, tuning);
                    machine.run(Duration::from_millis(30));
                    machine.changes.len() == 1 && machine.policy.findings().reason == "predicted"
                })
            },
            50.0..=70.0,
        ),
        (
            "distances that are the same",
            |tuning| {
                let nanos = Duration::from_nanos;
                let is_same = |one, other| f64::from(u8::from(is_same(nanos(one), nanos(other), tuning.same)));
                is_same(40, 60) + is_same(50, 110)
            },
            1.0..=1.0,
        ),
        (
            "unevenness that stays",
            |tuning| {
                let mut machine = machine(8, 2000.0, tuning).zipf(1.0);
                machine.run(SECOND * 3);
                machine.policy.findings().uneven.unwrap_or(9.0)
            },
            1.0..=1.1,
        ),
    ]
}

type Vary = (&'static str, fn(&mut Tuning, f64));

const FIELDS: [Vary; 12] = [
    ("dwell", |tuning, by| tuning.dwell = tuning.dwell.mul_f64(by)),
    ("probe", |tuning, by| tuning.probe = tuning.probe.mul_f64(by)),
    ("budget", |tuning, by| tuning.budget *= by),
    ("drift", |tuning, by| tuning.drift *= by),
    ("noise", |tuning, by| tuning.noise *= by),
    ("sure", |tuning, by| tuning.sure *= by),
    ("fill", |tuning, by| tuning.fill *= by),
    ("growth", |tuning, by| tuning.growth *= by),
    ("full", |tuning, by| tuning.full *= by),
    ("hand_over", |tuning, by| tuning.hand_over *= by),
    ("line", |tuning, by| tuning.line = tuning.line.mul_f64(by)),
    ("same", |tuning, by| tuning.same = 1.0 + (tuning.same - 1.0) * by),
];

#[test]
fn a_constant_that_is_twice_as_large_or_half_as_large_fails_a_run() {
    let runs = runs();
    let failed = |tuning: Tuning| -> Vec<String> {
        let results = runs.iter().map(|(name, run, range)| (name, run(tuning), range));
        let missed = results.filter(|(_, result, range)| !range.contains(result));
        missed.map(|(name, result, _)| format!("{name} {result:.3}")).collect()
    };
    assert_eq!(failed(Tuning::default()), [""; 0]);
    let mut harmless = Vec::new();
    let changes = [0.5, 2.0].iter().flat_map(|by| FIELDS.map(|(name, vary)| (name, vary, *by)));
    for (name, vary, by) in some(changes.collect()) {
        let mut tuning = Tuning::default();
        vary(&mut tuning, by);
        let failed = failed(tuning);
        if failed.is_empty() {
            harmless.push((name, by));
        }
    }
    assert_eq!(harmless, []);
}
