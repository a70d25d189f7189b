//! Limits how many blocks can be held by the frames that wait for one CPU.
//!
//! The device fills a block again only when all of its lent frames have returned, so a single
//! waiting frame holds a whole block. Without a limit, the backlog of a stalled CPU would hold all
//! blocks, and frames for other CPUs would be lost.
//!
//! A CPU may hold one more block if it then holds at most as many blocks as are free: the dynamic
//! threshold of network switches with a shared packet buffer (Choudhury and Hahne, 1998). One
//! stalled CPU gets half of the blocks, and each of two stalled CPUs gets a third. Some blocks are
//! always free. A fixed share for each CPU would waste memory: with 64 CPUs and 128 blocks, a burst
//! for one CPU would get only two blocks. For a short frame, the limit is three times as high: a
//! CPU whose backlog is full of super-frames (long frames of many packets) still gets short frames.
//! A CPU may always hold one block.
//!
//! In this module, each ring counts as one CPU, and the parking lot is one more ring. Only the CPU
//! that polls the queue updates the counts, so the counts need no atomic variables.

/// The size in bytes above which a frame is long: more than a jumbo frame has, and less than most
/// super-frames (TSO, USO or GRO) have.
const LONG: usize = 16 << 10;

/// For a short frame, a ring may hold this many times as many units as the free blocks have
/// together.
const SHORT_TIMES: u64 = 3;

#[derive(Debug, Default)]
pub(super) struct Shares {
    units: u64,
    held: u64,
    blocks: Box<[Held]>,
    rings: Box<[u64]>,
    /// The number of published frames that have not returned, by ring and then by block.
    frames: Box<[u32]>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    units: u32,
    rings: u32,
}

impl Shares {
    pub(super) fn new(blocks: usize, units: u32) -> Self {
        Self { units: units.into(), blocks: vec![Held { units: 1, rings: 0 }; blocks].into(), ..Self::default() }
    }

    pub(super) fn divide(&mut self, rings: usize) {
        self.rings = vec![0; rings].into();
        self.frames = vec![0; rings * self.blocks.len()].into();
    }

    #[inline(always)]
    pub(super) fn are_limited(&self) -> bool {
        !self.frames.is_empty()
    }

    pub(super) fn weigh(&mut self, block: usize, units: u32) {
        if let Some(block) = self.blocks.get_mut(block).filter(|block| block.rings == 0) {
            block.units = units;
        }
    }

    fn free(&self) -> u64 {
        self.units.saturating_sub(self.held)
    }

    pub(super) fn is_full(&self, ring: usize) -> bool {
        self.rings.get(ring).is_some_and(|held| *held > 0 && *held >= self.free())
    }

    /// Counts the frame and returns true, or returns false if `ring` has reached its limit of
    /// blocks.
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

    #[inline]
    pub(super) fn add(&mut self, ring: usize, block: usize, count: u32) {
        if let Some(frames) = self.frames.get_mut(ring * self.blocks.len() + block) {
            *frames += count;
        }
    }

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
