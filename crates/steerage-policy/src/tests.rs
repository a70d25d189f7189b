mod machine;
mod masks;
mod model;
mod packing;
mod tuning;

use std::time::Duration;

use steerage_core::ids::MoveCause;
use steerage_core::limits::BUCKETS;

use super::*;

use model::Model;

const NEAR: f64 = 1.08;

const SETTLE: Duration = Duration::from_secs(2);
const STEADY: Duration = Duration::from_secs(10);
const PROBED: Duration = Duration::from_secs(12);

/// Selects `STEERAGE_CASES` (or four) evenly spaced cases. All cases would take minutes.
fn some<T>(all: Vec<T>) -> impl Iterator<Item = T> {
    let most = std::env::var("STEERAGE_CASES").map_or(4, |cases| cases.parse().expect("STEERAGE_CASES is a number"));
    // There are four amounts of work, and two factors, so an odd step uses all of them.
    let step = all.len().div_ceil(most.max(1)) | 1;
    all.into_iter().step_by(step)
}

#[test]
fn zipf_is_evened_out_by_few_moves_and_then_stays() {
    for cpus in [8, 16, 64] {
        for seed in [0, 4] {
            let mut model = Model::new(cpus, cpus, seed).zipf(100_000, 0.6 * cpus as f64);
            let before = model.uneven();
            assert!(before > NEAR, "nothing to do");
            model.run(SETTLE);
            assert!(model.uneven() <= NEAR, "{cpus} CPUs, seed {seed}: {before} to {}", model.uneven());
            let flows = model.flows_moved();
            assert!(flows < 6_000, "{cpus} CPUs, seed {seed}: {flows} of 100,000 flows moved");
            assert!(model.requests.iter().all(|(cause, ..)| *cause == MoveCause::Balance), "{:?}", model.requests);
            let moved = model.requests.len();
            model.run(STEADY);
            assert_eq!(model.requests.len(), moved, "{cpus} CPUs, seed {seed}");
        }
    }
}

/// Every 100 ms, one flow in 500 changes its bucket. In 10 s, one heavy flow in five changes its
/// bucket.
#[test]
fn flows_that_drift_are_followed() {
    for cpus in [8, 16, 64] {
        let mut model = Model::new(cpus, cpus, 1).zipf(100_000, 0.8 * cpus as f64);
        model.run(SETTLE);
        let (mut over, windows) = (0, 100);
        for _ in 0..windows {
            for _ in 0..100 {
                let (a, b) = (model.chance.below(100_000), model.chance.below(100_000));
                let (one, other) = (model.flows[a].1, model.flows[b].1);
                (model.flows[a].1, model.flows[b].1) = (other, one);
            }
            over += usize::from(model.worst(Duration::from_millis(100)) > NEAR);
        }
        assert!(over <= windows / 20, "{cpus} CPUs: {over} of {windows} windows");
    }
}

#[test]
fn bursts_are_not_run_after() {
    for cpus in [8, 16, 64] {
        let mut model = Model::new(cpus, cpus, 2).zipf(100_000, 0.7 * cpus as f64);
        model.run(SETTLE);
        let before = model.flows_moved();
        let (mut over, seconds) = (0, 10);
        for _ in 0..seconds {
            let bursting: Vec<usize> = (0..1000).map(|_| 1000 + model.chance.below(99_000)).collect();
            bursting.iter().for_each(|flow| model.flows[*flow].1 *= 10.0);
            model.run(Duration::from_millis(500));
            over += usize::from(model.worst(Duration::from_millis(500)) > NEAR);
            bursting.iter().for_each(|flow| model.flows[*flow].1 /= 10.0);
        }
        assert!(over <= 1, "{cpus} CPUs: {over} of {seconds}");
        assert!(model.flows_moved() - before < 5_000, "{cpus} CPUs: {}", model.flows_moved() - before);
    }
}

#[test]
fn a_syn_flood_is_spread_as_well() {
    for cpus in [8, 16, 64] {
        let mut model = Model::new(cpus, cpus, 3).zipf(100_000, 0.5 * cpus as f64);
        model.run(SETTLE);
        let moved = model.flows_moved();
        let flood = 0.25 * cpus as f64 / BUCKETS as f64;
        model.flows.extend((0..BUCKETS as u16).map(|bucket| (bucket, flood)));
        model.run(SETTLE);
        assert!(model.worst(STEADY) <= NEAR, "{cpus} CPUs");
        assert!(model.flows_moved() - moved < 6_000, "{cpus} CPUs: {}", model.flows_moved() - moved);
    }
}

#[test]
fn an_elephant_gets_a_cpu_of_its_own() {
    for cpus in [8, 16, 64] {
        let mut model = Model::new(cpus, cpus, 4).zipf(100_000, 0.4 * cpus as f64);
        model.run(SETTLE);
        let (bucket, _) = model.flows[77];
        model.flows[77].1 = 3.0;
        model.run(SETTLE);
        assert!(model.uneven() <= NEAR, "{cpus} CPUs: {}", model.uneven());
        let others: f64 = model.flows.iter().map(|(_, load)| load).sum::<f64>() - 3.0;
        let on_its_cpu = model.loads(&model.buckets())[usize::from(model.map[usize::from(bucket)])] - 3.0;
        assert!(on_its_cpu < others / cpus as f64 / 2.0, "{cpus} CPUs: {on_its_cpu} of {others} beside it");
        let told = model.policy.findings().elephants;
        assert_eq!(told[0].0, bucket, "{told:?}");
        assert!(told[0].1 > 0.9, "{told:?}");
    }
}

#[test]
fn cpus_join_as_load_grows_and_leave_as_it_falls() {
    let mut model = Model::new(8, 1, 5).zipf(100_000, 0.3);
    model.receive = 0.2;
    model.hand_over = 0.1;
    model.run(STEADY);
    assert_eq!(model.active(), [0], "quiet");
    for tenths in 1..=50 {
        model.flows = Model::new(8, 1, 5).zipf(100_000, 0.1 * f64::from(tenths)).flows;
        model.run(Duration::from_millis(500));
    }
    let full = model.active();
    assert!((6..=8).contains(&full.len()), "{full:?}");
    assert_eq!(full, (0..full.len() as u16).collect::<Vec<_>>(), "in their order");
    let loads = model.loads(&model.buckets());
    assert!(loads.iter().all(|load| *load < 1.0), "{loads:?}");
    model.flows = Model::new(8, 1, 5).zipf(100_000, 0.05).flows;
    model.run(STEADY);
    assert_eq!(model.active(), [0], "quiet again");
    assert_eq!(model.moves(MoveCause::Joined) as u64, model.policy.findings().joined);
}

#[test]
fn a_square_wave_does_not_make_it_flap() {
    let mut model = Model::new(8, 1, 6).zipf(10_000, 0.1);
    for _ in 0..60 {
        model.flows.iter_mut().for_each(|(_, load)| *load *= 30.0);
        model.run(Duration::from_secs(2));
        model.flows.iter_mut().for_each(|(_, load)| *load /= 30.0);
        model.run(Duration::from_secs(2));
    }
    let (joined, left) = (model.moves(MoveCause::Joined), model.moves(MoveCause::Left));
    assert!(left <= 4 && joined <= 20, "{joined} joined, {left} left, in 60 rounds");
}

/// The packet function takes less time than a hand-over.
#[test]
fn what_does_not_pay_is_not_kept_up() {
    let mut model = Model::new(2, 1, 7).zipf(10_000, 0.6);
    (model.receive, model.cost, model.hand_over) = (0.6, 0.02, 3.0);
    let joined = (0..500).filter(|_| {
        model.check();
        model.active() != [0]
    });
    // A probe lasts for 100 ms, and the time budget for probes is enough for one probe.
    assert!((10..=15).contains(&joined.count()), "{:?}", model.requests);
    assert_eq!(model.active(), [0]);
    assert_eq!((model.moves(MoveCause::Joined), model.moves(MoveCause::Left)), (1, 1));
    let findings = model.policy.findings();
    assert_eq!((&*findings.regime, &*findings.reason), ("inline", "probe-failed"));
    model.run(Duration::from_secs(115));
    assert!(model.moves(MoveCause::Joined) <= 4, "{}", model.moves(MoveCause::Joined));
    (model.cost, model.hand_over) = (0.08, 0.1);
    model.flows.iter_mut().for_each(|(_, load)| *load *= 4.0);
    model.run(Duration::from_secs(12));
    assert!(model.active().contains(&1), "{:?} {:?}", model.requests, model.policy.findings());
}

/// The first load checks measure slow packets, so that later throughput appears better. At the end
/// of the probe, the learned costs show the throughput that a single CPU would have.
#[test]
fn a_slow_beginning_is_no_reason_to_hand_over() {
    for (begins, active) in [(200, &[0][..]), (50, &[0, 1])] {
        let mut model = Model::new(2, 1, 19).zipf(10_000, 1.0);
        (model.receive, model.cost, model.hand_over, model.far) = (0.5, 0.02, 0.1, 15.0);
        model.apart[1] = Some(Duration::from_nanos(begins));
        let slow = |model: &mut Model, times: f64| {
            model.flows.iter_mut().for_each(|(_, load)| *load *= times);
            (model.receive, model.cost) = (model.receive * times, model.cost * times);
        };
        slow(&mut model, 1.12);
        model.run(Duration::from_millis(50));
        slow(&mut model, 1.0 / 1.12);
        model.run(PROBED);
        assert_eq!(model.active(), active, "{begins}: {:?} {:?}", model.requests, model.policy.findings());
        model.apart[1] = Some(Duration::from_nanos(200));
        model.run(SETTLE);
        assert_eq!(model.active(), [0], "{begins}: {:?} {:?}", model.requests, model.policy.findings());
    }
}

/// The program that sends the packets needs nine tenths of a CPU, and continues to get this time.
#[test]
fn a_cpu_that_others_need_is_left_to_them() {
    let mut model = Model::new(2, 1, 11).zipf(10_000, 1.0);
    (model.receive, model.others) = (0.5, vec![0.0, 0.9]);
    model.run(Duration::from_secs(10));
    let least = (0..5000).map(|_| model.throughput_of_look()).sum::<f64>() / 5000.0;
    assert!(least > 0.97 / 1.5, "{least}: {:?}", model.requests);
    let mut model = Model::new(3, 1, 12).zipf(10_000, 1.0);
    (model.receive, model.others) = (0.3, vec![0.0, 0.9, 0.0]);
    model.run(SETTLE);
    assert_eq!(model.active(), [0, 2], "{:?}", model.policy.findings());
}

/// The example `forward` between two veths, with the costs of lab/notes/interfaces.md. The sender
/// needs nearly all of the CPU that does not receive, and sends less if that CPU forwards packets.
#[test]
fn forwarding_is_left_to_the_cpu_that_receives() {
    // Measured with AF_XDP and AF_PACKET: the microseconds to receive a packet, the microseconds
    // for all other work on the packet, and the number of CPUs that the load needs.
    for (receive, rest, load) in [(0.329, 1.185, 1.0), (0.033, 1.932, 0.9), (0.033, 1.932, 1.2)] {
        let forward = |senders: f64| {
            let mut model = Model::new(2, 1, 29).zipf(1_000, load * rest / (receive + rest));
            (model.receive, model.cost) = (load * receive / (receive + rest), rest);
            model.others[1] = senders;
            let done = (0..2_000).map(|_| model.throughput_of_look() / 2_000.0).sum::<f64>();
            (done, model.policy.findings())
        };
        let (done, findings) = forward(0.97);
        let best = 1.0 / f64::max(load, 1.0);
        assert!(done >= 0.97 * best, "{receive}, {load}: {done}: {findings:?}");
        if load > 1.0 {
            let (done, findings) = forward(0.0);
            assert!(done >= 0.97, "{receive}, {load}: {done}: {findings:?}");
        }
    }
}

/// A hand-over becomes expensive later, as on a virtual machine whose CPUs are moved apart.
#[test]
fn what_pays_no_more_is_given_up() {
    let mut model = Model::new(2, 1, 9).zipf(10_000, 1.0);
    (model.receive, model.cost, model.hand_over) = (0.5, 0.02, 0.1);
    model.run(SETTLE);
    assert!(model.active().contains(&1), "{:?}", model.policy.findings());
    for _ in 0..2 {
        model.hand_over = 3.0;
        let inline = (0..200).filter(|_| {
            model.check();
            model.active() == [0]
        });
        assert!(inline.count() > 100, "{:?}", model.policy.findings());
        // The CPUs become near again, but no measurement of the distance shows this. The worse the
        // result of a trial, the later the next trial begins.
        model.hand_over = 0.1;
        model.run(Duration::from_secs(300));
        assert!(model.active().contains(&1), "{:?}", model.policy.findings());
    }
}

/// Costs that were learned for a distance are used as soon as the CPUs have that distance again.
#[test]
fn cpus_that_move_apart_and_together_are_followed_at_once() {
    let mut model = Model::new(2, 1, 14).zipf(10_000, 1.0);
    (model.receive, model.cost, model.hand_over, model.far) = (0.5, 0.02, 0.1, 15.0);
    let places = [(50, &[0, 1][..]), (200, &[0])];
    let (mut joined, mut wrong, mut checks) = (0, 0, 0);
    for round in 0..20 {
        for (nanos, best) in places {
            model.apart[1] = Some(Duration::from_nanos(nanos + model.chance.below(nanos as usize / 5) as u64));
            if round == 0 {
                model.run(PROBED);
                assert_eq!(model.active(), best, "{:?}", model.policy.findings());
                joined = model.moves(MoveCause::Joined);
                continue;
            }
            for _ in 0..150 {
                model.check();
                wrong += usize::from(model.active() != best);
                checks += 1;
            }
        }
    }
    // Each trial takes 100 ms. The first trial begins after 10 s, and each failed trial doubles the
    // wait.
    assert!((19..23).contains(&(model.moves(MoveCause::Joined) - joined)), "{:?}", model.requests);
    assert!(wrong < checks / 50, "{wrong} of {checks} checks: {:?}", model.requests);
}

#[test]
fn the_cpu_that_is_near_enough_joins() {
    let mut model = Model::new(4, 1, 18).zipf(10_000, 1.0);
    (model.receive, model.cost, model.hand_over, model.far) = (0.5, 0.02, 0.1, 40.0);
    let place = |model: &mut Model, near: usize| {
        for cpu in 1..4 {
            model.apart[cpu] = Some(Duration::from_nanos(if cpu == near { 50 } else { 200 }));
        }
    };
    // After a failed trial of a far CPU, the policy recognizes the near CPU by its distance.
    for near in [3, 2, 1, 3] {
        place(&mut model, near);
        model.run(SETTLE);
        let others: Vec<u16> = model.active().into_iter().filter(|cpu| *cpu != 0).collect();
        assert_eq!(others, [near as u16], "{:?}", model.policy.findings());
    }
    place(&mut model, 0);
    model.run(SETTLE);
    assert_eq!(model.active(), [0], "{:?}", model.policy.findings());
    // While no CPU is known to be near, the policy measures all distances.
    let asked = (0..12).filter_map(|_| {
        model.check();
        model.policy.asks_distance()
    });
    let mut asked: Vec<u16> = asked.collect();
    asked.sort_unstable();
    asked.dedup();
    assert_eq!(asked, [1, 2, 3]);
}

/// The CPU that does not receive packets should handle all packets. The policy does not try to
/// spread packets again and again.
#[test]
fn what_is_best_on_one_cpu_is_left_there() {
    let mut model = Model::new(2, 1, 17).zipf(10_000, 2.5);
    (model.receive, model.cost, model.hand_over) = (2.0, 0.05, 0.02);
    model.map.fill(1);
    model.tell_apart = 0.6;
    model.run(SETTLE);
    let spread = (0..6000).filter(|_| {
        model.check();
        model.active().len() > 1
    });
    let spread = spread.count();
    assert!(spread < 600, "{spread}: {:?}", model.requests);
    (model.tell_apart, model.receive, model.cost) = (0.0, 0.5, 1.0);
    model.run(Duration::from_secs(120));
    assert_eq!(model.active(), [0, 1], "{:?}", model.policy.findings());
}

/// Measuring the distance to another CPU wakes that CPU.
#[test]
fn the_distance_is_asked_for_where_it_matters() {
    for (load, cost, asks) in [(0.3, 0.3, None), (3.0, 0.3, Some(1)), (3.0, 100.0, None)] {
        let mut model = Model::new(2, 1, 15).zipf(10_000, load);
        (model.receive, model.cost) = (0.1, cost);
        for _ in 0..100 {
            model.check();
        }
        assert_eq!(model.policy.asks_distance(), asks, "{load} CPUs, {cost}");
    }
}

#[test]
fn of_what_two_cpus_can_do_little_is_lost() {
    for (receive, hand_over) in [(0.1, 0.02), (0.3, 0.1), (0.6, 0.1), (0.8, 0.02), (0.9, 0.1)] {
        let mut model = Model::new(2, 1, 10).zipf(10_000, 4.0 * (1.0 - receive));
        (model.receive, model.hand_over) = (4.0 * receive, hand_over);
        model.run(SETTLE);
        let checks = 500;
        let done = (0..checks).map(|_| {
            model.check();
            let loads = model.loads(&model.buckets());
            1.0 / loads[0].max(loads[1])
        });
        let done = done.sum::<f64>() / f64::from(checks);
        let work: f64 = model.buckets().iter().sum();
        let busier = |handed: f64| {
            let (here, there) = (work - handed + handed * hand_over, handed * (1.0 + hand_over));
            (model.receive + here).max(there)
        };
        let best = (0..=1000).map(|part| 1.0 / busier(work * f64::from(part) / 1000.0)).fold(0.0, f64::max);
        assert!(done >= 0.97 * best, "{done} of {best} at {receive}, {hand_over}: {:?}", model.requests);
    }
}

/// A burst that ends during a trial shows nothing about the packet function.
#[test]
fn bursts_shorter_than_a_trial_lock_nobody_out() {
    let mut model = Model::new(2, 1, 8).zipf(10_000, 0.1);
    for _ in 0..20 {
        model.flows.iter_mut().for_each(|(_, load)| *load *= 15.0);
        model.run(Duration::from_millis(150));
        model.flows.iter_mut().for_each(|(_, load)| *load /= 15.0);
        model.run(Duration::from_millis(2000));
    }
    assert!(
        model.moves(MoveCause::Joined) > 0 && !model.policy.findings().regime.is_empty(),
        "{:?}",
        model.policy.findings()
    );
    model.flows.iter_mut().for_each(|(_, load)| *load *= 15.0);
    model.run(Duration::from_secs(11));
    assert_eq!(model.active(), [0, 1], "{:?}", model.policy.findings());
    assert!(model.policy.findings().regime == "spread");
}

/// Half of the load checks are up to three seconds late.
#[test]
fn late_checks_are_harmless() {
    let late = |mut model: Model| {
        model.late = Duration::from_secs(3);
        model
    };
    let mut spread = late(Model::new(8, 8, 0).zipf(100_000, 4.8));
    assert!(spread.uneven() > NEAR, "nothing to do");
    spread.run(Duration::from_secs(20));
    assert!(spread.uneven() <= NEAR, "{}", spread.uneven());
    let moved = spread.requests.len();
    spread.run(Duration::from_secs(100));
    assert_eq!(spread.requests.len(), moved, "{:?}", spread.requests);

    let mut pays = late(Model::new(2, 1, 9).zipf(10_000, 1.0));
    (pays.receive, pays.hand_over) = (0.5, 0.1);
    pays.run(Duration::from_secs(60));
    assert_eq!((pays.active(), pays.moves(MoveCause::Joined)), (vec![0, 1], 1), "{:?}", pays.policy);
    pays.flows.iter_mut().for_each(|(_, load)| *load /= 20.0);
    pays.receive /= 20.0;
    pays.run(STEADY);
    assert_eq!(pays.active(), [0], "quiet");

    let mut fails = late(Model::new(2, 1, 7).zipf(10_000, 0.6));
    (fails.receive, fails.hand_over) = (0.6, 3.0);
    fails.run(Duration::from_secs(115));
    assert_eq!(fails.active(), [0], "{:?}", fails.policy);
    assert!((1..=4).contains(&fails.moves(MoveCause::Joined)), "{:?}", fails.requests);
    assert!(fails.policy.findings().regime == "inline");
}

/// After the core has moved buckets, earlier measurements do not count.
#[test]
fn a_trial_ends_when_the_cpus_change() {
    let mut model = Model::new(2, 1, 7).zipf(10_000, 0.6);
    (model.receive, model.hand_over) = (0.6, 3.0);
    while model.moves(MoveCause::Joined) == 0 {
        model.check();
    }
    model.map.fill(0);
    model.policy.cpus_changed();
    model.run(SETTLE);
    assert!(model.moves(MoveCause::Joined) == 2 && model.moves(MoveCause::Left) == 1, "{:?}", model.requests);
    assert!(model.policy.findings().regime == "inline", "the second trial was judged");
}

#[test]
fn a_plan_begins_with_the_cpus_that_have_buckets() {
    let plan = |order: &[u16], active| Plan { order: order.to_vec(), active };
    let begin = GroupStart::new;
    assert_eq!(Balance::new().plan(&begin(&[2, 0, 1], 1, &[])), plan(&[2], 1));
    assert_eq!(Balance::new().plan(&begin(&[2, 0, 1], 2, &[])), plan(&[2, 0], 2));
    assert_eq!(Balance::new().plan(&begin(&[2, 0, 1], 1, &[1, 2])), plan(&[2, 1], 2), "in the order of the group");
    let all = (Plan::all(), Plan::all());
    assert_eq!((Balance::dry_run().plan(&begin(&[2, 0], 1, &[])), Hash.plan(&begin(&[2, 0], 1, &[2]))), all);
    // If the source is a file, the next CPU in the group's order handles all packets, provided that
    // it is near the receiving CPU.
    let file = |apart, owners, active| GroupStart {
        apart: Some(Duration::from_nanos(apart)),
        can_wait: true,
        ..begin(&[2, 0, 1], owners, active)
    };
    assert_eq!(Balance::new().plan(&file(60, 1, &[])), plan(&[0, 2], 1));
    assert_eq!(Balance::new().plan(&file(200, 1, &[])), plan(&[2], 1), "far");
    assert_eq!(Balance::new().plan(&file(60, 2, &[])), plan(&[2, 0], 2), "two CPUs receive");
    assert_eq!(Balance::new().plan(&file(60, 1, &[2])), plan(&[2], 1), "it runs already");
    assert_eq!(Balance::new().plan(&GroupStart { can_wait: false, ..file(60, 1, &[]) }), plan(&[2], 1));
}

#[test]
fn a_dry_run_moves_nothing_and_says_what_it_would() {
    let mut model = Model::new(8, 8, 0).zipf(100_000, 6.4);
    model.policy = Balance::dry_run();
    model.run(SETTLE);
    assert!(model.requests.is_empty());
    assert!(model.policy.findings().would_move.is_some_and(|buckets| buckets > 10), "{:?}", model.policy.findings());
}
