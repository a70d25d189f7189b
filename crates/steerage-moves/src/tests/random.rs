use proptest::prelude::*;

use super::world::{Request, Scenario, Step, World};
use crate::{CpuIndex, Plan, QueueSetup};

const CPUS: CpuIndex = 5;
const BUCKETS: u16 = 9;
const QUEUES: usize = 3;

fn mask() -> impl Strategy<Value = Vec<CpuIndex>> {
    proptest::collection::btree_set(0..CPUS, 1..=usize::from(CPUS)).prop_map(|cpus| cpus.into_iter().collect())
}

fn request() -> impl Strategy<Value = Request> {
    let queues = proptest::collection::btree_set(0..QUEUES, 1..=QUEUES);
    let plan = (proptest::collection::vec(0..CPUS, 0..4), 1..5usize);
    prop_oneof![
        4 => (queues, mask()).prop_map(|(queues, cpus)| Request::Mask(queues.into_iter().collect(), cpus)),
        1 => mask().prop_map(Request::Present),
        1 => plan.prop_map(|(order, active)| Request::Plan(Plan { order, active })),
        2 => proptest::collection::vec(0..CPUS, usize::from(BUCKETS)).prop_map(Request::Map),
        2 => (0..QUEUES, 0..CPUS).prop_map(|(queue, cpu)| Request::Owner(queue, cpu)),
    ]
}

fn queue() -> impl Strategy<Value = QueueSetup> {
    (0..CPUS, proptest::bool::weighted(0.2), mask()).prop_map(|(owner, can_wait, mask)| QueueSetup {
        owner,
        can_wait,
        mask,
    })
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let queues = proptest::collection::vec(queue(), QUEUES);
    let packets = proptest::collection::vec(proptest::collection::vec(0..BUCKETS, 0..30), QUEUES);
    let requests = proptest::collection::vec(request(), 0..8);
    (queues, packets, requests, 1..5usize, 0..4usize).prop_map(|(queues, packets, requests, slice_buckets, deaths)| {
        Scenario {
            cpus: usize::from(CPUS),
            buckets: usize::from(BUCKETS),
            slice_buckets,
            queues,
            packets,
            requests,
            deaths,
        }
    })
}

fn run_to_the_end(world: &mut World, scenario: &Scenario) {
    for turn in 0..20_000 {
        if world.is_over(scenario) {
            return;
        }
        let mut steps = world.steps(scenario);
        steps.retain(|step| !matches!(step, Step::Hurry(_, Some(_))));
        let Some(step) = steps.get(turn % steps.len().max(1)) else { break };
        world.take(*step, scenario);
    }
    panic!("the end was not reached: {world:?}");
}

fn cases() -> u32 {
    std::env::var("STEERAGE_CASES").map_or(2000, |cases| cases.parse().expect("STEERAGE_CASES is a number"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_reordered_lost_or_stuck(
        scenario in scenario(),
        choices in proptest::collection::vec(any::<u16>(), 0..400),
    ) {
        let mut world = World::new(&scenario);
        for choice in choices {
            let steps = world.steps(&scenario);
            let Some(step) = steps.get(usize::from(choice) % steps.len().max(1)) else { break };
            world.take(*step, &scenario);
        }
        run_to_the_end(&mut world, &scenario);
    }
}
