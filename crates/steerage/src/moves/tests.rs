use super::*;
use crate::policy::Hash;

fn control(mask: &[CpuIndex]) -> QueueControl {
    QueueControl { owner: 0, can_wait: true, gauges: Vec::new(), mask: mask.to_vec(), limits: QueueLimits::DEFAULT }
}

/// A move ends where its queues end in its midst, and what is known of their flows stays on the old CPU. A queue that comes to
/// have the same mask must not meet it on the new one.
#[test]
fn nobody_joins_a_group_whose_queues_have_all_ended() {
    let queues = vec![control(&[1]), control(&[0, 1])];
    let steering = Steering::<()>::new(2, queues, Limits::DEFAULT, Box::new(Hash), Vec::new());
    let mut state = steering.lock();
    assert_eq!((state.map_of(0).1, state.map_of(1).1), (0, 1));
    state.set_mask(&[0], &[0]);
    assert!(state.slice.as_ref().is_some_and(|slice| slice.phase == Phase::Park));
    state.close_queue(0);
    assert!(state.slice.is_none());

    state.set_mask(&[1], &[0]);
    assert_eq!(state.mask_of(1), [0]);
    assert_ne!(state.arrives_in(1), 0);
}
