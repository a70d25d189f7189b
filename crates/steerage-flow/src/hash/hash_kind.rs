use std::str::FromStr;
use std::{error, fmt};

/// Selects the hash function for flows. [`FromStr`] reads the [`name`](Self::name).
///
/// ```
/// use steerage_flow::{FlowHasher, HashKey, HashKind};
///
/// let kind: HashKind = "toeplitz".parse()?;
/// let key: HashKey = "6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa".parse()?;
/// let hasher = FlowHasher::new(kind, &key)?;
/// assert_eq!(kind.to_string(), "toeplitz");
///
/// let error = "md5".parse::<HashKind>().unwrap_err().to_string();
/// assert_eq!(error, "`md5` is not a flow hash: write one of keyed, aes, siphash, toeplitz, toeplitz-table, toeplitz-gfni");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HashKind {
    /// AES if this CPU has it, and SipHash otherwise:
    /// [`FlowHasher::keyed`](super::FlowHasher::keyed).
    #[default]
    Keyed,
    /// AES rounds, which not every CPU can compute: [`FlowHasher::aes`](super::FlowHasher::aes).
    Aes,
    /// SipHash-1-3: [`FlowHasher::sip`](super::FlowHasher::sip).
    SipHash,
    /// Toeplitz, the hash of network cards, with the fastest kernel on this CPU:
    /// [`FlowHasher::toeplitz`](super::FlowHasher::toeplitz).
    Toeplitz,
    /// Toeplitz with a table: [`FlowHasher::toeplitz_table`](super::FlowHasher::toeplitz_table).
    ToeplitzTable,
    /// Toeplitz with GFNI instructions, which not every CPU has:
    /// [`FlowHasher::toeplitz_gfni`](super::FlowHasher::toeplitz_gfni).
    ToeplitzGfni,
}

impl HashKind {
    /// All kinds of hash.
    pub const ALL: [Self; 6] =
        [Self::Keyed, Self::Aes, Self::SipHash, Self::Toeplitz, Self::ToeplitzTable, Self::ToeplitzGfni];

    /// Returns the name of this kind: `keyed`, `aes`, `siphash`, `toeplitz`, `toeplitz-table` or
    /// `toeplitz-gfni`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keyed => "keyed",
            Self::Aes => "aes",
            Self::SipHash => "siphash",
            Self::Toeplitz => "toeplitz",
            Self::ToeplitzTable => "toeplitz-table",
            Self::ToeplitzGfni => "toeplitz-gfni",
        }
    }

    /// Returns true for the hashes that an attacker cannot predict without the key: AES and
    /// SipHash. With a secret [random key](super::HashKey::random), an attacker cannot direct
    /// packets to a chosen CPU. Toeplitz hashes can be predicted, whatever their key is.
    #[must_use]
    pub const fn is_keyed(self) -> bool {
        matches!(self, Self::Keyed | Self::Aes | Self::SipHash)
    }
}

impl fmt::Display for HashKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Parses the name of a kind, and also `siphash-1-3`, which is the [name of a
/// hasher](super::FlowHasher::name).
impl FromStr for HashKind {
    type Err = UnknownHash;

    fn from_str(name: &str) -> Result<Self, UnknownHash> {
        let name = if name == "siphash-1-3" { "siphash" } else { name };
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| UnknownHash(name.to_owned()))
    }
}

/// The error for a name that belongs to no [`HashKind`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownHash(String);

impl fmt::Display for UnknownHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = HashKind::ALL.map(HashKind::name).join(", ");
        write!(f, "`{}` is not a flow hash: write one of {names}", self.0.escape_debug())
    }
}

impl error::Error for UnknownHash {}

/// The error for a [`HashKind`] that needs instructions which this CPU does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashUnavailable {
    pub(super) kind: HashKind,
    pub(super) needs: &'static str,
    pub(super) instead: HashKind,
}

impl HashUnavailable {
    /// Returns the kind of hash that this CPU does not support.
    #[must_use]
    pub fn kind(&self) -> HashKind {
        self.kind
    }

    /// Returns a kind of hash that serves the same purpose and runs on every CPU.
    #[must_use]
    pub fn instead(&self) -> HashKind {
        self.instead
    }
}

impl fmt::Display for HashUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, needs, instead } = self;
        write!(f, "the flow hash {kind} needs {needs} instructions, which this CPU does not have: use {instead}")
    }
}

impl error::Error for HashUnavailable {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::{FlowHasher, HashKey};

    #[test]
    fn kinds_print_the_names_that_they_are_read_from() {
        for kind in HashKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        for wrong in ["", "AES", "sip", "siphash-2-4"] {
            let error = wrong.parse::<HashKind>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{wrong}` is not a flow hash: write one of keyed, aes, ")), "{error}");
        }
    }

    #[test]
    fn a_hasher_prints_a_name_that_is_read_as_its_kind() {
        let key = HashKey::new([7; HashKey::LEN]);
        for kind in HashKind::ALL {
            match FlowHasher::new(kind, &key) {
                Ok(hasher) => {
                    let read: HashKind = hasher.to_string().parse().unwrap();
                    assert!(read == kind || matches!(kind, HashKind::Keyed | HashKind::Toeplitz), "{kind} {hasher}");
                    assert_eq!(read.is_keyed(), kind.is_keyed());
                }
                Err(error) => {
                    assert_eq!((error.kind(), error.instead().is_keyed()), (kind, kind.is_keyed()));
                    assert!(FlowHasher::new(error.instead(), &key).is_ok());
                }
            }
        }
    }
}
