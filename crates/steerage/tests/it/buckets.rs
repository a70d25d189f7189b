use steerage::{
    Affinity, Builder, CpuId, CpuMask, DeviceError, Hash, Input,
    device::{Capabilities, Completions, Filled, Polled, RxQueue},
    flow::{FlowHash, bucket_of},
    limits::BUCKETS,
    threads::Softnet,
};
use steerage_fixtures::handlers::Nothing;

use steerage_fixtures::manual_clock::{self, ManualClock};

struct Three(usize);

const FLOWS: [FlowHash; 3] = [FlowHash(0x1000_0000), FlowHash(0x8000_0000), FlowHash(0xf000_0000)];

impl RxQueue for Three {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64).can_wait().hashes(Affinity::BothDirections)
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        // Each poll of 61 frames has one sample. The flows repeat every 8 frames, so all flows are
        // sampled.
        out.fill(budget.min(61), |_| {
            self.0 += 1;
            Some(Filled::whole(60).with_hash(Some(FLOWS[(self.0 % 8).saturating_sub(5)])))
        });
        Ok(Polled::More)
    }
}

#[test]
fn load_and_moves() {
    let mask = |cpus: &[u16]| cpus.iter().copied().map(CpuId).collect::<CpuMask>();
    let input = Input::new("three", "test", vec![Box::new(Three(0))]);
    let builder = Builder::new().virtual_cpus(2).policy(Hash).rps_cpus(mask(&[0])).input_on(input, &[CpuId(0)], None);
    let (parts, handle) = builder.build(|_| Nothing).unwrap().split();
    let cpus: Vec<Softnet<Nothing, ManualClock>> =
        parts.into_iter().map(|part| part.enter(ManualClock::default())).collect();
    let [mut first, mut second] = <[_; 2]>::try_from(cpus).unwrap();
    let mut rounds = |count| {
        (0..count).for_each(|_| {
            first.step();
            second.step();
        });
    };
    rounds(800);
    let received = handle.snapshot().received();
    let buckets = handle.buckets(0).unwrap();
    assert_eq!(buckets.len(), BUCKETS);
    assert!(buckets.iter().all(|bucket| (bucket.cpu, bucket.moves) == (CpuId(0), 0)));
    let came = FLOWS.map(|flow| buckets[usize::from(bucket_of(flow))].packets);
    assert_eq!((came.iter().sum::<u64>(), buckets.iter().map(|bucket| bucket.packets).sum()), (received, received));
    for (came, share) in came.into_iter().zip([6, 1, 1]) {
        let exact = received * share / 8;
        assert!(came.abs_diff(exact) < received / 16, "{came} where {exact} came");
    }

    for cpus in [&[1][..], &[0, 1]] {
        handle.set_rps_cpus(&mask(cpus)).unwrap();
        while !handle.is_settled() {
            rounds(1);
        }
    }
    let buckets = handle.buckets(0).unwrap();
    let with = |cpu, moves| buckets.iter().filter(|bucket| (bucket.cpu, bucket.moves) == (CpuId(cpu), moves)).count();
    assert_eq!((with(1, 1), with(0, 2)), (BUCKETS / 2, BUCKETS / 2));
    assert_eq!(handle.snapshot().moves.buckets, (BUCKETS + BUCKETS / 2) as u64);
    assert!(handle.buckets(1).is_none());

    manual_clock::end(&handle, [&mut first, &mut second]);
}
