//! Signals, as events for the run's loop.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;
use signal_hook::iterator::Signals;

/// What the shell reports for a program that Ctrl-C ended: 128 and the signal's number.
const INTERRUPTED: i32 = 128 + SIGINT;

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// INT or TERM: stop, and report.
    Stop,
    /// USR1: report, and go on.
    Report,
}

/// From now on signals come to `take`, on a thread of their own, which ends when `take` says false.
///
/// An INT after an INT or TERM quits at once, from within the signal handler: whatever hangs by then, be it a report
/// into a pipe that nobody reads, cannot hold it up.
pub(crate) fn listen(take: impl Fn(Asked) -> bool + Send + 'static) -> io::Result<()> {
    let stopping = Arc::new(AtomicBool::new(false));
    // Handlers run in the order of their registration: the flag is looked at before this signal raises it.
    flag::register_conditional_shutdown(SIGINT, INTERRUPTED, Arc::clone(&stopping))?;
    flag::register(SIGINT, Arc::clone(&stopping))?;
    flag::register(SIGTERM, stopping)?;
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1])?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            let asked = if signal == SIGUSR1 { Asked::Report } else { Asked::Stop };
            if !take(asked) {
                return;
            }
        }
    })?;
    Ok(())
}
