//! Converts signals to events for the main loop of a run.
//!
//! A signal handler runs only when its thread returns from the kernel. A thread that waits for a
//! hung file system never returns, but the default action of a signal can still end the process. A
//! run treats signals as follows:
//!
//! - While a run opens its files and devices, INT, TERM and HUP keep their default actions, because
//!   the run has nothing to clean up yet. An early USR1 is recorded, and handled when the run
//!   starts.
//! - After [`EarlySignals::hold`], all signals of a run are blocked in all threads, and stay
//!   pending until the thread of [`HeldSignals::listen`] reads them.
//! - The thread of `listen` only reads signals, and can always end the process when the second INT
//!   arrives. If the run only waits for other programs, the first signal ends the process
//!   ([`HeldSignals::end_now`]).

use std::cell::RefCell;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use signal_hook::consts::{SIGHUP, SIGINT, SIGUSR1};
use signal_hook::{flag, low_level};

use crate::error::Error;

/// If a signal ended a program, shells report this number plus the signal's number as the program's
/// exit code.
const ENDED_BY: i32 = 128;

/// The exit code of a run that HUP ended. After this exit code, the service manager starts the
/// program again, which reads the changed run file.
pub(crate) const HUNG_UP: u8 = (ENDED_BY + SIGHUP) as u8;

static GOT_HUP: AtomicBool = AtomicBool::new(false);

pub(crate) fn hung_up() -> bool {
    // `Relaxed`: no other data depends on `GOT_HUP`.
    GOT_HUP.load(Ordering::Relaxed)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalRequest {
    Stop,
    Report,
}

#[derive(Debug)]
pub(crate) struct EarlySignals {
    report: Arc<AtomicBool>,
}

/// The signals of a run whose files and devices are open.
#[derive(Debug, Default)]
pub(crate) struct HeldSignals {
    held: RefCell<Option<(SignalFd, EarlySignals)>>,
    ends_now: Arc<AtomicBool>,
}

/// Starts to record USR1.
pub(crate) fn install() -> Result<EarlySignals, Error> {
    let report = Arc::new(AtomicBool::new(false));
    flag::register(SIGUSR1, Arc::clone(&report)).map_err(catch_failed)?;
    // The parent process may have blocked the signals.
    of_runs().thread_unblock().map_err(|error| catch_failed(error.into()))?;
    Ok(EarlySignals { report })
}

impl EarlySignals {
    /// Blocks the signals in this thread and in the threads that it starts later. Call `hold` after
    /// all files and devices that may hang are open. Threads that already run must have blocked the
    /// signals themselves.
    pub(crate) fn hold(self) -> Result<HeldSignals, Error> {
        Ok(HeldSignals { held: RefCell::new(Some((hold(&of_runs())?, self))), ends_now: Arc::default() })
    }
}

impl HeldSignals {
    /// Starts a thread that calls `take` for each signal until `take` returns false. After a
    /// request to stop, the next INT ends the program at once, even if the program is blocked by a
    /// full pipe or a hung file system.
    pub(crate) fn listen(&self, take: impl Fn(SignalRequest) -> bool + Send + 'static) -> Result<(), Error> {
        let Some((held, early)) = self.held.take() else { return Ok(()) };
        let (requests, asked) = mpsc::channel();
        // `Relaxed`: no other data depends on this flag.
        if early.report.load(Ordering::Relaxed) {
            let _ = requests.send(SignalRequest::Report);
        }
        // `take` may hang, so it has its own thread.
        start("requests", move || while asked.recv().is_ok_and(&take) {})?;
        let ends_now = Arc::clone(&self.ends_now);
        start("signals", move || read(&held, &requests, &ends_now))
    }

    /// From now on, INT, TERM and HUP end the process at once. Call `end_now` before waits that
    /// follow the end of the run.
    pub(crate) fn end_now(&self) {
        // `Relaxed`: no other data depends on this flag.
        self.ends_now.store(true, Ordering::Relaxed);
    }
}

/// Blocks the signals, and returns a descriptor from which they can be read.
pub(crate) fn hold(signals: &SigSet) -> Result<SignalFd, Error> {
    let held = signals.thread_block().and_then(|()| SignalFd::with_flags(signals, SfdFlags::SFD_CLOEXEC));
    held.map_err(|error| catch_failed(error.into()))
}

/// Returns a flag that the signals of [`to_end`] set, for commands that handle no packets.
pub(crate) fn ended_by_signal() -> Result<Arc<AtomicBool>, Error> {
    let ended = Arc::default();
    for signal in &to_end() {
        flag::register(signal as i32, Arc::clone(&ended)).map_err(listen_failed)?;
    }
    Ok(ended)
}

fn start(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(body);
    started.map(drop).map_err(listen_failed)
}

fn read(signals: &SignalFd, requests: &mpsc::Sender<SignalRequest>, ends_now: &AtomicBool) {
    let mut is_stopping = false;
    loop {
        let signal = match signals.read_signal() {
            Ok(Some(signal)) => signal.ssi_signo as i32,
            Ok(None) | Err(Errno::EINTR) => continue,
            Err(error) => return tracing::warn!("cannot read signals: {error}"),
        };
        // `Relaxed`: no other data depends on this flag.
        let ends = signal != SIGUSR1 && ends_now.load(Ordering::Relaxed);
        if ends || (signal == SIGINT && is_stopping) {
            low_level::exit(ENDED_BY + signal);
        }
        if signal == SIGHUP {
            // `Relaxed`: no other data depends on this flag.
            GOT_HUP.store(true, Ordering::Relaxed);
        }
        let request = if signal == SIGUSR1 { SignalRequest::Report } else { SignalRequest::Stop };
        is_stopping |= request == SignalRequest::Stop;
        // `send` fails if the run has ended. The program may still wait for a reader of the report.
        if requests.send(request).is_err() && request == SignalRequest::Stop {
            low_level::exit(ENDED_BY + signal);
        }
    }
}

/// Returns the signals that end a command. An ignored HUP (nohup) must be neither blocked nor
/// caught, because the command would receive the HUP and end.
pub(crate) fn to_end() -> SigSet {
    let hup = (!is_ignored(SIGHUP)).then_some(Signal::SIGHUP);
    [Signal::SIGINT, Signal::SIGTERM].into_iter().chain(hup).collect()
}

/// Returns the signals that a run reads.
fn of_runs() -> SigSet {
    let mut signals = to_end();
    signals.add(Signal::SIGUSR1);
    signals
}

/// Returns true if /proc/self/status is readable and says that this process ignores the signal.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

fn catch_failed(error: io::Error) -> Error {
    Error::System { operation: "catch signals", error }
}

fn listen_failed(error: io::Error) -> Error {
    Error::System { operation: "listen for signals", error }
}
