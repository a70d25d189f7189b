//! Most frames are steered by the flow in their headers. All fragments of a datagram are steered by
//! the key of the fragment that arrives first ([`FragmentTable`]). A program may also supply its
//! own keys for frames.

#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::fmt;

use crate::affinity::Affinity;
use crate::dissect::{self, Dissection, Layers};
use crate::flow_key::FlowKey;
use crate::fragments::FragmentTable;
use crate::hash::{FlowHash, FlowHasher, Hashing, PlainFrames, TOGETHER};
use crate::link_type::LinkType;
use crate::time::Timestamp;

/// Batches of fewer frames than this are hashed frame by frame.
const LEAST_TOGETHER: usize = 4;

fn steered_by(found: &Dissection, fragments: &mut FragmentTable, hasher: &FlowHasher, now: Timestamp) -> FlowKey {
    match found.fragments {
        // Frames without an IP flow have the same key in both directions between two link
        // addresses.
        _ if !found.is_flow => found.key.both_directions(),
        [None, _] => found.key,
        _ => fragments.steer(found, hasher, now),
    }
}

/// Finds the flow keys by which the frames of a receive queue are steered, for tools that explain
/// steering. The `Packet` that a handler gets has only the hash of the key.
///
/// All fragments of a datagram get the key of the fragment that arrives first, so each receive
/// queue needs its own `SteeringKeys`, which must see all frames of the queue in order.
///
/// ```
/// use steerage_flow::dissect::{self, Layers};
/// use steerage_flow::{Affinity, FlowHasher, HashKey, LinkType, SteeringKeys, Timestamp};
///
/// let mut answer = [0; 60];
/// answer[12..15].copy_from_slice(&[0x08, 0x00, 0x45]); // IPv4
/// (answer[23], answer[29], answer[33]) = (6, 2, 1); // TCP, 0.0.0.2, 0.0.0.1
/// (answer[35], answer[37]) = (90, 80); // ports
///
/// let hasher = FlowHasher::keyed(&HashKey::MICROSOFT);
/// let mut keys = SteeringKeys::new(hasher, Affinity::BothDirections);
/// let key = keys.of(&dissect::dissect(&answer, LinkType::ETHERNET, Layers::Inner), Timestamp::ZERO);
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

/// The result of [`SteeringKeys`] for one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SteeringKey {
    /// The flow by which the frame is steered. The source of this flow is the frame's sender.
    pub flow: FlowKey,
    /// The flow key that is hashed for this frame.
    pub hashed: FlowKey,
}

impl SteeringKeys {
    /// Creates the `SteeringKeys` of one receive queue. `affinity` must be the affinity of the
    /// handler that gets the packets.
    pub fn new(hasher: FlowHasher, affinity: Affinity) -> Self {
        Self { hasher, affinity, fragments: FragmentTable::new() }
    }

    /// Returns the key of the next frame. Dissect the frame with the same `Layers` as the instance
    /// that steers it.
    pub fn of(&mut self, found: &Dissection, now: Timestamp) -> SteeringKey {
        let flow = steered_by(found, &mut self.fragments, &self.hasher, now);
        let hashed = self.affinity.key(flow);
        SteeringKey { flow: if found.is_flow { flow } else { found.key }, hashed }
    }
}

/// Selects the part of a frame's flow that is hashed. `KeyRule` is a trait, because a method can be
/// marked for inlining into the loop of each hash kernel, and a closure cannot be marked. With
/// inlining, a packet takes 11 clock ticks instead of 34.
///
/// ```
/// use steerage_flow::dissect::Layers;
/// use steerage_flow::{BothDirections, FlowHasher, FlowKey, FrameHasher, HashKey, KeyRule, LinkType};
///
/// /// Keeps all flows between two hosts together.
/// struct Hosts;
///
/// impl KeyRule for Hosts {
///     #[inline(always)]
///     fn of_flow(&self, flow: FlowKey) -> FlowKey {
///         match (flow.source(), flow.destination()) {
///             (Some(mut from), Some(mut to)) => {
///                 from.set_port(0);
///                 to.set_port(0);
///                 FlowKey::between(from, to, 0).unwrap_or(flow).both_directions()
///             }
///             _ => flow,
///         }
///     }
/// }
///
/// // Two UDP packets between the same hosts, with other ports.
/// let mut packet = [0; 28];
/// (packet[0], packet[3], packet[9], packet[15], packet[19]) = (0x45, 28, 17, 1, 2);
/// let mut other = packet;
/// (other[21], other[23]) = (80, 90);
///
/// let hasher = FlowHasher::keyed(&HashKey::MICROSOFT);
/// let hosts = FrameHasher::new(hasher.clone(), Layers::Inner, Hosts);
/// assert_eq!(hosts.hash_one(&packet, LinkType::RAW), hosts.hash_one(&other, LinkType::RAW));
/// let flows = FrameHasher::new(hasher, Layers::Inner, BothDirections);
/// assert_ne!(flows.hash_one(&packet, LinkType::RAW), flows.hash_one(&other, LinkType::RAW));
/// ```
pub trait KeyRule: Send + Sync {
    /// Returns the program's own key for a frame, which replaces the frame's flow.
    #[inline(always)]
    fn custom(&self, _: &[u8], _: LinkType) -> Option<FlowKey> {
        None
    }

    /// Returns the [`Affinity`] that has the same effect as this rule, if there is one. If there is
    /// such an affinity, `custom` must always return `None`, and `of_flow` must equal
    /// [`Affinity::key`] for every flow. With an affinity, most frames are hashed without creating
    /// a key.
    #[inline(always)]
    fn affinity(&self) -> Option<Affinity> {
        None
    }

    /// Returns the key that is hashed for a flow.
    fn of_flow(&self, flow: FlowKey) -> FlowKey;
}

/// Gives both directions of a flow the same hash.
#[derive(Clone, Copy, Debug)]
pub struct BothDirections;

/// Hashes each direction of a flow separately.
#[derive(Clone, Copy, Debug)]
pub struct OneDirection;

/// Gets the key of a frame from a function of the program. If the function returns `None`, the rule
/// in the second field determines the key.
#[derive(Clone, Copy, Debug)]
pub struct CustomKey<F, K>(pub F, pub K);

impl KeyRule for BothDirections {
    #[inline(always)]
    fn affinity(&self) -> Option<Affinity> {
        Some(Affinity::BothDirections)
    }

    #[inline(always)]
    fn of_flow(&self, flow: FlowKey) -> FlowKey {
        Affinity::BothDirections.key(flow)
    }
}

impl KeyRule for OneDirection {
    #[inline(always)]
    fn affinity(&self) -> Option<Affinity> {
        Some(Affinity::OneDirection)
    }

    #[inline(always)]
    fn of_flow(&self, flow: FlowKey) -> FlowKey {
        Affinity::OneDirection.key(flow)
    }
}

impl<F: Fn(&[u8], LinkType) -> Option<FlowKey> + Send + Sync, K: KeyRule> KeyRule for CustomKey<F, K> {
    #[inline(always)]
    fn custom(&self, frame: &[u8], link: LinkType) -> Option<FlowKey> {
        (self.0)(frame, link)
    }

    #[inline(always)]
    fn of_flow(&self, flow: FlowKey) -> FlowKey {
        self.1.of_flow(flow)
    }
}

/// Hashes frames according to one rule.
#[derive(Debug)]
pub struct FrameHasher<K> {
    hasher: FlowHasher,
    layers: Layers,
    rule: K,
}

impl<K: KeyRule> FrameHasher<K> {
    /// Creates a hasher of frames. `layers` selects the inner or the outer flow of a tunnel.
    pub fn new(hasher: FlowHasher, layers: Layers, rule: K) -> Self {
        Self { hasher, layers, rule }
    }

    /// Returns whether the inner or the outer flow of a tunnel is hashed.
    pub fn layers(&self) -> Layers {
        self.layers
    }

    /// Returns the hasher that hashes the keys.
    #[inline]
    pub fn hasher(&self) -> &FlowHasher {
        &self.hasher
    }

    /// Hashes a batch of frames that arrived at the time `now` and whose first header is of the
    /// type `link`. Returns how many frames belong to no flow.
    pub fn hash_batch<T>(
        &self,
        frames: &mut [T],
        access: impl FrameAccess<T>,
        (link, now): (LinkType, Timestamp),
        fragments: &mut FragmentTable,
    ) -> u64 {
        let (fragments, unparsed) = (RefCell::new(fragments), Cell::new(0));
        if link != LinkType::ETHERNET {
            let batch = BatchKeys::<_, _, false> { by: self, access, link, now, fragments, unparsed };
            batch.hash_each(frames);
            return batch.unparsed.get();
        }
        let batch = BatchKeys::<_, _, true> { by: self, access, link, now, fragments, unparsed };
        match (self.rule.affinity(), self.hasher.plain_frames(&dissect::TUNNEL_PORTS)) {
            (Some(affinity), Some(kernel)) if frames.len() >= LEAST_TOGETHER && !dissect::are_ports_chosen() => {
                frames.chunks_mut(TOGETHER).for_each(|frames| batch.hash_together(frames, affinity, kernel));
            }
            _ => batch.hash_each(frames),
        }
        batch.unparsed.get()
    }

    /// Returns the hash of one frame without a fragment table. Any fragment except the first gets
    /// the hash of a key that is made for its datagram.
    pub fn hash_one(&self, frame: &[u8], link: LinkType) -> FlowHash {
        if let Some(key) = self.rule.custom(frame, link) {
            return self.hasher.hash(&key);
        }
        let plain = if link == LinkType::ETHERNET { dissect::plain(frame, self.layers) } else { None };
        if let Some(key) = plain {
            return self.hasher.hash(&self.rule.of_flow(key));
        }
        let found = dissect::dissect(frame, link, self.layers);
        let key = match found.fragments.iter().flatten().find(|fragment| fragment.offset > 0) {
            _ if !found.is_flow => found.key.both_directions(),
            Some(later) => later.datagram,
            None => self.rule.of_flow(found.key),
        };
        self.hasher.hash(&key)
    }
}

/// Reads the bytes of a frame, and stores its hash. Mark both functions of this trait
/// `#[inline(always)]`: see [`Hashing`].
pub trait FrameAccess<T> {
    /// Returns the bytes of a frame. The method `bytes` is called for all frames of a batch before
    /// the first frame is read, so it may prefetch the frames into the cache.
    fn bytes<'f>(&'f self, frame: &'f T) -> &'f [u8];

    /// Stores a frame's hash.
    fn set_hash(&self, frame: &mut T, hash: FlowHash);
}

/// The keys of a batch of frames. `ETHERNET` is true if the first header of the frames is an
/// Ethernet header: a constant, so that no frame is compared with other link types.
struct BatchKeys<'a, K, A, const ETHERNET: bool> {
    by: &'a FrameHasher<K>,
    access: A,
    link: LinkType,
    now: Timestamp,
    fragments: RefCell<&'a mut FragmentTable>,
    unparsed: Cell<u64>,
}

impl<K: KeyRule, A, const ETHERNET: bool> BatchKeys<'_, K, A, ETHERNET> {
    #[inline(always)]
    fn hash_each<T>(&self, frames: &mut [T])
    where
        A: FrameAccess<T>,
    {
        // The caller's `bytes` may prefetch each frame.
        for frame in &*frames {
            self.access.bytes(frame);
        }
        self.by.hasher.hash_batch_with(frames, self);
    }

    /// Hashes at most [`TOGETHER`] frames: first the plain frames together, and then the other
    /// frames in order.
    #[inline(always)]
    fn hash_together<T>(&self, frames: &mut [T], affinity: Affinity, kernel: PlainFrames<'_>)
    where
        A: FrameAccess<T>,
    {
        let (mut bytes, mut hashes) = ([&[][..]; TOGETHER], [0; TOGETHER]);
        bytes.iter_mut().zip(&*frames).for_each(|(bytes, frame)| *bytes = self.access.bytes(frame));
        let mut others = kernel.hash(&bytes[..frames.len()], affinity, &mut hashes);
        frames.iter_mut().zip(hashes).for_each(|(frame, hash)| self.access.set_hash(frame, FlowHash(hash)));
        while others != 0 {
            let other = others.trailing_zeros() as usize;
            self.by.hasher.hash_batch_with(&mut frames[other..=other], self);
            others &= others - 1;
        }
    }

    #[cold]
    #[inline(never)]
    fn of_any(&self, frame: &[u8]) -> FlowKey {
        let found = dissect::dissect(frame, self.link, self.by.layers);
        if !found.is_flow {
            self.unparsed.set(self.unparsed.get() + 1);
        }
        let mut fragments = self.fragments.borrow_mut();
        self.by.rule.of_flow(steered_by(&found, &mut fragments, &self.by.hasher, self.now))
    }
}

impl<T, K: KeyRule, A: FrameAccess<T>, const ETHERNET: bool> Hashing<T> for BatchKeys<'_, K, A, ETHERNET> {
    #[inline(always)]
    fn key(&self, frame: &T) -> FlowKey {
        let link = if ETHERNET { LinkType::ETHERNET } else { self.link };
        let frame = self.access.bytes(frame);
        if let Some(key) = self.by.rule.custom(frame, link) {
            return key.by_words();
        }
        let plain = match link {
            LinkType::ETHERNET if ETHERNET => dissect::plain(frame, self.by.layers),
            LinkType::RAW => dissect::plain_ip(frame, self.by.layers),
            _ => None,
        };
        match plain {
            Some(key) => self.by.rule.of_flow(key),
            None => self.of_any(frame).by_words(),
        }
    }

    #[inline(always)]
    fn store(&self, frame: &mut T, hash: FlowHash) {
        self.access.set_hash(frame, hash);
    }
}
