//! From a frame to the hash it is steered by.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use steerage_mem::hash::{self, FlowHash, FlowHasher, FlowKey};
use steerage_mem::{Completion, Memory};

use crate::flow;
use crate::handler::Affinity;

/// How a queue's frames are hashed: `dyn`, since once a batch it is free, with the key's parser inlined behind it.
#[derive(Clone)]
pub(crate) struct Hashing(Arc<dyn HashFrames>);

impl fmt::Debug for Hashing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}

trait HashFrames: Send + Sync {
    fn hash_batch(&self, frames: &mut [Completion], memory: &Memory) -> u64;
    fn hash_one(&self, frame: &[u8]) -> FlowHash;
    fn name(&self) -> &'static str;
}

impl Hashing {
    /// By the flow that the headers tell.
    pub(crate) fn by_flow(hasher: FlowHasher, affinity: Affinity) -> Self {
        match affinity {
            Affinity::BothDirections => Self(Arc::new(ByKey { hasher, key: BothDirections })),
            Affinity::OneDirection => Self(Arc::new(ByKey { hasher, key: OneDirection })),
        }
    }

    /// By a key of the user's, and by the flow where that gives none.
    pub(crate) fn by_key(
        hasher: FlowHasher,
        affinity: Affinity,
        key: impl Fn(&[u8]) -> Option<FlowKey> + Send + Sync + 'static,
    ) -> Self {
        match affinity {
            Affinity::BothDirections => Self(Arc::new(ByKey { hasher, key: Custom(key, BothDirections) })),
            Affinity::OneDirection => Self(Arc::new(ByKey { hasher, key: Custom(key, OneDirection) })),
        }
    }

    /// Sets the hash of each frame; returns how many had no flow.
    #[inline]
    pub(crate) fn hash_batch(&self, frames: &mut [Completion], memory: &Memory) -> u64 {
        self.0.hash_batch(frames, memory)
    }

    pub(crate) fn hash_one(&self, frame: &[u8]) -> FlowHash {
        self.0.hash_one(frame)
    }

    pub(crate) fn name(&self) -> &'static str {
        self.0.name()
    }
}

/// From a frame to its key. A trait and not a closure, since only a method can be told to inline into each kernel's
/// loop: 11 ticks a packet against 34.
trait FrameKey: Send + Sync {
    fn key(&self, frame: &[u8]) -> Option<FlowKey>;
}

struct BothDirections;
struct OneDirection;
struct Custom<F, K>(F, K);

impl FrameKey for BothDirections {
    #[inline(always)]
    fn key(&self, frame: &[u8]) -> Option<FlowKey> {
        flow::flow_key(frame).map(FlowKey::both_directions)
    }
}

impl FrameKey for OneDirection {
    #[inline(always)]
    fn key(&self, frame: &[u8]) -> Option<FlowKey> {
        flow::flow_key(frame)
    }
}

impl<F: Fn(&[u8]) -> Option<FlowKey> + Send + Sync, K: FrameKey> FrameKey for Custom<F, K> {
    #[inline(always)]
    fn key(&self, frame: &[u8]) -> Option<FlowKey> {
        (self.0)(frame).map(FlowKey::by_words).or_else(|| self.1.key(frame))
    }
}

struct ByKey<K> {
    hasher: FlowHasher,
    key: K,
}

impl<K: FrameKey> ByKey<K> {
    /// The key that a frame goes by, and whether it is of a flow.
    #[inline(always)]
    fn key_of(&self, frame: &[u8]) -> (FlowKey, bool) {
        match self.key.key(frame) {
            Some(key) => (key, true),
            None => (flow::link_key(frame).both_directions(), false),
        }
    }
}

/// A batch, as the hash kernels want to see it.
struct Frames<'a, K> {
    by: &'a ByKey<K>,
    memory: &'a Memory,
    unparsed: Cell<u64>,
}

impl<K: FrameKey> hash::Hashing<Completion> for Frames<'_, K> {
    #[inline(always)]
    fn key(&self, frame: &Completion) -> FlowKey {
        let (key, of_a_flow) = self.by.key_of(self.memory.bytes(frame));
        if !of_a_flow {
            self.unparsed.set(self.unparsed.get() + 1);
        }
        key
    }

    #[inline(always)]
    fn store(&self, frame: &mut Completion, hash: FlowHash) {
        frame.set_hash(hash);
    }
}

impl<K: FrameKey> HashFrames for ByKey<K> {
    fn hash_batch(&self, frames: &mut [Completion], memory: &Memory) -> u64 {
        for frame in &*frames {
            memory.prefetch_frame(frame);
        }
        let batch = Frames { by: self, memory, unparsed: Cell::new(0) };
        self.hasher.hash_batch_with(frames, &batch);
        batch.unparsed.get()
    }

    fn hash_one(&self, frame: &[u8]) -> FlowHash {
        self.hasher.hash(&self.key_of(frame).0)
    }

    fn name(&self) -> &'static str {
        self.hasher.name()
    }
}
