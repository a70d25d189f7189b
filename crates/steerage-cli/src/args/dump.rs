//! The options of `steerage dump`.

use clap::Args;
use steerage::CpuMask;
use steerage::limits::CPUS_MAX;

use super::SandboxArgs;
use super::values::{number, packets};

#[derive(Debug, Args)]
pub(crate) struct DumpArgs {
    /// Which run: its process number, name or socket
    #[arg(value_name = "PID|NAME|PATH")]
    pub(crate) run: String,

    /// tcpdump filter, such as udp port 53 [default: all packets]
    #[arg(value_name = "EXPR")]
    pub(crate) filter: Vec<String>,

    /// Write pcapng to FILE, or - for standard output, instead of a line for each packet
    #[arg(short = 'w', long = "write", value_name = "FILE")]
    pub(crate) write: Option<String>,

    /// Only packets that these CPUs handle, such as 0-3,8
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    pub(crate) cpu: Option<CpuMask>,

    /// Only packets of these receive queues, with commas between them, numbered as in the report
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub(crate) queue: Vec<usize>,

    /// Packets as they are after the packet function, which may have changed them
    #[arg(long)]
    pub(crate) after: bool,

    /// One packet of every N
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = packets)]
    pub(crate) sample: u64,

    /// At most N bytes of each packet
    #[arg(short = 's', long, value_name = "N", default_value_t = SNAP_MAX, allow_negative_numbers = true,
        value_parser = |text: &str| number(text, SNAP_MAX))]
    pub(crate) snap: usize,

    /// End after N packets
    #[arg(short = 'c', long, value_name = "N", allow_negative_numbers = true, value_parser = packets)]
    pub(crate) packets: Option<u64>,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

/// tcpdump's maximum, which is longer than any frame.
const SNAP_MAX: usize = 262_144;

fn cpus(text: &str) -> Result<CpuMask, String> {
    let cpus = CpuMask::parse_list(text, CPUS_MAX).map_err(|error| error.to_string())?;
    if cpus.is_empty() { Err("write such as 0-3,8".to_owned()) } else { Ok(cpus) }
}
