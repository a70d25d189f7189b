//! For each type, one function writes and reads the fields, so that their order never differs.

/// The highest bit of a byte says that another byte follows, as in LEB128.
const BITS: u32 = 7;

/// The error for bytes that do not encode [`Edges`](super::Edges).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these bytes are no edges of a part that this version of steerage wrote: meter the part anew")]
pub struct MalformedEdges;

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

#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Coder for Writer {
    fn word(&mut self, word: &mut u64) -> Result<(), MalformedEdges> {
        let mut rest = *word;
        while rest >> BITS > 0 {
            self.0.push(rest as u8 | 1 << BITS);
            rest >>= BITS;
        }
        self.0.push(rest as u8);
        Ok(())
    }
}

pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Coder for Reader<'_> {
    fn word(&mut self, word: &mut u64) -> Result<(), MalformedEdges> {
        *word = 0;
        for shift in (0..u64::BITS).step_by(BITS as usize) {
            let (byte, rest) = self.0.split_first().ok_or(MalformedEdges)?;
            self.0 = rest;
            let bits = u64::from(byte & !(1 << BITS));
            *word |= bits.checked_shl(shift).filter(|shifted| shifted >> shift == bits).ok_or(MalformedEdges)?;
            if byte >> BITS == 0 {
                return Ok(());
            }
        }
        Err(MalformedEdges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_were_written() {
        let numbers = [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX];
        let mut writer = Writer::default();
        numbers.iter().for_each(|number| writer.word(&mut { *number }).unwrap());
        let mut reader = Reader(&writer.0);
        for number in numbers {
            let mut word = 7;
            reader.word(&mut word).unwrap();
            assert_eq!(word, number);
        }
        assert!(reader.0.is_empty() && reader.word(&mut 0).is_err());
        assert!(Reader(&[0xff; 11]).word(&mut 0).is_err());
        assert!(Reader(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]).word(&mut 0).is_err());
    }
}
