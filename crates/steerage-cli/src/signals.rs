//! Signals, as events for the loop of a run.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::signal::{SigSet, Signal};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::error::Error;

/// The exit code of a program that Ctrl-C ended, as shells report it: 128 and the signal's number.
const INTERRUPTED: i32 = 128 + SIGINT;

/// The request that a signal stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalRequest {
    /// INT or TERM: stop, and print the report.
    Stop,
    /// USR1: print a report, and continue.
    Report,
}

/// The handlers of the signals, from when they are installed until a thread listens.
///
/// Until then, INT and TERM end the program as if there were no handler, so that it can be stopped while it opens its
/// devices. USR1 is kept until the thread listens.
#[derive(Debug)]
pub(crate) struct SignalHandlers(RefCell<Option<InstalledHandlers>>);

#[derive(Debug)]
struct InstalledHandlers {
    /// The pipe that the handlers write to.
    signals: Signals,
    /// Whether INT and TERM end the program as if there were no handler.
    ends: Arc<AtomicBool>,
    /// Whether the program was asked to stop already. Then another INT quits at once.
    stopping: Arc<AtomicBool>,
}

/// Installs the handlers. Call this while the process has one thread.
///
/// A handler is installed first, and gets its actions afterwards. A signal in between would be lost, so all signals are
/// blocked until the handlers are complete.
pub(crate) fn install() -> Result<SignalHandlers, Error> {
    let handlers = install_blocked().map_err(|error| Error::System { operation: "catch signals", error })?;
    Ok(SignalHandlers(RefCell::new(Some(handlers))))
}

fn install_blocked() -> io::Result<InstalledHandlers> {
    let mut waiting = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1].into_iter().for_each(|signal| waiting.add(signal));
    waiting.thread_block()?;
    let installed = register();
    // This also unblocks signals that the parent process had blocked: a signal must be able to stop the program.
    waiting.thread_unblock()?;
    installed
}

fn register() -> io::Result<InstalledHandlers> {
    let (ends, stopping) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_default(signal, Arc::clone(&ends))?;
    }
    // These handlers run in this order: the shutdown is checked before the pipe wakes the thread that would set
    // `stopping`.
    flag::register_conditional_shutdown(SIGINT, INTERRUPTED, Arc::clone(&stopping))?;
    Ok(InstalledHandlers { signals: Signals::new([SIGINT, SIGTERM, SIGUSR1])?, ends, stopping })
}

impl SignalHandlers {
    /// Starts a thread that calls `take` for each signal, until `take` returns false.
    ///
    /// Once the program was asked to stop, another INT quits at once from within the signal handler. So even a report into a pipe without a reader cannot keep the program from ending.
    pub(crate) fn listen(&self, take: impl Fn(SignalRequest) -> bool + Send + 'static) -> Result<(), Error> {
        self.try_to_listen(take).map_err(|error| Error::System { operation: "listen for signals", error })
    }

    fn try_to_listen(&self, take: impl Fn(SignalRequest) -> bool + Send + 'static) -> io::Result<()> {
        let Some(InstalledHandlers { mut signals, ends, stopping }) = self.0.take() else { return Ok(()) };
        // Signals from here on wait in the pipe for the thread. Relaxed: the handlers read no other data of ours.
        ends.store(false, Ordering::Relaxed);
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in signals.forever() {
                let asked = if signal == SIGUSR1 { SignalRequest::Report } else { SignalRequest::Stop };
                if asked == SignalRequest::Stop {
                    // This comes before `take`, since what `take` starts may hang.
                    stopping.store(true, Ordering::Relaxed);
                }
                if !take(asked) {
                    return;
                }
            }
        })?;
        Ok(())
    }
}
