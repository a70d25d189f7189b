use crate::MoveCause;

use super::known::{in_slices_of, moves};
use crate::{Actions, Ask, CpuIndex, Event, MovePhase, Moves, Plan, QueueSetup, Setup};

fn on(moves: &mut Moves, event: Event<'_>) -> Actions {
    let mut actions = Actions::default();
    moves.on(event, &mut actions);
    actions
}

fn mask(moves: &mut Moves, queues: &[usize], cpus: &[CpuIndex]) {
    on(moves, Event::Mask { queues, cpus });
}

fn epoch(moves: &Moves) -> u64 {
    moves.slice().expect("a slice is moving").epoch
}

fn phase(moves: &Moves) -> Option<MovePhase> {
    moves.slice().map(|slice| slice.phase)
}

fn waits(moves: &Moves) -> Vec<usize> {
    (0..8).filter(|who| moves.slice().is_some_and(|slice| slice.waits_for(*who))).collect()
}

fn parked(moves: &mut Moves, queue: usize) -> Actions {
    let epoch = epoch(moves);
    on(moves, Event::FencesPassed { queue, epoch })
}

fn left(moves: &mut Moves, cpu: CpuIndex, with_state: &[u16]) -> Actions {
    let epoch = epoch(moves);
    on(moves, Event::Left { cpu, epoch, with_state })
}

fn arrived(moves: &mut Moves, cpu: CpuIndex) -> Actions {
    let epoch = epoch(moves);
    on(moves, Event::Arrived { cpu, epoch })
}

fn released(moves: &mut Moves, queue: usize) -> Actions {
    let epoch = epoch(moves);
    on(moves, Event::Released { queue, epoch })
}

fn with_state(moves: &Moves) -> Vec<u16> {
    let moves = &moves.slice().expect("a slice is moving").moves;
    moves.iter().filter(|m| m.has_state).map(|m| m.bucket).collect()
}

#[test]
fn a_part_of_a_slice_wakes_those_of_the_next_phase_alone() {
    let mut moves = moves(&[&[0, 1], &[1, 2], &[2, 3]]);
    let start = moves.clone();
    mask(&mut moves, &[0], &[1]);
    mask(&mut moves, &[1], &[1]);
    mask(&mut moves, &[2], &[3]);
    // Queue 1 joins the group of queue 0 by getting the same mask, and the buckets of queue 1 move
    // first. Queue 2 waits.
    assert_eq!(on(&mut moves, Event::Overdue { by: 0, open: &[] }).wake, [0; 0]);
    assert_eq!(parked(&mut moves, 0).wake, [0]);
    assert_eq!(left(&mut moves, 0, &[0]).wake, [1]);
    assert_eq!(arrived(&mut moves, 1).wake, [0]);
    assert_eq!(released(&mut moves, 0).wake, [1]);
    let mut moves = start;
    mask(&mut moves, &[0], &[1]);
    mask(&mut moves, &[1], &[1, 3]);
    mask(&mut moves, &[2], &[3]);
    assert_eq!(on(&mut moves, Event::Closed { queue: 0 }).wake, [1]);
}

#[test]
fn state_moves_with_a_whole_group_and_not_with_a_queue_that_leaves_others() {
    let mut whole = moves(&[&[0, 1], &[2, 3]]);
    mask(&mut whole, &[0], &[2, 3]);
    parked(&mut whole, 0);
    assert_eq!((phase(&whole), waits(&whole)), (Some(MovePhase::Leave), vec![0, 1]));
    let mut leaves = moves(&[&[0, 1], &[2, 3], &[0, 1]]);
    mask(&mut leaves, &[0], &[2, 3]);
    parked(&mut leaves, 0);
    assert_eq!((phase(&leaves), waits(&leaves)), (Some(MovePhase::Release), vec![0]));
}

#[test]
fn the_new_owner_of_a_queue_comes_first_in_its_group() {
    let mut moves = moves(&[&[0, 1, 2]]);
    let before = moves.group(0).0;
    assert_eq!(moves.order_of(0), (vec![0, 1, 2], 1));
    let actions = on(&mut moves, Event::Owner { queue: 0, cpu: 2 });
    assert_eq!((moves.owner_of(0), moves.order_of(0)), (2, (vec![2, 0, 1], 1)));
    assert!(actions.changed && moves.group(0).0 != before, "policies look at the group again");
}

#[test]
fn a_queue_that_ends_is_not_taken_for_the_cpu_of_its_number() {
    let mut moves = moves(&[&[0], &[1]]);
    mask(&mut moves, &[0], &[2]);
    parked(&mut moves, 0);
    on(&mut moves, Event::Closed { queue: 0 });
    assert_eq!((phase(&moves), waits(&moves)), (Some(MovePhase::Leave), vec![0]));
    left(&mut moves, 0, &[0]);
    on(&mut moves, Event::Closed { queue: 1 });
    assert_eq!((phase(&moves), waits(&moves)), (Some(MovePhase::Arrive), vec![2]));
}

#[test]
fn an_arrival_takes_what_is_for_this_cpu_alone() {
    let mut moves = moves(&[&[0]]);
    mask(&mut moves, &[0], &[1, 2]);
    parked(&mut moves, 0);
    left(&mut moves, 0, &[0, 1, 2, 3, 4, 5, 6, 7]);
    let of_cpu = |moves: &Moves, cpu| {
        let moves = moves.slice().expect("a slice is moving").moves.iter();
        moves.filter(|m| m.to == cpu).map(|m| m.bucket).collect::<Vec<_>>()
    };
    let for_second = of_cpu(&moves, 2);
    assert_eq!((waits(&moves), for_second.len()), (vec![1, 2], 4));
    arrived(&mut moves, 1);
    assert_eq!((waits(&moves), with_state(&moves)), (vec![2], for_second));
    arrived(&mut moves, 1);
    assert_eq!(phase(&moves), Some(MovePhase::Arrive));
}

#[test]
fn the_late_are_suspected_but_not_whoever_asks_nor_the_dead() {
    let mut moves = moves(&[&[0, 1], &[0, 1]]);
    mask(&mut moves, &[0, 1], &[2, 3]);
    let asks = |moves: &mut Moves, by, open: &[CpuIndex]| on(moves, Event::Overdue { by, open }).asks;
    // The park phase waits for queues that have not parked, and for CPUs with unfinished frames.
    assert_eq!(asks(&mut moves, 0, &[0, 3]), [Ask::Declare(3), Ask::Declare(1)]);
    parked(&mut moves, 0);
    assert_eq!(asks(&mut moves, 1, &[]), [Ask::Declare(1); 0]);
    parked(&mut moves, 1);
    assert_eq!(asks(&mut moves, 3, &[]), [Ask::Declare(0), Ask::Declare(1)]);
    left(&mut moves, 0, &[0, 1, 2, 3]);
    left(&mut moves, 1, &[]);
    let waits_for = waits(&moves);
    assert_eq!(phase(&moves), Some(MovePhase::Arrive));
    let suspected = asks(&mut moves, 0, &[]);
    assert_eq!(suspected, waits_for.iter().map(|cpu| Ask::Declare(*cpu as CpuIndex)).collect::<Vec<_>>());
    waits_for.into_iter().for_each(|cpu| drop(arrived(&mut moves, cpu as CpuIndex)));
    assert_eq!((phase(&moves), asks(&mut moves, 0, &[])), (Some(MovePhase::Release), vec![Ask::Declare(1)]));
    on(&mut moves, Event::Died(1));
    assert_eq!(asks(&mut moves, 0, &[1]), [Ask::Declare(1); 0]);
}

#[test]
fn fences_of_the_dead_are_read_while_their_queue_has_not_parked() {
    let mut moves = moves(&[&[0, 1], &[0, 1]]);
    mask(&mut moves, &[0, 1], &[2, 3]);
    assert_eq!(on(&mut moves, Event::Died(0)).asks, [Ask::ReadFences { queue: 0 }]);
    assert_eq!(waits(&moves), [0, 1]);
    assert_eq!(on(&mut moves, Event::Overdue { by: 1, open: &[] }).asks, [Ask::ReadFences { queue: 0 }]);
    assert!(on(&mut moves, Event::Overdue { by: 2, open: &[] }).asks.contains(&Ask::ReadFences { queue: 0 }));
    parked(&mut moves, 0);
    parked(&mut moves, 1);
    assert_eq!(phase(&moves), Some(MovePhase::Leave));
    assert_eq!(on(&mut moves, Event::Overdue { by: 1, open: &[] }).asks, [Ask::Declare(1); 0]);
}

#[test]
fn only_parking_is_revoked_and_once_per_slice() {
    let mut moves = moves(&[&[0]]);
    mask(&mut moves, &[0], &[1]);
    let overdue = |moves: &mut Moves| {
        let changed = on(moves, Event::Overdue { by: 0, open: &[] }).changed;
        (changed, moves.slice().is_some_and(|slice| slice.revoked))
    };
    let mut leaves = moves.clone();
    parked(&mut leaves, 0);
    assert_eq!(overdue(&mut leaves), (false, false));
    assert_eq!(overdue(&mut moves), (true, true));
    assert_eq!(overdue(&mut moves), (false, true));
    mask(&mut moves, &[0], &[2]);
    parked(&mut moves, 0);
    left(&mut moves, 0, &[]);
    released(&mut moves, 0);
    assert_eq!(moves.slice().map(|slice| (slice.epoch, slice.revoked)), Some((2, false)));
}

#[test]
fn queues_of_a_dead_cpu_wait_until_it_is_back_and_hold_up_nobody() {
    let mut moves = moves(&[&[0, 1], &[1, 2], &[3]]);
    on(&mut moves, Event::Died(0));
    mask(&mut moves, &[0], &[2, 3]);
    assert_eq!((phase(&moves), moves.is_settled()), (None, false));
    mask(&mut moves, &[0], &[3]);
    assert_eq!((phase(&moves), moves.awaits_move(0)), (None, true));
    mask(&mut moves, &[1], &[1]);
    assert!(moves.concerns(1), "another queue's move begins at once");
    parked(&mut moves, 1);
    left(&mut moves, 2, &[]);
    released(&mut moves, 1);
    assert_eq!(phase(&moves), None);
    let actions = on(&mut moves, Event::Revived(0));
    assert!(moves.concerns(0));
    assert_eq!((actions.wake, actions.changed), (vec![0], true));
}

#[test]
fn a_queue_that_waits_to_join_a_group_is_not_settled() {
    let mut moves = moves(&[&[0], &[3]]);
    on(&mut moves, Event::Died(0));
    assert!(moves.is_settled());
    mask(&mut moves, &[0], &[3]);
    assert_eq!((phase(&moves), moves.is_settled()), (None, false));
    on(&mut moves, Event::Closed { queue: 0 });
    assert!(moves.is_settled());
}

#[test]
fn a_cpu_that_is_back_takes_part_in_what_moves_now() {
    let mut moves = moves(&[&[0, 1], &[0, 1]]);
    mask(&mut moves, &[0, 1], &[2, 3]);
    let comes_back = |moves: &Moves| {
        let mut moves = moves.clone();
        on(&mut moves, Event::Died(0));
        assert!(on(&mut moves, Event::Revived(0)).changed);
        let mut waiting = moves.slice().expect("a slice is moving").waiting.clone();
        waiting.sort_unstable();
        waiting
    };
    assert_eq!(comes_back(&moves), [0, 1], "each queue once");
    let mut other = moves.clone();
    parked(&mut other, 1);
    assert_eq!(comes_back(&other), [0], "the other queue has parked");
    parked(&mut moves, 0);
    assert_eq!(comes_back(&moves), [0, 1], "it has to park again");
    let mut ended = moves.clone();
    on(&mut ended, Event::Closed { queue: 0 });
    assert_eq!(comes_back(&ended), [1]);
    parked(&mut moves, 1);
    assert_eq!((phase(&moves), waits(&moves)), (Some(MovePhase::Leave), vec![0, 1]));
    assert_eq!(comes_back(&moves), [1]);
    left(&mut moves, 0, &[0, 1, 2, 3]);
    left(&mut moves, 1, &[4, 5, 6, 7]);
    let new = waits(&moves);
    assert_eq!((phase(&moves), comes_back(&moves)), (Some(MovePhase::Arrive), new.clone()));
    new.into_iter().for_each(|cpu| drop(arrived(&mut moves, cpu as CpuIndex)));
    assert_eq!((phase(&moves), comes_back(&moves)), (Some(MovePhase::Release), vec![0, 1]));
}

#[test]
fn a_cpu_that_is_back_between_two_moves_has_no_part_in_the_last_one() {
    let mut moves = moves(&[&[0, 1]]);
    mask(&mut moves, &[0], &[1]);
    parked(&mut moves, 0);
    left(&mut moves, 0, &[]);
    released(&mut moves, 0);
    assert!(moves.slice().is_none());
    on(&mut moves, Event::Died(0));
    on(&mut moves, Event::Revived(0));
    assert_eq!(on(&mut moves, Event::Died(3)).wake, [0; 0]);
    assert!(moves.slice.waiting.is_empty());
}

#[test]
fn every_bucket_has_its_turn_however_often_wishes_change() {
    let mut moves = in_slices_of(2, &[&[0, 1]]);
    let buckets = |moves: &Moves| moves.slice().expect("a slice is moving").moves.iter().map(|m| m.bucket).collect();
    let mut seen: Vec<Vec<u16>> = Vec::new();
    for new in [2, 3, 2, 3, 2] {
        mask(&mut moves, &[0], &[new]);
        seen.push(buckets(&moves));
        parked(&mut moves, 0);
        (0..4).for_each(|cpu| drop(left(&mut moves, cpu, &[])));
        mask(&mut moves, &[0], &[5 - new]);
        released(&mut moves, 0);
    }
    assert_eq!(seen, [vec![0, 1], vec![2, 3], vec![4, 5], vec![6, 7], vec![2, 3]], "0 and 1 are where they should be");
}

#[test]
fn a_slice_takes_the_next_buckets_across_the_end_of_the_map() {
    let mut moves = in_slices_of(3, &[&[0, 1]]);
    mask(&mut moves, &[0], &[2, 3]);
    let play = |moves: &mut Moves| {
        let slice = moves.slice().expect("a slice is moving");
        let (buckets, old_cpus) = (slice.moves.iter().map(|m| m.bucket).collect::<Vec<_>>(), slice.old_cpus.clone());
        parked(moves, 0);
        assert_eq!(waits(moves), old_cpus.iter().map(|cpu| usize::from(*cpu)).collect::<Vec<_>>());
        old_cpus.iter().for_each(|cpu| drop(left(moves, *cpu, &[])));
        (buckets, old_cpus)
    };
    assert_eq!(play(&mut moves), (vec![0, 1, 2], vec![0]));
    released(&mut moves, 0);
    assert_eq!(play(&mut moves), (vec![3, 4, 5], vec![0, 1]));
    let wish = [0, 1, 1, 0, 0, 1, 1, 1];
    mask(&mut moves, &[0], &[0, 1]);
    on(&mut moves, Event::Map { group: 0, map: &wish, plan: Plan::all(), cause: MoveCause::Balance });
    released(&mut moves, 0);
    let (buckets, _) = play(&mut moves);
    assert_eq!(buckets, [0, 1, 2], "buckets 6 and 7 are where they should be");
}

#[test]
fn a_move_whose_queues_all_end_leaves_state_where_it_is() {
    let mut moves = moves(&[&[0, 1], &[0, 1]]);
    mask(&mut moves, &[0, 1], &[2]);
    parked(&mut moves, 0);
    on(&mut moves, Event::Closed { queue: 0 });
    assert_eq!((phase(&moves), waits(&moves)), (Some(MovePhase::Park), vec![1]));
    let mut parks = moves.clone();
    on(&mut moves, Event::Closed { queue: 1 });
    assert_eq!((phase(&moves), moves.is_settled(), moves.counts().slices), (None, true, 0));
    assert_eq!(moves.map_of(1).0, [0, 0, 0, 0, 1, 1, 1, 1]);
    parked(&mut parks, 1);
    assert_eq!(phase(&parks), Some(MovePhase::Leave));
}

#[test]
fn no_phase_waits_for_the_dead() {
    let start = moves(&[&[0, 1], &[0, 1]]);
    let play = |dead: Option<CpuIndex>| {
        let mut moves = start.clone();
        mask(&mut moves, &[0, 1], &[2, 3]);
        let mut seen = Vec::new();
        if let Some(cpu) = dead {
            on(&mut moves, Event::Died(cpu));
        }
        seen.push(waits(&moves));
        (0..2).for_each(|queue| drop(parked(&mut moves, queue)));
        seen.push(waits(&moves));
        for cpu in waits(&moves) {
            left(&mut moves, cpu as CpuIndex, &[0, 1, 2, 3, 4, 5, 6, 7]);
        }
        seen.push(waits(&moves));
        for cpu in waits(&moves) {
            arrived(&mut moves, cpu as CpuIndex);
        }
        seen.push(waits(&moves));
        seen
    };
    assert_eq!(play(None), [[0, 1], [0, 1], [2, 3], [0, 1]]);
    assert_eq!(play(Some(0)), [vec![0, 1], vec![1], vec![2, 3], vec![1]]);
    assert_eq!(play(Some(1)), [vec![0, 1], vec![0], vec![2, 3], vec![0]]);
    assert_eq!(play(Some(3)), [vec![0, 1], vec![0, 1], vec![2], vec![0, 1]]);
}

#[test]
fn a_death_in_each_phase_ends_what_it_waits_for() {
    let mut moves = moves(&[&[0, 1], &[0, 1]]);
    let dies = |moves: &Moves, cpu| {
        let mut moves = moves.clone();
        let actions = on(&mut moves, Event::Died(cpu));
        let slice = moves.slice().expect("a slice is moving");
        assert!(slice.waiting.iter().all(|who| actions.wake.contains(&(*who as CpuIndex))), "{slice:?}");
        let to = slice.moves.iter().map(|m| m.to).collect::<Vec<_>>();
        (slice.phase, slice.waiting.clone(), to, actions.changed)
    };
    let to = |moves: &Moves| moves.slice().expect("a slice is moving").moves.iter().map(|m| m.to).collect::<Vec<_>>();
    mask(&mut moves, &[0, 1], &[2, 3]);
    let planned = to(&moves);
    assert!(planned.contains(&2) && planned.contains(&3));
    assert_eq!(dies(&moves, 0), (MovePhase::Park, vec![0, 1], planned.clone(), true));
    assert_eq!(dies(&moves, 3), (MovePhase::Park, vec![0, 1], vec![2; 8], true));
    (0..2).for_each(|queue| drop(parked(&mut moves, queue)));
    assert_eq!(dies(&moves, 0), (MovePhase::Leave, vec![1], planned.clone(), true));
    left(&mut moves, 0, &[0, 1, 2, 3]);
    left(&mut moves, 1, &[4, 5, 6, 7]);
    let (phase, mut waiting, ..) = dies(&moves, 0);
    waiting.sort_unstable();
    assert_eq!((phase, waiting), (MovePhase::Arrive, vec![2, 3]));
    assert_eq!(dies(&moves, 3), (MovePhase::Arrive, vec![2], vec![2; 8], true));
    let mut later = moves.clone();
    arrived(&mut later, 2);
    assert_eq!(dies(&later, 3), (MovePhase::Arrive, vec![2], vec![2; 8], true));
    mask(&mut later, &[0, 1], &[1]);
    let moved: Vec<CpuIndex> = planned.iter().map(|cpu| if *cpu == 3 { 1 } else { 2 }).collect();
    assert_eq!(dies(&later, 3), (MovePhase::Arrive, vec![1], moved, true));
    (2..4).for_each(|cpu| drop(arrived(&mut moves, cpu)));
    assert_eq!(dies(&moves, 0), (MovePhase::Release, vec![1], planned.clone(), true));
    assert_eq!(dies(&moves, 3), (MovePhase::Release, vec![0, 1], planned, true), "the map is in force");
}

#[test]
fn what_a_dead_cpu_gave_up_or_took_does_not_count() {
    let mut moves = moves(&[&[0, 1], &[2, 3]]);
    mask(&mut moves, &[0], &[2, 3]);
    parked(&mut moves, 0);
    on(&mut moves, Event::Died(1));
    left(&mut moves, 1, &[4, 5, 6, 7]);
    assert_eq!((waits(&moves), with_state(&moves)), (vec![0], vec![]));
    left(&mut moves, 0, &[0, 1, 2, 3]);
    assert_eq!(
        (phase(&moves), waits(&moves), with_state(&moves)),
        (Some(MovePhase::Arrive), vec![2], vec![0, 1, 2, 3])
    );
    // Flow state that was to move to the dead CPU does not move to another CPU instead.
    on(&mut moves, Event::Died(2));
    assert_eq!(phase(&moves), Some(MovePhase::Release));
    let mut moves = self::moves(&[&[0], &[2, 3]]);
    mask(&mut moves, &[0], &[2, 3]);
    parked(&mut moves, 0);
    left(&mut moves, 0, &[0, 7]);
    on(&mut moves, Event::Died(2));
    arrived(&mut moves, 2);
    assert_eq!((phase(&moves), waits(&moves), with_state(&moves)), (Some(MovePhase::Arrive), vec![3], vec![0, 7]));
}

#[test]
fn a_queue_that_ends_has_nothing_to_release() {
    let mut moves = moves(&[&[0], &[1]]);
    mask(&mut moves, &[0], &[2]);
    parked(&mut moves, 0);
    left(&mut moves, 0, &[]);
    assert_eq!((phase(&moves), waits(&moves)), (Some(MovePhase::Release), vec![0]));
    on(&mut moves, Event::Closed { queue: 1 });
    assert_eq!(waits(&moves), [0]);
    on(&mut moves, Event::Closed { queue: 0 });
    assert_eq!((phase(&moves), moves.counts().slices), (None, 1));
}

#[test]
fn nothing_is_overdue_if_nothing_moves_or_a_source_can_wait() {
    let queue = |can_wait| QueueSetup { owner: 0, can_wait, mask: vec![0] };
    let setup =
        Setup { cpus: 4, buckets: 8, slice_buckets: 8, queues: vec![queue(false), queue(true)], nearness: Vec::new() };
    let mut moves = Moves::new(setup, |_, _| Plan::all());
    let overdue = |moves: &mut Moves| {
        let actions = on(moves, Event::Overdue { by: 0, open: &[1] });
        (actions.changed, actions.asks, moves.slice().is_some_and(|slice| slice.revoked))
    };
    assert_eq!(overdue(&mut moves), (false, vec![], false));
    mask(&mut moves, &[0, 1], &[2]);
    assert_eq!(overdue(&mut moves), (false, vec![], false));
    // The slice has no time limit as long as queue 1, which can wait without losing frames, is
    // open.
    on(&mut moves, Event::Closed { queue: 1 });
    assert_eq!(overdue(&mut moves), (true, vec![Ask::Declare(1)], true));
}

#[test]
fn a_map_in_force_is_announced_also_if_nobody_is_woken() {
    let mut moves = moves(&[&[0]]);
    mask(&mut moves, &[0], &[1]);
    parked(&mut moves, 0);
    on(&mut moves, Event::Closed { queue: 0 });
    let actions = left(&mut moves, 0, &[]);
    assert_eq!((phase(&moves), actions.changed, actions.wake), (None, true, vec![]));
}

#[test]
fn a_wish_during_a_queue_s_move_to_a_group_is_not_forgotten() {
    let mut moves = moves(&[&[0], &[1], &[1]]);
    mask(&mut moves, &[0], &[1]);
    mask(&mut moves, &[0], &[3]);
    parked(&mut moves, 0);
    left(&mut moves, 0, &[]);
    released(&mut moves, 0);
    assert!(moves.concerns(0) && !moves.is_settled());
    assert_eq!(moves.slice().map(|slice| slice.group_after), Some(2));
}

#[test]
fn deaths_and_returns_are_announced_though_nothing_moves() {
    let mut moves = moves(&[&[0]]);
    assert!(on(&mut moves, Event::Died(3)).changed);
    assert!(moves.is_dead(3));
    assert!(on(&mut moves, Event::Revived(3)).changed);
    assert!(!moves.is_dead(3));
}

#[test]
fn state_of_buckets_that_do_not_move_is_ignored() {
    let mut moves = in_slices_of(2, &[&[0]]);
    mask(&mut moves, &[0], &[1]);
    let moving: Vec<u16> = moves.slice().expect("a slice is moving").moves.iter().map(|m| m.bucket).collect();
    let others: Vec<u16> = (0..8).filter(|bucket| !moving.contains(bucket)).collect();
    parked(&mut moves, 0);
    let mut nothing = moves.clone();
    left(&mut nothing, 0, &others);
    assert_eq!(phase(&nothing), Some(MovePhase::Release), "no state is on its way");
    left(&mut moves, 0, &[0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(with_state(&moves), moving);
}
