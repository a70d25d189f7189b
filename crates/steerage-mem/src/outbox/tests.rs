//! Compares each CPU's limit on held blocks with a simple model, which stores the blocks in sets.

use std::collections::{BTreeSet, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::ring::{Consumer, RingOptions, parking_lot, ring};
use crate::{Claim, Memory, Page, Region};

const CPUS: usize = 4;
/// The CPU that polls the queue. Frames for this CPU stay in the lane, which has no limit.
const OWNER: usize = 3;
const BLOCKS: usize = 8;
const UNITS: u64 = 12;
const BACKLOG: usize = 24;
const SLOTS: usize = 64;
const LONG: usize = 20_000;

#[derive(Clone, Copy, Debug)]
enum Step {
    Stage { ring: usize, block: usize, long: bool, count: usize },
    StagePage { ring: usize },
    Publish { least: u64 },
    Handle { cpu: usize, most: usize },
    Reclaim { cpu: usize },
    Unpark { to: usize },
    Weigh { block: usize, units: u32 },
    WithdrawAll,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..=CPUS, 0..BLOCKS, any::<bool>(), 1..4_usize)
            .prop_map(|(ring, block, long, count)| Step::Stage { ring, block, long, count }),
        1 => (0..=CPUS).prop_map(|ring| Step::StagePage { ring }),
        6 => prop_oneof![Just(1), Just(4_u64)].prop_map(|least| Step::Publish { least }),
        3 => (0..CPUS, 1..20_usize).prop_map(|(cpu, most)| Step::Handle { cpu, most }),
        3 => (0..CPUS).prop_map(|cpu| Step::Reclaim { cpu }),
        2 => (0..CPUS).prop_map(|to| Step::Unpark { to }),
        1 => (0..BLOCKS, 1..4_u32).prop_map(|(block, units)| Step::Weigh { block, units }),
        1 => Just(Step::WithdrawAll),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    number: usize,
    block: Option<usize>,
    long: bool,
}

impl Known {
    fn seen(&self) -> (usize, u64) {
        (self.number + if self.long { LONG } else { 0 }, self.number as u64)
    }
}

#[derive(Default)]
struct Expected {
    finished: VecDeque<Known>,
    waiting: VecDeque<Known>,
    staged: VecDeque<Known>,
}

impl Expected {
    fn holds(&self) -> BTreeSet<usize> {
        self.finished.iter().chain(&self.waiting).filter_map(|frame| frame.block).collect()
    }
}

struct World {
    outbox: Outbox,
    admissions: Arc<[Admission]>,
    consumers: Vec<Consumer>,
    blocks: Blocks,
    claim: Claim,
    pages: Vec<Page>,
    units: [u64; BLOCKS],
    expected: Vec<Expected>,
    next: usize,
}

impl World {
    fn new() -> Self {
        let (blocks, claim) = Blocks::map(BLOCKS, 64 << 10).unwrap();
        let mut blocks = blocks.shared(UNITS as u32);
        let (region, pages) = Region::map(2 * SLOTS, 128).unwrap();
        let memory = Memory::new(region, Some(Arc::clone(blocks.region())));
        let options = RingOptions { slots: SLOTS, slots_max: SLOTS, limit: SLOTS, arrivals: true };
        let (to_cpus, consumers): (Vec<_>, Vec<_>) = (0..CPUS).map(|_| ring(options, memory.clone())).unzip();
        let admissions: Arc<[Admission]> = (0..CPUS).map(|_| Admission::default()).collect();
        let owner = (OWNER, SLOTS, memory.clone());
        let admitted = Some(Arc::clone(&admissions));
        let mut outbox = Outbox::new(to_cpus, parking_lot(options), owner, admitted, Some(&mut blocks));
        outbox.backlog = BACKLOG;
        let expected = (0..=CPUS).map(|_| Expected::default()).collect();
        Self { outbox, admissions, consumers, blocks, claim, pages, units: [1; BLOCKS], expected, next: 1 }
    }

    /// Each frame has a length of its own, which identifies the frame.
    fn stage(&mut self, ring: usize, block: Option<usize>, long: bool) {
        let known = Known { number: self.next % 16_000, block, long };
        let len = known.number + if long { LONG } else { 0 };
        let frame = match block {
            Some(block) => self.blocks.lend(&self.claim, block, 0, len).unwrap(),
            None => {
                let Some(page) = self.pages.pop() else { return };
                Completion::new(page, 0, known.number)
            }
        };
        self.next += 1;
        self.stage_frame(ring, frame, known);
    }

    fn stage_frame(&mut self, ring: usize, frame: Completion, known: Known) {
        self.outbox.touch_one(ring);
        match self.outbox.stage(ring, frame, known.number as u64) {
            Ok(()) if ring == OWNER => self.expected[OWNER].waiting.push_back(known),
            Ok(()) => self.expected[ring].staged.push_back(known),
            Err(frame) => self.home(frame),
        }
    }

    /// Returns, for each ring but not for the lane, the blocks that the ring's frames hold.
    fn held(&self) -> impl Iterator<Item = BTreeSet<usize>> {
        self.expected.iter().enumerate().filter(|(ring, _)| *ring != OWNER).map(|(_, frames)| frames.holds())
    }

    fn home(&mut self, frame: Completion) {
        if let Err(frame) = self.blocks.recycle(frame) {
            self.pages.push(frame.into_page().unwrap());
        }
    }

    fn may_pass(&self, ring: usize, frame: &Known) -> bool {
        let Some(block) = frame.block else { return true };
        let holds = self.expected[ring].holds();
        if holds.contains(&block) || holds.is_empty() {
            return true;
        }
        let units = |blocks: &BTreeSet<usize>| blocks.iter().map(|block| self.units[*block]).sum::<u64>();
        let mut all: BTreeSet<usize> = self.held().flatten().collect();
        all.insert(block);
        let free = UNITS.saturating_sub(units(&all));
        units(&holds) + self.units[block] <= if frame.long { free } else { 3 * free }
    }

    fn publish(&mut self, least: u64) {
        let mut refused = [0; CPUS + 1];
        let mut shown = BTreeSet::new();
        let (outbox, pages) = (&mut self.outbox, &mut self.pages);
        let note = |at: usize, frame: Option<Completion>| {
            refused[at] += 1;
            pages.extend(frame.into_iter().map(|frame| frame.into_page().unwrap()));
        };
        outbox.publish(least, Some(&mut self.blocks), note, |at| assert!(shown.insert(at)));
        for (ring, refused) in refused.into_iter().enumerate() {
            let due = self.expected[ring].staged.len() as u64 >= least || ring == CPUS;
            let mut passed = VecDeque::new();
            let mut lost = 0;
            for _ in 0..if due { self.expected[ring].staged.len() } else { 0 } {
                let frame = self.expected[ring].staged.pop_front().unwrap();
                if self.may_pass(ring, &frame) {
                    self.expected[ring].waiting.push_back(frame);
                    passed.push_back(frame);
                } else {
                    lost += 1;
                }
            }
            if ring < CPUS && ring != OWNER {
                let waiting = self.expected[ring].waiting.len();
                for _ in BACKLOG..waiting.max(BACKLOG) {
                    assert_eq!(self.expected[ring].waiting.pop_back(), passed.pop_back());
                    lost += 1;
                }
                assert_eq!(shown.contains(&ring), !passed.is_empty(), "ring {ring}");
            }
            assert_eq!(refused, lost, "ring {ring}");
        }
    }

    fn handle(&mut self, cpu: usize, most: usize) {
        if cpu == OWNER {
            return self.handle_lane(most);
        }
        let consumer = &mut self.consumers[cpu];
        let taken = consumer.take(most);
        let seen: Vec<(usize, u64)> = consumer.frames().map(|frame| (frame.len(), frame.arrival().unwrap())).collect();
        consumer.finish();
        self.admissions[cpu].finish(taken as u64);
        let Expected { finished, waiting, .. } = &mut self.expected[cpu];
        assert_eq!(taken, most.min(waiting.len()));
        let frames: Vec<Known> = waiting.drain(..taken).collect();
        assert_eq!(seen, frames.iter().map(Known::seen).collect::<Vec<_>>());
        finished.extend(frames);
    }

    fn handle_lane(&mut self, most: usize) {
        let mut hand = self.outbox.lane().take(most, false);
        let seen: Vec<(usize, u64)> = hand.frames().map(|frame| (frame.len(), frame.arrival().unwrap())).collect();
        let waiting = &mut self.expected[OWNER].waiting;
        assert_eq!(seen.len(), most.min(waiting.len()));
        assert_eq!(seen, waiting.drain(..seen.len()).map(|known| known.seen()).collect::<Vec<_>>());
        let pages = &mut self.pages;
        self.outbox.finish_lent(&mut self.blocks, |frame| pages.push(frame.into_page().unwrap()));
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Stage { ring, block, long, count } => (0..count).for_each(|_| self.stage(ring, Some(block), long)),
            Step::StagePage { ring } => self.stage(ring, None, false),
            Step::Publish { least } => self.publish(least),
            Step::Handle { cpu, most } => self.handle(cpu, most),
            Step::Reclaim { cpu } => {
                let pages = &mut self.pages;
                let home = |frame: Completion| pages.push(frame.into_page().unwrap());
                let count = self.outbox.reclaim_lent(cpu, &mut self.blocks, home);
                assert_eq!(count as usize, self.expected[cpu].finished.len());
                self.expected[cpu].finished.clear();
            }
            Step::Unpark { to } => {
                let lot = &mut self.expected[CPUS];
                let known = lot.waiting.pop_front().or_else(|| lot.staged.pop_front());
                let unparked = self.outbox.unpark(Some(&mut self.blocks));
                assert_eq!(unparked.is_some(), known.is_some());
                let (Some((frame, arrival)), Some(known)) = (unparked, known) else { return };
                assert_eq!(arrival, known.number as u64);
                self.stage_frame(to, frame, known);
            }
            Step::Weigh { block, units } => {
                self.blocks.weigh(&self.claim, block, units);
                if !self.held().any(|blocks| blocks.contains(&block)) {
                    self.units[block] = units.into();
                }
            }
            Step::WithdrawAll => {
                let mut frames = Vec::new();
                self.outbox.withdraw_all(|frame| frames.push(frame));
                frames
                    .extend(std::iter::from_fn(|| self.outbox.unpark(Some(&mut self.blocks))).map(|(frame, _)| frame));
                frames.into_iter().for_each(|frame| self.home(frame));
                self.expected.iter_mut().for_each(|ring| ring.staged.clear());
                [CPUS, OWNER].into_iter().for_each(|ring| self.expected[ring].waiting.clear());
            }
        }
        let staying = self.expected[OWNER].waiting.len();
        assert_eq!((self.outbox.staying(), self.outbox.has_owner_finished()), (staying, staying == 0));
        let out = self.expected.iter().flat_map(|ring| ring.finished.iter().chain(&ring.waiting).chain(&ring.staged));
        assert_eq!(self.blocks.out_in_all(), out.filter(|frame| frame.block.is_some()).count() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 3 } else { 2000 }))]

    #[test]
    fn a_cpu_holds_its_share_and_no_more(steps in prop::collection::vec(step(), 0..150)) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.run(step));
        world.run(Step::Publish { least: 1 });
        while world.outbox.lot().occupied() > 0 {
            world.run(Step::Unpark { to: 0 });
            world.run(Step::Publish { least: 1 });
            (0..CPUS).for_each(|cpu| world.handle(cpu, usize::MAX));
            (0..CPUS).for_each(|cpu| world.run(Step::Reclaim { cpu }));
        }
        (0..CPUS).for_each(|cpu| world.handle(cpu, usize::MAX));
        (0..CPUS).for_each(|cpu| world.run(Step::Reclaim { cpu }));
        prop_assert_eq!((world.blocks.out_in_all(), world.pages.len()), (0, 2 * SLOTS));
    }
}

fn lender() -> (World, [usize; BLOCKS]) {
    let mut world = World::new();
    world.blocks = world.blocks.shared(BLOCKS as u32);
    world.blocks.divide(CPUS + 1);
    (world, std::array::from_fn(|block| block))
}

fn publish_each(world: &mut World, ring: usize, blocks: &[usize], long: bool) -> usize {
    blocks.iter().for_each(|block| world.stage(ring, Some(*block), long));
    let mut refused = 0;
    world.outbox.publish(1, Some(&mut world.blocks), |_, _| refused += 1, |_| ());
    blocks.len() - refused
}

#[test]
fn a_stalled_cpu_gets_a_half_and_the_others_go_on() {
    let (mut world, all) = lender();
    assert!(world.outbox.has_room(1, 1));
    assert_eq!(publish_each(&mut world, 1, &all, true), BLOCKS / 2);
    assert!(!world.outbox.has_room(1, 1) && world.outbox.has_room(2, 1), "the stalled CPU's share is full");
    // If the ring already holds a block, further frames in this block take no more memory.
    assert_eq!(publish_each(&mut world, 1, &all[..4], true), 4);
    assert_eq!(publish_each(&mut world, 1, &all[4..], false), 2);
    assert_eq!(publish_each(&mut world, 2, &[7], true), 1);
    assert_eq!(publish_each(&mut world, 2, &[0], true), 0, "it holds one of two free units");
    world.handle_all(1);
    assert!(world.outbox.has_room(1, 1), "its frames are home");
    assert_eq!(publish_each(&mut world, 2, &all[..3], true), 3);
}

impl World {
    fn handle_all(&mut self, cpu: usize) {
        while self.consumers[cpu].take(SLOTS) > 0 {
            self.consumers[cpu].finish();
        }
        self.outbox.reclaim_lent(cpu, &mut self.blocks, |_| ());
    }
}

#[test]
fn every_cpu_may_hold_one_block() {
    let (mut world, all) = lender();
    for ring in 0..OWNER {
        publish_each(&mut world, ring, &all, false);
    }
    let (mut world, _) = lender();
    world.blocks = world.blocks.shared(1);
    world.blocks.divide(CPUS + 1);
    for ring in 0..OWNER {
        assert_eq!(publish_each(&mut world, ring, &[ring, ring, 3 + ring], true), 2, "CPU {ring}");
    }
}

#[test]
fn blocks_that_are_not_shared_have_no_limit() {
    let mut world = World::new();
    world.blocks = Blocks::map(BLOCKS, 64 << 10).map(|(blocks, claim)| (world.claim = claim, blocks)).unwrap().1;
    world.blocks.divide(CPUS + 1);
    let all: [usize; BLOCKS] = std::array::from_fn(|block| block);
    assert_eq!(publish_each(&mut world, 1, &all, true), BLOCKS);
}
