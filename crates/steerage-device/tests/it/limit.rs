use steerage::{Timestamp, device::Polled};
use steerage_device::limit::Limit;
use steerage_device::open;

use crate::common::testers;

#[test]
fn all_queues_together_hand_over_exactly_the_limit() {
    for (queues, packets) in [(1, 0), (1, 1), (1, 64), (1, 1000), (2, 1), (3, 1000), (5, 63)] {
        let input = open(&format!("synthetic:queues={queues}")).unwrap();
        let mut testers = testers(Limit::new(input, packets));
        assert!(testers.iter().all(|tester| tester.queue().capabilities().can_wait));
        let mut frames = 0;
        let mut ended = vec![false; queues];
        for _ in 0..1000 {
            for (tester, ended) in testers.iter_mut().zip(&mut ended).filter(|(_, ended)| !**ended) {
                let (polled, count) = tester.poll_and_count(Timestamp::ZERO, 64).unwrap();
                frames += count as u64;
                *ended = polled == Polled::Ended;
            }
        }
        assert!(ended.iter().all(|ended| *ended));
        assert_eq!(frames, packets);
    }
}

#[test]
fn a_device_that_ends_before_its_limit_ends() {
    let input = open("synthetic:queues=2,packets=101").unwrap();
    let mut frames = 0;
    for mut tester in testers(Limit::new(input, 1000)) {
        loop {
            let (polled, count) = tester.poll_and_count(Timestamp::ZERO, 64).unwrap();
            frames += count;
            if polled == Polled::Ended {
                break;
            }
        }
    }
    assert_eq!(frames, 101);
}
