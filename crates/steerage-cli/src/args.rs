//! The command line: its commands and options, with the texts of `--help`.
//!
//! Each command has a file with its own options. Commands that receive packets flatten [`RunArgs`]
//! into their own. `values` has parsers that several options use.
//!
//! A doc comment on a field is the help of that option. The texts that `--help` prints below the
//! options are the files in `help/`. [`program`] adds what clap cannot derive: the groups of
//! commands, and a short help for `-h`.

mod control;
mod cpus;
mod doctor;
mod dump;
mod explain;
mod fanout;
mod forward;
mod live;
mod memory;
mod meter;
mod metrics;
mod parallel;
mod run;
mod sandbox;
mod send;
mod steering;
mod steering_command;
mod tools;
mod top;
mod tune;
mod values;

use clap::builder::Resettable;
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};

pub(crate) use control::{ControlArgs, GetArgs, SetArgs, ToArgs};
pub(crate) use cpus::CpuArgs;
pub(crate) use doctor::DoctorArgs;
pub(crate) use dump::DumpArgs;
pub(crate) use explain::ExplainArgs;
pub(crate) use fanout::FanoutArgs;
pub(crate) use forward::{ForwardArgs, SilenceKernelArgs};
pub(crate) use live::{LiveArgs, UndoArgs};
pub(crate) use memory::MemoryArgs;
pub(crate) use meter::{MeterArgs, TOP_MAX};
pub(crate) use metrics::{MetricsArgs, WebArgs};
pub(crate) use parallel::{ExecWhenReadyArgs, ParallelArgs};
pub(crate) use run::{HabitArgs, ReportArgs, RunArgs};
pub(crate) use sandbox::SandboxArgs;
pub(crate) use send::SendArgs;
pub(crate) use steering::{HashArgs, SteeringArgs};
pub(crate) use steering_command::SteeringCommand;
pub(crate) use tools::{CheckArgs, CompleteArgs, CompletionsArgs, HelpArgs, ManArgs, RunFileArgs};
pub(crate) use top::TopArgs;
pub(crate) use tune::{TuneArgs, WriteArg};

/// Spread the packets of a capture or of a busy receive queue over many CPUs,
/// flow by flow and in order.
#[derive(Debug, Parser)]
#[command(name = "steerage", version, arg_required_else_help = true, disable_help_subcommand = true, after_help = include_str!("../help/steerage.txt").trim_end())]
pub(crate) struct Cli {
    /// Log what happens to standard error, and report more; -vv logs more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Count packets, and show which CPU handled them
    #[command(after_help = include_str!("../help/count.txt"))]
    Count(RunArgs),

    /// List flows: which hosts talked, when and how much
    #[command(after_help = include_str!("../help/meter.txt"))]
    Meter(MeterArgs),

    /// Explain where packets go, and whether traffic can be spread
    #[command(after_help = include_str!("../help/explain.txt"))]
    Explain(ExplainArgs),

    /// Run a packet tool on all CPUs, each copy with whole flows
    #[command(after_help = include_str!("../help/parallel.txt"))]
    Parallel(ParallelArgs),

    /// Send each flow to one of several outputs
    #[command(after_help = include_str!("../help/fanout.txt"))]
    Fanout(FanoutArgs),

    /// Route IPv4 and IPv6 between interfaces
    #[command(after_help = include_str!("../help/forward.txt"))]
    Forward(ForwardArgs),

    /// Send generated packets or capture files
    #[command(after_help = include_str!("../help/send.txt"))]
    Send(SendArgs),

    /// Set the kernel's own steering, measure, and keep what helps
    #[command(after_help = include_str!("../help/tune.txt"))]
    Tune(TuneArgs),

    /// Watch a run live in a terminal
    #[command(after_help = include_str!("../help/top.txt"))]
    Top(TopArgs),

    /// Show or write the packets that a run handles
    #[command(after_help = include_str!("../help/dump.txt"))]
    Dump(DumpArgs),

    /// Read the attributes of a run
    #[command(after_help = include_str!("../help/get.txt"))]
    Get(GetArgs),

    /// Change a run: its masks and limits
    #[command(after_help = include_str!("../help/set.txt"))]
    Set(SetArgs),

    /// Run a command that is written down in a file
    #[command(after_help = include_str!("../help/run.txt"))]
    Run(RunFileArgs),

    /// Check such a file, and print what it would do
    #[command(after_help = include_str!("../help/check.txt"))]
    Check(CheckArgs),

    /// List what this machine offers, and how to enable the rest
    #[command(after_help = include_str!("../help/doctor.txt"))]
    Doctor(DoctorArgs),

    /// Print a page of the guide, or the help of a command
    #[command(after_help = include_str!("../help/help.txt"))]
    Help(HelpArgs),

    /// Print a manual page, or write all of them
    #[command(after_help = include_str!("../help/man.txt"))]
    Man(ManArgs),

    /// Print the script that completes command lines in a shell
    #[command(after_help = include_str!("../help/completions.txt"))]
    Completions(CompletionsArgs),

    /// Print what the word after these words of a command line can be (called by the scripts of completions)
    #[command(hide = true)]
    Complete(CompleteArgs),

    /// Become a program when standard input says so (started by parallel for {file})
    #[command(hide = true)]
    ExecWhenReady(ExecWhenReadyArgs),

    /// Keep the kernel from answering IPv6 packets until standard input ends (started by forward)
    #[command(hide = true)]
    SilenceKernel(SilenceKernelArgs),

    /// Undo changes of the machine when standard input ends (started by runs)
    #[command(hide = true)]
    Undo(UndoArgs),
}

const GROUPS: [(&str, &[&str]); 4] = [
    ("Look at traffic", &["count", "meter", "explain"]),
    ("Steer packets", &["parallel", "fanout", "forward", "send"]),
    ("Operate", &["tune", "top", "dump", "get", "set", "run", "check", "doctor"]),
    ("Help", &["help", "man", "completions"]),
];

const SHORT_EXAMPLES: usize = 3;

/// The maximum width of help, also on a wide terminal: longer lines are hard to read.
const HELP_WIDTH: usize = 100;

pub(crate) fn program() -> clap::Command {
    let mut program = Cli::command().max_term_width(HELP_WIDTH);
    let names: Vec<String> = program.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    for name in names {
        program =
            program.mut_subcommand(&name, |command| match name.as_str() {
                // `forward` needs interfaces, so it has no default input.
                "forward" => with_short_help(command.mut_arg("devices", |arg| {
                    arg.required(true).default_value(Resettable::<clap::builder::OsStr>::Reset)
                })),
                // Only `--watch` runs long enough for a client to request metrics.
                "tune" => with_short_help(command.mut_arg("metrics", |arg| arg.requires("watch"))),
                _ => with_short_help(command),
            });
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}Options:\n{{options}}{{after-help}}",
        groups(&program)
    );
    program.help_template(template)
}

pub(crate) fn parse(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> Result<Cli, clap::Error> {
    program().try_get_matches_from(arguments).and_then(|matches| Cli::from_arg_matches(&matches))
}

fn groups(program: &clap::Command) -> String {
    let mut text = String::new();
    for (heading, names) in GROUPS {
        text += &format!("{heading}:\n");
        for name in names {
            let about = program.find_subcommand(name).and_then(clap::Command::get_about);
            text += &format!("  {name:<12} {}\n", about.map(ToString::to_string).unwrap_or_default());
        }
        text.push('\n');
    }
    text
}

/// Gives `-h` the first examples, and `--help` the whole text below the options.
fn with_short_help(command: clap::Command) -> clap::Command {
    let Some(long) = command.get_after_help().map(|text| text.to_string().trim_end().to_owned()) else {
        return command;
    };
    let examples = long.split_once("Examples:\n").map_or("", |(_, examples)| examples);
    let mut short = String::from("Examples:");
    // An example in a help text is a line, possibly with indented lines below it.
    let mut shown = 0;
    for line in examples.lines() {
        shown += usize::from(line.starts_with("  steerage") || line.starts_with("  sudo") || shown == 0);
        if shown > SHORT_EXAMPLES {
            break;
        }
        short += &format!("\n{line}");
    }
    command.after_help(short).after_long_help(long)
}

#[cfg(test)]
mod documented;
#[cfg(test)]
mod options_page;

#[cfg(test)]
mod tests {
    use super::*;

    fn all(command: &clap::Command) -> Vec<clap::Command> {
        std::iter::once(command.clone()).chain(command.get_subcommands().flat_map(all)).collect()
    }

    #[test]
    fn the_definition_is_sound() {
        program().debug_assert();
    }

    #[test]
    fn every_command_is_in_a_group() {
        let program = program();
        let mut listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let mut commands: Vec<&str> =
            program.get_subcommands().filter(|command| !command.is_hide_set()).map(clap::Command::get_name).collect();
        listed.sort_unstable();
        commands.sort_unstable();
        assert_eq!(listed, commands);
    }

    /// clap wraps help texts, but not examples or lines without a space.
    #[test]
    fn help_fits_80_columns() {
        let mut program = program().term_width(80);
        program.build();
        for mut command in all(&program) {
            for help in [command.render_help(), command.render_long_help()] {
                let help = help.to_string();
                let long: Vec<&str> = help.lines().filter(|line| line.chars().count() > 80).collect();
                assert!(long.is_empty(), "{}: {long:#?}", command.get_name());
            }
        }
    }

    /// The short help must fit two screens of 24 lines.
    #[test]
    fn the_short_help_is_short() {
        let mut program = program().term_width(80);
        program.build();
        for mut command in all(&program) {
            let lines = command.render_help().to_string().lines().count();
            assert!(lines <= 48, "{}: {lines}", command.get_name());
        }
    }
}
