//! A super-frame must count as the packets on the wire that were merged into it.

use steerage::flow::wire::FrameBuilder;
use steerage::flow::wire::tcp::ACK;
use steerage::testing::{self, Frame};
use steerage::{Batch, Builder, Cpu, Handler};
use steerage_meter::{Meter, MeterOptions, MeterReport, Metered, Metering, Traffic};

const SEGMENTS: u32 = 12;
const BYTES: u32 = 100;

struct Counting(Meter, usize);

impl Handler for Counting {
    type Moved = ();
    type Report = (usize, MeterReport);

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        self.1 += batch.len();
        self.0.handle(batch, cpu);
    }

    fn finish(self, cpu: &mut Cpu) -> Self::Report {
        (self.1, self.0.finish(cpu))
    }
}

/// If `merges` is true, the instance may merge the segments into super-frames.
fn run(make: impl Fn() -> Meter + Send + Sync + 'static, merges: bool) -> MeterReport {
    let (from, to) = (([10, 0, 0, 1], 1000), ([10, 0, 0, 2], 80));
    let frame = |nth: u32| {
        let builder = FrameBuilder::tcp(from, to).sequence(7 + nth * BYTES).flags(ACK);
        Frame::new(builder.frame(&[b'x'; BYTES as usize]))
    };
    let builder = Builder::new().virtual_cpus(1).coalesce(merges).input(testing::input((0..SEGMENTS).map(frame)));
    let mut outcome = builder.build(move |_| Counting(make(), 0)).unwrap().start().unwrap().join();
    let (_, (packets, report)) = outcome.reports.remove(0);
    assert_eq!(packets < SEGMENTS as usize, merges, "{packets} packets");
    report
}

fn traffic(report: MeterReport) -> Traffic {
    let (_, open) = Metered::of([report], 0);
    let records = open.into_records();
    assert_eq!(records.len(), 1);
    records[0].forth()
}

/// With names, with statistics and for parts of a recording, the packets are counted by other
/// functions than usual.
#[test]
fn merged_packets_count_as_the_packets_of_the_wire() {
    let plain = MeterOptions::default();
    let alone = traffic(run(move || Metering::new(plain, None).meter(), false));
    assert_eq!((alone.packets, alone.ip_bytes), (SEGMENTS.into(), u64::from(SEGMENTS * (BYTES + 40))));
    for options in [plain, MeterOptions { names: true, ..plain }, MeterOptions { cic: true, ..plain }] {
        let report = run(move || Metering::new(options, None).meter(), true);
        assert_eq!(traffic(report), alone, "{options:?}");
    }
    let report = run(move || Metering::of_part(plain, None).meter(), true);
    let (edges, records) = report.edges().unwrap();
    assert!(records.is_empty());
    assert_eq!(edges.finish()[0].forth(), alone);
}
