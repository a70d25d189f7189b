//! How much of the lent memory the frames for one CPU may hold.
//!
//! A block is filled again when its last frame has come back, so one frame that waits for a CPU holds its whole block. Without a
//! limit, the backlog of a CPU that stalls would hold all blocks, and frames for other CPUs would be lost.
//!
//! The limit follows from what is free: a CPU may hold one block more if it then holds no more than is free. This is the dynamic
//! threshold of switches with a shared buffer (Choudhury and Hahne, 1998). One stalled CPU gets a half, two CPUs get a third each, and
//! some blocks are always left for the others. A fixed share (all blocks by the number of CPUs) would waste memory: with 64 CPUs, a
//! burst for one of them would get two blocks of 128. Short frames may hold three times as much as is free, so that a
//! CPU whose backlog is full of super-frames still gets short frames.
//!
//! A CPU may always hold one block. So its frames pass if there are more CPUs than blocks.
//!
//! Rings stand for CPUs here. The parking lot is one more ring. Everything is counted by the queue's owner alone, when a list is
//! published and when frames come back, so the counts are plain numbers.

/// Frames longer than this are long. Frames of networks with jumbo frames are short, and most super-frames are long.
const LONG: usize = 16 << 10;

/// How many times as much as is free a ring may hold when it gets a short frame.
const SHORT_TIMES: u64 = 3;

/// Counts the blocks that the frames on each ring hold.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// How many units of memory all rings may hold.
    units: u64,
    /// How many units are held.
    held: u64,
    blocks: Box<[Held]>,
    rings: Box<[u64]>,
    /// By ring, then by block: the published frames that have not come back.
    frames: Box<[u32]>,
}

/// A block, and how many rings hold it.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// The block's size in units.
    units: u32,
    /// The number of rings that hold it.
    rings: u32,
}

impl Shares {
    /// For blocks of one unit each. All rings together may hold `units` units.
    pub(super) fn new(blocks: usize, units: u32) -> Self {
        Self { units: units.into(), blocks: vec![Held { units: 1, rings: 0 }; blocks].into(), ..Self::default() }
    }

    /// Begins to limit what each of `rings` rings holds.
    pub(super) fn divide(&mut self, rings: usize) {
        self.rings = vec![0; rings].into();
        self.frames = vec![0; rings * self.blocks.len()].into();
    }

    /// Whether there are limits.
    #[inline(always)]
    pub(super) fn are_limited(&self) -> bool {
        !self.frames.is_empty()
    }

    /// Sets the size of a block that no ring holds.
    pub(super) fn weigh(&mut self, block: usize, units: u32) {
        if let Some(block) = self.blocks.get_mut(block).filter(|block| block.rings == 0) {
            block.units = units;
        }
    }

    fn free(&self) -> u64 {
        self.units.saturating_sub(self.held)
    }

    /// Whether the ring holds as much as it may.
    pub(super) fn is_full(&self, ring: usize) -> bool {
        self.rings.get(ring).is_some_and(|held| *held > 0 && *held >= self.free())
    }

    /// Counts a frame of `len` bytes that lies in `block`, if the ring may hold it. Returns whether it may.
    #[inline]
    pub(super) fn take(&mut self, ring: usize, block: usize, len: usize) -> bool {
        let at = ring.wrapping_mul(self.blocks.len()).wrapping_add(block);
        let (Some(held), Some(block), Some(frames)) =
            (self.rings.get_mut(ring), self.blocks.get_mut(block), self.frames.get_mut(at))
        else {
            return true;
        };
        if *frames == 0 {
            let units = u64::from(block.units);
            let all = self.held + if block.rings == 0 { units } else { 0 };
            let free = self.units.saturating_sub(all);
            let most = if len > LONG { free } else { free.saturating_mul(SHORT_TIMES) };
            if *held > 0 && *held + units > most {
                return false;
            }
            (self.held, *held) = (all, *held + units);
            block.rings += 1;
        }
        *frames += 1;
        true
    }

    /// Counts further frames of a block that the ring holds.
    #[inline]
    pub(super) fn add(&mut self, ring: usize, block: usize, count: u32) {
        if let Some(frames) = self.frames.get_mut(ring * self.blocks.len() + block) {
            *frames += count;
        }
    }

    /// Counts frames of a block that left the ring.
    #[inline]
    pub(super) fn give_back(&mut self, ring: usize, block: usize, count: u32) {
        let at = ring.wrapping_mul(self.blocks.len()).wrapping_add(block);
        let (Some(held), Some(block), Some(frames)) =
            (self.rings.get_mut(ring), self.blocks.get_mut(block), self.frames.get_mut(at))
        else {
            return;
        };
        *frames -= count;
        if *frames == 0 && count > 0 {
            *held -= u64::from(block.units);
            block.rings -= 1;
            if block.rings == 0 {
                self.held -= u64::from(block.units);
            }
        }
    }
}
