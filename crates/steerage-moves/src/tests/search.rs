use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::hash::{Hash, Hasher};

use super::world::{Request, Scenario, Step, World};
use crate::{CpuIndex, Plan, QueueSetup};

/// Identifies a state by two hashes. A collision among a hundred million states is less likely than
/// a memory error.
fn fingerprint(world: &World) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        world.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(0) << 64 | half(1)
}

#[derive(Default)]
struct Graph {
    /// The state before each step, the state after the step, and the CPU that takes the step.
    steps: Vec<(u32, u32, Option<CpuIndex>)>,
    is_over: Vec<bool>,
    is_settled: Vec<bool>,
    holds_up: Vec<Vec<bool>>,
}

/// Checks that the end of the scenario can be reached from each state. Returns the number of
/// states.
fn search(scenario: &Scenario) -> usize {
    let mut numbers: HashMap<u128, u32> = HashMap::new();
    let mut graph = Graph { holds_up: vec![Vec::new(); scenario.cpus], ..Graph::default() };
    let start = World::new(scenario);
    numbers.insert(fingerprint(&start), 0);
    graph.add(&start, scenario);
    let mut to_visit = vec![(0, start)];
    while let Some((from, world)) = to_visit.pop() {
        for step in world.steps(scenario) {
            let mut next = world.clone();
            next.take(step, scenario);
            let new = numbers.len() as u32;
            let to = match numbers.entry(fingerprint(&next)) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(entry) => {
                    entry.insert(new);
                    graph.add(&next, scenario);
                    to_visit.push((new, next));
                    new
                }
            };
            graph.steps.push((from, to, step.actor(&world)));
        }
    }
    graph.check_that_all_can_end();
    graph.check_that_nobody_holds_up_the_others();
    numbers.len()
}

impl Graph {
    fn add(&mut self, world: &World, scenario: &Scenario) {
        self.is_over.push(world.is_over(scenario));
        self.is_settled.push(world.moves.slice().is_none());
        for (cpu, holds_up) in self.holds_up.iter_mut().enumerate() {
            holds_up.push(world.is_held_up_by(scenario, cpu as CpuIndex));
        }
    }

    /// The states from which one of `goals` can be reached although the CPU `stalled` does nothing.
    fn reach(&self, goals: &[bool], stalled: Option<CpuIndex>) -> Vec<bool> {
        let mut before: Vec<Vec<u32>> = vec![Vec::new(); goals.len()];
        for (from, to, actor) in &self.steps {
            if stalled.is_none() || *actor != stalled {
                before[*to as usize].push(*from);
            }
        }
        let mut reaches = goals.to_vec();
        let mut to_visit: Vec<usize> = (0..goals.len()).filter(|at| goals[*at]).collect();
        while let Some(at) = to_visit.pop() {
            for from in &before[at] {
                if !std::mem::replace(&mut reaches[*from as usize], true) {
                    to_visit.push(*from as usize);
                }
            }
        }
        reaches
    }

    fn check_that_all_can_end(&self) {
        let stuck = self.reach(&self.is_over, None).iter().filter(|reaches| !**reaches).count();
        assert_eq!(stuck, 0, "the end cannot be reached from {stuck} of {} states", self.is_over.len());
    }

    fn check_that_nobody_holds_up_the_others(&self) {
        for (cpu, holds_up) in self.holds_up.iter().enumerate() {
            let reaches = self.reach(&self.is_settled, Some(cpu as CpuIndex));
            let stuck = holds_up.iter().zip(&reaches).filter(|(holds_up, reaches)| **holds_up && !**reaches).count();
            assert_eq!(stuck, 0, "{stuck} moves cannot end while CPU {cpu} is in its handler");
        }
    }
}

fn queue(owner: CpuIndex, mask: &[CpuIndex]) -> QueueSetup {
    QueueSetup { owner, can_wait: false, mask: mask.to_vec() }
}

/// Three CPUs, two queues with `STEERAGE_MOVES_PACKETS` packets, and two buckets.
fn scenario(queues: [QueueSetup; 2], requests: Vec<Request>) -> Scenario {
    let more: usize = std::env::var("STEERAGE_MOVES_PACKETS").ok().and_then(|more| more.parse().ok()).unwrap_or(2);
    let packets = |first: u16| (0..more).map(|nth| (nth as u16 + first) % 2).collect();
    Scenario {
        cpus: 3,
        buckets: 2,
        slice_buckets: 1,
        queues: queues.to_vec(),
        packets: vec![packets(0), packets(0)],
        requests,
        deaths: 1,
    }
}

#[allow(clippy::print_stdout)] // how many states there are, for lab/notes/slow-checks.md
fn visit(name: &str, scenario: &Scenario) {
    let started = std::time::Instant::now();
    let states = search(scenario);
    println!("{name}: {states} states in {:.1} s", started.elapsed().as_secs_f64());
    assert!(states > 100, "the search ended early");
}

#[test]
fn a_mask_changes_for_both_queues() {
    let change = Request::Mask(vec![0, 1], vec![1, 2]);
    visit("mask", &scenario([queue(0, &[0, 1]), queue(1, &[0, 1])], vec![change]));
}

#[test]
fn a_queue_gets_another_owner_while_a_mask_changes() {
    let requests = vec![Request::Owner(0, 2), Request::Mask(vec![0, 1], vec![1, 2])];
    visit("owner", &scenario([queue(0, &[0, 1]), queue(1, &[0, 1])], requests));
}

#[test]
fn a_queue_joins_another_group() {
    let change = Request::Mask(vec![0], vec![1, 2]);
    visit("join", &scenario([queue(0, &[0]), queue(1, &[1, 2])], vec![change]));
}

#[test]
fn a_queue_leaves_its_group() {
    let change = Request::Mask(vec![1], vec![2]);
    visit("leave", &scenario([queue(0, &[0, 1]), queue(1, &[0, 1])], vec![change]));
}

#[test]
fn a_cpu_goes_offline() {
    visit("offline", &scenario([queue(0, &[0, 2]), queue(1, &[0, 2])], vec![Request::Present(vec![0, 1])]));
}

#[test]
fn a_policy_moves_a_bucket_while_its_plan_changes() {
    let plan = Plan { order: vec![2, 1], active: 1 };
    let requests = vec![Request::Map(vec![1, 1]), Request::Plan(plan)];
    visit("policy", &scenario([queue(0, &[0, 1, 2]), queue(0, &[0, 1, 2])], requests));
}

#[test]
fn a_source_that_can_wait_loses_nothing() {
    let mut scenario = scenario([queue(0, &[0, 1]), queue(1, &[0, 1])], vec![Request::Mask(vec![0, 1], vec![1, 2])]);
    scenario.queues[0].can_wait = true;
    visit("waits", &scenario);
}

#[test]
fn a_check_that_finds_nothing_would_be_worth_nothing() {
    let scenario = scenario([queue(0, &[0, 1]), queue(1, &[0, 1])], vec![Request::Mask(vec![0, 1], vec![1, 2])]);
    let mut world = World::new(&scenario);
    assert!(world.steps(&scenario).contains(&Step::Receive(0)));
    world.take(Step::Receive(0), &scenario);
    let twice = std::panic::catch_unwind(move || world.lose_a_packet(&scenario));
    assert!(twice.is_err(), "a lost packet is not noticed");
}
