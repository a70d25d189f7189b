//! `steerage man`: generates manual pages from the definition of the command line.

use std::fs;
use std::io;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use steerage_file::Readers;

use crate::args::{Cli, ManArgs, SandboxArgs};
use crate::error::Error;
use crate::sandbox::{self, Confined, Needs};
use crate::stdout;

/// Prints the program's page, or writes all pages to a directory.
pub(crate) fn run(args: &ManArgs) -> Result<(), Error> {
    // `steerage help` is the same as --help, and has no page.
    let mut cli = Cli::command().disable_help_subcommand(true);
    cli.build();
    let Some(directory) = &args.directory else {
        sandbox::enter(Needs::of(Confined::Man), &SandboxArgs::default())?;
        return stdout::print(&page(&cli).map_err(Error::Report)?);
    };
    let write = |name: &str, command: &Command| -> Result<(), Error> {
        let path = directory.join(format!("{name}.1"));
        let written = page(command).and_then(|page| steerage_file::write(&path, &page, Readers::All));
        written.map_err(|error| Error::Page { path, error })
    };
    fs::create_dir_all(directory).map_err(|error| Error::Page { path: directory.clone(), error })?;
    let _kept =
        sandbox::enter_writing(Needs::of(Confined::Man), &[&directory.join("steerage.1")], &SandboxArgs::default())?;
    write("steerage", &cli)?;
    for command in cli.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = format!("steerage-{}", command.get_name());
        write(&name, command)?;
        // The subcommands of `bench` have pages of their own.
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            write(&format!("{name}-{}", below.get_name()), below)?;
        }
    }
    Ok(())
}

/// Renders one page. The text below the options is formatted by hand, so it is not filled.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let version = env!("CARGO_PKG_VERSION");
    let man = Man::new(command.clone()).source(format!("steerage {version}")).manual("steerage");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let below = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let (notes, examples) = below.split_once("Examples:\n").unwrap_or((&below, ""));
    as_it_stands(&mut page, "NOTES", notes)?;
    as_it_stands(&mut page, "EXAMPLES", examples)?;
    Ok(page)
}

fn as_it_stands(page: &mut Vec<u8>, heading: &str, text: &str) -> io::Result<()> {
    let text = text.trim_end();
    if text.is_empty() {
        return Ok(());
    }
    let mut roff = Roff::new();
    roff.control("SH", [heading]);
    roff.control("nf", []);
    text.lines().for_each(|line| {
        roff.text([roman(line)]);
    });
    roff.control("fi", []);
    roff.to_writer(page)
}
