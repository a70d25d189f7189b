//! The commands, one file each.

mod bench;
mod bench_report;
mod completions;
mod control;
mod count;
mod explain;
mod fanout;
mod forward;
mod man;
mod meter;
mod respond;
mod run_file;
mod send;

use std::io::{self, Write};

use crate::args::{Cli, Command};
use crate::doctor;
use crate::error::Error;
use crate::log;
use crate::top;

/// Does what the command line says.
pub(crate) fn run(cli: &Cli) -> Result<(), Error> {
    match &cli.command {
        // It says in the file, too, how much is to be told.
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
        Command::Respond(args) => respond::run(args, verbose),
        Command::Send(args) => send::run(args, verbose),
        Command::Bench(args) => bench::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Get(args) => control::get(args),
        Command::Set(args) => control::set(args),
        Command::Top(args) => top::run(args),
        Command::UnmountAtEnd(args) => control::unmount_at_end(args),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
        // A file is for commands that receive packets, and these do not.
        Command::Run(_) | Command::Check(_) => Ok(()),
    }
}

/// Writes to standard output what a command was asked for.
pub(crate) fn print(bytes: &[u8]) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        // Whoever read has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(Error::Report),
    }
}
