use crate::MoveCause;

use super::known::{in_slices_of, moves, play_all, play_slice};
use crate::{Actions, CpuIndex, Event, Moves, Plan, QueueSetup, Setup};

fn on(moves: &mut Moves, event: Event<'_>) {
    moves.on(event, &mut Actions::default());
}

fn mask(moves: &mut Moves, queues: &[usize], cpus: &[CpuIndex]) {
    on(moves, Event::Mask { queues, cpus });
}

fn map_of(moves: &Moves, queue: usize) -> Vec<CpuIndex> {
    moves.map_of(queue).0.to_vec()
}

fn groups_of(moves: &Moves, queues: usize) -> (Vec<u16>, Vec<u16>) {
    let queues = 0..queues;
    (queues.clone().map(|queue| moves.map_of(queue).1).collect(), queues.map(|queue| moves.group_of(queue)).collect())
}

#[test]
fn queues_with_the_same_mask_share_a_group_from_the_start() {
    let mut seen = Vec::new();
    let queue = |owner, mask: &[CpuIndex]| QueueSetup { owner, can_wait: false, mask: mask.to_vec() };
    let queues = vec![queue(2, &[3, 2, 1]), queue(1, &[1]), queue(3, &[1, 3, 2]), queue(0, &[0, 1])];
    let nearness = vec![vec![1, 2, 3], vec![0, 2, 3], vec![3, 1, 0], vec![2, 1, 0]];
    let setup = Setup { cpus: 4, buckets: 8, slice_buckets: 8, queues, nearness };
    let moves = Moves::new(setup, |order, polls| {
        seen.push((order.to_vec(), polls));
        Plan { order: order.to_vec(), active: 2 }
    });
    assert_eq!(groups_of(&moves, 4).0, [0, 1, 0, 2]);
    // A group's order begins with the CPUs of its mask that poll queues (or with the mask's first
    // CPU if none of them polls), and CPUs near to these follow.
    assert_eq!(seen, [(vec![3, 2, 1], 2), (vec![1], 1), (vec![0, 1], 1)]);
    assert_eq!(moves.mask_of(0), [1, 2, 3]);
    assert_eq!(map_of(&moves, 0), [3, 3, 3, 3, 2, 2, 2, 2]);
}

#[test]
fn near_cpus_join_first() {
    let queue = QueueSetup { owner: 1, can_wait: false, mask: vec![0, 1, 2, 3] };
    let nearness = vec![vec![1, 2, 3], vec![3, 0]];
    let setup = Setup { cpus: 4, buckets: 8, slice_buckets: 8, queues: vec![queue], nearness };
    let mut moves = Moves::new(setup, |_, _| Plan::all());
    assert_eq!(moves.order_of(0), (vec![1, 3, 0, 2], 1));
    on(&mut moves, Event::Closed { queue: 0 });
    assert_eq!(moves.order_of(0), (vec![0, 1, 2, 3], 1), "nobody polls");
}

#[test]
fn usable_are_the_present_else_the_living_else_all() {
    let mut moves = moves(&[&[0, 1, 2]]);
    let usable = |moves: &Moves| moves.order_of(0).0;
    on(&mut moves, Event::Present(&[0, 1]));
    assert_eq!(usable(&moves), [0, 1]);
    assert!(moves.allows(0, &[0, 1, 0, 1, 0, 1, 0, 1]));
    assert!(!moves.allows(0, &[0, 1, 0, 1, 0, 1, 0, 2]), "a CPU is not usable");
    assert!(!moves.allows(0, &[0, 1, 0, 1, 0, 1, 0]), "a bucket has no CPU");
    on(&mut moves, Event::Died(0));
    assert_eq!(usable(&moves), [1]);
    on(&mut moves, Event::Present(&[0]));
    assert_eq!(usable(&moves), [1, 2], "the one that is present is dead");
    on(&mut moves, Event::Died(1));
    on(&mut moves, Event::Died(2));
    assert_eq!(usable(&moves), [0, 1, 2]);
    on(&mut moves, Event::Revived(2));
    assert_eq!(usable(&moves), [2]);
}

#[test]
fn the_same_cpus_present_change_nothing() {
    let mut moves = moves(&[&[0, 1, 2]]);
    let version = |moves: &Moves| moves.group(0).0;
    let start = version(&moves);
    on(&mut moves, Event::Present(&[0, 1, 2, 3]));
    assert_eq!(version(&moves), start);
    on(&mut moves, Event::Present(&[0, 1, 3]));
    assert_eq!((version(&moves).begun, version(&moves).changed), (start.begun, start.changed + 1));
}

#[test]
fn moves_are_counted_as_cpus_that_go_or_come_back() {
    let mut moves = moves(&[&[0, 1]]);
    let counts = |moves: &Moves| (moves.counts().of(MoveCause::CpuOffline), moves.counts().of(MoveCause::CpuBack));
    on(&mut moves, Event::Present(&[0, 2]));
    play_slice(&mut moves, &[0]);
    assert_eq!((map_of(&moves, 0), counts(&moves)), (vec![0; 8], (4, 0)));
    on(&mut moves, Event::Present(&[0, 1, 2]));
    play_slice(&mut moves, &[0]);
    assert_eq!(counts(&moves), (4, 4));
    on(&mut moves, Event::Present(&[0, 2, 3]));
    play_slice(&mut moves, &[0]);
    assert_eq!(counts(&moves), (8, 4));
}

#[test]
fn a_mask_is_sorted_and_names_each_cpu_once() {
    let mut moves = moves(&[&[0, 1], &[2, 3]]);
    mask(&mut moves, &[0], &[3, 2, 3]);
    assert_eq!(moves.mask_of(0), [2, 3]);
    assert_eq!(groups_of(&moves, 2).1, [1, 1]);
    mask(&mut moves, &[1], &[3, 1, 3]);
    assert_eq!(moves.mask_of(1), [1, 3]);
}

#[test]
fn a_mask_for_queues_of_several_groups_unites_them() {
    let mut moves = moves(&[&[0], &[1], &[0]]);
    assert_eq!(groups_of(&moves, 3).0, [0, 1, 0]);
    mask(&mut moves, &[2, 1, 0], &[2, 3]);
    assert_eq!(groups_of(&moves, 3).1, [0, 0, 0]);
    assert_eq!(moves.groups(), 2);
}

#[test]
fn the_number_of_an_empty_group_is_used_again_but_not_while_a_slice_needs_it() {
    let mut moves = moves(&[&[0], &[1], &[1]]);
    let begun = |moves: &Moves, group| moves.group(group).0.begun;
    assert_eq!((begun(&moves, 0), begun(&moves, 1)), (1, 2));
    mask(&mut moves, &[0], &[1]);
    assert!(moves.concerns(0));
    mask(&mut moves, &[1], &[2]);
    mask(&mut moves, &[2], &[3]);
    assert_eq!((groups_of(&moves, 3).1, moves.groups()), (vec![1, 2, 3], 4));
    play_slice(&mut moves, &[0]);
    play_slice(&mut moves, &[1]);
    play_slice(&mut moves, &[2]);
    assert_eq!(groups_of(&moves, 3).0, [1, 2, 3]);
    mask(&mut moves, &[1, 0], &[1, 2]);
    mask(&mut moves, &[1], &[0, 3]);
    assert_eq!((groups_of(&moves, 3).1, moves.groups(), begun(&moves, 0)), (vec![1, 0, 3], 4, 5));
}

#[test]
fn a_queue_that_turns_back_before_it_moves_stays() {
    let mut moves = moves(&[&[0, 1], &[0, 1], &[2]]);
    mask(&mut moves, &[2], &[3]);
    mask(&mut moves, &[0], &[2, 3]);
    assert_eq!((moves.awaits_move(0), groups_of(&moves, 2).1), (true, vec![2, 0]));
    mask(&mut moves, &[0], &[1, 0]);
    assert_eq!((moves.awaits_move(0), groups_of(&moves, 2).1), (false, vec![0, 0]));
}

#[test]
fn a_new_group_begins_close_to_the_old_one() {
    let mut moves = moves(&[&[0, 1], &[0, 1]]);
    let uneven = [0, 1, 1, 1, 1, 1, 1, 1];
    let wish =
        Event::Map { group: 0, map: &uneven, plan: Plan { order: vec![1], active: 2 }, cause: MoveCause::Balance };
    on(&mut moves, wish);
    play_slice(&mut moves, &[0, 1]);
    mask(&mut moves, &[1], &[1, 2]);
    play_slice(&mut moves, &[1]);
    assert_eq!(map_of(&moves, 0), uneven);
    assert_eq!(map_of(&moves, 1)[1..].iter().filter(|cpu| **cpu == 1).count(), 4);
    assert_eq!(moves.order_of(1), (vec![1, 2], 1));
}

#[test]
fn a_plan_evens_shares_that_a_mask_would_leave() {
    let mut moves = moves(&[&[0, 1, 2]]);
    let uneven = [0, 1, 1, 1, 1, 1, 1, 1];
    let plan = || Plan { order: vec![1, 0], active: 2 };
    on(&mut moves, Event::Map { group: 0, map: &uneven, plan: plan(), cause: MoveCause::Balance });
    play_slice(&mut moves, &[0]);
    mask(&mut moves, &[0], &[0, 1, 3]);
    assert!(moves.is_settled(), "the plan still chooses CPUs 0 and 1");
    on(&mut moves, Event::Plan { group: 0, plan: plan() });
    play_slice(&mut moves, &[0]);
    assert_eq!(map_of(&moves, 0), [0, 0, 0, 0, 1, 1, 1, 1]);
    let counts = moves.counts();
    assert_eq!((counts.of(MoveCause::Balance), counts.of(MoveCause::Mask)), (4, 3));
}

#[test]
fn no_buffer_grows_with_the_number_of_queues() {
    let queue = QueueSetup { owner: 0, can_wait: false, mask: vec![0, 1] };
    let setup = Setup { cpus: 2, buckets: 4, slice_buckets: 4, queues: vec![queue; 100], nearness: Vec::new() };
    let mut moves = Moves::new(setup, |_, _| Plan::all());
    on(&mut moves, Event::Died(1));
    assert_eq!((moves.scratch.polls.capacity(), moves.scratch.cpus.capacity()), (2, 2));
}

#[test]
fn a_group_without_queues_that_are_open_is_not_joined_again() {
    let start = moves(&[&[0], &[1]]);
    let mut moves = start.clone();
    mask(&mut moves, &[0], &[1]);
    play_slice(&mut moves, &[0]);
    assert_eq!(groups_of(&moves, 2).0, [1, 1]);
    mask(&mut moves, &[0], &[0]);
    assert_eq!((groups_of(&moves, 2).1, moves.group(0).0.begun), (vec![0, 1], 3));
    // Queue 0 ends. The group keeps its number, under which flow state may still be stored.
    let mut moves = start;
    on(&mut moves, Event::Closed { queue: 0 });
    mask(&mut moves, &[1], &[0]);
    assert_eq!(moves.groups(), 2);
    assert_eq!((groups_of(&moves, 2).1, moves.group(0).0.begun), (vec![0, 1], 1));
}

#[test]
fn a_plan_without_an_order_prefers_cpus_that_poll() {
    let mut moves = moves(&[&[3], &[0, 1, 2]]);
    on(&mut moves, Event::Plan { group: 0, plan: Plan::all() });
    on(&mut moves, Event::Plan { group: 1, plan: Plan { order: Vec::new(), active: 1 } });
    play_slice(&mut moves, &[1]);
    assert_eq!(map_of(&moves, 1), [1; 8]);
    on(&mut moves, Event::Closed { queue: 1 });
    assert_eq!(moves.order_of(1), (vec![0, 1, 2], 1));
}

#[test]
fn the_queues_of_a_group_include_those_that_have_ended() {
    let mut moves = moves(&[&[0], &[1], &[1]]);
    on(&mut moves, Event::Closed { queue: 2 });
    let queues = |group| (moves.queues_of(group).collect::<Vec<_>>(), moves.open_queues_of(group).collect::<Vec<_>>());
    assert_eq!([queues(0), queues(1)], [(vec![0], vec![0]), (vec![1, 2], vec![1])]);
}

#[test]
fn only_buckets_that_change_their_cpu_are_counted() {
    let mut moves = moves(&[&[0, 1], &[0]]);
    mask(&mut moves, &[0], &[0]);
    play_slice(&mut moves, &[0]);
    let counts = moves.counts();
    assert_eq!((counts.slices, counts.buckets), (1, 4));
    assert_eq!(moves.buckets_of(0).map(|(_, moved)| moved).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 1, 1, 1]);
}

#[test]
fn buckets_leave_a_dead_cpu_for_its_death_whatever_is_planned() {
    let mut moves = in_slices_of(2, &[&[0, 1]]);
    on(&mut moves, Event::Died(1));
    mask(&mut moves, &[0], &[0, 2]);
    play_all(&mut moves, &[0]);
    let counts = moves.counts();
    assert_eq!((map_of(&moves, 0).contains(&1), counts.of(MoveCause::CpuDied)), (false, 4));
    assert!(counts.of(MoveCause::Mask) > 0);
}

#[test]
fn buckets_come_back_with_their_cpu() {
    let mut moves = moves(&[&[0, 1]]);
    on(&mut moves, Event::Died(1));
    play_slice(&mut moves, &[0]);
    on(&mut moves, Event::Revived(1));
    play_slice(&mut moves, &[0]);
    let counts = moves.counts();
    assert_eq!((counts.of(MoveCause::CpuDied), counts.of(MoveCause::CpuBack)), (4, 4));
    assert!(moves.is_settled() && map_of(&moves, 0).contains(&1));
}

#[test]
fn queues_that_have_ended_get_one_group_together() {
    let mut moves = moves(&[&[0], &[0], &[0]]);
    on(&mut moves, Event::Closed { queue: 0 });
    on(&mut moves, Event::Closed { queue: 1 });
    mask(&mut moves, &[0, 1], &[1]);
    assert_eq!((groups_of(&moves, 3).1, moves.groups()), (vec![1, 1, 0], 2));
}

#[test]
fn a_new_group_begins_near_the_queues_that_leave_the_old_one() {
    let mut moves = moves(&[&[0, 1], &[0, 1], &[3]]);
    on(&mut moves, Event::Plan { group: 0, plan: Plan { order: Vec::new(), active: 1 } });
    play_slice(&mut moves, &[0, 1]);
    mask(&mut moves, &[0, 2], &[1, 2]);
    assert_eq!(groups_of(&moves, 3).1, [2, 0, 2]);
    assert_eq!(moves.group(2).1, [1; 8]);
}

#[test]
fn a_queue_that_turns_back_while_it_moves_moves_back() {
    let mut moves = moves(&[&[0], &[0], &[1]]);
    mask(&mut moves, &[0], &[1]);
    assert!(moves.concerns(0));
    mask(&mut moves, &[0], &[0]);
    play_slice(&mut moves, &[0]);
    assert_eq!(groups_of(&moves, 3), (vec![1, 0, 1], vec![0, 0, 1]));
    play_slice(&mut moves, &[0]);
    assert_eq!((groups_of(&moves, 3).0, moves.is_settled()), (vec![0, 0, 1], true));
}

#[test]
fn a_group_that_a_slice_moves_to_keeps_its_number() {
    let mut moves = moves(&[&[0], &[0], &[0], &[3]]);
    mask(&mut moves, &[0], &[1]);
    assert_eq!(groups_of(&moves, 4), (vec![0, 0, 0, 1], vec![2, 0, 0, 1]));
    // Queue 0 will leave group 2 as soon as the queue's current move to this group has ended.
    mask(&mut moves, &[0], &[3]);
    mask(&mut moves, &[1], &[2]);
    assert_eq!(groups_of(&moves, 4), (vec![0, 0, 0, 1], vec![1, 3, 0, 1]));
}

#[test]
fn uneven_shares_stay_if_the_same_cpus_have_buckets() {
    let uneven = [0, 1, 1, 1, 1, 1, 1, 1];
    let plan = Plan { order: vec![0, 1], active: 2 };
    let mut moves = moves(&[&[0, 1, 2], &[0, 1, 2]]);
    on(&mut moves, Event::Map { group: 0, map: &uneven, plan, cause: MoveCause::Balance });
    play_slice(&mut moves, &[0, 1]);
    on(&mut moves, Event::Present(&[0, 1]));
    assert_eq!((moves.is_settled(), map_of(&moves, 0)), (true, uneven.to_vec()));
    mask(&mut moves, &[1], &[0, 1]);
    assert_eq!(moves.group(1).1, uneven);
}

#[test]
fn a_wish_goes_by_the_map_in_force_and_not_by_the_wish_before() {
    let mut moves = in_slices_of(2, &[&[0, 1]]);
    let mixed = [0, 1, 0, 1, 0, 1, 0, 1];
    on(&mut moves, Event::Map { group: 0, map: &mixed, plan: Plan::all(), cause: MoveCause::Balance });
    play_all(&mut moves, &[0]);
    mask(&mut moves, &[0], &[2, 3]);
    mask(&mut moves, &[0], &[0, 1]);
    play_all(&mut moves, &[0]);
    assert_eq!(map_of(&moves, 0), mixed);
    assert_eq!(moves.counts().of(MoveCause::Mask), 4, "two buckets move there and back");
}

#[test]
fn cpus_of_which_none_is_nearer_join_in_the_order_of_their_numbers() {
    let queue = QueueSetup { owner: 40, can_wait: false, mask: (0..64).collect() };
    let setup = Setup { cpus: 64, buckets: 64, slice_buckets: 64, queues: vec![queue], nearness: Vec::new() };
    let moves = Moves::new(setup, |_, _| Plan::all());
    let expected: Vec<CpuIndex> = std::iter::once(40).chain(0..40).chain(41..64).collect();
    assert_eq!(moves.order_of(0), (expected, 1));
}

#[test]
fn the_same_mask_once_more_changes_nothing() {
    let mut moves = moves(&[&[0], &[1]]);
    mask(&mut moves, &[0], &[1]);
    mask(&mut moves, &[0], &[1]);
    assert_eq!((moves.concerns(0), moves.mask_of(0)), (true, [1].as_slice()));
    on(&mut moves, Event::Closed { queue: 0 });
    assert_eq!((moves.map_of(0).1, moves.mask_of(0)), (0, [1].as_slice()));
}
