//! Finds out how many flows the interface's traffic has, as `explain` does.

use std::io::{self, IsTerminal, Read};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;
use steerage_guard::program;
use steerage_tune::facts::Flows;

use super::stop::Stop;
use crate::args::TuneArgs;
use crate::command::explain::LISTENING;
use crate::terminal::print_to_stderr;

/// Runs `explain` in a process with its own sandbox, because the packets come from untrusted hosts.
/// Returns `None` if a signal arrived.
pub(super) fn flows(args: &TuneArgs, interface: &str, stop: Option<&Stop>) -> Option<Flows> {
    // With `--test-window`, `tune` listens for at most twice the window.
    let time = args.test_window.map_or(LISTENING, |window| LISTENING.min(2 * window));
    if io::stderr().is_terminal() {
        print_to_stderr(format_args!("listening to {interface} for {} s, to see its flows", time.as_secs()));
    }
    let mut child = match start(args, interface, time) {
        Ok(child) => child,
        Err(error) => return Some(Flows::NotSeen(format!("explain cannot be started: {error}"))),
    };
    let read = read(&mut child, stop);
    if !matches!(read, Ok(Some(_))) {
        // An error means that the process has already ended.
        let _ = child.kill();
    }
    let mut complaint = String::new();
    let _ = child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut complaint));
    let _ = child.wait();
    match read {
        Ok(None) => None,
        Ok(Some(line)) => Some(seen(&line).unwrap_or_else(|| Flows::NotSeen(reason(&complaint)))),
        Err(error) => Some(Flows::NotSeen(error.to_string())),
    }
}

fn start(args: &TuneArgs, interface: &str, time: Duration) -> io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.args(["explain", interface, "--json", "--top", "0", "--direction", "in", "--seconds"]);
    command.arg(time.as_secs_f64().to_string());
    if args.sandbox.no_sandbox {
        command.arg("--no-sandbox");
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    program::start(&mut command)
}

/// Reads the output of the child process. Returns `None` if a signal arrived before the child
/// process ended.
fn read(child: &mut Child, stop: Option<&Stop>) -> io::Result<Option<String>> {
    let Some(mut pipe) = child.stdout.take() else { return Ok(Some(String::new())) };
    let mut text = Vec::new();
    loop {
        let fds = [Some(pipe.as_fd()), stop.map(AsFd::as_fd)];
        let mut waiting: Vec<PollFd<'_>> =
            fds.into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut waiting, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |nth: usize| waiting.get(nth).and_then(PollFd::any).unwrap_or(false);
        let (has_text, is_stopped) = (is_ready(0), is_ready(1));
        if is_stopped {
            return Ok(None);
        }
        let mut bytes = [0; 4096];
        if has_text {
            match pipe.read(&mut bytes)? {
                0 => return Ok(Some(String::from_utf8_lossy(&text).into_owned())),
                count => text.extend(&bytes[..count]),
            }
        }
    }
}

fn seen(line: &str) -> Option<Flows> {
    let explanation: Value = serde_json::from_str(line).ok()?;
    let traffic = explanation.get("traffic")?;
    let count = usize::try_from(traffic.get("kernel_flows")?.as_u64()?).ok()?;
    match count {
        0 => Some(Flows::NotSeen("no packet with a flow arrived".to_owned())),
        _ => Some(Flows::Seen { count, largest: traffic.get("kernel_largest")?.as_f64()? }),
    }
}

fn reason(complaint: &str) -> String {
    let line = complaint.lines().last().unwrap_or("explain printed nothing");
    line.strip_prefix("steerage: ").unwrap_or(line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_explanation_has_the_kernels_flows() {
        let line = r#"{"traffic":{"packets":10,"flows":3,"kernel_flows":2,"kernel_largest":0.75}}"#;
        assert_eq!(seen(line), Some(Flows::Seen { count: 2, largest: 0.75 }));
        let none = r#"{"traffic":{"packets":0,"kernel_flows":0,"kernel_largest":0.0}}"#;
        assert!(matches!(seen(none), Some(Flows::NotSeen(_))));
        assert_eq!((seen(""), seen("{}")), (None, None));
        assert_eq!(reason("a note\nsteerage: it takes CAP_NET_RAW\n"), "it takes CAP_NET_RAW");
    }
}
