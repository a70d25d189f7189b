//! The options of `steerage doctor`.

use clap::Args;

use super::SandboxArgs;

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Interface to check as well
    #[arg(value_name = "IFACE")]
    pub(crate) interface: Option<String>,

    /// Print the findings as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}
