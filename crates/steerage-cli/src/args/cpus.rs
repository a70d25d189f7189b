//! The options that choose CPUs: which work, which receive, and how packets are spread over them.

use clap::Args;
use clap::builder::PossibleValuesParser;
use steerage::limits::CPUS_MAX;

use super::values::number;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "CPUs")]
pub(crate) struct CpuArgs {
    /// CPUs that handle packets, such as 0-3,8 [default: all that this process may use]
    #[arg(long, value_name = "LIST")]
    pub(crate) cpus: Option<String>,

    /// CPUs that receive; the queues go to them in turn [default: as --cpus]
    #[arg(hide_short_help = true, long, value_name = "LIST")]
    pub(crate) rx_cpu: Option<String>,

    /// CPUs that packets are spread over, as a hexadecimal mask [default: as --cpus]
    ///
    /// CPUs that packets are spread over, as a hexadecimal mask like the kernel's rps_cpus; 0 means
    /// no steering [default: as --cpus]. Repeat it to give queues masks of their own: rx-0=MASK, or
    /// eth1/rx-0=MASK if there are several devices
    #[arg(long, value_name = "MASK", conflicts_with = "rps_cpus_list")]
    pub(crate) rps_cpus: Vec<String>,

    /// The same as --rps-cpus, as a list such as 0-3,8
    #[arg(hide_short_help = true, long, value_name = "LIST")]
    pub(crate) rps_cpus_list: Vec<String>,

    /// How flows are placed: balance, hash or dry-run [default: balance]
    ///
    /// How flows are placed: balance adds and removes CPUs as the load changes; hash uses all CPUs
    /// alike, as Linux does; dry-run works like hash and reports what balance would move [default:
    /// balance]
    #[arg(hide_short_help = true, long, value_name = "POLICY", default_value = "balance", hide_possible_values = true, hide_default_value = true,
        value_parser = PossibleValuesParser::new(steerage::policy::POLICIES))]
    pub(crate) policy: String,

    /// For tests: act as a machine with N CPUs, with a thread for each
    #[arg(hide_short_help = true, long, value_name = "N", allow_negative_numbers = true,
        value_parser = |text: &str| number(text, CPUS_MAX))]
    pub(crate) virtual_cpus: Option<usize>,
}

/// The mask for no steering.
const NO_STEERING: &str = "0";

impl CpuArgs {
    /// Leaves packets to the CPU that receives them, unless the command line has a mask.
    pub(crate) fn unsteered_by_default(&mut self) {
        if self.rps_cpus.is_empty() && self.rps_cpus_list.is_empty() {
            self.rps_cpus = vec![NO_STEERING.to_owned()];
        }
    }
}
