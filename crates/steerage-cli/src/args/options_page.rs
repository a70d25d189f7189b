//! docs/options.md lists every option. The test compares its rows with the definition of the
//! command line.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use clap::{Arg, ArgAction};

use super::program;

/// The arguments of each command, and each option. Options with the same name and meaning are one
/// row.
fn rows() -> Vec<String> {
    let mut program = program();
    program.build();
    let commands: Vec<_> = program.get_subcommands().filter(|command| !command.is_hide_set()).collect();
    let arguments = commands.iter().filter_map(|command| {
        let arguments: Vec<String> = command.get_positionals().map(ToString::to_string).collect();
        let row = format!("| `{}` | `{}` |", command.get_name(), arguments.join(" ").replace('|', "\\|"));
        (!arguments.is_empty()).then_some(row)
    });
    let mut options: BTreeMap<(String, String, String), Vec<&str>> = BTreeMap::new();
    for command in &commands {
        for option in command.get_arguments().filter(|arg| is_listed(arg)) {
            let long = option.get_long().unwrap_or_default().to_owned();
            options.entry((long, written(option), meaning(option))).or_default().push(command.get_name());
        }
    }
    let options = options
        .into_iter()
        .map(|((_, option, meaning), commands)| format!("| `{option}` | {} | {meaning} |", shortened(&commands)));
    arguments.chain(options).collect()
}

/// The page defines short names for its most frequent lists of commands.
fn shortened(commands: &[&str]) -> String {
    const SHORT: [(&str, &str); 3] = [
        ("count, meter, explain, parallel, fanout, forward, send", "receivers, explain"),
        ("count, meter, parallel, fanout, forward, send", "receivers"),
        ("count, meter, fanout, forward, send", "runs"),
    ];
    SHORT.iter().fold(commands.join(", "), |names, (long, short)| names.replace(long, short))
}

fn is_listed(arg: &Arg) -> bool {
    let is_help = matches!(arg.get_action(), ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong);
    arg.get_long().is_some() && !arg.is_hide_set() && !is_help
}

/// Such as `-f, --filter <EXPR>`.
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

#[test]
fn the_page_has_every_option() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/options.md");
    let page = fs::read_to_string(path).unwrap();
    let tables = page.split_once("## Arguments").map_or("", |(_, tables)| tables);
    let is_row = |line: &&str| line.starts_with("| `");
    let shown: Vec<&str> = tables.lines().filter(is_row).collect();
    let rows = rows();
    assert!(shown == rows, "the tables of docs/options.md must have these rows:\n{}", rows.join("\n"));
}
