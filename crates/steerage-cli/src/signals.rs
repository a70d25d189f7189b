//! Turns signals into events for the loop of a run.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::signal::{SigSet, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::error::Error;

/// The exit code of a program that Ctrl-C ended, as shells report it: 128 plus the signal's number.
const INTERRUPTED: i32 = 128 + SIGINT;

/// The exit code of a run that HUP ended in good order. The service manager then starts it again,
/// and it reads its changed run file.
pub(crate) const HUNG_UP: u8 = 128 + SIGHUP as u8;

/// Whether HUP ended the run.
static GOT_HUP: AtomicBool = AtomicBool::new(false);

/// Whether HUP ended the run.
pub(crate) fn hung_up() -> bool {
    // Relaxed: no other data depends on it.
    GOT_HUP.load(Ordering::Relaxed)
}

/// The request that a signal stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalRequest {
    /// INT, TERM or HUP: stop, and print the report.
    Stop,
    /// USR1: print a report, and continue.
    Report,
}

/// The handlers of the signals, between their installation and the start of the listening thread.
///
/// Until that thread runs, INT, TERM and HUP end the program as if there were no handler, so that
/// it can be stopped while it opens its devices. USR1 is kept for the thread.
#[derive(Debug)]
pub(crate) struct SignalHandlers(RefCell<Option<InstalledHandlers>>);

#[derive(Debug)]
struct InstalledHandlers {
    /// The pipe that the handlers write to.
    signals: Signals,
    /// Whether INT, TERM and HUP end the program as if there were no handler.
    ends: Arc<AtomicBool>,
    /// Whether the program was asked to stop. If so, another INT quits at once.
    stopping: Arc<AtomicBool>,
}

/// Installs the handlers. Call this while the process has one thread.
///
/// A handler is installed first, and gets its actions afterwards. A signal in between would be
/// lost, so all signals are blocked until the handlers are complete.
pub(crate) fn install() -> Result<SignalHandlers, Error> {
    let handlers = install_blocked().map_err(|error| Error::System { operation: "catch signals", error })?;
    Ok(SignalHandlers(RefCell::new(Some(handlers))))
}

fn install_blocked() -> io::Result<InstalledHandlers> {
    let mut waiting = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1]
        .into_iter()
        .for_each(|signal| waiting.add(signal));
    waiting.thread_block()?;
    let installed = register();
    // This also unblocks signals that the parent process had blocked, since a signal must be able
    // to stop the program.
    waiting.thread_unblock()?;
    installed
}

fn register() -> io::Result<InstalledHandlers> {
    let (ends, stopping) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    // If nohup started the program, the run goes on when its terminal is gone.
    let hup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    for signal in [SIGINT, SIGTERM].into_iter().chain(hup) {
        flag::register_conditional_default(signal, Arc::clone(&ends))?;
    }
    // These handlers run in this order. So the check for shutdown comes before the pipe wakes the
    // thread that sets `stopping`.
    flag::register_conditional_shutdown(SIGINT, INTERRUPTED, Arc::clone(&stopping))?;
    let signals = Signals::new([SIGINT, SIGTERM, SIGUSR1].into_iter().chain(hup))?;
    Ok(InstalledHandlers { signals, ends, stopping })
}

/// Whether the parent process made this process ignore the signal. If the kernel does not say, the
/// answer is no.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

impl SignalHandlers {
    /// Starts a thread that calls `take` for each signal, until `take` returns false.
    ///
    /// Once the program was asked to stop, the signal handler quits at the next INT. So even a
    /// blocked write of a report to a full pipe cannot keep the program from ending.
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
                if signal == SIGHUP {
                    GOT_HUP.store(true, Ordering::Relaxed);
                }
                if asked == SignalRequest::Stop {
                    // This comes before `take`, because `take` may start something that hangs.
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
