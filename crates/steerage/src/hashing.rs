//! From a frame to the hash it is steered by.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;

use steerage_mem::hash::{self, FlowHash, FlowHasher, FlowKey};
use steerage_mem::{Completion, Memory};

use crate::flow::fragments::FragmentTable;
use crate::flow::{self, Dissection, Layers};
use crate::handler::Affinity;
use crate::platform::Timestamp;
use crate::rx::LinkType;

/// How a queue's frames are hashed: `dyn`, since once a batch it is free, with the key's parser inlined behind it.
#[derive(Clone)]
pub(crate) struct Hashing(Arc<dyn HashFrames>);

impl fmt::Debug for Hashing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}

/// What a poll has brought.
pub(crate) struct FrameBatch<'a> {
    pub(crate) frames: &'a mut [Completion],
    pub(crate) memory: &'a Memory,
    /// What all of them begin with.
    pub(crate) link: LinkType,
    pub(crate) now: Timestamp,
}

trait HashFrames: Send + Sync {
    fn hash_batch(&self, batch: FrameBatch<'_>, fragments: &mut FragmentTable) -> u64;
    fn hash_one(&self, frame: &[u8], link: LinkType) -> FlowHash;
    fn name(&self) -> &'static str;
}

impl Hashing {
    /// By the flow that the headers tell.
    pub(crate) fn by_flow(hasher: FlowHasher, affinity: Affinity, layers: Layers) -> Self {
        match affinity {
            Affinity::BothDirections => Self(Arc::new(ByKey { hasher, layers, key: BothDirections })),
            Affinity::OneDirection => Self(Arc::new(ByKey { hasher, layers, key: OneDirection })),
        }
    }

    /// By a key of the user's, and by the flow where that gives none.
    pub(crate) fn by_key(
        hasher: FlowHasher,
        affinity: Affinity,
        layers: Layers,
        key: impl Fn(&[u8]) -> Option<FlowKey> + Send + Sync + 'static,
    ) -> Self {
        match affinity {
            Affinity::BothDirections => Self(Arc::new(ByKey { hasher, layers, key: Custom(key, BothDirections) })),
            Affinity::OneDirection => Self(Arc::new(ByKey { hasher, layers, key: Custom(key, OneDirection) })),
        }
    }

    /// Sets the hash of each frame; returns how many had no flow.
    #[inline]
    pub(crate) fn hash_batch(&self, batch: FrameBatch<'_>, fragments: &mut FragmentTable) -> u64 {
        self.0.hash_batch(batch, fragments)
    }

    /// The hash of a frame that was steered without one, since a single CPU gets all. A fragment's is what it tells by
    /// itself: later ones go by their datagram, since no table was kept.
    pub(crate) fn hash_one(&self, frame: &[u8], link: LinkType) -> FlowHash {
        self.0.hash_one(frame, link)
    }

    pub(crate) fn name(&self) -> &'static str {
        self.0.name()
    }
}

/// The flow that a frame is steered with: that of its headers or, for a fragment, the one that its datagram follows.
fn flow_of(found: &Dissection, fragments: &mut FragmentTable, hasher: &FlowHasher, now: Timestamp) -> FlowKey {
    match found.fragments {
        // Without a flow the direction does not matter.
        _ if !found.is_flow => found.key.both_directions(),
        [None, _] => found.key,
        _ => fragments.steer(found, hasher, now),
    }
}

/// Finds the keys that a receive queue's frames are steered by, with the code that steers them. For tools that explain
/// steering: a packet carries only the hash of its key.
///
/// Fragments follow the first of their datagram to arrive, so a `SteeringKeys` stands for one queue, and wants to see
/// all of its frames in their order.
///
/// ```
/// use steerage::flow::{self, Layers};
/// use steerage::{Affinity, FlowHasher, HashKey, LinkType, SteeringKeys, Timestamp};
///
/// let mut answer = [0; 60];
/// answer[12..15].copy_from_slice(&[0x08, 0x00, 0x45]); // IPv4
/// (answer[23], answer[29], answer[33]) = (6, 2, 1); // TCP, 0.0.0.2, 0.0.0.1
/// (answer[35], answer[37]) = (90, 80); // ports
///
/// let hasher = FlowHasher::keyed(&HashKey::MICROSOFT);
/// let mut keys = SteeringKeys::new(hasher, Affinity::BothDirections);
/// let key = keys.of(&flow::dissect(&answer, LinkType::ETHERNET, Layers::Inner), Timestamp::ZERO);
/// assert_eq!(key.flow.to_string(), "tcp 0.0.0.2:90 > 0.0.0.1:80");
/// assert_eq!(key.hashed.to_string(), "tcp 0.0.0.1:80 > 0.0.0.2:90");
/// ```
pub struct SteeringKeys {
    hasher: FlowHasher,
    affinity: Affinity,
    fragments: FragmentTable,
}

impl fmt::Debug for SteeringKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SteeringKeys").field("affinity", &self.affinity).finish_non_exhaustive()
    }
}

/// The key of one frame: see [`SteeringKeys`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteeringKey {
    /// The flow that the frame is steered with, in the direction in which the frame goes.
    pub flow: FlowKey,
    /// The key that is hashed.
    pub hashed: FlowKey,
}

impl SteeringKeys {
    /// For a queue of a handler of this affinity, in an instance with this hash.
    pub fn new(hasher: FlowHasher, affinity: Affinity) -> Self {
        Self { hasher, affinity, fragments: FragmentTable::new() }
    }

    /// The key of the next frame. `found` comes from [`flow::dissect`], with the layers of the instance.
    pub fn of(&mut self, found: &Dissection, now: Timestamp) -> SteeringKey {
        let flow = flow_of(found, &mut self.fragments, &self.hasher, now);
        let hashed = self.affinity.key(flow);
        SteeringKey { flow: if found.is_flow { flow } else { found.key }, hashed }
    }
}

/// From a frame to its key. A trait and not a closure, since only a method can be told to inline into each kernel's
/// loop: 11 ticks a packet against 34.
trait FrameKey: Send + Sync {
    /// A key that is not of the flow, of an Ethernet frame.
    #[inline(always)]
    fn own(&self, _: &[u8]) -> Option<FlowKey> {
        None
    }

    /// What of a flow's key is to count.
    fn of_flow(&self, key: FlowKey) -> FlowKey;
}

struct BothDirections;
struct OneDirection;
struct Custom<F, K>(F, K);

impl FrameKey for BothDirections {
    #[inline(always)]
    fn of_flow(&self, key: FlowKey) -> FlowKey {
        Affinity::BothDirections.key(key)
    }
}

impl FrameKey for OneDirection {
    #[inline(always)]
    fn of_flow(&self, key: FlowKey) -> FlowKey {
        Affinity::OneDirection.key(key)
    }
}

impl<F: Fn(&[u8]) -> Option<FlowKey> + Send + Sync, K: FrameKey> FrameKey for Custom<F, K> {
    #[inline(always)]
    fn own(&self, frame: &[u8]) -> Option<FlowKey> {
        (self.0)(frame)
    }

    #[inline(always)]
    fn of_flow(&self, key: FlowKey) -> FlowKey {
        self.1.of_flow(key)
    }
}

struct ByKey<K> {
    hasher: FlowHasher,
    layers: Layers,
    key: K,
}

/// A batch, as the hash kernels want to see it.
struct Frames<'a, K> {
    by: &'a ByKey<K>,
    memory: &'a Memory,
    link: LinkType,
    now: Timestamp,
    fragments: RefCell<&'a mut FragmentTable>,
    unparsed: Cell<u64>,
}

impl<K: FrameKey> Frames<'_, K> {
    /// The key of a frame that is not plain.
    #[cold]
    #[inline(never)]
    fn slowly(&self, frame: &[u8]) -> FlowKey {
        let found = flow::dissect(frame, self.link, self.by.layers);
        if !found.is_flow {
            self.unparsed.set(self.unparsed.get() + 1);
        }
        let mut fragments = self.fragments.borrow_mut();
        self.by.key.of_flow(flow_of(&found, &mut fragments, &self.by.hasher, self.now))
    }
}

impl<K: FrameKey> hash::Hashing<Completion> for Frames<'_, K> {
    #[inline(always)]
    fn key(&self, frame: &Completion) -> FlowKey {
        let frame = self.memory.bytes(frame);
        if let Some(key) = self.by.key.own(frame) {
            return key.by_words();
        }
        match flow::plain(frame, self.by.layers) {
            Some(key) => self.by.key.of_flow(key),
            None => self.slowly(frame).by_words(),
        }
    }

    #[inline(always)]
    fn store(&self, frame: &mut Completion, hash: FlowHash) {
        frame.set_hash(hash);
    }
}

/// The same for links other than Ethernet.
struct OtherFrames<'a, K>(Frames<'a, K>);

impl<K: FrameKey> hash::Hashing<Completion> for OtherFrames<'_, K> {
    #[inline(always)]
    fn key(&self, frame: &Completion) -> FlowKey {
        let Self(batch) = self;
        let frame = batch.memory.bytes(frame);
        let plain = if batch.link == LinkType::RAW { flow::plain_ip(frame, batch.by.layers) } else { None };
        match plain {
            Some(key) => batch.by.key.of_flow(key),
            None => batch.slowly(frame).by_words(),
        }
    }

    #[inline(always)]
    fn store(&self, frame: &mut Completion, hash: FlowHash) {
        frame.set_hash(hash);
    }
}

impl<K: FrameKey> HashFrames for ByKey<K> {
    fn hash_batch(&self, batch: FrameBatch<'_>, fragments: &mut FragmentTable) -> u64 {
        let FrameBatch { frames, memory, link, now } = batch;
        for frame in &*frames {
            // Whoever lends frames has just written their headers.
            if !frame.is_lent() {
                memory.prefetch_frame(frame);
            }
        }
        let fragments = RefCell::new(fragments);
        let batch = Frames { by: self, memory, link, now, fragments, unparsed: Cell::new(0) };
        if link == LinkType::ETHERNET {
            self.hasher.hash_batch_with(frames, &batch);
            return batch.unparsed.get();
        }
        let batch = OtherFrames(batch);
        self.hasher.hash_batch_with(frames, &batch);
        batch.0.unparsed.get()
    }

    fn hash_one(&self, frame: &[u8], link: LinkType) -> FlowHash {
        if link == LinkType::ETHERNET {
            if let Some(key) = self.key.own(frame) {
                return self.hasher.hash(&key);
            }
        }
        let found = flow::dissect(frame, link, self.layers);
        let key = match found.fragments.iter().flatten().find(|fragment| fragment.offset > 0) {
            _ if !found.is_flow => found.key.both_directions(),
            Some(later) => later.datagram,
            None => self.key.of_flow(found.key),
        };
        self.hasher.hash(&key)
    }

    fn name(&self) -> &'static str {
        self.hasher.name()
    }
}
