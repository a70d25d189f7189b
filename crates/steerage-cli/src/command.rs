mod complete;
mod completions;
mod control;
mod count;
mod doctor;
mod dump;
mod explain;
mod fanout;
mod forward;
mod help;
mod man;
mod meter;
mod parallel;
mod run_file;
mod send;
mod start;
mod tune;

use crate::args::{Cli, Command};
use crate::error::Error;
use crate::instance;
use crate::log;
use crate::top;

pub(crate) use start::run as start;

pub(crate) fn run(cli: &Cli) -> Result<(), Error> {
    match &cli.command {
        // `run` and `check` start before the log level is set, because the run file may set it.
        Command::Run(args) => return run_file::run(args, cli.verbose),
        Command::Check(args) => return run_file::check(args),
        _ => log::start(cli.verbose),
    }
    dispatch(cli)
}

fn dispatch(cli: &Cli) -> Result<(), Error> {
    let verbose = cli.verbose > 0;
    match &cli.command {
        Command::Count(args) => count::run(args, verbose),
        Command::Explain(args) => explain::run(args, verbose),
        Command::Fanout(args) => fanout::run(args, verbose),
        Command::Forward(args) => forward::run(args, verbose),
        Command::Meter(args) => meter::run(args, verbose),
        Command::Parallel(args) => parallel::run(args, verbose),
        Command::Send(args) => send::run(args, verbose),
        Command::Tune(args) => tune::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Dump(args) => dump::run(args),
        Command::Get(args) => control::get(args),
        Command::Set(args) => control::set(args),
        Command::Top(args) => top::run(args),
        Command::ExecWhenReady(args) => parallel::exec_when_ready(args),
        Command::SilenceKernel(args) => forward::silence::run(args),
        Command::Undo(args) => instance::undoing::run(args),
        Command::Complete(args) => complete::run(args),
        Command::Completions(args) => completions::run(args),
        Command::Help(args) => help::run(args),
        Command::Man(args) => man::run(args),
        // A run file cannot contain the commands `run` and `check`.
        Command::Run(_) | Command::Check(_) => Ok(()),
    }
}
