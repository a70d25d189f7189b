//! The command line: its commands and options, with the texts of `--help`.
//!
//! Each command has a file with its own options. The options that all commands which receive packets share are in
//! [`RunArgs`], which such a command flattens into its own. `values` holds the parsers that several options use.
//!
//! A doc comment on a field is that option's help, so it is written for the program's users.

mod bench;
mod bench_report;
mod control;
mod count;
mod cpus;
mod doctor;
mod explain;
mod fanout;
mod forward;
mod live;
mod memory;
mod meter;
mod metrics;
mod parallel;
mod respond;
mod route;
mod run;
mod sandbox;
mod send;
mod steering;
mod steering_command;
mod tools;
mod top;
mod values;

use clap::{ArgAction, Parser, Subcommand};

pub(crate) use bench::{Bench, BenchArgs, ExperimentArgs, PathArgs, RrArgs};
pub(crate) use bench_report::BenchReportArgs;
pub(crate) use control::{ControlArgs, GetArgs, SetArgs, ToArgs, UnmountArgs};
pub(crate) use count::CountArgs;
pub(crate) use cpus::CpuArgs;
pub(crate) use doctor::DoctorArgs;
pub(crate) use explain::ExplainArgs;
pub(crate) use fanout::FanoutArgs;
pub(crate) use forward::ForwardArgs;
pub(crate) use live::{DirectionArg, LiveArgs};
pub(crate) use memory::MemoryArgs;
pub(crate) use meter::MeterArgs;
pub(crate) use metrics::MetricsArgs;
pub(crate) use parallel::{FormatArg, ParallelArgs, StartWhenToldArgs};
pub(crate) use respond::{HostArgs, RespondArgs};
pub(crate) use route::{NextHopArg, ROUTE_SYNTAX, RouteArg};
pub(crate) use run::{ReportArgs, RunArgs};
pub(crate) use sandbox::SandboxArgs;
pub(crate) use send::SendArgs;
pub(crate) use steering::{HashArgs, SteeringArgs};
pub(crate) use steering_command::SteeringCommand;
pub(crate) use tools::{CompletionsArgs, ManArgs, RunFileArgs};
pub(crate) use top::TopArgs;

/// Receive packet steering in user space: one busy receive queue spread over
/// many CPUs, flow by flow, in order.
#[derive(Debug, Parser)]
#[command(name = "steerage", version, verbatim_doc_comment, arg_required_else_help = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// Tell what happens on standard error; -vv tells more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  steerage count                     10 s of synthetic traffic over all CPUs
  steerage meter capture.pcap        who talked to whom
  steerage parallel big.pcap -- tshark -n -r -     a tool on all cores
  steerage run traffic.toml          what is written down there
  steerage count --help              every option of a command, with examples

Exit status: 0 it went well, 1 an error, 2 a wrong command line,
3 with --strict a packet that was lost or out of order.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Count packets: what the path itself can do
    #[command(verbatim_doc_comment, after_help = count::COUNT_HELP)]
    Count(CountArgs),

    /// Meter flows: who talked to whom, when and how much
    #[command(verbatim_doc_comment, after_help = meter::METER_HELP)]
    Meter(MeterArgs),

    /// Deal flows out to several outputs, each to one of them
    #[command(verbatim_doc_comment, after_help = fanout::FANOUT_HELP)]
    Fanout(FanoutArgs),

    /// Run a packet tool on all cores, each copy with whole flows
    #[command(verbatim_doc_comment, after_help = parallel::PARALLEL_HELP)]
    Parallel(ParallelArgs),

    /// Forward IPv4 and IPv6 between interfaces, as a router does
    #[command(verbatim_doc_comment, after_help = forward::FORWARD_HELP)]
    Forward(ForwardArgs),

    /// Answer as a host of its own: ping, echo, requests by TCP
    #[command(verbatim_doc_comment, after_help = respond::RESPOND_HELP)]
    Respond(RespondArgs),

    /// Send packets: made up, or from capture files
    #[command(verbatim_doc_comment, after_help = send::SEND_HELP)]
    Send(SendArgs),

    /// Explain where packets go, and whether traffic can be spread
    #[command(verbatim_doc_comment, after_help = explain::EXPLAIN_HELP)]
    Explain(ExplainArgs),

    /// Measure: experiments that were published, on this machine
    #[command(verbatim_doc_comment, after_help = bench::BENCH_HELP)]
    Bench(BenchArgs),

    /// Tell what this machine offers, and what to do about each lack
    #[command(verbatim_doc_comment, after_help = doctor::DOCTOR_HELP)]
    Doctor(DoctorArgs),

    /// Read from a running instance's tree
    #[command(verbatim_doc_comment, after_help = control::GET_HELP)]
    Get(GetArgs),

    /// Change a running instance: its masks, its limits
    #[command(verbatim_doc_comment, after_help = control::SET_HELP)]
    Set(SetArgs),

    /// Watch a running instance: its CPUs, queues and buckets
    #[command(verbatim_doc_comment, after_help = top::TOP_HELP)]
    Top(TopArgs),

    /// Run what is written down in a file
    #[command(verbatim_doc_comment, after_help = tools::RUN_HELP)]
    Run(RunFileArgs),

    /// Check such a file, and tell what it would do
    #[command(verbatim_doc_comment, after_help = tools::CHECK_HELP)]
    Check(RunFileArgs),

    /// Print what has a shell complete the command line
    #[command(verbatim_doc_comment, after_help = tools::COMPLETIONS_HELP)]
    Completions(CompletionsArgs),

    /// Print the manual page, or write those of all commands
    #[command(verbatim_doc_comment, after_help = tools::MAN_HELP)]
    Man(ManArgs),

    /// Take a mounted tree away when standard input ends: what --control starts
    #[command(hide = true)]
    UnmountAtEnd(UnmountArgs),

    /// Become a program once standard input says so: what parallel starts for {file}
    #[command(hide = true)]
    StartWhenTold(StartWhenToldArgs),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    /// Help is read on terminals of 80 to 100 columns, and clap does not wrap it here.
    #[test]
    fn help_fits_a_terminal() {
        let mut command = Cli::command();
        command.build();
        for command in std::iter::once(&mut command.clone()).chain(command.get_subcommands_mut()) {
            let help = command.render_help().to_string();
            for line in help.lines() {
                assert!(line.chars().count() <= 100, "{line}");
            }
        }
    }
}
