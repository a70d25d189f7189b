//! Numbers of `/proc/sys/net/core`: written as `proc_dointvec_minmax` reads them (Linux, kernel/sysctl.c).

use std::time::{Duration, Instant};

use steerage::{Handle, Limits};

use super::{Change, Tree};
use crate::error::{AttributeError, ErrorCode};

/// The digits, sign and prefix of a number that are read: the kernel's TMPBUFLEN, less its end.
const NUMBER_CHARS_MAX: usize = 21;

/// A number that can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sysctl {
    DevWeight,
    NetdevBudget,
    NetdevBudgetUsecs,
    NetdevMaxBacklog,
}

impl Sysctl {
    pub(super) const ALL: &[Self] =
        &[Self::DevWeight, Self::NetdevBudget, Self::NetdevBudgetUsecs, Self::NetdevMaxBacklog];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::DevWeight => "dev_weight",
            Self::NetdevBudget => "netdev_budget",
            Self::NetdevBudgetUsecs => "netdev_budget_usecs",
            Self::NetdevMaxBacklog => "netdev_max_backlog",
        }
    }

    pub(super) fn read(self, handle: &Handle) -> usize {
        self.of(handle.limits())
    }

    fn of(self, limits: Limits) -> usize {
        match self {
            Self::DevWeight => limits.dev_weight,
            Self::NetdevBudget => limits.budget,
            Self::NetdevBudgetUsecs => limits.budget_time.as_micros() as usize,
            Self::NetdevMaxBacklog => limits.backlog,
        }
    }

    fn set(self, limits: &mut Limits, value: usize) {
        match self {
            Self::DevWeight => limits.dev_weight = value,
            Self::NetdevBudget => limits.budget = value,
            Self::NetdevBudgetUsecs => limits.budget_time = Duration::from_micros(value as u64),
            Self::NetdevMaxBacklog => limits.backlog = value,
        }
    }

    /// The least that makes sense of it.
    fn least(self) -> usize {
        if self == Self::NetdevBudgetUsecs { 0 } else { 1 }
    }
}

impl Tree {
    /// Stores what was written to one. A number too large becomes the largest that there is room for: what the kernel takes
    /// is taken, and what is read is what is in force.
    pub(super) fn store_sysctl(&self, sysctl: Sysctl, text: &str) -> Result<Option<Change>, AttributeError> {
        let value = number(text).and_then(|number| usize::try_from(number).ok());
        let Some(value) = value.filter(|value| *value >= sysctl.least()) else {
            let message = format!("{} is a number from {} on", sysctl.name(), sysctl.least());
            return Err(AttributeError::new(ErrorCode::Invalid, message));
        };
        let start = Instant::now();
        let old = sysctl.read(&self.handle);
        let new = sysctl.of(self.handle.set_limits(|limits| sysctl.set(limits, value)));
        if let Err(error) = self.settle(start) {
            self.handle.set_limits(|limits| sysctl.set(limits, old));
            return Err(error);
        }
        let (from, to, seconds) = (old.to_string(), new.to_string(), start.elapsed().as_secs_f64());
        Ok((from != to).then_some(Change { from, to, buckets: 0, seconds }))
    }
}

/// An `int` as the kernel reads it: white space in front, then decimal, `0x` hex or `0` octal, then white space or the end.
/// What stands behind that white space does not matter.
fn number(text: &str) -> Option<i64> {
    let is_space = |c: char| matches!(c, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c');
    let text = text.trim_start_matches(is_space);
    let word = text.split([' ', '\t', '\n', '\0']).next().unwrap_or("");
    if word.len() > NUMBER_CHARS_MAX {
        return None;
    }
    let (sign, digits) = match word.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, word),
    };
    let (radix, digits) = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => (16, hex),
        None if digits.len() > 1 && digits.starts_with('0') => (8, &digits[1..]),
        None => (10, digits),
    };
    // from_str_radix would take a sign.
    let all_digits = !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix));
    let number = all_digits.then(|| i64::from_str_radix(digits, radix).ok()).flatten()?;
    i32::try_from(sign * number).ok().map(i64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_sysctls_are() {
        for (text, value) in
            [("64\n", 64), (" \t7", 7), ("0x40\n", 64), ("010\n", 8), ("0\n", 0), ("5 abc\n", 5), ("-3", -3)]
        {
            assert_eq!(number(text), Some(value), "{text:?}");
        }
        let long = format!("{:022}", 1);
        for text in ["", "\n", "x", "5abc", "5,6", "0x", "+5", "--5", "-+5", "2147483648", "08", "0x-4", long.as_str()]
        {
            assert_eq!(number(text), None, "{text:?}");
        }
    }
}
