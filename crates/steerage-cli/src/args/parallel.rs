//! The options of `steerage parallel`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use steerage::limits::OUTPUTS_MAX;
use steerage_apps::parallel::Together;
use steerage_device::capture::Pace;

use super::run::StopArgs;
use super::values::{duration, number};
use super::{HashArgs, LiveArgs, MemoryArgs, SandboxArgs};

pub(super) const PARALLEL_HELP: &str = "\
Each job is a copy of COMMAND that reads a capture with whole flows from its standard input. A
command that cannot read it there names {fifo}, a named pipe, {file}, a file that is complete
before the job starts, or {tap}, an interface of its own (live input only). {n} is the job's
number from 1 on and {jobs} how many there are; so are STEERAGE_JOB and STEERAGE_JOBS in the
environment. INPUT is as DEVICE for count. docs/parallel.md has a table of tools, and says which
analyses change when a capture is split.

Exit status, as of GNU parallel: 0 all jobs went well, 1 to 100 so many failed, 101 more than
that, 255 anything else.

Examples:
  steerage parallel big.pcap -- tshark -n -r - -T fields -e ip.src -e dns.qry.name
  steerage parallel big.pcap -j 8 --results out -- zeek -C -r -
  steerage parallel big.pcap --results out -- nfpcapd -r {file} -w .
  steerage parallel eth1 -j 4 --strip-tunnels -- tcpdump -n -r - -w part{n}.pcap";

#[derive(Debug, Args)]
pub(crate) struct ParallelArgs {
    /// Where packets come from
    #[arg(id = "devices", value_name = "INPUT", required = true)]
    pub(crate) inputs: Vec<String>,

    /// What each job runs
    #[arg(id = "job", value_name = "COMMAND", required = true, last = true)]
    pub(crate) command: Vec<OsString>,

    #[command(flatten)]
    pub(crate) jobs: JobArgs,
    #[command(flatten)]
    pub(crate) split: SplitArgs,
    #[command(flatten)]
    pub(crate) output: JobOutputArgs,

    /// Read files as fast as they were recorded, or FACTOR times that
    #[arg(long, value_name = "FACTOR", num_args = 0..=1, default_missing_value = "1", allow_negative_numbers = true)]
    pub(crate) pace: Option<Pace>,

    #[command(flatten)]
    pub(crate) live: LiveArgs,
    #[command(flatten)]
    pub(crate) hash: HashArgs,
    #[command(flatten)]
    pub(crate) memory: MemoryArgs,
    #[command(flatten)]
    pub(crate) stop: StopArgs,
    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

#[derive(Debug, Args)]
pub(crate) struct StartWhenToldArgs {
    /// What to start
    #[arg(value_name = "COMMAND", required = true, last = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Jobs")]
pub(crate) struct JobArgs {
    /// How many jobs [default: the CPUs that this process may use]
    #[arg(short = 'j', long, value_name = "N", allow_negative_numbers = true,
        value_parser = |text: &str| number(text, OUTPUTS_MAX))]
    pub(crate) jobs: Option<usize>,

    /// Kill a job that reads nothing for so long while there is something
    /// to read [default: only name it, after 30 s]
    #[arg(long, value_name = "DURATION", verbatim_doc_comment, value_parser = duration)]
    pub(crate) job_timeout: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Packets")]
pub(crate) struct SplitArgs {
    /// What goes to the same job: flow (both directions), hosts (all
    /// between two addresses), source, destination
    #[arg(long, value_name = "KEY", default_value = "flow", hide_default_value = true, hide_possible_values = true,
        verbatim_doc_comment, value_parser = together())]
    pub(crate) key: Together,

    /// Hand on the inner frame of VXLAN, Geneve, GRE and MPLS
    #[arg(long)]
    pub(crate) strip_tunnels: bool,

    /// What jobs read: pcap (microseconds), pcap-ns (nanoseconds) or
    /// pcapng (as the input) [default: as the input; pcap-ns from
    /// interfaces and pipes]
    #[arg(long, value_name = "FORMAT", value_enum, hide_possible_values = true, verbatim_doc_comment)]
    pub(crate) format: Option<FormatArg>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct JobOutputArgs {
    /// Begin each line with the job's number and a tab
    #[arg(long, conflicts_with_all = ["no_merge", "results"])]
    pub(crate) tag: bool,

    /// The output of job 1 first, then that of job 2, and so on
    #[arg(short, long, conflicts_with_all = ["no_merge", "results"])]
    pub(crate) keep_order: bool,

    /// Leave standard output to the jobs: lines may mix
    #[arg(long, conflicts_with = "results")]
    pub(crate) no_merge: bool,

    /// Write DIR/N/stdout and DIR/N/stderr for job N, which runs in DIR/N
    #[arg(long, value_name = "DIR")]
    pub(crate) results: Option<PathBuf>,

    /// Summarize as one line of JSON, on standard error: see docs/parallel.md
    #[arg(long)]
    pub(crate) json: bool,

    /// Nothing on standard error but errors and what the jobs write
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// The format of what jobs read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatArg {
    Pcap,
    PcapNs,
    Pcapng,
}

fn together() -> impl TypedValueParser<Value = Together> {
    PossibleValuesParser::new(Together::ALL.map(|(name, _)| name)).try_map(|name| name.parse())
}
