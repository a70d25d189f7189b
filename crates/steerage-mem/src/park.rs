//! [`Sleepers`] lets CPUs sleep and wake each other without losing a wake-up.
//!
//! Before a CPU sleeps, it sets its sleep bit, executes a fence, checks for work once more, and
//! then waits on its bell (an eventfd). Before a CPU wakes another CPU, it publishes the work,
//! executes a fence, and checks the other CPU's sleep bit. One of the two fences comes first:
//! either the sleeper sees the work, or the waker sees the sleep bit.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, Ordering, fence};

/// The sleep bits: one bit for each CPU, set while the CPU sleeps. A producer reads one cache line
/// to check 64 target CPUs.
#[derive(Debug)]
pub struct Sleepers {
    words: Box<[CachePadded<AtomicU64>]>,
}

impl Sleepers {
    /// Creates the sleep bits of `cpus` CPUs, all awake.
    pub fn new(cpus: usize) -> Self {
        Self { words: (0..cpus.div_ceil(64).max(1)).map(|_| CachePadded::new(AtomicU64::new(0))).collect() }
    }

    /// Records that `cpu` is about to sleep. The caller must then check for work once more.
    pub fn about_to_sleep(&self, cpu: usize) {
        // S1. The atomic operation on the sleep bit is relaxed, because the fence F1 orders it.
        self.words[cpu / 64].fetch_or(1 << (cpu % 64), Ordering::Relaxed);
        // F1: pairs with F2.
        fence(Ordering::SeqCst);
    }

    /// Records that `cpu` is awake. Returns true if no other CPU has woken `cpu`.
    pub fn awake(&self, cpu: usize) -> bool {
        let bit = 1 << (cpu % 64);
        // Relaxed: only this CPU sets its sleep bit.
        self.words[cpu / 64].fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }

    /// A bit for each of the 64 CPUs from `64 * word` on, set if the CPU sleeps and was not woken
    /// yet.
    pub fn word(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::Relaxed)
    }

    /// Executes the fence between publishing and [`must_wake`](Self::must_wake). One call per poll
    /// suffices.
    #[inline(always)]
    pub fn after_publishing(&self) {
        // F2: pairs with F1.
        fence(Ordering::SeqCst);
    }

    /// Returns true if the caller must ring the bell of `cpu`. Only one caller gets true for each
    /// sleep. Call [`after_publishing`](Self::after_publishing) first.
    #[inline(always)]
    pub fn must_wake(&self, cpu: usize) -> bool {
        let (word, bit) = (&self.words[cpu / 64], 1 << (cpu % 64));
        // S2: pairs with S1 through F1 and F2. While the bit is clear, only loads access the cache
        // line, so it stays shared.
        word.load(Ordering::Relaxed) & bit != 0 && word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }
}

/// For each CPU, a flag in a cache line of its own that asks the CPU to act between two rounds.
#[derive(Debug)]
pub struct Requests(Box<[CachePadded<AtomicU64>]>);

impl Requests {
    /// Creates the flags of `cpus` CPUs.
    pub fn new(cpus: usize) -> Self {
        Self((0..cpus).map(|_| CachePadded::new(AtomicU64::new(0))).collect())
    }

    /// Sets a CPU's request. Returns true if the caller must wake the CPU.
    pub fn set(&self, cpu: usize) -> bool {
        // R1, release: pairs with R2, so that the CPU sees the data that the caller stored for it.
        self.0[cpu].swap(1, Ordering::AcqRel) == 0
    }

    /// Returns true if the CPU's request flag is set.
    #[inline(always)]
    pub fn is_set(&self, cpu: usize) -> bool {
        // Relaxed: before a CPU acts on a request, it calls `take`, whose load acquires.
        self.0[cpu].load(Ordering::Relaxed) != 0
    }

    /// Clears the request of a CPU. Returns true if the request flag was set.
    #[inline(always)]
    pub fn take(&self, cpu: usize) -> bool {
        // R2, acquire: pairs with R1.
        self.is_set(cpu) && self.0[cpu].swap(0, Ordering::AcqRel) != 0
    }
}

/// A CPU's bell is an eventfd, so that one `ppoll` can wait for the bell and for the CPU's devices.
///
/// ```
/// use steerage_mem::park::{Bell, wait};
///
/// let bell = Bell::new()?;
/// bell.ring();
/// wait(&bell, &[], None)?; // Returns at once, because the bell rings.
/// bell.hush();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// Creates a silent bell.
    ///
    /// # Errors
    /// Returns the kernel's error if the process has no free file descriptor.
    pub fn new() -> io::Result<Self> {
        let flags = nix::sys::eventfd::EfdFlags::EFD_CLOEXEC | nix::sys::eventfd::EfdFlags::EFD_NONBLOCK;
        Ok(Self(nix::sys::eventfd::EventFd::from_value_and_flags(0, flags)?.into()))
    }

    /// Wakes the thread that waits on the bell, or that waits next. A call takes about 7 us on a
    /// virtual machine.
    pub fn ring(&self) {
        // The write fails only after 2^64 - 2 rings without a read, while the bell already rings.
        let _ = nix::unistd::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Silences the bell. Returns how often the bell rang since the last call of `hush`.
    pub fn hush(&self) -> u64 {
        let mut rings = [0; 8];
        // EAGAIN: the bell did not ring, and `rings` stays 0.
        let _ = nix::unistd::read(&self.0, &mut rings);
        u64::from_ne_bytes(rings)
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One file descriptor (epoll) for a bell and devices, for callers with their own event loop.
#[derive(Debug)]
pub struct Events(nix::sys::epoll::Epoll);

impl Events {
    /// Creates an epoll instance that listens to the bell and to all of `devices`.
    ///
    /// # Errors
    /// Returns the kernel's error if the process has no free file descriptor.
    pub fn new<'a>(bell: &Bell, devices: impl IntoIterator<Item = BorrowedFd<'a>>) -> io::Result<Self> {
        use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
        let events = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        events.add(bell.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        devices.into_iter().try_for_each(|device| events.add(device, EpollEvent::new(EpollFlags::EPOLLIN, 0)))?;
        Ok(Self(events))
    }

    /// Adds a device and listens to it.
    ///
    /// # Errors
    /// Returns the kernel's error, for example if the device was added before.
    pub fn add(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        use nix::sys::epoll::{EpollEvent, EpollFlags};
        Ok(self.0.add(device, EpollEvent::new(EpollFlags::EPOLLIN, 0))?)
    }

    /// Starts or stops listening to a device.
    ///
    /// # Errors
    /// Returns the kernel's error if the device was never added.
    pub fn listen(&self, device: BorrowedFd<'_>, yes: bool) -> io::Result<()> {
        use nix::sys::epoll::{EpollEvent, EpollFlags};
        let flags = if yes { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
        Ok(self.0.modify(device, &mut EpollEvent::new(flags, 0))?)
    }

    /// Removes a device.
    ///
    /// # Errors
    /// Returns the errors of [`listen`](Self::listen).
    pub fn forget(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        Ok(self.0.delete(device)?)
    }

    /// Returns another file descriptor of the same epoll instance.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new).
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        self.0.0.try_clone()
    }
}

/// Sleeps until the bell rings, one of `devices` is readable, `timeout` has passed, or a signal
/// arrives. Returns at once while the bell still rings (until [`Bell::hush`]).
///
/// # Errors
/// Returns the error of `ppoll`, for example if a file descriptor was closed.
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
        assert_eq!([bell.hush(), bell.hush()], [2, 0]);
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
