//! The options of `steerage fanout`.

use clap::Args;

use super::RunArgs;

#[derive(Debug, Args)]
pub(crate) struct FanoutArgs {
    /// Output, such as pcap:FILE; each flow goes to one of the outputs
    #[arg(long, value_name = "OUTPUT", required = true, action = clap::ArgAction::Append)]
    pub(crate) to: Vec<String>,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}
