use steerage::{
    Builder,
    flow::{FlowHasher, HashKey, set_vxlan_ports},
};

use super::set_if_given;
use crate::args::HashArgs;
use crate::error::Error;

/// Sets the hash for `explain` and for all commands that steer packets. Only the handler
/// (`Handler::AFFINITY`) determines which packets stay on the same CPU.
pub(crate) fn hashing(builder: Builder, args: &HashArgs, hasher: Option<FlowHasher>) -> Builder {
    let builder = builder.layers(args.layers()).device_hash(args.allows_device());
    set_if_given(builder, hasher, Builder::hash)
}

/// Returns the hash function of the command line, or `None` if the library should choose it. Also
/// sets the UDP ports of VXLAN, because all commands that read headers call this function first.
pub(crate) fn hasher(args: &HashArgs) -> Result<Option<FlowHasher>, Error> {
    set_vxlan_ports(args.vxlan_port.as_ref().map_or(&[], |ports| &ports.0));
    let key = match args.hash_key {
        None if args.allows_device() => return Ok(None),
        Some(key) => key,
        None if args.has_random_key() => random_key()?,
        // `toeplitz` must match the hash of network cards, so its default key is the key of network
        // cards.
        None => HashKey::MICROSOFT,
    };
    FlowHasher::new(args.kind(), &key).map(Some).map_err(Error::Hash)
}

/// Returns the hash function of the command line, or the default function with a random key.
pub(crate) fn own_hasher(args: &HashArgs) -> Result<FlowHasher, Error> {
    hasher(args)?.map_or_else(|| Ok(FlowHasher::keyed(&random_key()?)), Ok)
}

fn random_key() -> Result<HashKey, Error> {
    HashKey::random().map_err(|error| Error::System { operation: "read a hash key from /dev/urandom", error })
}
