//! Parses filters as `tcpdump -ddd` prints them: a count, and four numbers for each instruction.

use std::fmt;
use std::str::FromStr;

use super::{Filter, FilterError, INSTRUCTIONS_MAX, Instruction, SHOWN_CHARS_MAX, shown};

fn is_between(c: char) -> bool {
    c.is_ascii_whitespace() || c == ','
}

/// A filter expression never consists of decimal numbers only.
pub(super) fn looks_like(text: &str) -> bool {
    let mut digits = false;
    text.chars().all(|c| {
        digits |= c.is_ascii_digit();
        c.is_ascii_digit() || is_between(c)
    }) && digits
}

/// Prints numbers that [`FromStr`] can parse again: `4,40 0 0 12,21 0 1 2048,...`.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.instructions.len())?;
        self.instructions
            .iter()
            .try_for_each(|it| write!(f, ",{} {} {} {}", it.code, it.jump_true, it.jump_false, it.operand))
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    /// Parses the output of `tcpdump -ddd`, with line breaks or commas between the numbers, and
    /// checks the program by the kernel's rules.
    fn from_str(text: &str) -> Result<Self, FilterError> {
        let mut words = text.split(is_between).filter(|word| !word.is_empty());
        let count: usize = match words.next() {
            Some(word) => number(word, "how many instructions follow", u32::MAX)? as usize,
            None => return Err(FilterError::Numbers("it is empty".to_owned())),
        };
        if !(1..=INSTRUCTIONS_MAX).contains(&count) {
            let wrong = format!(
                "it begins with {count} for how many instructions follow: the kernel takes 1 to {INSTRUCTIONS_MAX}"
            );
            return Err(FilterError::Numbers(wrong));
        }
        let mut instructions = Vec::with_capacity(count);
        while let Some(code) = words.next() {
            if instructions.len() == count {
                return Err(FilterError::Numbers(format!(
                    "there is more behind the {count} instructions that it begins with"
                )));
            }
            let mut next = |what| words.next().ok_or_else(|| cut_short(count, instructions.len(), what));
            instructions.push(Instruction {
                code: number(code, "an operation", u16::MAX.into())? as u16,
                jump_true: number(next("a jump")?, "a jump", u8::MAX.into())? as u8,
                jump_false: number(next("a jump")?, "a jump", u8::MAX.into())? as u8,
                operand: number(next("an operand")?, "an operand", u32::MAX)?,
            });
        }
        if instructions.len() < count {
            return Err(cut_short(count, instructions.len(), "an operation"));
        }
        Self::from_instructions(instructions)
    }
}

fn cut_short(count: usize, read: usize, what: &str) -> FilterError {
    FilterError::Numbers(format!("it ends before {what} of instruction {read}, and {count} were to follow"))
}

fn number(word: &str, what: &str, most: u32) -> Result<u32, FilterError> {
    let number = word.parse().ok().filter(|number| *number <= most);
    number.ok_or_else(|| {
        FilterError::Numbers(format!("`{}` is not {what}: a number from 0 to {most}", shown(word, SHOWN_CHARS_MAX)))
    })
}
