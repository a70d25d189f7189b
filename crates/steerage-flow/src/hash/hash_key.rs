use super::siphash::siphash;
use std::fs::File;
use std::io::{self, Read};
use std::{fmt, str::FromStr};

/// The key of a flow hash: 40 bytes, like the keys that RSS hardware uses and `ethtool -x` prints.
///
/// Toeplitz uses the bits of the key unchanged. AES and SipHash derive their keys from all 40
/// bytes, so a regular key, such as one repeated byte, is as good as any other key.
///
/// ```
/// use steerage_flow::HashKey;
///
/// let key: HashKey = "6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa".parse()?;
/// assert_eq!(key, HashKey::MICROSOFT);
///
/// let error = "6d:5a".parse::<HashKey>().unwrap_err();
/// assert_eq!(error.to_string(), "a hash key is 40 bytes, 80 hexadecimal digits, but this one has 4 digits");
/// # Ok::<(), steerage_flow::ParseHashKeyError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey([u8; HashKey::LEN]);

impl HashKey {
    /// The length of a hash key in bytes: 36 for the input of an IPv6 flow, plus 4 for the hash.
    pub const LEN: usize = 40;

    /// The public key of Microsoft's RSS verification suite, which does not stop an attacker.
    pub const MICROSOFT: HashKey = HashKey([
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
        0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
        0xbe, 0xac, 0x01, 0xfa,
    ]);

    /// Creates the hash key from its 40 bytes.
    #[must_use]
    pub const fn new(bytes: [u8; HashKey::LEN]) -> HashKey {
        HashKey(bytes)
    }

    /// Creates a hash key from random bytes of the kernel.
    ///
    /// # Errors
    /// Returns an I/O error if `/dev/urandom` cannot be read, for example in a chroot without
    /// `/dev`.
    pub fn random() -> io::Result<HashKey> {
        let mut bytes = [0; HashKey::LEN];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(HashKey(bytes))
    }

    /// Returns the 40 bytes of the hash key.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; HashKey::LEN] {
        &self.0
    }

    /// Returns 64 bits of key material, which are unrelated for different labels. The result is the
    /// SipHash-2-4 (a pseudo-random function) of the last 24 bytes of the hash key and the label,
    /// keyed with the first 16 bytes of the hash key.
    pub(super) fn derive(&self, label: u64) -> u64 {
        let word = |i: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&self.0[8 * i..8 * i + 8]);
            u64::from_le_bytes(bytes)
        };
        siphash::<2, 4>([word(0), word(1)], &[word(2), word(3), word(4), label, 32 << 56])
    }
}

/// Hides the key: logs have many readers, and whoever knows the key can predict hashes.
impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HashKey(..)")
    }
}

/// The reason why a text cannot be parsed as a [`HashKey`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ParseHashKeyError {
    /// The text does not have 80 hexadecimal digits.
    Length {
        /// The number of digits.
        digits: usize,
    },
    /// The text contains a character that is not a hexadecimal digit.
    Digit {
        /// The unexpected character.
        found: char,
        /// The character's position, counted from 1.
        place: usize,
    },
}

impl fmt::Display for ParseHashKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseHashKeyError::Length { digits } => {
                write!(f, "a hash key is 40 bytes, 80 hexadecimal digits, but this one has {digits} digits")
            }
            ParseHashKeyError::Digit { found, place } => {
                write!(f, "a hash key is 80 hexadecimal digits, but character {place} of this one is {found:?}")
            }
        }
    }
}

impl std::error::Error for ParseHashKeyError {}

/// Parses 80 hexadecimal digits, with or without `:` between bytes, and ignores spaces at both
/// ends.
impl FromStr for HashKey {
    type Err = ParseHashKeyError;

    fn from_str(text: &str) -> Result<HashKey, ParseHashKeyError> {
        let mut key = [0; HashKey::LEN];
        let mut digits = 0;
        let mut after_byte = false;
        for (i, found) in text.trim().chars().enumerate() {
            if found == ':' && after_byte {
                after_byte = false; // so that "6d::5a" is an error, and with the check below "6d:" is too
                continue;
            }
            let value = found.to_digit(16).ok_or(ParseHashKeyError::Digit { found, place: i + 1 })?;
            if let Some(byte) = key.get_mut(digits / 2) {
                *byte = *byte << 4 | value as u8;
            }
            digits += 1;
            after_byte = digits % 2 == 0;
        }
        if digits != 2 * HashKey::LEN {
            return Err(ParseHashKeyError::Length { digits });
        }
        if !after_byte {
            return Err(ParseHashKeyError::Digit { found: ':', place: text.trim().chars().count() });
        }
        Ok(HashKey(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_ethtool_prints() {
        let plain = "6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa";
        let bytes: Vec<_> = (0..HashKey::LEN).map(|i| &plain[2 * i..2 * i + 2]).collect();
        let colons = bytes.join(":");
        for text in [plain, &colons, &colons.to_uppercase(), &format!(" {plain}\n")] {
            assert_eq!(text.parse(), Ok(HashKey::MICROSOFT), "{text}");
        }
    }

    #[test]
    fn says_what_is_wrong() {
        let error = |text: &str| text.parse::<HashKey>().unwrap_err().to_string();
        let length = |n| format!("a hash key is 40 bytes, 80 hexadecimal digits, but this one has {n} digits");
        let digit = |n, c| format!("a hash key is 80 hexadecimal digits, but character {n} of this one is {c:?}");
        assert_eq!(error(""), length(0));
        assert_eq!(error(&"0".repeat(79)), length(79));
        assert_eq!(error(&"0".repeat(1000)), length(1000));
        assert_eq!(error("0g"), digit(2, 'g'));
        assert_eq!(error("00::00"), digit(4, ':'));
        assert_eq!(error(":00"), digit(1, ':'));
        assert_eq!(error("0:0"), digit(2, ':'));
        assert_eq!(error("00 00"), digit(3, ' '));
        assert_eq!(error("µ"), digit(1, 'µ'));
        assert_eq!(error(&format!("{}:", "00".repeat(40))), digit(81, ':'));
    }

    #[test]
    fn stays_hidden() {
        assert_eq!(format!("{:?}", HashKey::MICROSOFT), "HashKey(..)");
    }
}
