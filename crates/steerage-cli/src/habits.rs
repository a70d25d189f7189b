//! Advice for users of tcpdump, who may write tcpdump's options, filters without `-f`, or no
//! command.

use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use steerage_device::af_packet::is_interface;
use steerage_text::shell_word;

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

/// Returns advice if the `--` before the command of `parallel` is missing.
fn no_dashes(words: &[&str]) -> Option<String> {
    let ["parallel", input, command @ ..] = words else { return None };
    let first = command.first()?;
    let is_option = |word: &str| word.starts_with('-');
    let is_input = |word: &str| is_interface(word) || Path::new(word).exists() || word.contains(':') || word == "any";
    if is_option(input) || is_option(first) || is_input(first) || command.contains(&"--") {
        return None;
    }
    let (input, first) = (shell_word(input), shell_word(first));
    Some(format!("write -- before the command of the jobs: steerage parallel {input} -- {first} ..."))
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
    use crate::args;

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
