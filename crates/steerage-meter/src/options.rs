use std::time::Duration;

use steerage::WallTime;
use steerage::flow::Layers;

/// The default active timeout, as in nfpcapd: a flow that lasts longer gets another record.
pub const ACTIVE_DEFAULT: Duration = Duration::from_secs(300);

/// The default inactive timeout, as in nfpcapd: the longest pause between two packets of a flow.
pub const INACTIVE_DEFAULT: Duration = Duration::from_secs(60);

/// The default limit for the number of flows (270 MB).
pub const FLOWS_DEFAULT: usize = 1 << 20;

/// The highest limit for the number of flows (4 GB). 32-bit hashes still distinguish this number of
/// flows.
pub const FLOWS_MAX: usize = 1 << 24;

/// The options of a meter.
#[derive(Clone, Copy, Debug)]
pub struct MeterOptions {
    /// The active timeout: a flow that lasts longer gets another record.
    pub active: Duration,
    /// If true, records are cut at the multiples of the active timeout since 1970 (UTC), and not
    /// when this timeout has passed since the first packet of the flow.
    pub active_by_clock: bool,
    /// The inactive timeout: the longest pause between two packets of a flow.
    pub inactive: Duration,
    /// The maximum number of current flows on all CPUs together.
    pub flows_max: usize,
    /// The number of records in the report, which are those with the most bytes.
    pub top: usize,
    /// Whether a tunnel's outer or inner headers define the flow, as for steering.
    pub layers: Layers,
    /// The wall time at which the receive path's clock began, for packets without a timestamp.
    pub epoch: WallTime,
    /// True if the packet source can wait. If false, flows time out even while no packets arrive.
    pub can_wait: bool,
    /// One of every `sample` flows is metered, with all of its packets. The selection is random,
    /// and the same on all CPUs.
    pub sample: u32,
    /// If true, DNS, TLS and HTTP packets are searched for names.
    pub names: bool,
    /// If true, the flow statistics of [`ColumnBatch::cic`](super::ColumnBatch::cic) are collected,
    /// in up to 900 more bytes per flow.
    pub cic: bool,
}

impl Default for MeterOptions {
    fn default() -> Self {
        Self {
            active: ACTIVE_DEFAULT,
            active_by_clock: false,
            inactive: INACTIVE_DEFAULT,
            flows_max: FLOWS_DEFAULT,
            top: 10,
            layers: Layers::Inner,
            epoch: WallTime::from_nanos(0),
            can_wait: true,
            sample: 1,
            names: false,
            cic: false,
        }
    }
}
