//! Lists each argument (of any command, even a hidden one) that can be a path, from the definition
//! of the command line. A test with a table of path arguments fails if an argument has no row in
//! the table.

use std::collections::BTreeSet;

use clap::Arg;

/// The names that `--help` shows for values that cannot be paths.
const NO_PATHS: &[&str] = &[
    "1:N",
    "ADDR:PORT",
    "COMMAND",
    "DURATION",
    "DURATION|SIZE",
    "EXPR",
    "FACTOR",
    "FLOW",
    "FORMAT",
    "HASH",
    "HEX",
    "IFACE",
    "INTERFACE:PROGRAM|INTERFACE/FILE=BEFORE=OURS",
    "KEY",
    "LIST",
    "MASK",
    "N",
    "NS",
    "ORDER",
    "POLICY",
    "PORT",
    "PURPOSE",
    "ROUTE",
    "S",
    "SHELL",
    "SIZE",
    "TOPIC",
    "VALUE",
    "WAY",
    "WORD",
    "NAME",
];

/// A command, and one of its arguments as `--help` shows it, such as `--flows <FILE>` or
/// `[DEVICE]...`.
pub(crate) type Argument = (String, String);

pub(crate) fn paths() -> BTreeSet<Argument> {
    let program = steerage_cli::definition();
    let commands = program.get_subcommands();
    commands
        .flat_map(|command| {
            let paths = command.get_arguments().filter(|argument| can_be_a_path(argument));
            paths.map(|argument| (command.get_name().to_owned(), argument.to_string()))
        })
        .collect()
}

fn can_be_a_path(argument: &Arg) -> bool {
    // The words after `--` are a program and its arguments, any of which may be a path.
    let is_known = |name: &str| NO_PATHS.contains(&name) && !argument.is_last_set();
    let names = argument.get_value_names().unwrap_or_default();
    argument.get_action().takes_values() && (names.is_empty() || !names.iter().all(|name| is_known(name)))
}

/// Each argument that can be a path must have a row, and no row may belong to any other argument.
pub(crate) fn assert_complete(rows: impl Iterator<Item = Argument>) {
    let (found, rows) = (paths(), rows.collect::<BTreeSet<_>>());
    let missing: Vec<_> = found.difference(&rows).collect();
    assert!(missing.is_empty(), "arguments without a row in this file: {missing:?}");
    let stale: Vec<_> = rows.difference(&found).collect();
    assert!(stale.is_empty(), "rows of arguments that do not exist: {stale:?}");
}

#[test]
fn hidden_commands_are_among_the_paths_and_no_name_of_a_value_is_stale() {
    let program = steerage_cli::definition();
    let arguments = || program.get_subcommands().flat_map(clap::Command::get_arguments);
    for name in NO_PATHS {
        let has_it = |argument: &Arg| argument.get_value_names().unwrap_or_default().iter().any(|it| it == name);
        assert!(arguments().any(has_it), "no argument has a value called {name}");
    }
    let paths = paths();
    for (command, argument) in [("exec-when-ready", "<COMMAND>..."), ("meter", "--flows <FILE>"), ("get", "[PATH]")] {
        assert!(paths.contains(&(command.to_owned(), argument.to_owned())), "{command} {argument}: {paths:?}");
    }
}
