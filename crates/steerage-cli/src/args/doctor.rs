//! The options of `steerage doctor`.

use clap::Args;

use super::SandboxArgs;

pub(super) const DOCTOR_HELP: &str = "\
A line for each thing looked at: `ok`, `lack` or, good to know, `-`. What mends a lack stands at
the end of its line. It only reads, and changes nothing. docs/doctor.md has every line.

Examples:
  steerage doctor                  of the machine
  steerage doctor eth1             and of an interface: offloads, queues, XDP
  sudo steerage doctor             what root could do
  steerage doctor --json | jq -r '.findings[] | select(.state == \"lack\") | .mend'";

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// An interface to look at as well
    #[arg(value_name = "IFACE")]
    pub(crate) interface: Option<String>,

    /// Tell it in one line of JSON: see docs/doctor.md
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}
