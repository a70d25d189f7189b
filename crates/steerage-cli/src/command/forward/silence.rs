//! The process that keeps the kernel from answering IPv6 packets that `forward` forwards, until
//! `forward` ends.
//!
//! `forward` drops its capabilities before it handles packets, so it cannot remove the kernel's
//! rules at its end. A process of its own adds and removes them. This process handles no packets,
//! keeps `CAP_NET_ADMIN` alone, and notices by the end of a pipe if `forward` is killed.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use nix::sys::signal::SigSet;
use steerage_guard::capabilities::{Needed, drop_except};
use steerage_guard::program;
use steerage_router::kernel::SilentKernel;

use crate::args::SilenceKernelArgs;
use crate::error::Error;

const READY: &str = "ready";

/// A running process that removes the rules when this value is dropped.
#[derive(Debug)]
pub(super) struct Silence {
    ends: Option<ChildStdin>,
    ended: BufReader<ChildStdout>,
}

impl Silence {
    /// Starts the process if the kernel would answer IPv6 packets from these interfaces, and waits
    /// until the rules are in force.
    pub(super) fn begin<'a>(interfaces: impl Iterator<Item = &'a str>) -> Result<Option<Self>, Error> {
        let interfaces: Vec<String> = interfaces.filter(|name| has_ipv6(name)).map(str::to_owned).collect();
        if interfaces.is_empty() {
            return Ok(None);
        }
        let missing = SilentKernel::missing(&interfaces).map_err(|error| refused(&interfaces, &error.to_string()))?;
        if missing.is_empty() {
            return Ok(None);
        }
        let mut command = Command::new("/proc/self/exe");
        command.arg0("steerage-silence").arg("silence-kernel").args(&interfaces);
        // In a process group of its own, the process does not receive the signal of Ctrl-C.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut child = program::start(&mut command)
            .map_err(|error| Error::System { operation: "start a process that adds rules", error })?;
        let (Some(ends), Some(says)) = (child.stdin.take(), child.stdout.take()) else { return Ok(None) };
        let mut silence = Self { ends: Some(ends), ended: BufReader::new(says) };
        let mut line = String::new();
        // If nothing can be read, the line stays empty, which counts as a process that is not ready.
        let _ = silence.ended.read_line(&mut line);
        match line.trim_end() {
            READY => Ok(Some(silence)),
            reason => Err(refused(&interfaces, reason)),
        }
    }
}

impl Drop for Silence {
    /// Waits until the rules are removed. The sandbox does not allow waiting for the process, so
    /// this waits for the end of its output.
    fn drop(&mut self) {
        self.ends = None;
        let _ = self.ended.read_to_end(&mut Vec::new());
    }
}

fn has_ipv6(interface: &str) -> bool {
    fs::read_to_string(format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6")).is_ok_and(|text| text.trim() == "0")
}

fn refused(interfaces: &[String], reason: &str) -> Error {
    let commands: Vec<String> =
        interfaces.iter().map(|name| format!("ip -6 rule add iif {name} pref 32765 blackhole")).collect();
    Error::Forward(format!(
        "the kernel answers IPv6 packets for which it has no route, and the rule against it was refused ({reason}): \
         as root, {}",
        commands.join("; ")
    ))
}

/// The process itself: adds the rules, waits for the end of standard input, and removes the rules.
pub(crate) fn run(args: &SilenceKernelArgs) -> Result<(), Error> {
    // A service manager signals all processes of a service. `forward` ends by its signal, and this
    // process afterwards.
    SigSet::all().thread_block().map_err(|error| Error::System { operation: "block signals", error: error.into() })?;
    let _kept = drop_except(&Needed::default().network_administration())?;
    let begun = SilentKernel::begin(&args.interfaces);
    let line = begun.as_ref().map_or_else(ToString::to_string, |_| READY.to_owned());
    // If a write fails, `forward` has ended, and so does standard input.
    let _ = writeln!(io::stdout(), "{line}");
    if begun.is_ok() {
        let _ = io::stdin().read_to_end(&mut Vec::new());
    }
    Ok(())
}
