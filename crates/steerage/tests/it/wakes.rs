use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use steerage::flow::wire::{FrameBuilder, port::DISCARD};
use steerage::{
    Builder, CpuId, CpuMask, DeviceError, Handle, Handler, Hash, Input, Snapshot, Timestamp,
    device::{Capabilities, Completions, Filled, Polled, RxQueue},
    threads::{Armed, Bell, Platform, Softnet, Stepped},
};
use steerage_fixtures::handlers::Nothing;
use steerage_fixtures::manual_clock::{ManualClock, end};

struct Bursts {
    wanted: Arc<AtomicUsize>,
    flow: u16,
}

impl RxQueue for Bursts {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64)
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let some = self.wanted.swap(0, Ordering::Relaxed).min(budget);
        let flow = &mut self.flow;
        out.fill(some, |page| {
            *flow += 1;
            let frame = udp(*flow);
            page[..frame.len()].copy_from_slice(&frame);
            Some(Filled::whole(frame.len()))
        });
        Ok(if some > 0 { Polled::More } else { Polled::NotBefore(out.now() + Duration::from_secs(1)) })
    }
}

fn udp(port: u16) -> Vec<u8> {
    FrameBuilder::udp(([10, 0, 0, 1], port), ([10, 0, 0, 2], DISCARD)).frame(&[])
}

struct Three {
    cpus: [Softnet<Nothing, ManualClock>; 3],
    handle: Handle,
    wanted: Arc<AtomicUsize>,
}

impl Three {
    fn new() -> Self {
        let wanted = Arc::new(AtomicUsize::new(0));
        let queue = Bursts { wanted: Arc::clone(&wanted), flow: 0 };
        let input = Input::new("bursts", "test", vec![Box::new(queue)]);
        let builder = Builder::new().virtual_cpus(3).rps_cpus(cpus(&[1, 2])).policy(Hash).input(input);
        let (parts, handle) = builder.build(|_| Nothing).unwrap().split();
        let clock = ManualClock::default();
        let cpus: Vec<_> = parts.into_iter().map(|part| part.enter(clock.clone())).collect();
        let Ok(cpus) = cpus.try_into() else { panic!("three CPUs") };
        Self { cpus, handle, wanted }
    }

    fn sleeps(&mut self, cpu: usize) {
        while self.cpus[cpu].arm() == Armed::Work {
            self.cpus[cpu].step();
        }
        assert!(!is_woken(&self.cpus[cpu], cpu));
    }

    fn receive(&mut self, packets: usize) {
        let received = || self.handle.snapshot().received();
        let before = received();
        self.wanted.store(packets, Ordering::Relaxed);
        self.cpus[0].step();
        assert_eq!(received() - before, packets as u64);
    }

    /// Returns the number of wake-ups that were sent for packets, that CPUs 1 and 2 received, and
    /// that the control thread sent.
    fn wakes(&self) -> (u64, [u64; 2], [u64; 3]) {
        let Snapshot { cpus, .. } = self.handle.snapshot();
        (
            cpus[0].wakes_sent,
            [cpus[1].wakes_received, cpus[2].wakes_received],
            [0, 1, 2].map(|cpu: usize| cpus[cpu].wakes_for_control),
        )
    }
}

/// Returns true if the CPU has been woken since it prepared to sleep (`arm`).
fn is_woken<H: Handler, P: Platform>(of: &Softnet<H, P>, index: usize) -> bool {
    of.sleepers(0) & (1 << index) == 0
}

fn cpus(ids: &[u16]) -> CpuMask {
    ids.iter().copied().map(CpuId).collect()
}

#[test]
fn a_cpu_that_sleeps_is_woken_once_for_all_packets_of_a_poll() {
    let mut three = Three::new();
    three.sleeps(1);
    three.sleeps(2);
    let control = three.wakes().2;
    three.receive(64);
    assert_eq!(three.wakes(), (2, [1, 1], control), "64 packets, and both CPUs have some");
    assert!([1, 2].iter().all(|cpu| is_woken(&three.cpus[*cpu], *cpu)));
    three.receive(64);
    assert_eq!(three.wakes(), (2, [1, 1], control));
    three.sleeps(1);
    three.cpus[2].step();
    three.receive(64);
    assert_eq!(three.wakes(), (3, [2, 1], control));
    let cpus = &three.handle.snapshot().cpus;
    assert!(cpus.iter().map(|cpu| cpu.wakes_sent).eq([3, 0, 0]), "sent as often as received");
}

#[test]
fn changes_and_the_stop_wake_but_not_for_packets() {
    let mut three = Three::new();
    (0..3).for_each(|cpu| three.sleeps(cpu));
    let (sent, received, before) = three.wakes();
    three.handle.set_rps_cpus(&cpus(&[1])).unwrap();
    let (_, _, changed) = three.wakes();
    assert!(changed.iter().sum::<u64>() > before.iter().sum(), "a change wakes");
    (0..3).for_each(|cpu| three.sleeps(cpu));
    let before = three.wakes().2;
    three.handle.stop();
    let (sent_at_end, received_at_end, stopped) = three.wakes();
    assert_eq!((sent_at_end, received_at_end), (sent, received), "there was no packet");
    let by_the_stop = [0, 1, 2].map(|cpu: usize| stopped[cpu] - before[cpu]);
    assert!(by_the_stop.iter().all(|wakes| *wakes <= 1) && by_the_stop.contains(&1), "{by_the_stop:?}");
    assert_eq!((sent, received), (0, [0, 0]));
}

fn readable<'fd>(fds: impl IntoIterator<Item = BorrowedFd<'fd>>) -> usize {
    let mut asked: Vec<_> = fds.into_iter().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
    poll(&mut asked, PollTimeout::ZERO).unwrap();
    asked.iter().filter(|fd| fd.any() == Some(true)).count()
}

#[test]
fn a_program_can_wait_for_one_file_descriptor_or_for_each() {
    let mut three = Three::new();
    let event = three.cpus[1].event_fd().unwrap();
    for _ in 0..3 {
        three.sleeps(1);
        assert_eq!((readable(three.cpus[1].event_fds()), readable([event.as_fd()])), (0, 0));
        three.receive(64);
        assert_eq!((readable(three.cpus[1].event_fds()), readable([event.as_fd()])), (1, 1));
    }
}

/// A queue that delivers one frame in each of several polls. The function `answer` returns the
/// result of a poll.
struct Single {
    left: usize,
    answer: Answer,
}

impl RxQueue for Single {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64)
    }

    fn poll(&mut self, out: &mut Completions<'_>, _budget: usize) -> Result<Polled, DeviceError> {
        if self.left == 0 {
            return Ok(Polled::Ended);
        }
        self.left -= 1;
        assert!(out.copy_in(&udp(1)));
        Ok((self.answer)(out.now()))
    }
}

/// A clock whose every reading takes 1 us. A sleep takes exactly the requested time.
#[derive(Clone, Default)]
struct Ticking {
    micros: Rc<Cell<u64>>,
    sleeps: Rc<Cell<usize>>,
}

impl Platform for Ticking {
    fn now(&self) -> Timestamp {
        self.micros.set(self.micros.get() + 1);
        Timestamp::ZERO + Duration::from_micros(self.micros.get())
    }

    fn park(&mut self, _: &Bell, _: &[BorrowedFd<'_>], until: Option<Timestamp>) -> io::Result<()> {
        self.sleeps.set(self.sleeps.get() + 1);
        let until = until.expect("the queue has named a time").since(Timestamp::ZERO);
        self.micros.set(self.micros.get().max(until.as_micros() as u64));
        Ok(())
    }

    fn random(&mut self) -> u64 {
        0
    }
}

type Answer = fn(Timestamp) -> Polled;

/// Each item of `queues` is a queue: the function `answer`, and the number of polls after which the
/// queue ends.
fn one(queues: &[(Answer, usize)]) -> (Softnet<Nothing, Ticking>, Ticking, Handle) {
    let queue =
        |(answer, left): &(Answer, usize)| Box::new(Single { left: *left, answer: *answer }) as Box<dyn RxQueue>;
    let input = Input::new("single", "test", queues.iter().map(queue).collect());
    let (mut parts, handle) = Builder::new().virtual_cpus(1).input(input).build(|_| Nothing).unwrap().split();
    let clock = Ticking::default();
    (parts.remove(0).enter(clock.clone()), clock, handle)
}

const IDLE_POLL: Duration = Duration::from_micros(50);

/// A CPU sleeps at once, without polling for `idle_poll`, if all its queues return
/// `Polled::Coalesce` with a later time.
#[test]
fn a_cpu_sleeps_at_once_if_frames_may_wait() {
    let ran = |queues: &[(Answer, usize)]| {
        let (cpu, clock, handle) = one(queues);
        cpu.run(IDLE_POLL);
        assert_eq!(handle.snapshot().received(), queues.iter().map(|(_, polls)| *polls as u64).sum());
        clock.sleeps.get()
    };
    let not_before: Answer = |now| Polled::NotBefore(now + Duration::from_micros(40));
    let coalesce: Answer = |now| Polled::Coalesce(now + Duration::from_micros(40));
    assert_eq!(ran(&[(not_before, 100)]), 0);
    assert_eq!(ran(&[(coalesce, 100)]), 100);
    // The time until which the frames may wait is already over, so the CPU does not sleep.
    assert_eq!(ran(&[(Polled::Coalesce, 100)]), 0);
    // Only one of the two queues returns `Polled::Coalesce`.
    assert_eq!(ran(&[(coalesce, 100), (not_before, 200)]), 0);
    // A queue that has ended does not keep the CPU from sleeping.
    let sleeps = ran(&[(coalesce, 200), (not_before, 1)]);
    assert!(sleeps >= 190, "{sleeps}");
}

/// The clock stands still, so the time at which the queue would wake the CPU never comes.
#[test]
fn control_does_not_wait_for_frames_that_may_wait() {
    let hour = |now| Polled::Coalesce(now + Duration::from_secs(3600));
    let queue = Single { left: 1, answer: hour };
    let input = Input::new("single", "test", vec![Box::new(queue)]);
    let builder = Builder::new().virtual_cpus(2).rps_cpus(cpus(&[0])).policy(Hash).input(input);
    let (parts, handle) = builder.build(|_| Nothing).unwrap().split();
    let clock = ManualClock::default();
    let mut both: Vec<_> = parts.into_iter().map(|part| part.enter(clock.clone())).collect();
    let sleep = |cpu: &mut Softnet<Nothing, ManualClock>| {
        while cpu.arm() == Armed::Work {
            cpu.step();
        }
    };
    both.iter_mut().for_each(sleep);
    assert_eq!(both[0].arm(), Armed::Sleep(Some(Timestamp::ZERO + Duration::from_secs(3600))));
    handle.set_rps_cpus(&cpus(&[1])).unwrap();
    assert!(is_woken(&both[0], 0));
    let moved = || handle.snapshot().moves.slices;
    let before = moved();
    for _ in 0..1000 {
        both.iter_mut().map(Softnet::step).for_each(|stepped| assert!(stepped != Stepped::Finished));
    }
    assert!(moved() > before && handle.view().is_settled, "the buckets have moved");
    both.iter_mut().for_each(sleep);
    let [first, second] = &mut both[..] else { panic!("two CPUs") };
    end(&handle, [first, second]);
}
