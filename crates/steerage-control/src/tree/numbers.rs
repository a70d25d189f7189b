//! Numbers that can be set: sysctls of `/proc/sys/net/core`, switches like ethtool's private flags,
//! and numeric settings of each queue. The parser follows the kernel's `proc_dointvec_minmax`
//! (Linux, kernel/sysctl.c).

use std::time::Duration;

use steerage::{
    CpuId,
    limits::{Limits, QueueLimits},
    memory::LpcMemory,
};

use super::{Change, Tree};
use crate::error::{AttributeError, ErrorCode};

/// The maximum length of a number in characters, including sign and `0x`: TMPBUFLEN of
/// kernel/sysctl.c without the NUL.
const NUMBER_CHARS_MAX: usize = 21;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    DevWeight,
    FlowLimitTableLen,
    NetdevBudget,
    NetdevBudgetUsecs,
    NetdevMaxBacklog,
    /// A switch for the local page caches of all queues of a device. A read returns 1 if any queue
    /// of the device has a cache.
    LocalPageCache(usize),
    /// The maximum number of free pages in a queue's local page cache.
    LpcPages(usize),
    /// The maximum size in bytes of frames that are copied, so that the device keeps its own pages.
    Copybreak(usize),
}

use Number::{
    Copybreak, DevWeight, FlowLimitTableLen, LocalPageCache, LpcPages, NetdevBudget, NetdevBudgetUsecs,
    NetdevMaxBacklog,
};

pub(super) const SYSCTLS: &[(&str, Number)] = &[
    ("dev_weight", DevWeight),
    ("flow_limit_table_len", FlowLimitTableLen),
    ("netdev_budget", NetdevBudget),
    ("netdev_budget_usecs", NetdevBudgetUsecs),
    ("netdev_max_backlog", NetdevMaxBacklog),
];

impl Number {
    fn of(self, limits: Limits) -> usize {
        match self {
            DevWeight => limits.dev_weight,
            FlowLimitTableLen => limits.flow_limit_table_len,
            NetdevBudget => limits.budget,
            NetdevBudgetUsecs => limits.budget_time.as_micros() as usize,
            _ => limits.backlog,
        }
    }

    fn set(self, limits: &mut Limits, value: usize) {
        match self {
            DevWeight => limits.dev_weight = value,
            FlowLimitTableLen => limits.flow_limit_table_len = value,
            NetdevBudget => limits.budget = value,
            NetdevBudgetUsecs => limits.budget_time = Duration::from_micros(value as u64),
            _ => limits.backlog = value,
        }
    }

    /// Returns the smallest and the largest value. If the largest value is `usize::MAX`, only
    /// memory limits the number.
    fn range(self) -> (usize, usize) {
        match self {
            DevWeight | FlowLimitTableLen | NetdevBudget | NetdevMaxBacklog => (1, usize::MAX),
            NetdevBudgetUsecs | LpcPages(_) | Copybreak(_) => (0, usize::MAX),
            LocalPageCache(_) => (0, 1),
        }
    }
}

impl Tree {
    pub(super) fn number(&self, which: Number) -> usize {
        match which {
            LocalPageCache(device) => {
                let kept = |queue: &usize| self.queue_limits(*queue, |_| {}).lpc_pages > 0;
                usize::from(self.devices[device].queues.iter().any(kept))
            }
            LpcPages(queue) => self.queue_limits(queue, |_| {}).lpc_pages,
            Copybreak(queue) => self.queue_limits(queue, |_| {}).copybreak,
            of_all => of_all.of(self.handle.limits()),
        }
    }

    fn set_number(&self, which: Number, value: usize) -> Result<(), AttributeError> {
        match which {
            LocalPageCache(device) => {
                let by_default = self.default_lpc_pages();
                for queue in &self.devices[device].queues {
                    // Writing 1 does not change the size of a cache that is on.
                    self.queue_limits(*queue, |limits| match (value, limits.lpc_pages) {
                        (0, _) => limits.lpc_pages = 0,
                        (_, 0) => limits.lpc_pages = by_default,
                        _ => {}
                    });
                }
            }
            LpcPages(queue) => drop(self.queue_limits(queue, |limits| limits.lpc_pages = value)),
            Copybreak(queue) => {
                let set = self.handle.set_queue_limits(queue, |limits| limits.copybreak = value);
                set.map_err(|error| AttributeError::new(ErrorCode::NotSupported, error.to_string()))?;
            }
            of_all => drop(self.handle.set_limits(|limits| of_all.set(limits, value))),
        }
        Ok(())
    }

    fn default_lpc_pages(&self) -> usize {
        let now = self.handle.snapshot();
        let of = |cpu: CpuId| now.queues.iter().filter(|queue| queue.cpu == cpu).count();
        let per_cpu = now.queues.iter().map(|queue| of(queue.cpu)).max().unwrap_or(0);
        LpcMemory::default_pages(now.queues.len(), per_cpu, now.page_bytes as usize, now.memory.cap)
    }

    pub(super) fn lpc_bytes(&self, queues: &[usize]) -> u64 {
        let page_bytes = self.handle.snapshot().page_bytes as usize;
        let of = |queue: &usize| LpcMemory { queues: 1, lpc_pages: self.number(LpcPages(*queue)), page_bytes }.bytes();
        queues.iter().map(of).sum()
    }

    fn queue_limits(&self, queue: usize, change: impl FnMut(&mut QueueLimits)) -> QueueLimits {
        self.handle.set_queue_limits(queue, change).expect("the tree has no queue but the instance's")
    }

    /// Stores a number. If the number is too large, the write succeeds, as in the kernel, and a
    /// later read returns the largest number that the instance supports.
    pub(super) fn store_number(&self, which: Number, text: &str) -> Result<Option<Change>, AttributeError> {
        let (least, most) = which.range();
        let value = number(text).and_then(|number| usize::try_from(number).ok());
        let Some(value) = value.filter(|value| (least..=most).contains(value)) else {
            let range = if most == usize::MAX { "on".to_owned() } else { format!("to {most}") };
            return Err(AttributeError::invalid(format!("it is a number from {least} {range}")));
        };
        if which == FlowLimitTableLen && !value.is_power_of_two() {
            return Err(AttributeError::invalid("it is a power of two"));
        }
        let old = self.number(which);
        let seconds = self.set_and_settle(&old, &value, |value| self.set_number(which, *value))?;
        let (from, to) = (old.to_string(), self.number(which).to_string());
        Ok((from != to).then_some(Change { from, to, buckets: 0, seconds }))
    }

    pub(super) fn store_receiver(&self, queue: usize, text: &str) -> Result<Option<Change>, AttributeError> {
        let asked = number(text).and_then(|number| u16::try_from(number).ok()).map(CpuId);
        let Some(cpu) = asked.filter(|cpu| self.cpus().contains(*cpu)) else {
            return Err(AttributeError::invalid(format!("it is the number of one of the CPUs {}", self.cpus())));
        };
        let polled_by = || self.handle.snapshot().queues[queue].cpu;
        let from = polled_by();
        let set = |cpu: &CpuId| self.handle.set_rx_cpu(queue, *cpu).map_err(AttributeError::invalid);
        let seconds = self.set_and_settle(&from, &cpu, set)?;
        if polled_by() != cpu {
            return Err(AttributeError::new(ErrorCode::Busy, format!("CPU {cpu} is in its handler; try again")));
        }
        Ok((from != cpu).then_some(Change { from: from.to_string(), to: cpu.to_string(), buckets: 0, seconds }))
    }
}

/// Parses an `int` as the kernel does. Leading white space is skipped. A number with `0x` is
/// hexadecimal, with a leading `0` octal, and otherwise decimal. Text after further white space is
/// ignored.
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
    // `from_str_radix` would accept a second sign.
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
