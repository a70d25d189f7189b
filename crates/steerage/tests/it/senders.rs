//! Tests packets that threads outside of the receive path send.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use steerage::device::{Capabilities, Completions, DeviceError, Filled, Polled, RxQueue};
use steerage::flow::wire::FrameBuilder;
use steerage::packet::{Kept, Sender};
use steerage::testing::{self, Frame};
use steerage::threads::Softnet;
use steerage::{Batch, Builder, Cpu, CpuId, CpuMask, Handler, Hash, Input, LinkType, Timestamp, TxId};
use steerage_fixtures::manual_clock::ManualClock;
use steerage_fixtures::{HANG, assert_at_rest};

struct Passes(mpsc::Sender<Kept>);

impl Handler for Passes {
    type Moved = ();
    type Report = u64;

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        for packet in batch.iter_mut() {
            match packet.keep() {
                Ok(kept) => self.0.send(kept).unwrap(),
                Err(packet) => packet.discard(),
            }
        }
    }

    fn finish(self, _cpu: &mut Cpu) -> u64 {
        0
    }
}

const FLOWS: u16 = 40;

/// Returns a frame whose last bytes are `number`.
fn frame(flow: u16, number: u32) -> Vec<u8> {
    let mut frame = FrameBuilder::udp(([10, 0, 0, 1], flow), ([10, 0, 0, 9], 53)).frame_of(64);
    frame[60..].copy_from_slice(&number.to_be_bytes());
    frame
}

fn answer(packets: &Receiver<Kept>, sender: &Sender) -> usize {
    let mut sent = 0;
    for mut packet in packets {
        packet[..6].fill(0xaa);
        let mut packet = Err(packet);
        while let Err(again) = packet {
            packet = sender.try_send(again);
            thread::yield_now();
        }
        sent += 1;
    }
    sent
}

/// Another thread changes each kept packet, and a CPU sends it. All pages return to the pool.
#[test]
fn kept_packets_are_sent_in_order_while_their_buckets_move() {
    const ROUNDS: u32 = 500;
    // With this `kept_max`, each packet can be kept, even if the other thread is slow.
    let all = u64::from(ROUNDS) * u64::from(FLOWS);
    let frames = (0..ROUNDS).flat_map(|number| (0..FLOWS).map(move |flow| frame(flow, number)));
    let (output, recorded) = testing::output();
    let mut builder = Builder::new().virtual_cpus(3).policy(Hash).kept_max(all as usize).input(testing::input(frames));
    let to = builder.add_output(output);
    let sender = builder.add_sender(to, 64).unwrap();
    let (pass, packets) = mpsc::channel();
    let instance = builder.build(move |_| Passes(pass.clone())).unwrap();
    let running = instance.start().unwrap();
    let handle = running.handle();
    let by_thread = thread::spawn(move || answer(&packets, &sender));
    for count in (1..=3).cycle() {
        if handle.is_finished() {
            break;
        }
        handle.set_rps_cpus(&(0..count).map(CpuId).collect::<CpuMask>()).unwrap();
        handle.wait_settled(Duration::from_secs(1));
    }
    let outcome = running.join();
    let ledger = outcome.snapshot;
    let kept = ledger.verdicts().kept;
    assert_eq!((by_thread.join().unwrap() as u64, kept), (all, all));
    assert_eq!(ledger.delivered(), all);
    let mut next: HashMap<Vec<u8>, u32> = HashMap::new();
    for Frame { bytes, .. } in recorded.packets() {
        assert_eq!(bytes[..6], [0xaa; 6]);
        let number = u32::from_be_bytes(*bytes.last_chunk().unwrap());
        let next = next.entry(bytes[34..36].to_vec()).or_default();
        assert!(number >= *next, "a flow is out of order");
        *next = number + 1;
    }
    assert_eq!(next.len(), usize::from(FLOWS));
    let sent: u64 = ledger.cpus.iter().map(|cpu| cpu.originated).sum();
    assert_eq!((sent, recorded.packets().len() as u64), (kept, kept));
    assert!(ledger.moves.buckets > 0 && ledger.cpus.iter().filter(|cpu| cpu.originated > 0).count() > 1);
    assert_at_rest(&ledger);
}

struct Fed(Receiver<Vec<u8>>);

impl RxQueue for Fed {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64)
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        if let Ok(frame) = self.0.try_recv() {
            out.fill(1, |bytes| {
                bytes[..64].copy_from_slice(&frame);
                Some(Filled::whole(64))
            });
        }
        Ok(Polled::More)
    }
}

/// While another thread has the first packet of a flow, later packets of the flow wait, although
/// another CPU kept them. The flow's new CPU sends all packets.
#[test]
fn a_packet_waits_for_the_earlier_packet_of_its_flow_on_the_old_cpu() {
    let (feed, frames) = mpsc::channel();
    let (output, recorded) = testing::output();
    let input = Input::new("fed", "test", vec![Box::new(Fed(frames))]);
    let mut builder = Builder::new().virtual_cpus(2).policy(Hash).input(input).output(output);
    builder = builder.rps_cpus([CpuId(0)].into_iter().collect());
    let sender = builder.add_sender(TxId(0), 64).unwrap();
    let (pass, packets) = mpsc::channel();
    let (parts, handle) = builder.build(move |_| Passes(pass.clone())).unwrap().split();
    let mut cpus: Vec<_> = parts.into_iter().map(|part| part.enter(ManualClock::default())).collect();
    let keep = |cpus: &mut Vec<Softnet<_, _>>, number| {
        feed.send(frame(7, number)).unwrap();
        (0..20).for_each(|round| _ = cpus[round % 2].step());
        packets.try_recv().unwrap()
    };
    let first = keep(&mut cpus, 0);
    handle.set_rps_cpus(&[CpuId(1)].into_iter().collect()).unwrap();
    (0..1000).for_each(|round| _ = cpus[round % 2].step());
    assert!(handle.is_settled());
    let [second, third] = [1, 2].map(|number| keep(&mut cpus, number));
    let sent = || recorded.packets().iter().map(|frame| frame.bytes[63]).collect::<Vec<_>>();
    sender.try_send(first).unwrap();
    sender.try_send(second).unwrap();
    (0..20).for_each(|_| _ = cpus[1].step());
    assert_eq!(sent(), [], "the second packet has overtaken the first");
    (0..20).for_each(|_| _ = cpus[0].step());
    assert_eq!(sent(), [0, 1]);
    sender.try_send(third).unwrap();
    (0..20).for_each(|_| _ = cpus[1].step());
    assert_eq!(sent(), [0, 1, 2]);
}

/// A queue without frames. The CPU that polls this queue sleeps until another thread wakes it.
struct Silent;

impl RxQueue for Silent {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(128)
    }

    fn poll(&mut self, _: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        Ok(Polled::NotBefore(Timestamp::from_nanos(u64::MAX / 2)))
    }
}

fn silent() -> Input {
    Input::new("silent", "test", vec![Box::new(Silent)])
}

fn is_ready(fd: &impl AsFd, wait: PollTimeout) -> bool {
    poll(&mut [PollFd::new(fd.as_fd(), PollFlags::POLLIN)], wait).unwrap() == 1
}

/// A full sender refuses packets. The sender's file descriptor becomes readable when there is room
/// for a packet.
#[test]
fn copies_wake_a_cpu_and_wait_for_room() {
    let (output, recorded) = testing::output();
    let mut builder = Builder::new().virtual_cpus(1).input(silent()).output(output);
    let sender = builder.add_sender(TxId(0), 4).unwrap();
    assert!(!sender.try_send_copy(LinkType::ETHERNET, &[0; 60]), "there is no instance yet");
    let instance = builder.build(|_| Passes(mpsc::channel().0)).unwrap();
    let ready = sender.ready_fd().unwrap();
    assert!(is_ready(&ready, PollTimeout::ZERO));
    let sent = (0..8).filter(|nth| sender.try_send_copy(LinkType::RAW, &[*nth; 60])).count();
    assert_eq!((sent, sender.room(), is_ready(&ready, PollTimeout::ZERO)), (4, 0, false));
    let running = instance.start().unwrap();
    let wait = PollTimeout::try_from(HANG).unwrap();
    for nth in 4..40 {
        assert!(is_ready(&ready, wait));
        assert!(sender.try_send_copy(LinkType::RAW, &[nth; 60]));
    }
    // A copied frame that is longer than a page is dropped and counted as a drop.
    assert!(is_ready(&ready, wait) && sender.try_send_copy(LinkType::RAW, &[0; 60_000]));
    running.handle().stop();
    let outcome = running.join();
    assert!(!sender.try_send_copy(LinkType::RAW, &[0; 60]), "the instance has ended");
    let expected: Vec<Frame> = (0..40).map(|nth| Frame::new([nth; 60]).with_link(LinkType::RAW)).collect();
    assert_eq!(recorded.packets(), expected);
    let cpu = &outcome.snapshot.cpus[0];
    assert_eq!((cpu.originated, cpu.originated_dropped), (40, 1));
    assert_at_rest(&outcome.snapshot);
}

struct Twice(Vec<Kept>);

impl Handler for Twice {
    type Moved = ();
    type Report = usize;

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        self.0.extend(batch.iter_mut().filter_map(|packet| packet.keep().ok()));
        while let Some(packet) = self.0.pop() {
            if let Err(packet) = cpu.send_kept(TxId(0), packet) {
                assert_eq!(cpu.sends_left(), 0);
                self.0.push(packet);
                break;
            }
        }
    }

    fn finish(self, _cpu: &mut Cpu) -> usize {
        self.0.len()
    }
}

/// At most `originated_max` packets of a handler can wait to be sent. A sender refuses packets that
/// were kept in another instance.
#[test]
fn a_handler_sends_what_it_kept() {
    let (output, recorded) = testing::output();
    let frames: Vec<Frame> = (0..20).map(|nth| Frame::new(frame(nth, 0)).with_wire_len(900)).collect();
    let builder =
        Builder::new().virtual_cpus(1).originated_max(12).input(testing::input(frames.clone())).output(output);
    let outcome = builder.build(|_| Twice(Vec::new())).unwrap().start().unwrap().join();
    assert_eq!(outcome.reports[0].1, 8);
    assert_eq!(recorded.packets(), frames.into_iter().rev().take(12).collect::<Vec<_>>());
    assert_at_rest(&outcome.snapshot);

    let (pass, packets) = mpsc::channel();
    testing::run(move |_| Passes(pass.clone()), [[0; 60]]);
    let mut builder = Builder::new().virtual_cpus(1).input(silent()).output(testing::output().0);
    let sender = builder.add_sender(TxId(0), 1).unwrap();
    let _instance = builder.build(|_| Twice(Vec::new())).unwrap();
    assert!(sender.try_send(packets.recv().unwrap()).is_err());

    let (pass, packets) = mpsc::channel();
    let mut other = Builder::new().virtual_cpus(1).input(testing::input([[0; 60]])).output(testing::output().0);
    other.add_sender(TxId(0), 1).unwrap();
    let running = other.build(move |_| Passes(pass.clone())).unwrap().start().unwrap();
    assert!(sender.try_send(packets.recv().unwrap()).is_err());
    running.join();
}
