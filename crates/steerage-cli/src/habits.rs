//! Advice for users of tcpdump, who may write tcpdump's options, filters without `-f`, or no
//! command.

use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use steerage_device::af_packet::is_interface;
use steerage_text::shell_word;

use crate::args;

/// Words that can begin a filter, but cannot be a device.
const FILTER_WORDS: &str = "arp dst ether gateway greater host icmp icmp6 ip ip6 less mpls net not port portrange proto \
    rarp sctp src tcp udp vlan wlan";

const INPUT_COMMANDS: [&str; 5] = ["count", "meter", "explain", "fanout", "parallel"];

/// The options of tcpdump that change how tcpdump prints packets.
const PRINTING: [&str; 10] = ["-A", "-e", "-l", "-S", "-tt", "-ttt", "-u", "-U", "-x", "-X"];

/// Returns the correct command line for a mistake that is common among users of tcpdump.
pub(crate) fn advice(arguments: &[OsString], error: &clap::Error) -> Option<String> {
    let words: Vec<&str> = arguments.iter().skip(1).map(|word| word.to_str().unwrap_or_default()).collect();
    if let Some(advice) = no_dashes(&words) {
        return Some(advice);
    }
    match error.kind() {
        ErrorKind::UnknownArgument => option(&words, &invalid(error, ContextKind::InvalidArg)?),
        ErrorKind::MissingRequiredArgument => no_input(&words),
        ErrorKind::InvalidSubcommand => no_command(&words, &invalid(error, ContextKind::InvalidSubcommand)?),
        _ => None,
    }
}

fn invalid(error: &clap::Error, kind: ContextKind) -> Option<String> {
    match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.clone()),
        _ => None,
    }
}

fn option(words: &[&str], wrong: &str) -> Option<String> {
    let command = words.iter().find(|word| INPUT_COMMANDS.contains(word)).copied().unwrap_or("meter");
    let (letter, value) = with_value(words, wrong);
    let or = |otherwise: &'static str| value.map_or(otherwise.to_owned(), shell_word);
    Some(match letter {
        "-i" | "--interface" => {
            format!("-i: name the interface without -i: steerage {command} {}", or("IFACE"))
        }
        "-r" => format!("-r: name the file without -r: steerage {command} {}", or("FILE")),
        "-w" => {
            let file = value.filter(|file| *file != "-").map_or("FILE".to_owned(), shell_word);
            format!("-w: to save packets, write: steerage fanout DEVICE --to pcap:{file}")
        }
        "-s" => format!("-s: to shorten packets, write af_packet:IFACE,snaplen={} instead of IFACE", or("BYTES")),
        "--version" | "-V" => format!("{letter}: write it without a command: steerage {letter}"),
        "-D" | "--list-interfaces" => {
            format!("-D: `ip link` lists the interfaces; then write: steerage {command} IFACE")
        }
        printing if PRINTING.contains(&printing) => format!(
            "{printing}: to print packets, write: steerage fanout DEVICE --to 'exec:tcpdump -n -r - {printing}'"
        ),
        _ => return None,
    })
}

/// Finds the option `wrong` in words such as `-ieth0` or `-i eth0`, and returns the option and its
/// value.
fn with_value<'a>(words: &[&'a str], wrong: &'a str) -> (&'a str, Option<&'a str>) {
    let at = words.iter().position(|word| *word == wrong || word.starts_with(wrong) && wrong.len() == 2);
    let next = at.and_then(|at| words.get(at + 1)).copied().filter(|next| !next.starts_with('-') || *next == "-");
    match at.map(|at| words[at]) {
        Some(word) if PRINTING.contains(&word) => (word, None),
        Some(word) if word.len() > 2 && !word.starts_with("--") => (wrong, Some(&word[2..])),
        _ => (wrong, next),
    }
}

/// Returns advice if the `--` before the command of `parallel` is missing. Options of the jobs'
/// command may look like mistakes in the options of `parallel`.
fn no_dashes(words: &[&str]) -> Option<String> {
    let ["parallel", rest @ ..] = words else { return None };
    if rest.contains(&"--") {
        return None;
    }
    let mut program = args::program();
    program.build();
    let parallel = program.find_subcommand("parallel")?;
    let is_input = |word: &str| is_interface(word) || Path::new(word).exists() || word.contains(':') || word == "any";
    let (mut at, mut has_input) = (0, false);
    while let Some(word) = rest.get(at) {
        if word.starts_with('-') && *word != "-" {
            let next = rest.get(at + 1).copied().unwrap_or_default();
            at += 1 + usize::from(takes_next_word(parallel, word, next)?);
        } else if !has_input || is_input(word) {
            has_input = true;
            at += 1;
        } else {
            let before: Vec<_> = rest[..at].iter().map(|word| shell_word(word)).collect();
            return Some(format!(
                "write -- before the command of the jobs: steerage parallel {} -- {} ...",
                before.join(" "),
                shell_word(word)
            ));
        }
    }
    None
}

/// Returns true if `next`, the word after the option `word`, is the option's value. Returns `None`
/// if the command has no such option.
fn takes_next_word(command: &clap::Command, word: &str, next: &str) -> Option<bool> {
    let find = |is_named: &dyn Fn(&clap::Arg) -> bool| command.get_arguments().find(|arg| is_named(arg));
    let takes_value = |arg: &clap::Arg| {
        // The values that may be left out are numbers.
        let may_be_absent = arg.get_num_args().is_some_and(|count| count.min_values() == 0);
        arg.get_action().takes_values() && (!may_be_absent || next.starts_with(|first: char| first.is_ascii_digit()))
    };
    if let Some(long) = word.strip_prefix("--") {
        let (name, has_value) = long.split_once('=').map_or((long, false), |(name, _)| (name, true));
        return find(&|arg| arg.get_long() == Some(name)).map(|arg| !has_value && takes_value(arg));
    }
    let mut letters = word.chars().skip(1);
    while let Some(letter) = letters.next() {
        if find(&|arg| arg.get_short() == Some(letter)).map(takes_value)? {
            return Some(letters.next().is_none());
        }
    }
    Some(false)
}

fn no_input(words: &[&str]) -> Option<String> {
    match words {
        ["forward"] => Some("name the interfaces to forward between: steerage forward eth1 eth2".to_owned()),
        _ => None,
    }
}

fn no_command(words: &[&str], wrong: &str) -> Option<String> {
    let from = words.iter().position(|word| *word == wrong)?;
    if is_filter(wrong) {
        let filter = shell_word(&words[from..].join(" "));
        return Some(format!(
            "{filter} is a filter: write a command and an input first: steerage meter IFACE -f {filter}"
        ));
    }
    let is_input = wrong == "any" || wrong == "-" || is_interface(wrong) || Path::new(wrong).exists();
    let looks_like = [".pcap", ".pcapng", ".pcap.gz", ".cap"].iter().any(|end| wrong.ends_with(end));
    (is_input || looks_like)
        .then(|| format!("{wrong} is an input: write a command first: steerage meter {}", shell_word(wrong)))
}

/// Returns a filter that the user wrote among the inputs, without `-f`.
pub(crate) fn filter_among(inputs: &[String]) -> Option<String> {
    let from =
        inputs.iter().position(|input| is_filter(input) && !is_interface(input) && !Path::new(input).exists())?;
    Some(inputs[from..].join(" "))
}

fn is_filter(text: &str) -> bool {
    let word = text.trim_start_matches(['(', '!', ' ']).split([' ', '[', ')']).next().unwrap_or_default();
    FILTER_WORDS.split(' ').any(|known| known == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice_for(line: &str) -> Option<String> {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let error = args::parse(arguments.clone()).unwrap_err();
        advice(&arguments, &error)
    }

    #[test]
    fn options_of_tcpdump_are_answered() {
        for (line, wanted) in [
            ("steerage count -i eth1", "-i: name the interface without -i: steerage count eth1"),
            ("steerage meter -ieth1", "-i: name the interface without -i: steerage meter eth1"),
            ("steerage meter -r a.pcap -n", "-r: name the file without -r: steerage meter a.pcap"),
            ("steerage -i eth1 port 53", "-i: name the interface without -i: steerage meter eth1"),
            (
                "steerage count eth0 -w out.pcap",
                "-w: to save packets, write: steerage fanout DEVICE --to pcap:out.pcap",
            ),
            ("steerage count eth0 -s 96", "-s: to shorten packets, write af_packet:IFACE,snaplen=96 instead of IFACE"),
            ("steerage count -D", "-D: `ip link` lists the interfaces; then write: steerage count IFACE"),
            ("steerage meter --version", "--version: write it without a command: steerage --version"),
            (
                "steerage count eth0 -X",
                "-X: to print packets, write: steerage fanout DEVICE --to 'exec:tcpdump -n -r - -X'",
            ),
            (
                "steerage port 53",
                "'port 53' is a filter: write a command and an input first: steerage meter IFACE -f 'port 53'",
            ),
            ("steerage night.pcap", "night.pcap is an input: write a command first: steerage meter night.pcap"),
            (
                "steerage parallel - -vqkj 2 --order=any --header 2 --key hosts tshark -n -r -",
                "write -- before the command of the jobs: steerage parallel - -vqkj 2 --order=any --header 2 --key hosts \
                 -- tshark ...",
            ),
            ("steerage parallel a.pcap -r -", "-r: name the file without -r: steerage parallel -"),
            ("steerage lo", "lo is an input: write a command first: steerage meter lo"),
        ] {
            assert_eq!(advice_for(line).as_deref(), Some(wanted), "{line}");
        }
        assert_eq!(advice_for("steerage metre"), None);
        assert_eq!(advice_for("steerage count --cpu 1"), None);
    }

    #[test]
    fn a_filter_without_its_option_is_found() {
        let filter =
            |inputs: &[&str]| filter_among(&inputs.iter().map(|input| (*input).to_owned()).collect::<Vec<_>>());
        assert_eq!(filter(&["eth0", "port", "53"]).as_deref(), Some("port 53"));
        assert_eq!(filter(&["tcp[13] & 2 != 0"]).as_deref(), Some("tcp[13] & 2 != 0"));
        assert_eq!(filter(&["(udp or tcp) and net 10.0.0.0/8"]).as_deref(), Some("(udp or tcp) and net 10.0.0.0/8"));
        assert_eq!(filter(&["eth0", "night.pcap", "tap:net"]), None);
    }
}
