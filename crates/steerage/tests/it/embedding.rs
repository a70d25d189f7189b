//! Tests further parts of the API: the end of handlers, the numbers of inputs and outputs, waiting,
//! and parsed headers.

use std::io;
use std::net::SocketAddrV4;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use steerage::flow::wire::FrameBuilder;
use steerage::{
    Batch, Builder, Cpu, CpuId, CpuMask, Handler, Hash, InputId, LinkType, NoRoom, SetError, TxId,
    device::DeviceError,
    flow::FlowKey,
    packet::Verdict,
    stats::DropReason,
    testing::{self, Frame, HandlerTester},
    topology,
};
use steerage_fixtures::handlers::Nothing;
use steerage_fixtures::{HANG, assert_at_rest};

fn udp(source: [u8; 4], port: u16) -> Vec<u8> {
    FrameBuilder::udp((source, port), ([10, 0, 0, 9], 0)).frame_of(60)
}

struct Last(u8);

impl Handler for Last {
    type Moved = ();
    type Report = CpuId;

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        self.0 += batch.len() as u8;
        batch.iter_mut().for_each(|packet| packet.transmit(TxId(0)));
    }

    fn finish(self, cpu: &mut Cpu) -> CpuId {
        cpu.send(TxId(0), LinkType::ETHERNET, &[self.0; 20]).expect("there is a page for it");
        cpu.id()
    }
}

#[test]
fn what_a_handler_sends_at_its_end_leaves_behind_its_packets() {
    let (output, recorded) = testing::output();
    let frames: Vec<Vec<u8>> = (0..100).map(|nth| udp([10, 0, 0, 1], nth)).collect();
    let input = testing::input(frames.clone());
    let builder = Builder::new().virtual_cpus(1).originated_max(1).input(input).output(output);
    let outcome = builder.build(|_| Last(0)).unwrap().start().unwrap().join();
    let sent: Vec<Vec<u8>> = recorded.packets().into_iter().map(|frame| frame.bytes).collect();
    assert_eq!(sent[..100], frames);
    assert_eq!(sent[100..], [vec![100; 20]]);
    assert_eq!(outcome.snapshot.cpus[0].originated, 1);
    assert_at_rest(&outcome.snapshot);
}

struct StopsAtOnce;

impl Handler for StopsAtOnce {
    type Moved = ();
    type Report = Result<(), &'static str>;

    fn handle(&mut self, _batch: &mut Batch<'_>, cpu: &mut Cpu) {
        cpu.stop();
    }

    fn finish(self, _cpu: &mut Cpu) -> Result<(), &'static str> {
        Err("found it")
    }
}

#[test]
fn a_handler_stops_a_run_that_would_not_end() {
    let mut tester = HandlerTester::new(|_| StopsAtOnce);
    assert!(!tester.is_stopping());
    tester.handle([[0; 60]]);
    assert!(tester.is_stopping());
    assert_eq!(tester.finish().report, Err("found it"));

    struct Endless;
    impl steerage::device::RxQueue for Endless {
        fn capabilities(&self) -> steerage::device::Capabilities {
            steerage::device::Capabilities::pages(60)
        }

        fn poll(
            &mut self,
            out: &mut steerage::device::Completions<'_>,
            budget: usize,
        ) -> Result<steerage::device::Polled, DeviceError> {
            out.fill(budget, |_| Some(steerage::device::Filled::whole(60)));
            Ok(steerage::device::Polled::More)
        }
    }
    let input = steerage::Input::new("endless", "test", vec![Box::new(Endless)]);
    let running = Builder::new().virtual_cpus(2).input(input).build(|_| StopsAtOnce).unwrap().start().unwrap();
    let outcome = running.join();
    assert_eq!(outcome.reports, [(CpuId(0), Err("found it")), (CpuId(1), Err("found it"))]);
    assert_at_rest(&outcome.snapshot);
}

struct Crosses(TxId, TxId);

impl Handler for Crosses {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        let to = if batch.input() == InputId(0) { self.0 } else { self.1 };
        for packet in batch.iter_mut() {
            let is_odd = packet.data()[35] % 2 == 1;
            packet.transmit(if is_odd { TxId(9) } else { to });
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

#[test]
fn inputs_and_outputs_are_known_by_the_numbers_that_the_builder_returned() {
    let (left, from_left) = ([10, 0, 0, 1], (0..10).map(|port| udp([10, 0, 0, 1], port)));
    let (right, from_right) = ([10, 0, 0, 2], (0..10).map(|port| udp([10, 0, 0, 2], port)));
    let mut builder = Builder::new().virtual_cpus(2);
    let inputs = [builder.add_input(testing::input(from_left)), builder.add_input(testing::input(from_right))];
    assert_eq!(inputs, [InputId(0), InputId(1)]);
    let (to_left, at_left) = testing::output();
    let (to_right, at_right) = testing::output();
    let (to_left, to_right) = (builder.add_output(to_left), builder.add_output(to_right));
    assert_eq!((to_left, to_right), (TxId(0), TxId(1)));
    let outcome = builder.build(move |_| Crosses(to_right, to_left)).unwrap().start().unwrap().join();
    for (arrived, source) in [(at_left, right), (at_right, left)] {
        let packets = arrived.packets();
        assert_eq!(packets.len(), 5);
        assert!(packets.iter().all(|packet| packet.bytes[26..30] == source));
    }
    assert_eq!(outcome.snapshot.dropped().get(DropReason::TxRefused), 10);
    assert_at_rest(&outcome.snapshot);
}

struct Rewrites(Arc<Mutex<Vec<[Option<FlowKey>; 3]>>>);

impl Handler for Rewrites {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        let mut seen = self.0.lock().unwrap();
        for mut packet in batch.iter_mut() {
            let before = packet.flow_key();
            assert_eq!(packet.dissection().payload_offset, Some(42));
            packet.data_mut().unwrap()[35] += 100;
            let after = packet.flow_key();
            packet.prepend(4).unwrap().fill(0xff);
            assert!(packet.flow_key() != after, "four bytes in front of the headers");
            packet.trim_front(4).unwrap();
            seen.push([before, after, None]);
        }
        let noted = seen.len() - batch.len();
        for (seen, packet) in seen[noted..].iter_mut().zip(batch.iter_mut()) {
            seen[2] = packet.flow_key();
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

#[test]
fn headers_are_read_again_after_a_packet_was_written_to() {
    let seen = Arc::<Mutex<Vec<_>>>::default();
    let shared = Arc::clone(&seen);
    let frames = (0..70).map(|port| udp([10, 0, 0, 1], port));
    let tested = testing::run(move |_| Rewrites(Arc::clone(&shared)), frames);
    assert_eq!(tested.verdicts, [Verdict::Consumed; 70]);
    let end = |address: [u8; 4], port| SocketAddrV4::new(address.into(), port);
    let key = |port| Some(FlowKey::v4(end([10, 0, 0, 1], port), end([10, 0, 0, 9], 0), 17));
    let expected: Vec<_> = (0..70).map(|port| [key(port), key(port + 100), key(port + 100)]).collect();
    assert_eq!(*seen.lock().unwrap(), expected);
}

fn is_readable(fd: &OwnedFd, timeout: PollTimeout) -> bool {
    poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], timeout).unwrap() == 1
}

#[test]
fn the_end_and_new_masks_can_be_waited_for() {
    let hang = PollTimeout::try_from(HANG).unwrap();
    let builder = Builder::new().virtual_cpus(2).policy(Hash).input(testing::input([[0; 60]]));
    let (parts, handle) = builder.build(|_| Nothing).unwrap().split();
    let (settled, finished) = (handle.settled_fd().unwrap(), handle.finished_fd().unwrap());
    assert!(handle.wait_settled(Duration::ZERO) && is_readable(&settled, PollTimeout::ZERO));
    assert!(!handle.wait_finished(Duration::ZERO) && !is_readable(&finished, PollTimeout::ZERO));
    let error = nix::unistd::read(&settled, &mut [0; 8]).unwrap_err();
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::InvalidInput);

    handle.set_rps_cpus(&[CpuId(1)].into_iter().collect::<CpuMask>()).unwrap();
    assert!(!handle.wait_settled(Duration::from_millis(1)) && !is_readable(&settled, PollTimeout::ZERO));
    let other = handle.clone();
    let waiter = std::thread::spawn(move || (other.wait_settled(HANG), other.wait_finished(HANG)));
    let cpus: Vec<_> =
        parts.into_iter().map(|part| std::thread::spawn(move || part.enter_machine().run(Duration::ZERO))).collect();
    assert!(is_readable(&finished, hang));
    assert_eq!(waiter.join().unwrap(), (true, true));
    cpus.into_iter().for_each(|cpu| cpu.join().unwrap());
    assert!(handle.is_finished() && is_readable(&finished, PollTimeout::ZERO));
    assert_eq!(handle.wait_settled(Duration::ZERO), handle.is_settled());
}

fn refusal(builder: Builder) -> String {
    builder.build(|_| Nothing).map(drop).unwrap_err().to_string()
}

#[test]
fn a_cpu_that_does_not_exist_is_named_with_those_that_do() {
    let input = || testing::input([[0; 60]]);
    let machine = topology::present().expect("the kernel lists them");
    let missing = CpuId(machine.last().unwrap().0 + 400);
    let pinned = refusal(Builder::new().cpus(CpuMask::from_iter([missing])).input(input()));
    assert_eq!(pinned, format!("there is no CPU {missing}: the CPUs are {machine}"));
    assert_eq!(refusal(Builder::new().input_on(input(), &[missing], None)), pinned);
    let two = || Builder::new().virtual_cpus(2);
    assert_eq!(refusal(two().input_on(input(), &[CpuId(1), CpuId(9)], None)), "there is no CPU 9: the CPUs are 0-1");
    assert_eq!(
        refusal(two().cpus(CpuMask::from_iter([CpuId(2)])).input(input())),
        "there is no CPU 2: the CPUs are 0-1"
    );
    // A queue may be polled by a CPU that is not in the mask of `Builder::cpus`. An unpinned thread
    // may run on any CPU.
    let receives = two().cpus(CpuMask::from_iter([CpuId(1)])).input_on(input(), &[CpuId(0)], None);
    assert!(receives.build(|_| Nothing).is_ok());
    assert!(Builder::new().cpus(CpuMask::from_iter([missing])).pin(false).input(input()).build(|_| Nothing).is_ok());
}

#[test]
fn too_much_memory_is_refused_by_the_setting_that_takes_it() {
    let builder = || Builder::new().virtual_cpus(2).memory_max(32 << 20).input(testing::input([[0; 60]]));
    let error = refusal(builder().kept_max(1 << 40));
    let (before, fits) = error.split_once(" bytes: use at most ").expect(&error);
    assert!(before.contains("a kept_max of 1099511627776 takes ") && !error.contains("backlog"), "{error}");
    let fits: usize = fits.split(',').next().unwrap().parse().unwrap();
    let memory = builder().kept_max(fits).build(|_| Nothing).unwrap().handle().snapshot().memory;
    assert_eq!((memory.backlog, memory.backlog_asked), (1000, 1000), "{fits} fit without a shorter backlog");
}

#[test]
fn a_handler_that_may_send_nothing_hears_which_setting_that_is() {
    let says = NoRoom::OriginatedMax.to_string();
    assert!(says.contains("raise Builder::originated_max (default 0)") && !says.contains("kept_max"), "{says}");
    assert!(
        !NoRoom::TooLong.to_string().contains("kept_max") && NoRoom::KeptMax.to_string().contains("raise kept_max")
    );
}

#[test]
fn setters_name_what_does_not_fit() {
    let builder = Builder::new().virtual_cpus(2).input(testing::input([[0; 60]]));
    let handle = builder.build(|_| Nothing).unwrap().handle();
    let mask: CpuMask = [CpuId(5)].into_iter().collect();
    let error = handle.set_rps_cpus(&mask).unwrap_err();
    assert!(matches!(error, SetError::NotOurCpu { cpu: CpuId(5), .. }));
    assert_eq!(
        error.to_string(),
        "CPU 5 is not one of this instance's (0-1): add it to its CPUs or leave it out of the mask"
    );
    let error = handle.set_queue_rps_cpus(1, &mask).unwrap_err().to_string();
    assert_eq!(error, "there is no receive queue 1: they are numbered from 0, and there are 1");
}

struct Keeps(Arc<Mutex<Vec<Frame>>>);

impl Handler for Keeps {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        for packet in batch.iter_mut() {
            assert_eq!((packet.verdict(), packet.interface()), (Verdict::Consumed, Some(0)));
            let mut kept = packet.keep().expect("there is room");
            let mut frame = Frame::new(&*kept).with_link(kept.link()).with_wire_len(kept.wire_len());
            frame.time = kept.time();
            self.0.lock().unwrap().push(frame);
            kept[0] = 7;
            assert_eq!(kept.segments().next(), Some(&*kept));
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

#[test]
fn a_test_s_frames_arrive_as_they_are() {
    let time = steerage::WallTime::from_nanos(1_234_567_891);
    let frames = vec![
        Frame::new([1; 60]).with_time(time),
        Frame::new([2; 40]).with_link(LinkType::RAW).with_wire_len(1500),
        Frame::new([3; 9000]),
    ];
    let seen = Arc::<Mutex<Vec<_>>>::default();
    let shared = Arc::clone(&seen);
    let tested = testing::run(move |_| Keeps(Arc::clone(&shared)), frames.clone());
    assert_eq!(tested.verdicts, [Verdict::Kept; 3]);
    assert_eq!(*seen.lock().unwrap(), frames);
    assert_at_rest(&tested.snapshot);
}
