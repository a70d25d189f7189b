//! What `explain` can be told.

use clap::Args;

use super::{HashArgs, packets};

pub(super) const EXPLAIN_HELP: &str = "\
Of a flow: its key, hash and bucket, and its CPU among 2, 4, 8 and more. Of a capture or of
synthetic traffic: the same for one packet, with the headers that made the key; the share that
the busiest CPU would have; the largest flows; and what keeps traffic from spreading.

Examples:
  steerage explain 'tcp 10.0.0.1:5 > 10.0.0.2:80'
  steerage explain capture.pcap                  is this traffic spreadable?
  steerage explain capture.pcap --packet 17      why did that packet go there?
  steerage explain capture.pcap --outer          the same if tunnels stay together";

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// A flow such as 'tcp 10.0.0.1:5 > 10.0.0.2:80', or where packets come from
    #[arg(value_name = "FLOW|DEVICE", required = true)]
    pub(crate) what: Vec<String>,

    /// Look closely at the Nth packet, from 1
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = packets)]
    pub(crate) packet: u64,

    /// Show the N largest flows
    #[arg(short = 'n', long, value_name = "N", default_value_t = 5)]
    pub(crate) top: usize,

    /// Look at the first N packets only
    #[arg(short = 'c', long, value_name = "N", allow_negative_numbers = true, value_parser = packets)]
    pub(crate) packets: Option<u64>,

    /// Explain in one line of JSON: see docs/explain.md
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) hash: HashArgs,
}
