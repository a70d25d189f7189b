//! `steerage complete` prints the possible values of the next word of a command line, for the
//! completion scripts of all shells.

use std::collections::BTreeSet;
use std::fs;

use clap::{Arg, Command};
use steerage_control::{Client, instances};

use super::control;
use crate::args::{self, CompleteArgs};
use crate::error::Error;
use crate::sandbox::{self, Needs, SandboxProfile};
use crate::{guide, stdout};

/// The kinds of values for which clap has no list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Values {
    /// The value is a network interface, or another packet source that has a name.
    Devices,
    Interfaces,
    Runs,
    /// The value is an attribute in the control tree of any run.
    Attributes,
    Topics,
    Commands,
}

impl Values {
    /// Returns the kind of an argument's values, or `None` if clap knows all values, or if any
    /// value is possible.
    pub(super) fn of(command: &Command, arg: &Arg) -> Option<Self> {
        let name = arg.get_value_names()?.first()?.as_str();
        match (name, command.get_name(), arg.get_id().as_str()) {
            ("DEVICE" | "INPUT" | "FLOW|DEVICE" | "OPTION|DEVICE", ..) => Some(Self::Devices),
            ("IFACE" | "OUTPUT", ..) => Some(Self::Interfaces),
            ("PID|NAME|PATH", ..) => Some(Self::Runs),
            ("PATH", "get" | "set", "path") => Some(Self::Attributes),
            ("TOPIC", ..) => Some(Self::Topics),
            ("COMMAND", "man", _) => Some(Self::Commands),
            _ => None,
        }
    }

    /// Returns the kind of the word after `words`, which begin with the name of the program.
    fn after(words: &[String]) -> Option<Self> {
        let mut program = args::program();
        program.build();
        let mut words = words.iter().skip(1).map(String::as_str);
        let command = program.find_subcommand(words.find(|word| !word.starts_with('-'))?)?;
        let (mut option, mut positionals) = (None, 0);
        for word in words {
            match word {
                // bash splits `--to=4711` into three words.
                "=" => {}
                _ if option.take().is_some() => {}
                // The words after `--` are another program and its arguments.
                "--" => return None,
                "-" => positionals += 1,
                _ if word.starts_with('-') => option = waiting_for_its_value(command, word),
                _ => positionals += 1,
            }
        }
        let positional = || {
            let all: Vec<&Arg> = command.get_positionals().filter(|arg| !arg.is_last_set()).collect();
            let takes_more = |arg: &&Arg| arg.get_num_args().is_some_and(|count| count.max_values() > 1);
            all.get(positionals).copied().or_else(|| all.last().copied().filter(takes_more))
        };
        Self::of(command, option.or_else(positional)?)
    }

    /// Returns all values except the attributes of runs, which require a connection to each running
    /// instance.
    fn all(self) -> BTreeSet<String> {
        let commands = || args::program().get_subcommands().filter(|of| !of.is_hide_set()).map(name).collect();
        match self {
            Self::Devices => interfaces().chain(["any".to_owned(), "synthetic".to_owned()]).collect(),
            Self::Interfaces => interfaces().collect(),
            Self::Runs => runs().iter().map(|run| run.name()).collect(),
            Self::Attributes => BTreeSet::new(),
            Self::Topics => guide::titles().map(|(page, _)| page.to_owned()).chain::<Vec<_>>(commands()).collect(),
            Self::Commands => commands().into_iter().collect(),
        }
    }
}

fn name(command: &Command) -> String {
    command.get_name().to_owned()
}

/// Returns the last option in `word` if the next word of the command line is the option's value.
fn waiting_for_its_value<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let takes = |arg: &&Arg| arg.get_num_args().is_some_and(|count| count.min_values() > 0);
    if let Some(long) = word.strip_prefix("--") {
        return command.get_arguments().find(|arg| arg.get_long() == Some(long)).filter(takes);
    }
    // After `-qj`, the next word is the value of `-j`. `-j4` already contains the option's value.
    let short = |letter: char| command.get_arguments().find(|arg| arg.get_short() == Some(letter));
    let with_values =
        word[1..].char_indices().find_map(|(at, letter)| Some((at, letter, short(letter).filter(takes)?)));
    with_values.filter(|(at, letter, _)| 1 + at + letter.len_utf8() == word.len()).map(|(.., arg)| arg)
}

fn interfaces() -> impl Iterator<Item = String> {
    // In /sys/class/net, the entry of an interface is a link to a directory, but `bonding_masters`
    // is a file.
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    entries.filter(|entry| entry.path().is_dir()).filter_map(|entry| entry.file_name().into_string().ok())
}

/// Returns the runs that this user can see, or none if the directory of the control sockets cannot
/// be read.
fn runs() -> Vec<instances::InstanceSocket> {
    instances::all().unwrap_or_default()
}

/// Prints a line for each value. Prints no error, which the shell would show in the middle of the
/// command line.
pub(crate) fn run(args: &CompleteArgs) -> Result<(), Error> {
    let Some(values) = Values::after(&args.words) else { return Ok(()) };
    let found = if values == Values::Attributes {
        let clients: Vec<Client> = runs().iter().filter_map(|run| run.connect().ok()).collect();
        sandbox::enter(Needs::of(SandboxProfile::Get), &args.sandbox)?;
        let paths = clients.into_iter().filter_map(|mut client| control::paths(&mut client, "").ok());
        paths.flat_map(|paths| paths.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
    } else {
        let found = values.all();
        sandbox::enter(Needs::of(SandboxProfile::Completions), &args.sandbox)?;
        found
    };
    // The shell would offer a name with a line break as two values.
    let lines = found.iter().filter(|value| !value.contains(char::is_control)).map(|value| format!("{value}\n"));
    stdout::print(lines.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(words: &str) -> Option<Values> {
        Values::after(&words.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn each_word_has_the_values_of_its_argument() {
        let rows = [
            ("steerage", None),
            ("steerage nonsense", None),
            ("steerage count", Some(Values::Devices)),
            ("/usr/bin/steerage -v count a.pcap b.pcap", Some(Values::Devices)),
            ("steerage count -c", None),
            ("steerage count -c 10", Some(Values::Devices)),
            ("steerage count -qc", None),
            ("steerage count -c10", Some(Values::Devices)),
            ("steerage count --json --policy", None),
            ("steerage count --policy=hash", Some(Values::Devices)),
            ("steerage count --policy = hash", Some(Values::Devices)),
            ("steerage meter --web", Some(Values::Devices)),
            ("steerage explain", Some(Values::Devices)),
            ("steerage fanout", Some(Values::Devices)),
            ("steerage fanout eth0 --to", Some(Values::Interfaces)),
            ("steerage forward eth0 eth1", Some(Values::Devices)),
            ("steerage send", Some(Values::Interfaces)),
            ("steerage send eth0", Some(Values::Devices)),
            ("steerage parallel - -j 2", Some(Values::Devices)),
            ("steerage parallel eth0 --", None),
            ("steerage parallel eth0 -- tshark -r", None),
            ("steerage tune", Some(Values::Interfaces)),
            ("steerage doctor", Some(Values::Interfaces)),
            ("steerage doctor eth0", None),
            ("steerage top", None),
            ("steerage top --to", Some(Values::Runs)),
            ("steerage top --to =", Some(Values::Runs)),
            ("steerage dump", Some(Values::Runs)),
            ("steerage get", Some(Values::Attributes)),
            ("steerage get --to 4711", Some(Values::Attributes)),
            ("steerage set", Some(Values::Attributes)),
            ("steerage set steerage/policy", None),
            ("steerage help", Some(Values::Topics)),
            ("steerage man", Some(Values::Commands)),
            ("steerage man --out", None),
            ("steerage run listen.toml", Some(Values::Devices)),
        ];
        for (words, expected) in rows {
            assert_eq!(after(words), expected, "{words}");
        }
    }

    #[test]
    fn the_values_are_those_of_this_machine_and_program() {
        let has = |values: Values, value: &str| values.all().contains(value);
        assert!(has(Values::Devices, "lo") && has(Values::Devices, "any") && has(Values::Interfaces, "lo"));
        assert!(!has(Values::Interfaces, "any") && !has(Values::Devices, "bonding_masters"));
        assert!(has(Values::Topics, "faq") && has(Values::Topics, "top") && has(Values::Topics, "doctor"));
        assert!(has(Values::Commands, "top") && !has(Values::Commands, "faq"));
        assert!(!has(Values::Commands, "complete"), "hidden commands are offered");
    }
}
