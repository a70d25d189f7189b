//! Writes numbers as bytes, and reads them again. A function that codes a type both writes and reads
//! its fields, so that the order of the fields cannot differ.

/// The first bytes, with the number of the format.
const MAGIC: &[u8; 16] = b"steerage-edges-1";

/// Bytes that are no edges of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these bytes are no edges of a part that this version of steerage wrote: meter the part anew")]
pub struct MalformedEdges;

/// Writes numbers, or reads them. Each number takes 8 bytes.
pub(super) trait Coder {
    fn word(&mut self, word: &mut u64) -> Result<(), MalformedEdges>;

    fn number<N: Copy + Into<u64> + TryFrom<u64>>(&mut self, number: &mut N) -> Result<(), MalformedEdges> {
        let mut word = (*number).into();
        self.word(&mut word)?;
        *number = N::try_from(word).map_err(|_| MalformedEdges)?;
        Ok(())
    }

    fn numbers<N: Copy + Into<u64> + TryFrom<u64>>(&mut self, numbers: &mut [N]) -> Result<(), MalformedEdges> {
        numbers.iter_mut().try_for_each(|number| self.number(number))
    }

    fn flag(&mut self, flag: &mut bool) -> Result<(), MalformedEdges> {
        let mut word = u8::from(*flag);
        self.number(&mut word)?;
        *flag = word == 1;
        Ok(())
    }
}

/// Appends numbers to bytes.
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn new() -> Self {
        Self(MAGIC.to_vec())
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl Coder for Writer {
    fn word(&mut self, word: &mut u64) -> Result<(), MalformedEdges> {
        self.0.extend_from_slice(&word.to_le_bytes());
        Ok(())
    }
}

/// Takes numbers from bytes.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, MalformedEdges> {
        bytes.strip_prefix(MAGIC).map(Self).ok_or(MalformedEdges)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Coder for Reader<'_> {
    fn word(&mut self, word: &mut u64) -> Result<(), MalformedEdges> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(MalformedEdges)?;
        (*word, self.0) = (u64::from_le_bytes(*bytes), rest);
        Ok(())
    }
}
