use std::fmt;
use std::sync::Arc;

use steerage_flow::dissect::Layers;
use steerage_flow::{
    Affinity, BothDirections, CustomKey, FlowHash, FlowHasher, FlowKey, FragmentTable, FrameAccess, FrameHasher,
    KeyRule, LinkType, OneDirection, Timestamp,
};
use steerage_ledger::QueueLedger;
use steerage_mem::{Completion, Memory};

/// How the frames of a queue are hashed. One call through `dyn` for each batch costs next to
/// nothing, and the code that parses the flow key is inlined.
#[derive(Clone)]
pub struct QueueHasher(Arc<dyn HashFrames>);

impl fmt::Debug for QueueHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}

struct FrameBatch<'a> {
    frames: &'a mut [Completion],
    memory: &'a Memory,
    link: LinkType,
    now: Timestamp,
}

trait HashFrames: Send + Sync {
    fn hash_batch(&self, batch: FrameBatch<'_>, fragments: &mut FragmentTable) -> u64;
    fn hash_one(&self, frame: &[u8], link: LinkType) -> FlowHash;
    fn name(&self) -> &'static str;
    fn layers(&self) -> Layers;
}

impl QueueHasher {
    /// Hashes the flow to which the frame's headers belong.
    pub fn by_flow(hasher: FlowHasher, affinity: Affinity, layers: Layers) -> Self {
        match affinity {
            Affinity::OneDirection => Self(Arc::new(FrameHasher::new(hasher, layers, OneDirection))),
            _ => Self(Arc::new(FrameHasher::new(hasher, layers, BothDirections))),
        }
    }

    /// Hashes frames by the flow key that the function `key` computes from a frame and the type of
    /// the frame's first header. If `key` returns `None`, the frame is hashed by its flow.
    pub fn by_key(
        hasher: FlowHasher,
        affinity: Affinity,
        layers: Layers,
        key: impl Fn(&[u8], LinkType) -> Option<FlowKey> + Send + Sync + 'static,
    ) -> Self {
        match affinity {
            Affinity::OneDirection => Self(Arc::new(FrameHasher::new(hasher, layers, CustomKey(key, OneDirection)))),
            _ => Self(Arc::new(FrameHasher::new(hasher, layers, CustomKey(key, BothDirections)))),
        }
    }

    #[inline]
    fn hash_batch(&self, batch: FrameBatch<'_>, fragments: &mut FragmentTable) -> u64 {
        self.0.hash_batch(batch, fragments)
    }

    /// Hashes a frame that was steered without a hash. The table of IP fragments is not used: a
    /// fragment that is not the first has no ports and is hashed by its IP datagram.
    pub(crate) fn hash_one(&self, frame: &[u8], link: LinkType) -> FlowHash {
        self.0.hash_one(frame, link)
    }

    pub(crate) fn name(&self) -> &'static str {
        self.0.name()
    }

    pub(crate) fn layers(&self) -> Layers {
        self.0.layers()
    }
}

pub(crate) struct Hashing {
    hasher: QueueHasher,
    /// True if frames keep the hash of the device. Frames without a hash of the device are hashed
    /// by steerage.
    by_device: bool,
    always: bool,
    fragments: FragmentTable,
}

impl Hashing {
    pub(crate) fn new(hasher: QueueHasher, by_device: bool, always: bool) -> Self {
        Self { hasher, by_device, always, fragments: FragmentTable::new() }
    }

    pub(super) fn hash(
        &mut self,
        frames: &mut [Completion],
        is_needed: bool,
        (link, now): (LinkType, Timestamp),
        memory: &Memory,
        ledger: &QueueLedger,
    ) {
        if frames.is_empty() {
            return;
        }
        if link != LinkType::ETHERNET {
            frames.iter_mut().for_each(|frame| frame.set_link(link.code()));
        }
        if !(is_needed || self.always) || (self.by_device && Completion::all_hashed(frames)) {
            return;
        }
        let is_unhashed = |frame: &Completion| !self.by_device || frame.hash().is_none();
        // If the device sets hashes, the few frames that have no hash are hashed one by one.
        let at_once = if self.by_device { 1 } else { frames.len() };
        for frames in frames.chunks_mut(at_once).filter(|frames| is_unhashed(&frames[0])) {
            let unhashed = FrameBatch { frames: &mut *frames, memory, link, now };
            let unparsed = self.hasher.hash_batch(unhashed, &mut self.fragments);
            ledger.hashed(frames.len() as u64, unparsed, self.fragments.take_counts());
        }
    }
}

struct InMemory<'a>(&'a Memory);

impl FrameAccess<Completion> for InMemory<'_> {
    #[inline(always)]
    fn bytes<'f>(&'f self, frame: &'f Completion) -> &'f [u8] {
        self.0.bytes_soon(frame)
    }

    #[inline(always)]
    fn set_hash(&self, frame: &mut Completion, hash: FlowHash) {
        frame.set_hash(hash.0);
    }
}

impl<K: KeyRule> HashFrames for FrameHasher<K> {
    fn hash_batch(&self, batch: FrameBatch<'_>, fragments: &mut FragmentTable) -> u64 {
        let FrameBatch { frames, memory, link, now } = batch;
        self.hash_batch(frames, InMemory(memory), (link, now), fragments)
    }

    fn hash_one(&self, frame: &[u8], link: LinkType) -> FlowHash {
        Self::hash_one(self, frame, link)
    }

    fn layers(&self) -> Layers {
        Self::layers(self)
    }

    fn name(&self) -> &'static str {
        self.hasher().name()
    }
}
