//! The options of `steerage count`.

use clap::Args;

use super::RunArgs;

#[derive(Debug, Args)]
pub(crate) struct CountArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
}
