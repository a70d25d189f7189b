use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use steerage::flow::wire::{FrameBuilder, port::DISCARD};
use steerage::testing::QueueTester;
use steerage::{
    Builder, CpuId, DeviceError, Input, LinkType, Running, Snapshot, Timestamp,
    device::{Capabilities, Completions, Filled, Gather, Polled, RxQueue},
    limits::{HEADROOM, POLL_BUDGET},
    stats::DropReason,
};
use steerage_device::af_xdp::{AfXdpOptions, AfXdpOutput, Mode};
use steerage_device::output::open_for;
use steerage_fixtures::cable::{FAR, NEAR, Net};
use steerage_fixtures::handlers::SendAll;
use steerage_fixtures::{HANG, assert_at_rest, until};

const FLOWS: u64 = 64;

/// The offset in bytes of a frame's payload, which is a number and a pattern.
const NUMBER: usize = 42;

struct Numbered {
    next: u64,
    end: u64,
    lens: std::ops::RangeInclusive<usize>,
    link: LinkType,
    buffer: Option<usize>,
}

impl Numbered {
    fn input(frames: u64, lens: std::ops::RangeInclusive<usize>) -> Input {
        let queue = Self { next: 0, end: frames, lens, link: LinkType::ETHERNET, buffer: None };
        queue.into_input()
    }

    fn into_input(self) -> Input {
        let queue = self;
        Input::new("numbered", "test", vec![Box::new(queue)])
    }
}

impl RxQueue for Numbered {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(self.buffer.unwrap_or(*self.lens.end()))
            .segments(self.buffer.map_or(1, |buffer| self.lens.end().div_ceil(buffer)))
            .can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        out.set_link(self.link);
        let left = (self.end - self.next).min(budget as u64) as usize;
        let (first, span) = (*self.lens.start(), (self.lens.end() - self.lens.start() + 1) as u64);
        if let Some(buffer) = self.buffer {
            for _ in 0..left {
                let len = first + (self.next * 37 % span) as usize;
                let mut frame = Gather::default();
                for part in numbered(self.next, len).chunks(buffer) {
                    let mut page = out.take_page().expect("there are as many as may be under way");
                    out.page_mut(&mut page)[HEADROOM..][..part.len()].copy_from_slice(part);
                    out.gather(&mut frame, page, HEADROOM, part.len());
                }
                assert!(out.push_gathered(&mut frame, None));
                self.next += 1;
            }
            return Ok(if self.next == self.end { Polled::Ended } else { Polled::More });
        }
        out.fill(left, |page| {
            let len = first + (self.next * 37 % span) as usize;
            page[..len].copy_from_slice(&numbered(self.next, len));
            self.next += 1;
            Some(Filled::whole(len))
        });
        Ok(if self.next == self.end { Polled::Ended } else { Polled::More })
    }
}

/// The kernel at the other end does not own the destination address, so that kernel sends no reply.
fn numbered(number: u64, len: usize) -> Vec<u8> {
    let flow = (number % FLOWS) as u8;
    let from = ([10, 209, 0, flow], 0x4e00 | u16::from(flow));
    let udp = FrameBuilder::udp(from, ([10, 209, 9, 9], DISCARD)).stations([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 9]);
    let at = udp.header_bytes() + 8;
    let rest = (at..len.max(at)).map(|at| (at as u64 * 31 + number) as u8);
    let mut frame = udp.frame(&number.to_be_bytes().into_iter().chain(rest).collect::<Vec<_>>());
    frame.truncate(len);
    frame
}

fn sending(net: &Net, input: Input, cpus: usize) -> Running<()> {
    let output = net.near(|| AfXdpOutput::new("near0").cpus(cpus).open()).unwrap();
    let builder = Builder::new().virtual_cpus(cpus).check_order(true).input(input).output(output);
    builder.build(|_| SendAll).unwrap().start().unwrap()
}

fn ended(running: Running<()>) -> Snapshot {
    let ledger = running.join().snapshot;
    assert_at_rest(&ledger);
    ledger
}

fn sent(ledger: &Snapshot) -> u64 {
    ledger.outputs[0].packets
}

#[test]
fn what_is_sent_arrives() {
    for queues in [1, 2, 3] {
        let Some(net) = Net::with(&format!("numtxqueues {queues} numrxqueues {queues}")) else { return };
        for cpus in [1, 4] {
            let accounted = || net.arrived() + net.lost_to_far();
            let before = accounted();
            let ledger = ended(sending(&net, Numbered::input(20_000, 14..=1514), cpus));
            assert_eq!((sent(&ledger), ledger.dropped().total()), (20_000, 0), "{queues} queues, {cpus} CPUs");
            assert_eq!(ledger.outputs[0].bytes, ledger.queues[0].received_bytes);
            assert_eq!(accounted() - before, 20_000);
            assert!(net.arrived() > 0);
        }
    }
}

/// Checks until `done` that frames are complete, and in order within each flow. Returns how many
/// frames arrived. The kernel may lose frames if the machine is busy.
fn check_far(net: &Net, lens: &std::ops::RangeInclusive<usize>, done: &AtomicBool) -> u64 {
    let options = AfXdpOptions::new("far0").take("src port 19968-20224".parse().unwrap()).mode(Mode::Native);
    let queue = net.far(|| options.open()).unwrap().input.queues.remove(0);
    let mut tester = QueueTester::new(queue).unwrap();
    let (start, mut last, mut came, mut quiet) = (Instant::now(), [None; FLOWS as usize], 0, false);
    let span = (lens.end() - lens.start() + 1) as u64;
    loop {
        assert!(start.elapsed() < 2 * HANG, "it does not end");
        let was_done = done.load(Ordering::Acquire);
        let (polled, frames) = tester.poll(Timestamp::ZERO + start.elapsed(), POLL_BUDGET).unwrap();
        for frame in &frames {
            let number = u64::from_be_bytes(frame[NUMBER..NUMBER + 8].try_into().unwrap());
            let len = lens.start() + (number * 37 % span) as usize;
            assert!(*frame == numbered(number, len), "frame {number} is not what was sent");
            let before = last[(number % FLOWS) as usize].replace(number);
            assert!(before < Some(number), "frame {number} behind {before:?}");
        }
        came += frames.len() as u64;
        if polled == Polled::Drained {
            if was_done && quiet {
                return came;
            }
            quiet = was_done;
            thread::yield_now();
        }
    }
}

/// Flows move between CPUs throughout the test, and each CPU sends through its own ring.
fn ordered(net: &Net, lens: std::ops::RangeInclusive<usize>, frames: u64, buffer: Option<usize>) {
    let done = AtomicBool::new(false);
    let ledger = thread::scope(|scope| {
        let far = scope.spawn(|| check_far(net, &lens, &done));
        let numbered = Numbered { next: 0, end: frames, lens: lens.clone(), link: LinkType::ETHERNET, buffer };
        let running = sending(net, numbered.into_input(), 4);
        let handle = running.handle();
        for nth in (0..4).cycle() {
            if handle.is_finished() {
                break;
            }
            let mask = [CpuId(nth), CpuId((nth + 1) % 4)].into_iter().collect();
            handle.set_rps_cpus(&mask).unwrap();
            thread::yield_now();
        }
        let ledger = ended(running);
        done.store(true, Ordering::Release);
        assert!(far.join().unwrap() > 0, "nothing came");
        ledger
    });
    assert_eq!(sent(&ledger) + ledger.dropped().total(), frames);
    assert_eq!(ledger.dropped().get(DropReason::TxRefused), 0);
}

#[test]
fn flows_that_move_leave_in_order_and_whole() {
    let Some(net) = Net::new() else { return };
    ordered(&net, 60..=1514, 200_000, None);
}

/// Jumbo frames are longer than a page of the kernel, so each jumbo frame needs several
/// descriptors.
#[test]
fn jumbo_frames_leave_in_order_and_whole() {
    let Some(net) = Net::with("mtu 9000") else { return };
    ordered(&net, 60..=9014, 50_000, None);
}

/// A frame in several pages is sent without a copy, unless it needs too many descriptors.
#[test]
fn frames_in_several_pages_leave_in_order_and_whole() {
    let Some(net) = Net::with("mtu 9000") else { return };
    ordered(&net, 60..=9014, 20_000, Some(1024));
    ordered(&net, 60..=9014, 20_000, Some(520));
}

#[test]
fn what_is_none_for_the_interface_is_refused() {
    let Some(net) = Net::new() else { return };
    // Packets that cannot be sent: longer than the MTU, shorter than a header, or without an
    // Ethernet header.
    let long = ended(sending(&net, Numbered::input(1000, 1515..=1600), 2));
    let short = ended(sending(&net, Numbered::input(1000, 1..=13), 2));
    let raw = Numbered { next: 0, end: 1000, lens: 60..=70, link: LinkType::RAW, buffer: None };
    let raw = ended(sending(&net, Input::new("raw", "test", vec![Box::new(raw)]), 2));
    let reasons = [DropReason::TxTooLong, DropReason::TxRefused, DropReason::TxLinkType];
    for (ledger, reason) in [long, short, raw].iter().zip(reasons) {
        assert_eq!((sent(ledger), ledger.dropped().get(reason)), (0, 1000));
    }
    assert_eq!(net.arrived(), 0);
}

#[test]
fn down_up_and_gone() {
    let Some(net) = Net::new() else { return };
    // At this rate, the send ring has room for the packets of half a second: no packet is lost on a
    // busy machine.
    let input = net.near(|| steerage_device::open("synthetic:rate=2000")).unwrap();
    let running = sending(&net, input, 2);
    let handle = running.handle();
    let refused = || handle.snapshot().dropped().get(DropReason::TxRefused);
    until("it sends", || sent(&handle.snapshot()) > 100);
    net.must(&format!("-n {} link set near0 down", net.near));
    until("it refuses", || refused() > 3000);
    assert_eq!(handle.snapshot().dropped().get(DropReason::TxFull), 0);
    let before = (net.arrived(), sent(&handle.snapshot()));
    net.must(&format!("-n {} link set near0 up", net.near));
    until("it sends again", || sent(&handle.snapshot()) > before.1 + 100);
    net.must(&format!("-n {} link set near0 mtu 68", net.near));
    net.must(&format!("-n {} link set near0 mtu 1500", net.near));
    let counted = || (sent(&handle.snapshot()), net.arrived(), sent(&handle.snapshot()));
    let (least, came, most) = counted();
    assert!((least..=most).contains(&came), "{came} came of {least} to {most}");
    net.must(&format!("-n {} link del near0", net.near));
    let before = refused();
    until("it refuses for good", || refused() > before + 100);
    handle.stop();
    let ledger = ended(running);
    let error = ledger.outputs[0].error.as_deref();
    assert_eq!(error, Some("near0: cannot send by the interface: the interface was deleted"));
}

#[test]
fn what_is_taken_goes_back_by_the_same_queues() {
    // In the last test case, each packet occupies three AF_XDP chunks.
    for (queues, mtu, bytes) in [(1, 1500, 500), (2, 1500, 500), (2, 9000, 8000)] {
        let wishes = format!("numtxqueues {queues} numrxqueues {queues} mtu {mtu}");
        let Some(net) = Net::with(&wishes) else { return };
        let options = AfXdpOptions::new("near0").take("udp".parse().unwrap());
        let input = net.near(|| options.open()).unwrap().input;
        let running = sending(&net, input, 3);
        let before = net.arrived();
        net.far(|| {
            let sockets: Vec<UdpSocket> = (0..32).map(|_| UdpSocket::bind((FAR, 0)).unwrap()).collect();
            // Until AF_XDP takes packets, the kernel delivers them to ordinary sockets.
            until("packets go back", || {
                sockets.iter().for_each(|socket| drop(socket.send_to(&vec![7; bytes], (NEAR, 9))));
                net.arrived() > before + 20_000
            });
        });
        running.handle().stop();
        let ledger = ended(running);
        assert_eq!((sent(&ledger), ledger.dropped().total()), (ledger.received(), 0));
        assert!(ledger.outputs[0].packets >= 20_000 && ledger.outputs[0].error.is_none());
    }
}

#[test]
fn a_queue_has_one_owner() {
    let Some(net) = Net::new() else { return };
    let input = || net.near(|| steerage_device::open("synthetic:rate=100")).unwrap();
    let first = sending(&net, input(), 2);
    let output = net.near(|| open_for("af_xdp:near0", 2)).unwrap();
    let second = Builder::new().virtual_cpus(2).input(input()).output(output).build(|_| SendAll);
    let error = second.map(drop).unwrap_err().to_string();
    assert!(error.contains("near0: cannot send by its queues: queue 0 has an AF_XDP socket already"), "{error}");
    first.handle().stop();
    ended(first);
    let again = sending(&net, Numbered::input(10, 60..=60), 2);
    assert_eq!(sent(&ended(again)), 10);
}

#[test]
fn mistakes_are_told_in_a_line() {
    let Some(net) = Net::new() else { return };
    let error = |spec| net.near(|| open_for(spec, 1).map(drop).unwrap_err().to_string());
    assert!(error("af_xdp:none0").starts_with("none0: cannot look at the interface: No such device"));
    assert!(error("af_xdp:lo").contains("is not Ethernet"));
    assert_eq!(error("af_xdp:near0,mode=skb"), "af_xdp: option `mode=skb` does not exist: there are ring");
    assert!(error("af_xdp:near0,ring=100").contains("is not a power of two from 128 to 32768"));
    let output = net.near(|| open_for("af_xdp:near0", 1)).unwrap();
    let more = Builder::new().virtual_cpus(2).input(Numbered::input(1, 60..=60)).output(output).build(|_| SendAll);
    let error = more.map(drop).unwrap_err().to_string();
    assert!(error.contains("near0: cannot send by more CPUs: it was opened for 1 CPUs"), "{error}");
}
