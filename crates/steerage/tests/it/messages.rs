use std::collections::HashMap;
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread;

use steerage::device::{Capabilities, Completions, DeviceError, Filled, Polled, RxQueue};
use steerage::flow::wire::FrameBuilder;
use steerage::messages::{Post, TakesMessages, Unposted, WithMessages};
use steerage::threads::Softnet;
use steerage::{Batch, BucketId, Builder, Cpu, CpuId, CpuMask, Handle, Handler, Hash, Input, Timestamp};
use steerage_fixtures::HANG;
use steerage_fixtures::manual_clock::{self, ManualClock};

use super::late_move::OneBucket;

struct One(bool);

impl RxQueue for One {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(64)
    }

    fn poll(&mut self, out: &mut Completions<'_>, _: usize) -> Result<Polled, DeviceError> {
        if !std::mem::replace(&mut self.0, true) {
            let frame = FrameBuilder::udp(([10, 0, 0, 1], 1), ([10, 0, 0, 9], 53)).frame_of(64);
            out.fill(1, |bytes| {
                bytes[..64].copy_from_slice(&frame);
                Some(Filled::whole(64))
            });
        }
        Ok(Polled::NotBefore(Timestamp::from_nanos(u64::MAX / 2)))
    }
}

struct Counts {
    buckets: HashMap<BucketId, u64>,
    heard: Vec<u64>,
    seen: SyncSender<BucketId>,
    answers: mpsc::Sender<CpuId>,
    elsewhere: u64,
}

impl Handler for Counts {
    type Moved = u64;
    type Report = (Vec<u64>, u64);

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        for packet in batch.iter_mut() {
            *self.buckets.entry(packet.bucket()).or_default() += 1;
            let _ = self.seen.try_send(packet.bucket());
        }
    }

    fn bucket_leaves(&mut self, bucket: BucketId) -> Option<u64> {
        self.buckets.remove(&bucket)
    }

    fn bucket_arrives(&mut self, bucket: BucketId, count: u64) {
        *self.buckets.entry(bucket).or_default() += count;
    }

    fn finish(self, _cpu: &mut Cpu) -> (Vec<u64>, u64) {
        (self.heard, self.elsewhere)
    }
}

#[derive(Clone, Debug)]
enum Message {
    Number(u64),
    /// The message must go to the handler that has this bucket.
    Bucket(BucketId),
}

impl TakesMessages for Counts {
    type Message = Message;

    fn message(&mut self, message: Message, cpu: &mut Cpu) {
        match message {
            Message::Number(number) => self.heard.push(number),
            Message::Bucket(bucket) => self.elsewhere += u64::from(!self.buckets.contains_key(&bucket)),
        }
        let _ = self.answers.send(cpu.id());
    }
}

/// A message to a bucket goes to the CPU that has the bucket's state, even during moves.
#[test]
fn messages_come_in_order_and_follow_their_bucket() {
    let (seen, buckets) = mpsc::sync_channel(1);
    let (answers, answered) = mpsc::channel();
    let input = Input::new("one", "test", vec![Box::new(One(false))]);
    let builder = Builder::new().virtual_cpus(2).policy(Hash).input(input);
    let make = move |_| Counts {
        buckets: HashMap::new(),
        heard: Vec::new(),
        seen: seen.clone(),
        answers: answers.clone(),
        elsewhere: 0,
    };
    let (instance, post) = builder.build_with_messages(4, make).unwrap();
    (0..4).for_each(|number| post.to_cpu(CpuId(1), Message::Number(number)).unwrap());
    assert!(matches!(post.to_cpu(CpuId(1), Message::Number(9)), Err(Unposted::Full(Message::Number(9)))));
    assert!(matches!(post.to_cpu(CpuId(7), Message::Number(9)), Err(Unposted::NoSuchCpu(_))));
    let running = instance.start().unwrap();
    let handle = running.handle();
    for number in 4..50 {
        answered.recv_timeout(HANG).unwrap();
        post.to_cpu(CpuId(1), Message::Number(number)).unwrap();
    }
    (0..4).for_each(|_| assert_eq!(answered.recv_timeout(HANG).unwrap(), CpuId(1)));

    let bucket = buckets.recv_timeout(HANG).unwrap();
    let moves = {
        let handle = handle.clone();
        thread::spawn(move || {
            for nth in 0..40_u16 {
                handle.set_rps_cpus(&CpuMask::from_iter([CpuId(nth % 2)])).unwrap();
                assert!(handle.wait_settled(HANG));
            }
        })
    };
    let ask = || {
        post.to_bucket(bucket, Message::Bucket(bucket)).unwrap();
        answered.recv_timeout(HANG).unwrap()
    };
    let mut asked = 0;
    while !moves.is_finished() || asked < 100 {
        ask();
        asked += 1;
    }
    moves.join().unwrap();
    for cpu in [CpuId(0), CpuId(1)] {
        handle.set_rps_cpus(&CpuMask::from_iter([cpu])).unwrap();
        assert!(handle.wait_settled(HANG));
        assert_eq!(ask(), cpu);
    }
    assert!(handle.cpus().contains(&handle.cpu_of(bucket).unwrap()));
    handle.stop();
    let outcome = running.join();
    let [(_, (_, elsewhere)), (_, (heard, also_elsewhere))] = <[_; 2]>::try_from(outcome.reports).unwrap();
    assert_eq!(heard, (0..50).collect::<Vec<_>>());
    assert_eq!((elsewhere, also_elsewhere), (0, 0), "a message came to a CPU without the state of its bucket");
    assert!(matches!(post.to_cpu(CpuId(1), Message::Number(9)), Err(Unposted::Ended(_))));
    assert_eq!(post.to_all(&Message::Number(9)), [CpuId(0), CpuId(1)], "no handler is left");
}

/// A handler that records messages, and panics at the message `PANICS`.
struct Listener(Arc<Mutex<Vec<u32>>>);

const PANICS: u32 = 1000;

impl Handler for Listener {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, _: &mut Batch<'_>, _: &mut Cpu) {}

    fn finish(self, _: &mut Cpu) {}
}

impl TakesMessages for Listener {
    type Message = u32;

    fn message(&mut self, message: u32, _: &mut Cpu) {
        assert_ne!(message, PANICS, "planted");
        self.0.lock().unwrap().push(message);
    }
}

/// Two CPUs, and frames of a single bucket. The bucket's move to CPU 0 waits until CPU 0 executes a
/// round.
struct Moving {
    cpus: [Softnet<WithMessages<Listener>, ManualClock>; 2],
    handle: Handle,
    post: Post<u32>,
    heard: Arc<Mutex<Vec<u32>>>,
}

const BUCKET: BucketId = BucketId { group: 0, bucket: 0 };
const PLACES: usize = 4;

impl Moving {
    fn new() -> Self {
        let input = Input::new("one bucket", "test", vec![Box::new(OneBucket)]);
        let only = |cpu| CpuMask::from_iter([CpuId(cpu)]);
        let builder = Builder::new().virtual_cpus(2).policy(Hash).rps_cpus(only(1)).input_on(input, &[CpuId(0)], None);
        let heard = Arc::<Mutex<Vec<u32>>>::default();
        let of_handlers = Arc::clone(&heard);
        let make = move |_| Listener(Arc::clone(&of_handlers));
        let (instance, post) = builder.build_with_messages(PLACES, make).unwrap();
        let (parts, handle) = instance.split();
        let clock = ManualClock::default();
        let cpus: Vec<_> = parts.into_iter().map(|part| part.enter(clock.clone())).collect();
        let mut cpus = <[_; 2]>::try_from(cpus).unwrap();
        cpus[0].step();
        handle.set_rps_cpus(&only(0)).unwrap();
        cpus[0].step();
        assert_eq!((handle.cpu_of(BUCKET), handle.try_cpu_of(BUCKET)), (Some(CpuId(1)), None), "the bucket moves");
        Self { cpus, handle, post, heard }
    }

    /// Posts messages while CPU 1 has the bucket. Returns how many messages were posted.
    fn post_while_moving(&mut self) -> u32 {
        let mut posted = 0;
        for _ in 0..20 {
            posted += u32::from(self.post.to_bucket(BUCKET, posted).is_ok());
            self.cpus[1].step();
        }
        assert_eq!(self.handle.try_cpu_of(BUCKET), None, "the bucket still moves");
        posted
    }

    fn end(self) -> Vec<u32> {
        let [mut one, mut other] = self.cpus;
        manual_clock::end(&self.handle, [&mut one, &mut other]);
        let [(), ()] = [one, other].map(Softnet::finish);
        Arc::into_inner(self.heard).unwrap().into_inner().unwrap()
    }
}

/// At most `PLACES` messages wait for a moving bucket, and all arrive when the bucket has moved.
#[test]
fn messages_that_wait_for_a_move_keep_their_places() {
    let mut moving = Moving::new();
    assert_eq!(moving.post_while_moving(), PLACES as u32);
    while !moving.handle.is_settled() {
        moving.cpus.iter_mut().for_each(|cpu| _ = cpu.step());
    }
    moving.cpus.iter_mut().for_each(|cpu| _ = cpu.step());
    assert_eq!(moving.end(), (0..PLACES as u32).collect::<Vec<_>>());
}

#[test]
fn messages_that_wait_at_the_end_are_delivered() {
    let mut moving = Moving::new();
    moving.post.to_bucket(BUCKET, 7).unwrap();
    moving.cpus[1].step();
    moving.post.to_cpu(CpuId(1), 8).unwrap();
    let heard = {
        let [one, other] = moving.cpus;
        let [(), ()] = [other, one].map(Softnet::finish);
        Arc::into_inner(moving.heard).unwrap().into_inner().unwrap()
    };
    assert_eq!(heard, [7, 8]);
}

#[test]
fn a_panic_loses_one_message() {
    steerage_fixtures::quiet_panics();
    let mut moving = Moving::new();
    [1, PANICS, 2].iter().for_each(|message| moving.post.to_cpu(CpuId(1), *message).unwrap());
    (0..4).for_each(|_| _ = moving.cpus[1].step());
    assert_eq!(*moving.heard.lock().unwrap(), [1, 2]);
    assert_eq!(moving.handle.snapshot().cpus[1].panics, 1);
}
