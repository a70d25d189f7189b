use std::sync::Arc;

use steerage_core::{QueueHasher, error::BuildError};
use steerage_flow::{Affinity, FlowHasher, HashKey, dissect::Layers};

type MakeHasher = Arc<dyn Fn(FlowHasher, Affinity, Layers) -> QueueHasher + Send + Sync>;

/// The settings of a builder that determine the hash of each frame.
pub(crate) struct Hashing {
    /// The hash function. `None` for the default function with a random key.
    pub(crate) hasher: Option<FlowHasher>,
    /// Makes the hasher of queues whose flows a user's function determines.
    pub(crate) by_key: Option<MakeHasher>,
    pub(crate) layers: Layers,
    /// The packets to which a device's hash must give the same value. `None` if no device's hash
    /// may be used, and `Some(None)` for the packets that the handler needs on one CPU.
    pub(crate) device_hash: Option<Option<Affinity>>,
}

impl Hashing {
    pub(crate) const DEFAULT: Self =
        Self { hasher: None, by_key: None, layers: Layers::Inner, device_hash: Some(None) };

    /// Returns the hasher of the receive queues, and the packets to which a device's hash must give
    /// the same value, or `None` if no device's hash is used. `affinity` is that of the handler.
    pub(crate) fn for_queues(self, affinity: Affinity) -> Result<(QueueHasher, Option<Affinity>), BuildError> {
        let no_key = |error| BuildError::System { operation: "read a hash key from /dev/urandom", error };
        let random = || HashKey::random().map(|key| FlowHasher::keyed(&key)).map_err(no_key);
        let hasher = self.hasher.map_or_else(random, Ok)?;
        // A device does not know the flow key of the user's function.
        let device_hash = self.device_hash.filter(|_| self.by_key.is_none());
        let make = self.by_key.as_deref().unwrap_or(&QueueHasher::by_flow);
        Ok((make(hasher, affinity, self.layers), device_hash.map(|wanted| wanted.unwrap_or(affinity))))
    }
}
