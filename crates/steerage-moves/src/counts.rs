use std::fmt;

/// The reason why a bucket moved to another CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum MoveCause {
    /// A user wrote a mask.
    Mask,
    /// The bucket's CPU was declared dead.
    CpuDied,
    /// A CPU that was declared dead or was offline can be used again.
    CpuBack,
    /// The bucket's CPU went offline, or this process is no longer allowed to use that CPU.
    CpuOffline,
    /// A CPU got its first buckets, because the CPUs that had buckets were busy all of the time.
    Joined,
    /// A CPU gave up its buckets, because the other CPUs have time or because this CPU did not
    /// increase the throughput.
    Left,
    /// One CPU was busier than another CPU.
    Balance,
}

impl MoveCause {
    /// All causes.
    pub const ALL: [Self; 7] =
        [Self::Mask, Self::CpuDied, Self::CpuBack, Self::CpuOffline, Self::Joined, Self::Left, Self::Balance];

    /// Returns the name that reports and metrics use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mask => "mask",
            Self::CpuDied => "cpu_died",
            Self::CpuBack => "cpu_back",
            Self::CpuOffline => "cpu_offline",
            Self::Joined => "joined",
            Self::Left => "left",
            Self::Balance => "balance",
        }
    }
}

impl fmt::Display for MoveCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The counts of moves.
///
/// ```
/// use steerage_moves::{MoveCause, MoveCounts};
///
/// let mut moves = MoveCounts::default();
/// moves.count(MoveCause::Joined, 512);
/// assert_eq!((moves.buckets, moves.of(MoveCause::Joined), moves.of(MoveCause::Left)), (512, 512, 0));
/// assert_eq!(format!("{moves:?}"), "MoveCounts { buckets: 512, slices: 0, joined: 512 }");
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MoveCounts {
    /// The number of buckets that have moved to another CPU.
    pub buckets: u64,
    /// The number of slices in which the buckets have moved.
    pub slices: u64,
    by_cause: [u64; MoveCause::ALL.len()],
}

impl MoveCounts {
    /// Returns how many buckets have moved for the reason `cause`.
    pub fn of(&self, cause: MoveCause) -> u64 {
        self.by_cause[cause as usize]
    }

    /// Counts that `buckets` buckets have moved for the reason `cause`.
    pub fn count(&mut self, cause: MoveCause, buckets: u64) {
        self.buckets += buckets;
        self.by_cause[cause as usize] += buckets;
    }
}

/// Prints only those causes for which buckets have moved.
impl fmt::Debug for MoveCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("MoveCounts");
        debug.field("buckets", &self.buckets).field("slices", &self.slices);
        MoveCause::ALL.into_iter().filter(|cause| self.of(*cause) > 0).for_each(|cause| {
            debug.field(cause.name(), &self.of(cause));
        });
        debug.finish()
    }
}
