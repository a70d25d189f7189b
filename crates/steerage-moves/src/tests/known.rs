use crate::MoveCause;

use crate::{Actions, CpuIndex, Event, MovePhase, Moves, Plan, QueueSetup, Setup};

/// Four CPUs and eight buckets. CPU n polls queue n.
pub(super) fn moves(masks: &[&[CpuIndex]]) -> Moves {
    in_slices_of(8, masks)
}

pub(super) fn in_slices_of(slice_buckets: usize, masks: &[&[CpuIndex]]) -> Moves {
    let queue =
        |(at, mask): (usize, &&[CpuIndex])| QueueSetup { owner: at as CpuIndex, can_wait: false, mask: mask.to_vec() };
    let queues = masks.iter().enumerate().map(queue).collect();
    Moves::new(Setup { cpus: 4, buckets: 8, slice_buckets, queues, nearness: Vec::new() }, |_, _| Plan::all())
}

pub(super) fn play_slice(moves: &mut Moves, queues: &[usize]) {
    let epoch = moves.slice().expect("a slice is moving").epoch;
    let mut on = |event| moves.on(event, &mut Actions::for_size(4, 2));
    queues.iter().for_each(|queue| on(Event::FencesPassed { queue: *queue, epoch }));
    (0..4).for_each(|cpu| on(Event::Left { cpu, epoch, with_state: &[] }));
    queues.iter().for_each(|queue| on(Event::Released { queue: *queue, epoch }));
}

pub(super) fn play_all(moves: &mut Moves, queues: &[usize]) {
    for _ in 0..20 {
        if moves.slice().is_none() {
            return;
        }
        play_slice(moves, queues);
    }
    panic!("it still moves: {moves:?}");
}

#[test]
fn moves_are_counted_by_cause_and_bucket() {
    let mut moves = moves(&[&[0, 1]]);
    assert_eq!((moves.owner_of(0), moves.is_open(0), moves.is_settled()), (0, true, true));
    assert_eq!(moves.buckets_of(0).map(|(cpu, _)| cpu).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 1, 1, 1]);
    moves.on(Event::Mask { queues: &[0], cpus: &[0, 2] }, &mut Actions::default());
    assert!(!moves.is_settled());
    play_slice(&mut moves, &[0]);
    assert!(moves.is_settled());
    let counts = moves.counts();
    assert_eq!((counts.slices, counts.buckets, counts.of(MoveCause::Mask)), (1, 4, 4));
    let moved: Vec<(CpuIndex, u64)> = moves.buckets_of(0).collect();
    assert_eq!(moved, [(0, 0), (0, 0), (0, 0), (0, 0), (2, 1), (2, 1), (2, 1), (2, 1)]);
    moves.on(Event::Closed { queue: 0 }, &mut Actions::default());
    assert!(!moves.is_open(0));
}

#[test]
fn only_those_watch_that_wait_for_a_move() {
    let mut moves = moves(&[&[0, 1], &[2, 3]]);
    let watchers = |moves: &Moves| (0..2).filter(|queue| moves.awaits_move(*queue)).collect::<Vec<_>>();
    assert_eq!(watchers(&moves), [0; 0]);
    moves.on(Event::Mask { queues: &[0], cpus: &[1] }, &mut Actions::default());
    assert_eq!((watchers(&moves), moves.concerns(0), moves.concerns(1)), (vec![0], true, false));
    let mut actions = Actions::default();
    moves.on(Event::Mask { queues: &[1], cpus: &[3] }, &mut actions);
    assert_eq!((watchers(&moves), actions.wake), (vec![0, 1], vec![0, 1]));
    play_slice(&mut moves, &[0]);
    assert_eq!((watchers(&moves), moves.concerns(0), moves.concerns(1)), (vec![1], false, true));
    play_slice(&mut moves, &[1]);
    assert_eq!(watchers(&moves), [0; 0]);
    moves.on(Event::Mask { queues: &[0], cpus: &[3] }, &mut Actions::default());
    assert_eq!(watchers(&moves), [0]);
    let epoch = moves.slice().expect("a slice is moving").epoch;
    moves.on(Event::FencesPassed { queue: 0, epoch }, &mut Actions::default());
    moves.on(Event::Closed { queue: 0 }, &mut Actions::default());
    assert_eq!((watchers(&moves), moves.concerns(0)), (vec![], true));
}

#[test]
fn a_part_of_another_slice_does_nothing() {
    let mut moves = moves(&[&[0, 1]]);
    moves.on(Event::Mask { queues: &[0], cpus: &[2] }, &mut Actions::default());
    let epoch = moves.slice().expect("a slice is moving").epoch;
    let phase = |moves: &Moves| moves.slice().map(|slice| (slice.epoch, slice.phase));
    for event in [
        Event::FencesPassed { queue: 0, epoch: epoch + 1 },
        Event::Left { cpu: 0, epoch, with_state: &[0] },
        Event::Arrived { cpu: 2, epoch },
        Event::Released { queue: 0, epoch },
    ] {
        moves.on(event, &mut Actions::default());
        assert_eq!(phase(&moves), Some((epoch, MovePhase::Park)));
    }
    moves.on(Event::FencesPassed { queue: 0, epoch }, &mut Actions::default());
    assert_eq!(phase(&moves), Some((epoch, MovePhase::Leave)));
    moves.on(Event::Left { cpu: 3, epoch, with_state: &[0] }, &mut Actions::default());
    moves.on(Event::Left { cpu: 0, epoch: epoch + 1, with_state: &[0] }, &mut Actions::default());
    assert!(moves.slice().is_some_and(|slice| slice.moves.iter().all(|m| !m.has_state)));
}

#[test]
fn an_arrival_of_another_slice_loses_no_state() {
    let mut moves = moves(&[&[0, 1]]);
    let swapped = [1, 1, 1, 1, 0, 0, 0, 0];
    let wish = Event::Map { group: 0, map: &swapped, plan: Plan::all(), cause: MoveCause::Balance };
    moves.on(wish, &mut Actions::default());
    let epoch = moves.slice().expect("a slice is moving").epoch;
    let mut on = |event| moves.on(event, &mut Actions::default());
    on(Event::FencesPassed { queue: 0, epoch });
    on(Event::Left { cpu: 0, epoch, with_state: &[2] });
    on(Event::Arrived { cpu: 1, epoch: epoch - 1 });
    let with_state = |moves: &Moves| {
        let moves = &moves.slice().expect("it still moves").moves;
        moves.iter().filter(|m| m.has_state).map(|m| m.bucket).collect::<Vec<_>>()
    };
    assert_eq!(with_state(&moves), [2]);
    moves.on(Event::Left { cpu: 1, epoch, with_state: &[] }, &mut Actions::default());
    assert!(moves.slice().is_some_and(|slice| slice.is_at(epoch, MovePhase::Arrive) && slice.waits_for(1)));
}

#[test]
fn actions_have_room_for_all_from_the_start() {
    let mut actions = Actions::for_size(4, 3);
    assert!(actions.wake.capacity() >= 4, "each CPU can be woken");
    assert!(actions.asks.capacity() >= 4 + 3, "each CPU can be declared dead, and the fences of each queue read");
    actions.wake(3);
    actions.wake(1);
    actions.wake(3);
    assert_eq!((actions.changed, actions.wake), (true, vec![3, 1]));
}
