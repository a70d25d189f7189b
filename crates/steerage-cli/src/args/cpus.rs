//! The options that choose CPUs: which work, which receive, and how packets are spread over them.

use clap::Args;
use clap::builder::PossibleValuesParser;
use steerage::limits::CPUS_MAX;

use super::values::number;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "CPUs")]
pub(crate) struct CpuArgs {
    /// CPUs that work [default: those this process may use]
    #[arg(long, value_name = "LIST")]
    pub(crate) cpus: Option<String>,

    /// CPUs that poll the receive queues, in turn [default: --cpus]
    #[arg(long, value_name = "LIST")]
    pub(crate) rx_cpu: Option<String>,

    /// CPUs that packets are spread over [default: --cpus]; 0: no
    /// steering. Can be repeated, for queues with masks of their own:
    /// rx-0=MASK, or eth1/rx-0=MASK if there are several devices
    #[arg(long, value_name = "MASK", conflicts_with = "rps_cpus_list", verbatim_doc_comment)]
    pub(crate) rps_cpus: Vec<String>,

    /// The same, as lists
    #[arg(long, value_name = "LIST")]
    pub(crate) rps_cpus_list: Vec<String>,

    /// How they are used: balance, as load asks for it; hash, all of
    /// them alike, as in Linux; dry-run, as hash, telling what balance
    /// would move [default: balance]
    #[arg(long, value_name = "POLICY", default_value = "balance", hide_possible_values = true, hide_default_value = true,
        value_parser = PossibleValuesParser::new(steerage::policy::POLICIES), verbatim_doc_comment)]
    pub(crate) policy: String,

    /// Be a machine of N CPUs, with a thread for each: for tests
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = |text: &str| number(text, CPUS_MAX))]
    pub(crate) virtual_cpus: Option<usize>,
}
