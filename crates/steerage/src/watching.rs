//! A thread that notices CPUs which are taken away and given back, and what others take of them, and has the path know.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};

use nix::unistd::Pid;

use crate::cpu::{self, CpuId, CpuMask};
use crate::handle::Handle;
use crate::limits::WATCH_EVERY;
use crate::topology::{OthersTime, Watch};

/// The threads that are pinned, by their CPUs' places; 0 where there is none yet.
pub(crate) type Threads = Arc<[AtomicI32]>;

/// The calling thread is that of the CPU in this place.
pub(crate) fn is_me(threads: &Threads, place: usize) {
    // Relaxed: it is a number, and nothing else is handed over by it.
    threads[place].store(nix::unistd::gettid().as_raw(), Ordering::Relaxed);
}

/// Watches until something is sent to what it returns, or until that and all copies of it are dropped.
pub(crate) fn watch(handle: Handle, cpus: Vec<CpuId>, threads: Threads) -> std::io::Result<mpsc::Sender<()>> {
    let (stop, stopped) = mpsc::channel();
    let all: CpuMask = cpus.iter().copied().collect();
    let mut others = OthersTime::new(&all);
    let mut watch = Watch::new(all.clone());
    let mut before = all;
    let body = move || {
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(WATCH_EVERY) {
            let threads_now: Vec<i32> = threads.iter().map(|thread| thread.load(Ordering::Relaxed)).collect();
            if let Some(shares) = others.poll(&threads_now) {
                handle.set_others_time(&shares);
            }
            let Some(living) = watch.poll() else { continue };
            tracing::warn!(cpus = %living, before = %before, "CPUs of ours are not the same as before");
            // The kernel has run their threads elsewhere, and leaves them there.
            let back = cpus.iter().zip(&*threads).filter(|(cpu, _)| living.contains(**cpu) && !before.contains(**cpu));
            for (cpu, thread) in back {
                let thread = Pid::from_raw(thread.load(Ordering::Relaxed));
                if let Err(error) = cpu::pin_thread(thread, *cpu) {
                    tracing::warn!(cpu = cpu.0, "cannot pin a thread to its CPU again: {error}");
                }
            }
            handle.set_present_cpus(&living);
            before = living;
        }
    };
    std::thread::Builder::new().name("steerage/watch".into()).spawn(body)?;
    Ok(stop)
}
