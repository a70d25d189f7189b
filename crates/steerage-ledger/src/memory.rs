use steerage_mem::Supply;

/// The parts of an instance's packet memory, in bytes. The kernel provides most of this memory at
/// first use.
///
/// ```
/// # mod steerage { pub mod stats { pub use steerage_ledger::*; } }
/// use steerage::stats::Snapshot;
///
/// /// Says how many packets may wait for a CPU, and whether more memory would allow more of them.
/// fn backlog(now: &Snapshot) -> String {
///     let memory = &now.memory;
///     match memory.backlog < memory.backlog_asked {
///         true => format!("{} packets per CPU: {} bytes allow no more", memory.backlog, memory.cap),
///         false => format!("{} packets per CPU", memory.backlog),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct MemoryUse {
    /// Pages for the packets that wait for CPUs.
    pub backlogs: u64,
    /// Pages for the packets of moving buckets, in parking lots.
    pub parked: u64,
    /// Pages for the packets that handlers keep.
    pub kept: u64,
    /// Pages in the local page caches. For a single queue that receives into pages, this is 0,
    /// because its cache needs no pages beyond those of the backlogs.
    pub caches: u64,
    /// Pages of devices, outputs and created packets, and 64 pages per queue for the frames of one
    /// poll.
    pub others: u64,
    /// The memory of the rings, the parking lots and the fragment tables.
    pub rings: u64,
    /// The blocks of memory that devices provide.
    pub lent: u64,
    /// The limit on the total packet memory of the instance.
    pub cap: u64,
    /// The number of packets that may wait for one CPU, as limited by the CPU's share of the
    /// memory.
    pub backlog: u64,
    /// The backlog limit that the user requested at the start, in packets.
    pub backlog_asked: u64,
    /// The largest backlog limit, in packets, that can be set while the instance runs.
    pub backlog_max: u64,
}

impl MemoryUse {
    /// Computes the memory use of an instance whose devices provide `lent` bytes of memory.
    pub fn of(supply: &Supply, lent: u64) -> Self {
        let (budget, page) = (supply.budget(), supply.region().page_bytes() as u64);
        let bytes = |pages: usize| pages as u64 * page;
        let cached = bytes(budget.cached_pages);
        let (backlogs, parked, kept) =
            (bytes(budget.backlog_pages), bytes(budget.parked_pages), bytes(budget.kept_pages));
        Self {
            backlogs,
            parked,
            kept,
            caches: cached,
            others: bytes(budget.pages).saturating_sub(backlogs + parked + kept + cached),
            rings: budget.bytes.saturating_sub(bytes(budget.pages)),
            lent,
            cap: supply.cap(),
            backlog: budget.backlog as u64,
            backlog_asked: supply.backlog_asked() as u64,
            backlog_max: supply.backlog_max() as u64,
        }
    }

    /// Returns the total packet memory, in bytes.
    pub fn bytes(&self) -> u64 {
        self.backlogs + self.parked + self.kept + self.caches + self.others + self.rings + self.lent
    }
}
