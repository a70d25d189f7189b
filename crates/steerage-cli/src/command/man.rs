use std::io;
use std::path::Path;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use steerage_guard::capabilities::Needed;
use steerage_guard::file::{self, Readers};

use crate::args::{self, ManArgs};
use crate::error::{CommandLineError, EndingError, Error};
use crate::guide;
use crate::sandbox::{self, Needs, SandboxProfile};
use crate::stdout;

struct Page {
    command: Command,
    name: String,
    see_also: Vec<String>,
}

pub(crate) fn run(args: &ManArgs) -> Result<(), Error> {
    let pages = pages();
    if let Some(directory) = &args.out {
        let written = directory.join("steerage.1");
        let needs = Needs::of(SandboxProfile::Man).written_files(&[&written]);
        let _kept = sandbox::enter_keeping(needs, &Needed::default().written_files(&written), &args.sandbox)?;
        return pages.iter().try_for_each(|page| write(page, directory));
    }
    sandbox::enter(Needs::of(SandboxProfile::Man), &args.sandbox)?;
    let name = std::iter::once("steerage").chain(args.command.iter().map(String::as_str)).collect::<Vec<_>>().join("-");
    let Some(page) = pages.iter().find(|page| page.name == name) else {
        return Err(CommandLineError::NoManualPage { name: args.command.join(" ") }.into());
    };
    stdout::print(&render(page).map_err(EndingError::Report)?)
}

fn write(page: &Page, directory: &Path) -> Result<(), Error> {
    let path = directory.join(format!("{}.1", page.name));
    let written = render(page).and_then(|text| file::write(&path, &text, Readers::All));
    written.map_err(|error| Error::Page { path, error })
}

fn pages() -> Vec<Page> {
    let mut program = args::program();
    program.build();
    let commands = program.get_subcommands().filter(|command| !command.is_hide_set());
    let of = |command: &Command| Page {
        command: with_all_help(command.clone()),
        name: format!("steerage-{}", command.get_name()),
        see_also: vec!["steerage".to_owned()],
    };
    let mut pages: Vec<Page> = commands.map(of).collect();
    let see_also = pages.iter().map(|page| page.name.clone()).collect();
    pages.push(Page { command: with_all_help(program), name: "steerage".to_owned(), see_also });
    pages
}

/// Gives each argument a long help text, without which the manual page would not describe options
/// that `-h` omits.
fn with_all_help(command: Command) -> Command {
    command.mut_args(|arg| match (arg.get_long_help(), arg.get_help().cloned()) {
        (None, Some(help)) => arg.long_help(help),
        _ => arg,
    })
}

/// Renders a manual page. The text below the options keeps its line breaks.
fn render(page: &Page) -> io::Result<Vec<u8>> {
    let command = &page.command;
    let version = env!("CARGO_PKG_VERSION");
    let man = Man::new(command.clone()).source(format!("steerage {version}")).manual("steerage");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    filled(&mut text, "SYNOPSIS", &usage(command))?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    let below = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string).unwrap_or_default();
    let (notes, examples) = below.split_once("Examples:\n").unwrap_or((&below, ""));
    let (examples, exit_status) = examples.split_once("\n\nExit status: ").unwrap_or((examples, ""));
    filled(&mut text, "NOTES", notes)?;
    filled(&mut text, "EXAMPLES", examples)?;
    filled(&mut text, "EXIT STATUS", exit_status)?;
    see_also(&mut text, page)?;
    Ok(text)
}

fn usage(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    usage.trim_start_matches("Usage: ").to_owned()
}

/// Adds a section to the manual page. `man` fills the lines of its paragraphs, but keeps the line
/// breaks of indented lines.
fn filled(page: &mut Vec<u8>, heading: &str, text: &str) -> io::Result<()> {
    let text = text.trim_end();
    if text.is_empty() {
        return Ok(());
    }
    let mut roff = Roff::new();
    roff.control("SH", [heading]);
    let mut is_verbatim = false;
    for line in text.lines() {
        if is_verbatim != line.starts_with(' ') {
            is_verbatim = !is_verbatim;
            roff.control(if is_verbatim { "nf" } else { "fi" }, []);
        }
        if line.is_empty() {
            roff.control("PP", []);
        } else {
            roff.text([roman(line)]);
        }
    }
    if is_verbatim {
        roff.control("fi", []);
    }
    roff.to_writer(page)
}

fn see_also(text: &mut Vec<u8>, page: &Page) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    let last = page.see_also.len().saturating_sub(1);
    for (nth, name) in page.see_also.iter().enumerate() {
        roff.text([bold(name), roman(if nth == last { "(1)" } else { "(1)," })]);
    }
    let topic = page.name.trim_start_matches("steerage").trim_start_matches('-');
    let topic = if guide::page(topic).is_some() { format!(" {topic}") } else { String::new() };
    roff.control("PP", []);
    roff.text([bold(format!("steerage help{topic}")), roman(" prints the guide.")]);
    roff.to_writer(text)
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction};

    use super::*;

    /// Returns the text of a manual page without the commands and escapes of roff.
    fn words(roff: &str) -> String {
        let text: Vec<&str> = roff.lines().filter(|line| !line.starts_with('.')).collect();
        let escapes =
            [(r"\-", "-"), (r"\fB", ""), (r"\fI", ""), (r"\fR", ""), (r"\*(Aq", "'"), (r"\(aq", "'"), (r"\&", "")];
        let text = escapes.iter().fold(text.join(" "), |text, (escape, meaning)| text.replace(escape, meaning));
        text.replace(r"\\", r"\").split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn is_described(arg: &&Arg) -> bool {
        let is_of_clap = matches!(
            arg.get_action(),
            ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
        );
        !arg.is_hide_set() && !is_of_clap
    }

    /// A manual page also has the text of arguments that `-h` omits.
    #[test]
    fn a_page_has_the_text_of_each_argument() {
        let mut program = args::program();
        program.build();
        let mut left_out = 0;
        for page in pages() {
            let name = page.name.strip_prefix("steerage-");
            let command = name.map_or(&program, |name| program.find_subcommand(name).unwrap());
            let text = String::from_utf8(render(&page).unwrap()).unwrap();
            let paragraphs: Vec<String> = text.split("\n.TP\n").skip(1).map(words).collect();
            for arg in command.get_arguments().filter(is_described) {
                let value = || arg.get_value_names().and_then(|names| names.first()).map_or("", |name| name.as_str());
                let name = arg.get_long().map_or_else(|| value().to_owned(), |long| format!("--{long}"));
                let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
                let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
                assert!(!help.is_empty(), "{}: {name} has no text", page.name);
                let has_it = |paragraph: &&String| paragraph.contains(&name) && paragraph.contains(&help);
                assert!(
                    paragraphs.iter().any(|one| has_it(&one)),
                    "{}: {name}: {help:?} in {paragraphs:#?}",
                    page.name
                );
                left_out += usize::from(arg.is_hide_short_help_set());
            }
        }
        assert!(left_out > 100, "only {left_out} options are left out by -h");
    }
}
