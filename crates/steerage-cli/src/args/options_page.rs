//! docs/options.md: every option and exit code, for users who script the program. The tables of
//! options come from the definition of the command line.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use clap::{Arg, ArgAction, Command};

use super::program;

const HEAD: &str = "\
# Options and exit codes

This page is for people who script steerage. `steerage COMMAND --help` explains each option in its context.

## Exit codes

| code | meaning |
|---|---|
| 0 | success; also if a reader closed the pipe |
| 1 | an error: standard error has one line that says what was tried and what to do |
| 2 | a wrong command line or run file option |
| 3 | with `--strict`: a packet was lost, not finished, or out of order |
| 1 to 100 | `parallel`: that many jobs failed |
| 101 | `parallel`: more than 100 jobs failed |
| 255 | `parallel`: any other error |

## Streams

| output | goes to |
|---|---|
| report, text or `--json` | standard output; standard error if `--flows -` or the jobs of `parallel` use standard output |
| `--interval` lines | as the report |
| errors, notes, the live table, `-v` | standard error |
| flows of `--flows -` | standard output |

`-q` leaves out the report as text, the live table and notes. JSON, flows, pages, errors and exit codes stay.

## Arguments

| command | arguments |
|---|---|
";

const OPTIONS: &str = "
## Options

| option | commands | meaning |
|---|---|---|
";

/// Makes the page.
fn page() -> String {
    let mut program = program();
    program.build();
    let mut commands: Vec<(String, Command)> = Vec::new();
    for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
        commands.push((command.get_name().to_owned(), command.clone()));
        for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
            commands.push((format!("{} {}", command.get_name(), below.get_name()), below.clone()));
        }
    }
    let mut text = HEAD.to_owned();
    for (name, command) in &commands {
        let arguments: Vec<String> = command.get_positionals().map(ToString::to_string).collect();
        if !arguments.is_empty() {
            text += &format!("| `{name}` | `{}` |\n", arguments.join(" ").replace('|', "\\|"));
        }
    }
    text += OPTIONS;
    // Options with the same name and meaning are one row.
    let mut rows: BTreeMap<(String, String, String), Vec<&str>> = BTreeMap::new();
    for (name, command) in &commands {
        for option in command.get_arguments().filter(|arg| is_listed(arg)) {
            let long = option.get_long().unwrap_or_default().to_owned();
            rows.entry((long, written(option), meaning(option))).or_default().push(name);
        }
    }
    for ((_, option, meaning), commands) in rows {
        text += &format!("| `{option}` | {} | {meaning} |\n", commands.join(", "));
    }
    text
}

fn is_listed(arg: &Arg) -> bool {
    let is_help = matches!(arg.get_action(), ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong);
    arg.get_long().is_some() && !arg.is_hide_set() && !is_help
}

/// `-f, --filter <EXPR>`
fn written(arg: &Arg) -> String {
    let short = arg.get_short().map_or(String::new(), |short| format!("-{short}, "));
    format!("{short}{}", arg.to_string().trim_start_matches(&short)).replace('|', "\\|")
}

fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let help = help.split_once("\n\n").map_or(help.as_str(), |(_, long)| long).replace('|', "\\|");
    let defaults: Vec<String> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    let shown = !defaults.is_empty() && !arg.is_hide_default_value_set() && arg.get_action().takes_values();
    if shown { format!("{help} [default: {}]", defaults.join(" ")) } else { help }
}

/// `STEERAGE_UPDATE=1 cargo test -p steerage-cli options_page` writes the page.
#[test]
fn the_page_has_every_option() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/options.md");
    if std::env::var_os("STEERAGE_UPDATE").is_some() {
        fs::write(&path, page()).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), page(), "update docs/options.md: see this test");
}
