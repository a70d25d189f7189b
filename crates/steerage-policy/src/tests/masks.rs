use std::time::Duration;

use super::machine::Machine;
use super::some;
use crate::limits::Tuning;
use crate::policy::Policy;

/// A time that is long enough for a second probe, which may begin only after ten seconds.
const SETTLE: Duration = Duration::from_secs(14);
const STEADY: Duration = Duration::from_secs(6);

const ENOUGH: f64 = 0.97;

type Case = (&'static str, fn(usize, f64) -> Machine);

fn machine(cpus: usize, work: f64) -> Machine {
    Machine::new(cpus, work, Tuning::default())
}

const CASES: [Case; 13] = [
    ("plain", |cpus, work| machine(cpus, work)),
    ("zipf", |cpus, work| machine(cpus, work).zipf(1.0)),
    ("live", |cpus, work| {
        let machine = machine(cpus, work).zipf(0.8);
        let rate = machine.inline() * cpus as f64 * 2.0;
        machine.at_rate(rate)
    }),
    ("half", |cpus, work| {
        let machine = machine(cpus, work).zipf(0.8);
        let rate = machine.best(f64::INFINITY) * 0.5;
        machine.at_rate(rate)
    }),
    ("shared cores", |cpus, work| {
        let mut machine = machine(cpus, work).zipf(0.8);
        machine.shared_core = 0.65;
        machine
    }),
    ("a slow CPU", |cpus, work| {
        let mut machine = machine(cpus, work).zipf(0.8);
        machine.speed[1] = 0.5;
        machine
    }),
    ("a stolen CPU", |cpus, work| {
        let mut machine = machine(cpus, work).zipf(0.8);
        machine.stolen[1] = 0.5;
        machine
    }),
    ("heavy-tailed", |cpus, work| machine(cpus, work).heavy_tailed()),
    ("elephant", |cpus, work| machine(cpus, work).zipf(0.8).elephant(0.3)),
    ("bursts of 10 ms", |cpus, work| bursts(cpus, work, 10)),
    ("bursts of 100 ms", |cpus, work| bursts(cpus, work, 100)),
    ("bursts of 1 s", |cpus, work| bursts(cpus, work, 1000)),
    ("bursts of 10 s", |cpus, work| bursts(cpus, work, 10_000)),
];

fn bursts(cpus: usize, work: f64, millis: u64) -> Machine {
    let machine = machine(cpus, work).zipf(0.8);
    let rate = machine.best(f64::INFINITY) * 0.9;
    machine.bursts(Duration::from_millis(millis), rate)
}

/// If `collects` is true, the group begins with a collector (the next CPU handles all packets), as
/// with a file. If `collects` is false, the receiving CPU does all work at first.
fn all_cases(cpus: usize, collects: bool) {
    let mut missed = Vec::new();
    let machines = CASES.iter().flat_map(|(name, make)| [20.0, 100.0, 400.0, 2000.0].map(|work| (*name, make, work)));
    for (name, make, work) in some(machines.collect()) {
        let mut machine = make(cpus, work);
        // A group begins with a collector only if the source is a file and the next CPU is on
        // another core.
        if collects && (!machine.waits || machine.shared_core < 1.0 && cpus == 2) {
            continue;
        }
        if collects {
            let next = machine.next();
            machine.map.fill(next);
        }
        let (settle, steady) = match name {
            "bursts of 10 s" => (Duration::from_secs(40), Duration::from_secs(40)),
            // Only trials can show that fewer CPUs are better, and there is one trial in 10 s.
            "shared cores" | "heavy-tailed" => (Duration::from_secs(60), STEADY),
            "bursts of 100 ms" | "a slow CPU" => (Duration::from_secs(30), STEADY),
            _ => (SETTLE, STEADY),
        };
        machine.run(settle);
        let before = machine.changes.len();
        let part = machine.run(steady);
        let changes = machine.changes.len() - before;
        // At most three CPUs join at a time, so that joining takes a part of each burst and trial.
        let enough = match name {
            "bursts of 10 s" if cpus == 64 => 0.92,
            "shared cores" if collects => 0.92,
            _ => ENOUGH,
        };
        if part < enough || changes as u64 > steady.as_secs() {
            missed.push(format!(
                "{name}, work {work}: {part:.3}, {changes} changes in {steady:?}, {} CPUs, uneven {:?}",
                machine.active().len(),
                machine.policy.findings().uneven
            ));
        }
    }
    assert!(missed.is_empty(), "{cpus} CPUs:\n{}", missed.join("\n"));
}

#[test]
fn two_cpus_do_what_the_best_mask_does() {
    all_cases(2, false);
}

#[test]
fn four_cpus_do_what_the_best_mask_does() {
    all_cases(4, false);
}

#[test]
fn eight_cpus_do_what_the_best_mask_does() {
    all_cases(8, false);
}

#[test]
fn sixteen_cpus_do_what_the_best_mask_does() {
    all_cases(16, false);
}

#[test]
fn sixty_four_cpus_do_what_the_best_mask_does() {
    all_cases(64, false);
}

#[test]
fn files_that_begin_on_another_cpu_do_what_the_best_mask_does() {
    for cpus in [2, 4, 16] {
        all_cases(cpus, true);
    }
}

/// A fair scheduler gives steerage half of each CPU. With a file, no sender needs a CPU.
#[test]
fn files_use_their_fair_share_of_busy_cpus() {
    for work in [100.0, 2000.0] {
        for wanted in [[0.95, 0.95], [0.5, 0.95], [0.0, 0.95], [0.95, 0.0]] {
            let mut machine = machine(2, work);
            machine.wanted = wanted.to_vec();
            machine.run(SETTLE);
            machine.stolen = wanted.iter().map(|wanted| f64::min(*wanted, 0.5)).collect();
            let best = machine.best(f64::INFINITY);
            let checks = STEADY.as_millis() / 10;
            let handled = (0..checks).map(|_| machine.check().handled).sum::<f64>() / checks as f64;
            assert!(handled >= ENOUGH * best, "work {work}, {wanted:?}: {:.3}", handled / best);
        }
    }
}

/// Waking a CPU takes 7 us, and after 50 us without packets, a CPU sleeps again. If too many CPUs
/// join at once, the receiving CPU has no time left to receive.
#[test]
fn no_more_cpus_join_at_once_than_the_receiving_cpu_can_wake() {
    for cpus in [32, 64] {
        let mut machine = machine(cpus, 2000.0);
        machine.wakes_at_most = 6;
        machine = machine.at_rate(0.7 * cpus as f64 / 2000.0);
        machine.run(Duration::from_secs(3));
        let part = machine.run(Duration::from_secs(1));
        assert!(part > ENOUGH, "{cpus} CPUs: {part:.3}, {:?}", machine.changes);
    }
}
