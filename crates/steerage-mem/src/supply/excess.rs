use std::error::Error;
use std::fmt;

use super::budget::{Budget, Needs};

/// The packet memory exceeds its limit even with the shortest possible backlogs.
///
/// ```
/// use steerage_mem::supply::{Excess, ExcessCause};
///
/// let cause = ExcessCause::Devices { bytes: 3 << 30 };
/// let error = Excess { needed: 4 << 30, limit: 1 << 30, cause };
/// assert!(error.to_string().starts_with("packet memory takes at least 4294967296 bytes, and memory_max is 1073741824:"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// The smallest possible size of the packet memory, in bytes.
    pub needed: u64,
    /// The limit on the packet memory, in bytes.
    pub limit: u64,
    /// The use that takes most of the packet memory.
    pub cause: ExcessCause,
}

/// The use that takes most of the packet memory, as the cause of an [`Excess`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExcessCause {
    /// Packets that handlers may keep.
    KeptMax {
        /// The number of packets of each queue that handlers may keep.
        kept_max: usize,
        /// The memory for all kept packets, in bytes.
        bytes: u64,
        /// The largest number of kept packets of each queue that would fit.
        fits: usize,
    },
    /// Frames that wait for CPUs, and their rings.
    Backlogs {
        /// The number of receive queues.
        queues: usize,
        /// The number of CPUs.
        cpus: usize,
        /// The length of the shortest backlog, in frames.
        backlog: usize,
        /// The memory for the waiting frames and their rings, in bytes.
        bytes: u64,
    },
    /// Pages that do not depend on the backlog: in rings of devices, and for handlers' own packets.
    Pages {
        /// The size of the pages, in bytes.
        bytes: u64,
    },
    /// The memory of devices, such as the rings of AF_PACKET.
    Devices {
        /// The size of the devices' memory, in bytes.
        bytes: u64,
    },
}

impl ExcessCause {
    fn bytes(&self) -> u64 {
        match self {
            Self::KeptMax { bytes, .. }
            | Self::Backlogs { bytes, .. }
            | Self::Pages { bytes }
            | Self::Devices { bytes } => *bytes,
        }
    }
}

impl fmt::Display for ExcessCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::KeptMax { kept_max, bytes, fits } => {
                write!(f, "a kept_max of {kept_max} takes {bytes} bytes: use at most {fits}, or raise memory_max")
            }
            Self::Backlogs { queues, cpus, backlog, bytes } => write!(
                f,
                "{queues} queue(s) x {cpus} CPU(s) x a backlog of {backlog} take {bytes} bytes: \
                 use fewer CPUs or queues, or raise memory_max"
            ),
            Self::Pages { bytes } => write!(
                f,
                "the pages that each CPU, queue and output needs take {bytes} bytes: use fewer of them, \
                 shorter rings or a smaller originated_max, or raise memory_max"
            ),
            Self::Devices { bytes } => {
                write!(f, "the devices' own memory takes {bytes} bytes: use smaller rings, or raise memory_max")
            }
        }
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needed, limit, cause } = self;
        write!(f, "packet memory takes at least {needed} bytes, and memory_max is {limit}: {cause}")
    }
}

impl Error for Excess {}

impl Needs {
    /// Checks that `limit` bytes suffice for the memory of `budget` and for `lent` bytes of device
    /// memory.
    ///
    /// # Errors
    /// [`Excess`] if the memory does not fit. The error names the largest part of the memory.
    pub fn check(&self, budget: &Budget, lent: u64, limit: u64) -> Result<(), Excess> {
        let needed = budget.bytes.saturating_add(lent);
        if needed <= limit { Ok(()) } else { Err(Excess { needed, limit, cause: self.most(budget, lent, limit) }) }
    }

    fn most(&self, budget: &Budget, lent: u64, limit: u64) -> ExcessCause {
        let bytes = |pages: usize| (pages as u64).saturating_mul(self.page_bytes as u64);
        let Budget { backlog_pages, parked_pages, kept_pages, cached_pages, pages, .. } = *budget;
        let waiting = backlog_pages.saturating_add(parked_pages).saturating_add(cached_pages);
        let rest = pages.saturating_sub(waiting).saturating_sub(kept_pages);
        let (queues, cpus, backlog) = (self.queues.len(), self.cpus, budget.backlog);
        let causes = [
            ExcessCause::Pages { bytes: bytes(rest).saturating_add(self.other_bytes as u64) },
            ExcessCause::Devices { bytes: lent },
            ExcessCause::Backlogs { queues, cpus, backlog, bytes: bytes(waiting).saturating_add(budget.ring_bytes) },
            ExcessCause::KeptMax { kept_max: self.kept_max, bytes: bytes(kept_pages), fits: 0 },
        ];
        match causes.into_iter().max_by_key(ExcessCause::bytes) {
            // If the backlog was made shorter, `budget.kept_max` is below the requested `kept_max`.
            Some(ExcessCause::KeptMax { kept_max, .. }) => {
                let left = limit.saturating_sub(lent);
                let others = Self { kept_max: 0, ..self.clone() }.within(left, self.backlog).bytes;
                let of_one = bytes(self.queues.iter().map(|queue| queue.segments).sum());
                let fits = left.saturating_sub(others) / of_one.max(1);
                ExcessCause::KeptMax { kept_max, bytes: of_one.saturating_mul(kept_max as u64), fits: fits as usize }
            }
            most => most.unwrap_or(ExcessCause::Devices { bytes: lent }),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::QueueNeeds;
    use super::*;

    const GIB: u64 = 1 << 30;
    const PAGE: u64 = 2112;

    fn needs() -> Needs {
        Needs {
            cpus: 2,
            queues: vec![QueueNeeds { segments: 1, lends: false, waits: false, caches: false, fixed: 192 }; 2],
            backlog: 1000,
            lot_slots: 1024,
            kept_max: 1024,
            cache_pages: 0,
            page_bytes: PAGE as usize,
            slot_bytes: 16,
            other_pages: 256,
            other_bytes: 0,
        }
    }

    #[test]
    fn a_kept_max_that_is_too_large_is_named_and_the_largest_that_fits_fits() {
        let kept = |kept_max| Needs { kept_max, ..needs() };
        let check = |needs: Needs| needs.check(&needs.within(GIB, 1000), 0, GIB);
        let error = check(kept(1 << 40)).unwrap_err();
        let ExcessCause::KeptMax { kept_max, bytes, fits } = error.cause else { panic!("{error}") };
        assert_eq!((kept_max, bytes), (1 << 40, (2 * PAGE) << 40));
        let full = |kept_max| kept(kept_max).with_backlog(1000).bytes;
        assert!(full(fits) <= GIB && full(fits + 1) > GIB, "{fits}");
        assert_eq!(kept(fits).within(GIB, 1000).backlog, 1000, "no backlog is shorter");
        assert!(
            error.to_string().contains(&format!("a kept_max of {kept_max} takes {bytes} bytes: use at most {fits}"))
        );
        let huge = check(kept(usize::MAX)).unwrap_err();
        assert!(matches!(huge.cause, ExcessCause::KeptMax { bytes: u64::MAX, .. }), "{huge}");
    }

    #[test]
    fn the_largest_part_is_the_cause() {
        let check = |needs: Needs, lent, limit: u64| needs.check(&needs.within(limit, 1000), lent, limit);
        let cause = |needs: Needs, lent, limit| check(needs, lent, limit).unwrap_err().cause;
        assert_eq!(check(needs(), GIB / 2, GIB), Ok(()));
        let many = Needs { cpus: 1024, queues: vec![needs().queues[0]; 256], ..needs() };
        assert!(matches!(cause(many, 0, 1 << 20), ExcessCause::Backlogs { queues: 256, cpus: 1024, backlog: 64, .. }));
        assert_eq!(cause(needs(), 2 * GIB, GIB), ExcessCause::Devices { bytes: 2 * GIB });
        let sends = Needs { other_pages: 1 << 20, ..needs() };
        assert_eq!(cause(sends, 0, GIB), ExcessCause::Pages { bytes: ((1 << 20) + 2 * 192) * PAGE });
    }
}
