//! Sleeping and waking without losing a wake-up.
//!
//! To sleep: set the bit, fence, look again for work, then wait on the bell. To wake: publish the work, fence, then look
//! at the bit. Of the two fences one comes first, so either the sleeper sees the work or the waker sees the bit.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::sync::{AtomicU64, Line, Ordering, fence};

/// Which CPUs sleep: a bit each, 64 to a line, so that a producer reads one line for all of its targets.
#[derive(Debug)]
pub struct Sleepers {
    words: Box<[Line<AtomicU64>]>,
}

impl Sleepers {
    /// For `cpus` CPUs, numbered from 0, all awake.
    pub fn new(cpus: usize) -> Self {
        Self { words: (0..cpus.div_ceil(64).max(1)).map(|_| Line(AtomicU64::new(0))).collect() }
    }

    /// Says that `cpu` is about to sleep. The caller then looks for work once more, and sleeps only if there is none.
    pub fn about_to_sleep(&self, cpu: usize) {
        // S1. Relaxed: ordered by the fence.
        self.words[cpu / 64].0.fetch_or(1 << (cpu % 64), Ordering::Relaxed);
        // F1: pairs with F2.
        fence(Ordering::SeqCst);
    }

    /// Says that `cpu` is awake, by its own doing or because it was woken. Returns whether the bit was still set, that
    /// is, whether nobody woke it.
    pub fn awake(&self, cpu: usize) -> bool {
        let bit = 1 << (cpu % 64);
        // Relaxed: only this CPU sets the bit.
        self.words[cpu / 64].0.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }

    /// Whether `cpu` has said that it is about to sleep and nobody has woken it since.
    pub fn is_about_to_sleep(&self, cpu: usize) -> bool {
        self.words[cpu / 64].0.load(Ordering::Relaxed) & (1 << (cpu % 64)) != 0
    }

    /// Orders what was published before against the looks that follow: once a poll, for all targets.
    #[inline(always)]
    pub fn after_publishing(&self) {
        // F2: pairs with F1.
        fence(Ordering::SeqCst);
    }

    /// Whether `cpu` has to be woken: true for one caller only, who then rings its bell. After
    /// [`after_publishing`](Self::after_publishing).
    #[inline(always)]
    pub fn must_wake(&self, cpu: usize) -> bool {
        let (word, bit) = (&self.words[cpu / 64].0, 1 << (cpu % 64));
        // S2: pairs with S1 by the fences. The read comes first: the line stays shared while nobody sleeps.
        word.load(Ordering::Relaxed) & bit != 0 && word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }
}

/// A CPU's bell: an eventfd, so that one `ppoll` can wait on it and on the CPU's devices.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A silent bell.
    ///
    /// # Errors
    /// The kernel's, where the process has no file descriptor left.
    pub fn new() -> io::Result<Self> {
        let flags = nix::sys::eventfd::EfdFlags::EFD_CLOEXEC | nix::sys::eventfd::EfdFlags::EFD_NONBLOCK;
        Ok(Self(nix::sys::eventfd::EventFd::from_value_and_flags(0, flags)?.into()))
    }

    /// Rings: whoever waits, or will wait next, wakes. Some 7 us on a virtual machine when somebody waits.
    pub fn ring(&self) {
        // It can fail only when 2^64 - 2 rings were not heard, and then it rings already.
        let _ = nix::unistd::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Silences it.
    pub fn hush(&self) {
        // EAGAIN says that it was silent.
        let _ = nix::unistd::read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sleeps until the bell rings, one of `devices` is readable or `timeout` is over (`None`: for ever). A signal ends it
/// early, without an error. The bell rings on until it is silenced.
///
/// # Errors
/// `ppoll`'s, such as a file descriptor that was closed.
pub fn wait(bell: &Bell, devices: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<()> {
    use nix::poll::{PollFd, PollFlags, ppoll};
    let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(1 + devices.len());
    fds.push(PollFd::new(bell.as_fd(), PollFlags::POLLIN));
    fds.extend(devices.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)));
    match ppoll(&mut fds, timeout.map(Into::into), None) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "there is no ppoll")]
    fn a_bell_rung_before_the_wait_is_heard() {
        let bell = Bell::new().unwrap();
        bell.ring();
        bell.ring();
        wait(&bell, &[], None).unwrap();
        bell.hush();
        // Both rings were heard as one: the next wait runs into its timeout.
        wait(&bell, &[], Some(Duration::ZERO)).unwrap();
    }

    #[test]
    fn one_waker_rings() {
        let sleepers = Sleepers::new(130);
        sleepers.about_to_sleep(129);
        sleepers.after_publishing();
        assert!(!sleepers.must_wake(128));
        assert!(sleepers.must_wake(129));
        assert!(!sleepers.must_wake(129));
        assert!(!sleepers.awake(129));
        sleepers.about_to_sleep(0);
        assert!(sleepers.awake(0));
    }
}
