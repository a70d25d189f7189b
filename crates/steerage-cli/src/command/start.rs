//! The output of `steerage` without a command on a terminal: what this machine can do, and three
//! commands to try.

use std::fs;

use steerage_doctor::{Diagnosis, Finding, State};
use steerage_guard::program;
use steerage_text::{counted, printable, shell_word, wrapped};

use crate::error::Error;
use crate::stdout;
use crate::terminal::width;

/// The subjects of `doctor`'s findings that matter to every run.
const ABOUT: [&str; 4] = ["kernel", "CPUs", "AF_PACKET", "AF_XDP"];

pub(crate) fn run() -> Result<(), Error> {
    let findings = Diagnosis::of_this_machine(None).map(|diagnosis| diagnosis.findings().to_vec()).unwrap_or_default();
    let page = page(&findings, busiest_interface().as_deref(), program::find("tshark").is_some());
    stdout::print(wrapped(&page, width()))
}

fn page(findings: &[Finding], interface: Option<&str>, has_tshark: bool) -> String {
    let mut page = format!(
        "steerage {}: spreads the packets of a busy receive queue over many CPUs\n\n",
        env!("CARGO_PKG_VERSION")
    );
    for finding in findings.iter().filter(|finding| ABOUT.contains(&finding.about)) {
        page += &format!("  {:<13} {}\n", finding.about, finding.found);
    }
    let missing: Vec<&str> =
        findings.iter().filter(|finding| finding.state == State::Missing).map(|finding| finding.about).collect();
    page += &match missing.as_slice() {
        [] => "  missing       nothing\n".to_owned(),
        missing => format!(
            "  missing       {}: {} (steerage doctor says how to fix them)\n",
            counted(missing.len() as u64, "item"),
            missing.join(", ")
        ),
    };
    page += "\nThree commands to try:\n";
    let mut line = |command: &str, what: &str| page += &format!("  {command}\n      {what}\n");
    match interface {
        Some(name) => line(
            &format!("sudo steerage explain {}", shell_word(&printable(name))),
            "listen for 10 s: which CPU is busy with the packets of this interface, and whether spreading helps",
        ),
        None => line("steerage explain synthetic", "how a million generated packets would spread over CPUs"),
    }
    line("steerage meter FILE.pcap", "the flows of a capture: who talked to whom, and how much");
    let tool = if has_tshark { "tshark -n -r - -T fields -e ip.src" } else { "tcpdump -n -r -" };
    line(&format!("steerage parallel FILE.pcap -- {tool}"), "a slow tool on all CPUs, with one output");
    page + "\nsteerage --help lists all commands, and steerage help the pages of the guide.\n"
}

/// Returns the interface with the most traffic, without the loopback interface.
fn busiest_interface() -> Option<String> {
    let entries = fs::read_dir("/sys/class/net").ok()?;
    let names =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(|name| name != "lo");
    let received = |name: &String| -> Option<u64> {
        fs::read_to_string(format!("/sys/class/net/{name}/statistics/rx_packets")).ok()?.trim().parse().ok()
    };
    names.filter_map(|name| Some((received(&name)?, name))).max().map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_decides_what_to_try() {
        let finding = |about, state, found: &str| Finding { about, state, found: found.to_owned(), fix: None };
        let findings = [
            finding("kernel", State::Ok, "Linux 6.18"),
            finding("hugepages", State::Missing, "none"),
            finding("tun", State::Ok, "yes"),
        ];
        let with = page(&findings, Some("eth0"), true);
        for line in [
            "  kernel        Linux 6.18\n",
            "  missing       1 item: hugepages (steerage doctor",
            "  sudo steerage explain eth0\n",
            "-- tshark ",
        ] {
            assert!(with.contains(line), "{line}: {with}");
        }
        assert_eq!(with.matches("\n  steerage ").count() + with.matches("\n  sudo steerage ").count(), 3);
        let without = page(&findings[..1], None, false);
        assert!(without.contains("  missing       nothing\n") && without.contains("steerage explain synthetic\n"));
        assert!(without.contains("-- tcpdump ") && !without.contains("  tun"), "{without}");
    }
}
