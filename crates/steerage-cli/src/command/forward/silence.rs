//! The process that keeps the kernel from answering IPv6 packets that `forward` forwards, until
//! `forward` ends.
//!
//! `forward` drops its capabilities before it handles packets, so it cannot remove the kernel's
//! rules at its end. A helper process, which adds and removes the rules, handles no packets, keeps
//! `CAP_NET_ADMIN` alone, and notices by the end of a pipe if `forward` is killed.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use nix::sys::signal::SigSet;
use steerage_guard::capabilities::{Needed, drop_except};
use steerage_guard::program;
use steerage_netlink::Rule;
use steerage_router::kernel::SilentKernel;

use crate::args::SilenceKernelArgs;
use crate::error::Error;
use crate::terminal::warn;

/// The lines of the process.
const READY: &str = "ready";
const REMOVED: &str = "removed";

/// A running process that removes the rules when this value is dropped.
#[derive(Debug)]
pub(super) struct Silence {
    rules: Vec<Rule>,
    ends: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
}

impl Silence {
    /// Starts the process if the kernel would answer IPv6 packets from these interfaces, and waits
    /// until the rules are in force.
    pub(super) fn begin<'a>(interfaces: impl Iterator<Item = &'a str>) -> Result<Option<Self>, Error> {
        let interfaces: Vec<String> = interfaces.filter(|name| has_ipv6(name)).map(str::to_owned).collect();
        if interfaces.is_empty() {
            return Ok(None);
        }
        let missing = SilentKernel::missing(&interfaces).map_err(|error| no_rules(&interfaces, &error))?;
        if missing.is_empty() {
            return Ok(None);
        }
        let mut command = Command::new("/proc/self/exe");
        command.arg0("steerage-silence").arg("silence-kernel");
        command.args(missing.iter().filter_map(|rule| rule.interface.as_ref()));
        // In a process group of its own, the process does not receive the signal of Ctrl-C.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut child = program::start(&mut command)
            .map_err(|error| Error::System { operation: "start a process that adds rules", error })?;
        let (Some(ends), Some(says)) = (child.stdin.take(), child.stdout.take()) else { return Ok(None) };
        let mut lines = BufReader::new(says);
        match next_line(&mut lines).as_str() {
            READY => Ok(Some(Self { rules: missing, ends: Some(ends), lines })),
            "" => Err(refused(&missing, "the process that adds rules ended early")),
            reason => Err(refused(&missing, reason)),
        }
    }
}

impl Drop for Silence {
    /// Waits until the rules are removed. The sandbox does not allow waiting for the process, so
    /// this waits for its last line.
    fn drop(&mut self) {
        self.ends = None;
        let warning = match next_line(&mut self.lines).as_str() {
            REMOVED => return,
            "" => {
                let commands = commands("del", &self.rules);
                format!("the process that removes rules ended early, so rules may be left behind: as root, {commands}")
            }
            error => format!("{error}; `ip -6 rule` lists the rules"),
        };
        warn(&warning);
    }
}

/// The next line of the process. The line is empty if the process has ended.
fn next_line(lines: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    // If nothing can be read, the line stays empty.
    let _ = lines.read_line(&mut line);
    line.trim_end().to_owned()
}

fn has_ipv6(interface: &str) -> bool {
    fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6")).is_ok_and(|text| text.trim() == "0")
}

fn no_rules(interfaces: &[String], error: &io::Error) -> Error {
    let names = interfaces.join(", ");
    Error::Forward(format!(
        "cannot keep the kernel from answering the IPv6 packets of {names}: {error}: see `ip -6 rule`, or switch IPv6 \
         off: sysctl -w net/ipv6/conf/{}/disable_ipv6=1",
        interfaces[0]
    ))
}

fn refused(missing: &[Rule], reason: &str) -> Error {
    Error::Forward(format!(
        "the kernel answers IPv6 packets for which it has no route, and the rule against it was refused ({reason}): \
         as root, {}",
        commands("add", missing)
    ))
}

fn commands(verb: &str, rules: &[Rule]) -> String {
    rules.iter().map(|rule| format!("ip -6 rule {verb} {rule}")).collect::<Vec<_>>().join("; ")
}

/// The process itself: adds the rules, waits for the end of standard input, and removes the rules.
pub(crate) fn run(args: &SilenceKernelArgs) -> Result<(), Error> {
    // A service manager signals all processes of a service. `forward` ends by its signal, and this
    // process afterwards.
    SigSet::all().thread_block().map_err(|error| Error::System { operation: "block signals", error: error.into() })?;
    let _kept = drop_except(&Needed::default().network_administration())?;
    // If a write fails, `forward` has ended, and so does standard input.
    let say = |line: &str| drop(writeln!(io::stdout(), "{line}"));
    match SilentKernel::begin(&args.interfaces) {
        Ok(silent) => {
            say(READY);
            let _ = io::stdin().read_to_end(&mut Vec::new());
            say(&silent.end().map_or_else(|error| error.to_string(), |()| REMOVED.to_owned()));
        }
        Err(error) => say(&error.to_string()),
    }
    Ok(())
}
