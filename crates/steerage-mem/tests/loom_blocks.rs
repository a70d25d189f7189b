//! loom explores every interleaving of the accesses to blocks. Each byte of a block is a loom cell.
#![cfg(loom)]
#![allow(missing_docs, reason = "a test")]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;
use steerage_mem::ring::{Consumer, Producer, RingOptions, ring};
use steerage_mem::{Blocks, Claim, Completion, Memory, Region};

const BLOCK_BYTES: usize = 2;

struct Shadow(Vec<UnsafeCell<u8>>);

// SAFETY: the tests find out whether two threads access a cell at the same time. If they do, loom
// fails.
unsafe impl Sync for Shadow {}
// SAFETY: as above.
unsafe impl Send for Shadow {}

impl Shadow {
    fn write(&self, at: usize, value: u8) {
        // SAFETY: as above.
        self.0[at].with_mut(|byte| unsafe { *byte = value });
    }

    fn read(&self, at: usize) -> u8 {
        // SAFETY: as above.
        self.0[at].with(|byte| unsafe { *byte })
    }
}

struct Lender {
    blocks: Blocks,
    claim: Claim,
    shadow: Arc<Shadow>,
    producer: Producer,
    next: u8,
    out: Vec<u8>,
}

fn lender(blocks: usize) -> (Lender, Consumer) {
    let (blocks, claim) = Blocks::map(blocks, BLOCK_BYTES).unwrap();
    let memory = Memory::new(Region::map(1, 64).unwrap().0, Some(Arc::clone(blocks.region())));
    let (producer, consumer) = ring(RingOptions { slots: 2, slots_max: 2, limit: 2, arrivals: false }, memory);
    let shadow = Shadow((0..blocks.count() * BLOCK_BYTES).map(|_| UnsafeCell::new(0)).collect());
    (Lender { blocks, claim, shadow: Arc::new(shadow), producer, next: 1, out: Vec::new() }, consumer)
}

fn stage(producer: &mut Producer, frame: Completion) -> Result<(), Completion> {
    producer.stage(frame, 0)
}

impl Lender {
    fn send(&mut self, block: usize) -> bool {
        if self.producer.room() == 0 {
            return false;
        }
        let Some(mut tail) = self.blocks.tail(&self.claim, block) else { return false };
        let at = tail.offset();
        let Some(byte) = tail.bytes().first_mut() else { return false };
        self.shadow.write(block * BLOCK_BYTES + at, self.next);
        *byte = self.next;
        stage(&mut self.producer, tail.lend(0, 1).unwrap()).unwrap();
        self.producer.publish();
        self.out.push(block as u8);
        self.next += 1;
        true
    }

    fn reclaim(&mut self) {
        let mut home = self.blocks.homecoming();
        let count = self.producer.reclaim(|frame| home.recycle(frame).unwrap());
        drop(home);
        self.out.drain(..count as usize);
        for block in 0..self.blocks.count() {
            let out = self.out.iter().filter(|of| usize::from(**of) == block).count();
            assert_eq!(self.blocks.out(block) as usize, out, "of block {block}");
        }
    }
}

/// Checks that the frames are in order and unchanged. `block_of` returns the block of a frame.
fn receive(consumer: &mut Consumer, shadow: &Shadow, last: &mut u8, block_of: impl Fn(u8) -> usize) {
    consumer.take(2);
    for frame in consumer.frames() {
        let value = frame.bytes()[0];
        assert_eq!(value, *last + 1, "out of order, or written while it was out");
        assert_eq!(shadow.read(block_of(value) * BLOCK_BYTES + frame.offset() as usize), value);
        *last = value;
    }
    consumer.finish();
}

#[test]
fn a_block_is_written_behind_its_frames_and_anew_when_they_are_home() {
    loom::model(|| {
        let (mut lender, mut consumer) = lender(1);
        let shadow = Arc::clone(&lender.shadow);
        let worker = thread::spawn(move || {
            let mut last = 0;
            receive(&mut consumer, &shadow, &mut last, |_| 0);
            receive(&mut consumer, &shadow, &mut last, |_| 0);
            (consumer, last)
        });
        let mut sent = 0;
        for _ in 0..3 {
            sent += u8::from(lender.send(0));
            lender.reclaim();
        }
        let (mut consumer, mut last) = worker.join().unwrap();
        receive(&mut consumer, &lender.shadow, &mut last, |_| 0);
        lender.reclaim();
        assert_eq!((last, lender.blocks.out_in_all()), (sent, 0), "a frame was lost");
        assert_eq!(lender.blocks.tail(&lender.claim, 0).unwrap().offset(), 0);
    });
}

#[test]
fn blocks_come_home_each_by_itself() {
    loom::model(|| {
        let (mut lender, mut consumer) = lender(2);
        let block_of = |value: u8| usize::from(value % 2 == 0);
        let shadow = Arc::clone(&lender.shadow);
        let worker = thread::spawn(move || {
            let mut last = 0;
            receive(&mut consumer, &shadow, &mut last, block_of);
            (consumer, last)
        });
        let mut sent = 0;
        for _ in 0..3 {
            sent += u8::from(lender.send(block_of(lender.next)));
            lender.reclaim();
        }
        let (mut consumer, mut last) = worker.join().unwrap();
        receive(&mut consumer, &lender.shadow, &mut last, block_of);
        lender.reclaim();
        assert_eq!((last, lender.blocks.out_in_all()), (sent, 0), "a frame was lost");
        assert_eq!((lender.blocks.out(0), lender.blocks.out(1)), (0, 0));
    });
}
