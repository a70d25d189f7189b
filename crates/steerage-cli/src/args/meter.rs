//! The options of `steerage meter`.

use std::time::Duration;

use clap::{ArgGroup, Args};
use steerage_meter::{By, ExportRate, FLOWS_DEFAULT, FLOWS_MAX};

use super::RunArgs;
use super::values::{duration, number, period, up_to};

#[derive(Debug, Args)]
pub(crate) struct MeterArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) flows: FlowArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Flows", group = ArgGroup::new("somewhere").multiple(true))]
pub(crate) struct FlowArgs {
    /// Show the N flows with the most bytes
    #[arg(short = 't', long, value_name = "N", default_value_t = 10, allow_negative_numbers = true,
        value_parser = |text: &str| up_to(text, TOP_MAX))]
    pub(crate) top: usize,

    /// Add flows up: by flow, host, port, net (/24, /48) or name (with --names) [default: flow]
    #[arg(hide_short_help = true, long, value_name = "KEY", value_parser = |text: &str| text.parse::<By>())]
    pub(crate) by: Option<By>,

    /// Write all flows to FILE as they end: .csv, .jsonl, .ipfix, or - for standard output
    #[arg(long = "flows", value_name = "FILE", group = "somewhere")]
    pub(crate) file: Option<String>,

    /// Send flows to a collector (ipfix://HOST:PORT) or a file; can be repeated
    #[arg(long, value_name = "WHERE", group = "somewhere")]
    pub(crate) export: Vec<String>,

    /// At most N records per second to a collector, or max [default: 10000 by UDP, max by TCP]
    #[arg(hide_short_help = true, long, value_name = "N", requires = "export",
        value_parser = |text: &str| text.parse::<ExportRate>())]
    pub(crate) export_rate: Option<ExportRate>,

    /// Begin a new file every DURATION of packet time
    #[arg(hide_short_help = true, long, value_name = "DURATION", requires = "somewhere", value_parser = period)]
    pub(crate) rotate: Option<Duration>,

    /// Write a record of a flow that continues for DURATION, and begin another
    #[arg(hide_short_help = true, long, value_name = "DURATION", default_value = "300", value_parser = duration)]
    pub(crate) active: Duration,

    /// End records at the multiples of --active since 1970 (UTC)
    #[arg(hide_short_help = true, long)]
    pub(crate) active_clock: bool,

    /// End a flow that has no packet for DURATION
    #[arg(hide_short_help = true, long, value_name = "DURATION", default_value = "60", value_parser = duration)]
    pub(crate) inactive: Duration,

    /// Most flows at a time; if there are more, the one that is idle longest ends
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = FLOWS_DEFAULT, allow_negative_numbers = true,
        value_parser = |text: &str| number(text, FLOWS_MAX))]
    pub(crate) max_flows: usize,

    /// Meter one flow of every N, with all its packets
    #[arg(hide_short_help = true, long, value_name = "1:N", default_value = "1:1", value_parser = sample)]
    pub(crate) sample: u32,

    /// Look for host names in DNS, TLS and HTTP packets
    #[arg(hide_short_help = true, long)]
    pub(crate) names: bool,
}

/// Parses a share of flows, such as 1:100.
fn sample(text: &str) -> Result<u32, String> {
    let share = text.strip_prefix("1:").and_then(|number| number.parse().ok()).filter(|number| *number > 0);
    share.ok_or_else(|| "write 1:N, such as 1:100 for one flow of a hundred".to_owned())
}

/// The most flows that a report can show. Longer lists belong in a file.
pub(crate) const TOP_MAX: usize = 10_000;
