//! Signals, as events for the run's loop.

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

/// Signals whose handlers are installed, and that no thread listens to yet. An INT or TERM ends the program as if there
/// were no handler, so that it can be stopped while it still opens its devices. A USR1 is kept.
#[derive(Debug)]
pub(crate) struct Caught(RefCell<Option<Handlers>>);

#[derive(Debug)]
struct Handlers {
    /// A pipe that the handlers write to.
    signals: Signals,
    /// Whether a signal to stop ends the program as if there were no handler.
    ends: Arc<AtomicBool>,
    /// Whether the program was asked to stop, so that another INT quits at once.
    stopping: Arc<AtomicBool>,
}

/// Installs the handlers. To be called while there is no other thread.
///
/// A handler does nothing between the call that installs it and the one that tells it what to do: a signal that came then
/// would be lost. So signals wait until all handlers are complete.
pub(crate) fn catch() -> Result<Caught, Error> {
    let handlers = catch_all().map_err(|error| Error::System { operation: "catch signals", error })?;
    Ok(Caught(RefCell::new(Some(handlers))))
}

fn catch_all() -> io::Result<Handlers> {
    let mut waiting = SigSet::empty();
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGUSR1].into_iter().for_each(|signal| waiting.add(signal));
    waiting.thread_block()?;
    let installed = install();
    // The parent process may have blocked them. A signal must stop the program all the same.
    waiting.thread_unblock()?;
    installed
}

fn install() -> io::Result<Handlers> {
    let (ends, stopping) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_default(signal, Arc::clone(&ends))?;
    }
    // Handlers run in this order. The first INT must not meet what the thread does once the pipe has woken it.
    flag::register_conditional_shutdown(SIGINT, INTERRUPTED, Arc::clone(&stopping))?;
    Ok(Handlers { signals: Signals::new([SIGINT, SIGTERM, SIGUSR1])?, ends, stopping })
}

impl Caught {
    /// From now on signals come to `take`, on a thread of their own, which ends when `take` says false.
    ///
    /// Once the program was asked to stop, an INT quits at once, from within the signal handler: whatever hangs by then, be
    /// it a report into a pipe that nobody reads, cannot hold it up.
    pub(crate) fn listen(&self, take: impl Fn(Asked) -> bool + Send + 'static) -> Result<(), Error> {
        self.try_to_listen(take).map_err(|error| Error::System { operation: "listen for signals", error })
    }

    fn try_to_listen(&self, take: impl Fn(Asked) -> bool + Send + 'static) -> io::Result<()> {
        let Some(Handlers { mut signals, ends, stopping }) = self.0.take() else { return Ok(()) };
        // What comes from here on is in the pipe when the thread starts. Relaxed: the handlers read nothing else of ours.
        ends.store(false, Ordering::Relaxed);
        thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for signal in signals.forever() {
                let asked = if signal == SIGUSR1 { Asked::Report } else { Asked::Stop };
                if asked == Asked::Stop {
                    // Before the end begins, in which something may hang.
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
