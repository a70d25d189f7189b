//! Compares mean waiting times with queueing theory, if only the packet function takes time.

use std::time::Duration;

use steerage_sim::{Arrivals, Flows, Machine, Profile, ScaleRun, Scaled, Steering, Work};

/// The work of a packet is long (10,000 ns) compared with the other work of a round, in which each
/// phase takes at least 1 ns.
const WORK: f64 = 10_000.0;

const OFF_MAX: f64 = 0.02;

/// Returns the mean waiting time, as a multiple of a packet's work, if the traffic keeps the share
/// `load` of `servers` CPUs busy.
fn wait(servers: usize, load: f64, work: Work, packets: f64, seed: u64) -> f64 {
    let per_second = load * servers as f64 / WORK * 1e9;
    let (cpus, steering, kind) = match servers {
        1 => (1, Steering::None, Flows::Uniform),
        // If all packets have equal work, CPUs that get packets in turn have the waiting times of
        // CPUs with one common queue.
        _ => (servers + 1, Steering::Collectors, Flows::InTurn),
    };
    let run = ScaleRun {
        profile: Profile::free(),
        machine: Machine::of_one_cache(cpus),
        cpus,
        receivers: 1,
        arrivals: Arrivals { queues: 1, flows: servers, kind, bursts: None, per_second, seed },
        steering,
        work,
        warm_up: Duration::from_secs_f64(packets / per_second / 10.0),
        measured: Duration::from_secs_f64(packets / per_second),
        stretch: 1.0,
        backlog: 1000,
    };
    let scaled = run.once().unwrap();
    let Scaled { lost, reordered, .. } = scaled;
    assert_eq!((lost, reordered), (0.0, 0));
    assert!((scaled.waits.len() as f64 / packets - 1.0).abs() < 0.01, "{} waits", scaled.waits.len());
    scaled.mean_wait() / WORK
}

#[track_caller]
fn assert_near(measured: f64, theory: f64) {
    assert!((measured / theory - 1.0).abs() <= OFF_MAX, "{measured} works, not {theory}");
}

#[test]
fn one_cpu_with_equal_works_waits_as_m_d_1() {
    for (load, packets) in [(0.5, 200_000.0), (0.8, 600_000.0)] {
        assert_near(wait(1, load, Work::Fixed(WORK), packets, 1), load / 2.0 / (1.0 - load));
    }
}

/// The formula of Pollaczek and Khinchine. For exponential work, the mean square is twice the
/// squared mean.
#[test]
fn one_cpu_with_random_works_waits_as_m_g_1() {
    let load = 0.5;
    assert_near(wait(1, load, Work::Exponential(WORK), 400_000.0, 1), load / (1.0 - load));
}

/// The mean waiting time by Crommelin (1932), with probabilities of the Poisson distribution.
fn m_d_c(servers: usize, load: f64) -> f64 {
    let mut wait = 0.0;
    // Terms above a mean of 600 do not affect the result, and their probabilities would underflow
    // to 0.
    for works in (1..).take_while(|works| *works as f64 * servers as f64 * load < 600.0) {
        let (count, mean) = (works * servers, (works * servers) as f64 * load);
        let (mut exactly, mut fewer) = ((-mean).exp(), 0.0);
        for below in 0..count {
            fewer += exactly;
            exactly *= mean / (below + 1) as f64;
        }
        let at_least = 1.0 - fewer;
        wait += at_least - (at_least - exactly) / load;
    }
    wait
}

#[test]
fn several_cpus_with_equal_works_wait_as_m_d_c() {
    assert_near(m_d_c(1, 0.8), 2.0);
    assert_near(wait(4, 0.8, Work::Fixed(WORK), 600_000.0, 1), m_d_c(4, 0.8));
}
