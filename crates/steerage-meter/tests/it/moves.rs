//! Flows whose bucket moves to another CPU.

use std::sync::{Arc, Mutex};

use steerage::flow::wire::FrameBuilder;
use steerage::testing::{self, Frame, HandlerTester, TesterOptions};
use steerage::{Builder, CpuId, CpuMask, WallTime};
use steerage_meter::{FlowRecord, FlowWriter, Meter, MeterOptions, Metered, Metering};

fn packet(flow: u8, second: u64) -> Frame {
    let frame = FrameBuilder::udp(([192, 0, 2, flow], 9), ([192, 0, 2, 200], 9)).frame(b"data");
    Frame::new(frame).with_time(WallTime::from_nanos((1_700_000_000 + second) * 1_000_000_000))
}

fn tester(metering: Metering) -> HandlerTester<Meter> {
    let options = TesterOptions { cpus: 2, ..TesterOptions::default() };
    HandlerTester::with(options, move |_cpu| metering.meter())
}

#[test]
fn a_flow_that_moves_does_not_time_out_before_its_waiting_packets_come() {
    let mut tester = tester(Metering::new(MeterOptions { can_wait: true, ..MeterOptions::default() }, None));
    tester.handle([packet(1, 0)]);
    tester.move_to(CpuId(1));
    tester.handle([packet(2, 1000), packet(2, 1001)]);
    tester.handle([packet(1, 10), packet(1, 1002)]);
    let reports = tester.finish_all().into_iter().map(|tested| tested.report);
    let (metered, _open) = Metered::of(reports, 0);
    assert_eq!(metered.total, 3, "flow 1 until second 10, flow 1 again, and flow 2");
}

#[test]
fn a_flow_that_has_moved_times_out() {
    let records = Arc::<Mutex<Vec<FlowRecord>>>::default();
    let to = Arc::clone(&records);
    let take = move |some: &[FlowRecord]| {
        to.lock().unwrap().extend_from_slice(some);
        Ok(())
    };
    let writer = FlowWriter::pass_to("a test", take, || {}).unwrap();
    let metering =
        Metering::new(MeterOptions { can_wait: true, ..MeterOptions::default() }, Some(writer.exporter(true)));
    let mut tester = tester(metering);
    tester.handle([packet(1, 0)]);
    tester.move_to(CpuId(1));
    for second in 1000..1100 {
        tester.handle((0..64).map(|_| packet(2, second)));
    }
    drop(tester.finish_all());
    writer.finish(Vec::new()).unwrap();
    let sources: Vec<String> = records.lock().unwrap().iter().map(|record| record.source().to_string()).collect();
    assert_eq!(sources, ["192.0.2.1:9"], "flow 2 is open at the end");
}

/// Packets of one burst wait for the move of their bucket, while the old CPU already handles
/// packets of the next burst.
#[test]
fn packets_that_wait_for_a_move_do_not_begin_another_record() {
    const FLOWS: u8 = 50;
    const BURSTS: u64 = 1000;
    let burst = |nth: u64| (0..3).flat_map(move |second| (0..FLOWS).map(move |flow| packet(flow, 1000 * nth + second)));
    let metering = Metering::new(MeterOptions { can_wait: true, ..MeterOptions::default() }, None);
    let builder = Builder::new().virtual_cpus(3).input(testing::input((0..BURSTS).flat_map(burst)));
    let running = builder.build(move |_| metering.meter()).unwrap().start().unwrap();
    let handle = running.handle();
    for list in ["0", "1-2", "0-2", "2", "0-1"].into_iter().cycle() {
        let _ = handle.set_rps_cpus(&CpuMask::parse_list(list, 3).unwrap());
        if handle.is_finished() {
            break;
        }
        std::thread::yield_now();
    }
    let outcome = running.join();
    let (metered, _open) = Metered::of(outcome.reports.into_iter().map(|(_, report)| report), 0);
    assert!(outcome.snapshot.moves.buckets > 0, "nothing moved");
    assert_eq!(metered.total, u64::from(FLOWS) * BURSTS);
}
