//! The options of `steerage forward`.

use clap::Args;

use super::RunArgs;
use steerage_router::kernel::Route;

#[derive(Debug, Args)]
pub(crate) struct ForwardArgs {
    /// Route to use instead of the kernel's routes; can be repeated
    #[arg(long, value_name = "ROUTE", action = clap::ArgAction::Append)]
    pub(crate) route: Vec<Route>,

    /// Merge consecutive segments of a TCP or UDP flow before they are routed, for bulk transfers
    #[arg(hide_short_help = true, long)]
    pub(crate) gro: bool,

    #[command(flatten)]
    pub(crate) run: RunArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SilenceKernelArgs {
    /// Interfaces whose packets forward forwards
    #[arg(value_name = "IFACE", required = true)]
    pub(crate) interfaces: Vec<String>,
}
