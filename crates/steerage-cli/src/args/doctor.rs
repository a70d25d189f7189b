//! The options of `steerage doctor`.

use clap::Args;

use super::SandboxArgs;

pub(super) const DOCTOR_HELP: &str = "\
Each line begins with `ok`, `missing`, or - for information. A missing item has the command that enables \
it at the end of its line. doctor only reads, and changes nothing. `steerage help doctor` explains every line.

Examples:
  steerage doctor              the machine
  steerage doctor eth1         and an interface: offloads, queues, XDP
  sudo steerage doctor         what root could do
  steerage doctor --json | jq '.findings[] | select(.state == \"missing\") | .fix'";

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
