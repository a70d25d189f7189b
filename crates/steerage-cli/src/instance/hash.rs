//! The flow hash of a run.

use steerage::{
    Builder,
    flow::{FlowHasher, HashKey},
};

use crate::args::{HashArgs, HashChoice};
use crate::error::Error;

/// Sets how packets are hashed, in the same way for `explain` and for all commands that steer. Which packets stay
/// together depends on the packet function alone (`Handler::AFFINITY`).
pub(crate) fn hashing(builder: Builder, args: &HashArgs, hasher: Option<FlowHasher>) -> Builder {
    let builder = builder.layers(args.layers()).device_hash(args.allows_device());
    match hasher {
        Some(hasher) => builder.hash(hasher),
        None => builder,
    }
}

/// The hash that the command line asks for. `None` leaves the choice to the library.
pub(crate) fn hasher(args: &HashArgs) -> Result<Option<FlowHasher>, Error> {
    let key = match (args.hash, args.hash_key) {
        (HashChoice::Auto | HashChoice::Device, None) => return Ok(None),
        (_, Some(key)) => key,
        (HashChoice::Aes | HashChoice::Siphash, None) => random_key()?,
        // Toeplitz is there to match the hash of network cards, and this is their default key.
        (HashChoice::Toeplitz | HashChoice::ToeplitzTable | HashChoice::ToeplitzGfni, None) => HashKey::MICROSOFT,
    };
    Ok(Some(match args.hash {
        HashChoice::Auto | HashChoice::Device => FlowHasher::keyed(&key),
        HashChoice::Siphash => FlowHasher::sip(&key),
        HashChoice::Toeplitz => FlowHasher::toeplitz(&key),
        HashChoice::ToeplitzTable => FlowHasher::toeplitz_table(&key),
        HashChoice::Aes => {
            FlowHasher::aes(&key).ok_or(Error::Hash { name: "aes", needs: "AES", instead: "siphash" })?
        }
        HashChoice::ToeplitzGfni => FlowHasher::toeplitz_gfni(&key).ok_or(Error::Hash {
            name: "toeplitz-gfni",
            needs: "GFNI or AVX2",
            instead: "toeplitz-table",
        })?,
    }))
}

/// Draws a random key.
pub(crate) fn random_key() -> Result<HashKey, Error> {
    HashKey::random().map_err(|error| Error::System { operation: "read a hash key from /dev/urandom", error })
}
