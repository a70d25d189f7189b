//! Sleeping and waking without losing a wake-up.
//!
//! A CPU that goes to sleep sets its bit, executes a fence, checks for work once more, and then
//! waits on its bell. A CPU that wakes a sleeping CPU publishes the work, executes a fence, and
//! then checks the bit. The fence of the sleeper or the fence of the waker comes first, so either
//! the sleeper sees the work or the waker sees the bit.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, Ordering, fence};

/// The CPUs that sleep, with one bit for each CPU. 64 CPUs share a cache line, so that a producer
/// reads one line for all of its targets.
#[derive(Debug)]
pub struct Sleepers {
    words: Box<[CachePadded<AtomicU64>]>,
}

impl Sleepers {
    /// Creates the bits of `cpus` CPUs, numbered from 0, which are all awake.
    pub fn new(cpus: usize) -> Self {
        Self { words: (0..cpus.div_ceil(64).max(1)).map(|_| CachePadded::new(AtomicU64::new(0))).collect() }
    }

    /// Records that `cpu` is about to sleep. After this call, the caller checks for work once more,
    /// and sleeps only if there is no work.
    pub fn about_to_sleep(&self, cpu: usize) {
        // S1. Relaxed: ordered by the fence.
        self.words[cpu / 64].fetch_or(1 << (cpu % 64), Ordering::Relaxed);
        // F1: pairs with F2.
        fence(Ordering::SeqCst);
    }

    /// Records that `cpu` is awake, whether or not another CPU woke it. Returns whether the bit was
    /// still set, which means that no other CPU woke `cpu`.
    pub fn awake(&self, cpu: usize) -> bool {
        let bit = 1 << (cpu % 64);
        // Relaxed: only this CPU sets the bit.
        self.words[cpu / 64].fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }

    /// Which of the CPUs from `64 * word` on are about to sleep or asleep, and no CPU has woken them since: 64 CPUs, the first one in
    /// the lowest bit.
    pub fn word(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::Relaxed)
    }

    /// Orders everything that was published before against the following calls of
    /// [`must_wake`](Self::must_wake). Call this function once per poll, for all targets.
    #[inline(always)]
    pub fn after_publishing(&self) {
        // F2: pairs with F1.
        fence(Ordering::SeqCst);
    }

    /// Whether the caller must ring the bell of `cpu`. Returns true to one caller only. Call
    /// [`after_publishing`](Self::after_publishing) first.
    #[inline(always)]
    pub fn must_wake(&self, cpu: usize) -> bool {
        let (word, bit) = (&self.words[cpu / 64], 1 << (cpu % 64));
        // S2: pairs with S1 by the fences. Reading first keeps the line shared while no CPU sleeps.
        word.load(Ordering::Relaxed) & bit != 0 && word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }
}

/// For each CPU, whether another thread requests its attention between two rounds. A CPU reads its
/// own request in each round, so each request has a cache line of its own.
#[derive(Debug)]
pub struct Requests(Box<[CachePadded<AtomicU64>]>);

impl Requests {
    /// No requests to `cpus` CPUs.
    pub fn new(cpus: usize) -> Self {
        Self((0..cpus).map(|_| CachePadded::new(AtomicU64::new(0))).collect())
    }

    /// Sets a request. Returns true if the caller must wake the CPU, and false if the thread that set
    /// an earlier request wakes it.
    pub fn set(&self, cpu: usize) -> bool {
        // R1, release: pairs with R2, so that the CPU sees what the caller has stored for it.
        self.0[cpu].swap(1, Ordering::AcqRel) == 0
    }

    /// Whether a request is set.
    #[inline(always)]
    pub fn is_set(&self, cpu: usize) -> bool {
        // Relaxed: `take` orders what follows from a request.
        self.0[cpu].load(Ordering::Relaxed) != 0
    }

    /// Takes the request of a CPU. Returns whether it was set.
    #[inline(always)]
    pub fn take(&self, cpu: usize) -> bool {
        // R2, acquire: pairs with R1.
        self.is_set(cpu) && self.0[cpu].swap(0, Ordering::AcqRel) != 0
    }
}

/// A CPU's bell: an eventfd, so that one `ppoll` can wait on it and on the CPU's devices.
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
    /// The kernel's error if the process has no file descriptor left.
    pub fn new() -> io::Result<Self> {
        let flags = nix::sys::eventfd::EfdFlags::EFD_CLOEXEC | nix::sys::eventfd::EfdFlags::EFD_NONBLOCK;
        Ok(Self(nix::sys::eventfd::EventFd::from_value_and_flags(0, flags)?.into()))
    }

    /// Rings the bell, which wakes the thread that waits for the bell now or next. If a thread
    /// waits, this takes about 7 us on a virtual machine.
    pub fn ring(&self) {
        // The write fails only after 2^64 - 2 rings without a read, when the bell is already
        // ringing.
        let _ = nix::unistd::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes the bell unreadable again. Returns how often the bell has rung since the last call.
    pub fn hush(&self) -> u64 {
        let mut rings = [0; 8];
        // EAGAIN means that the bell was silent, and leaves the number at 0.
        let _ = nix::unistd::read(&self.0, &mut rings);
        u64::from_ne_bytes(rings)
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// One file descriptor (epoll) for a bell and devices, for a caller with its own runtime.
#[derive(Debug)]
pub struct Events(nix::sys::epoll::Epoll);

impl Events {
    /// Listens to the bell and to all `devices`.
    ///
    /// # Errors
    /// The kernel's error if the process has no file descriptor left.
    pub fn new<'a>(bell: &Bell, devices: impl IntoIterator<Item = BorrowedFd<'a>>) -> io::Result<Self> {
        use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
        let events = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        events.add(bell.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 0))?;
        devices.into_iter().try_for_each(|device| events.add(device, EpollEvent::new(EpollFlags::EPOLLIN, 0)))?;
        Ok(Self(events))
    }

    /// Adds a device, and listens to it.
    ///
    /// # Errors
    /// The kernel's error, for example if the device was already added.
    pub fn add(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        use nix::sys::epoll::{EpollEvent, EpollFlags};
        Ok(self.0.add(device, EpollEvent::new(EpollFlags::EPOLLIN, 0))?)
    }

    /// Starts or stops listening to a device.
    ///
    /// # Errors
    /// The kernel's error if the device was never added.
    pub fn listen(&self, device: BorrowedFd<'_>, yes: bool) -> io::Result<()> {
        use nix::sys::epoll::{EpollEvent, EpollFlags};
        let flags = if yes { EpollFlags::EPOLLIN } else { EpollFlags::empty() };
        Ok(self.0.modify(device, &mut EpollEvent::new(flags, 0))?)
    }

    /// Removes a device.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn forget(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        Ok(self.0.delete(device)?)
    }

    /// Another file descriptor of the same epoll instance.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        self.0.0.try_clone()
    }
}

/// Sleeps until the bell rings, one of `devices` is readable, or `timeout` is over (`None`:
/// forever). A signal ends the sleep early, without an error. A ringing bell rings until
/// [`Bell::hush`] silences it.
///
/// # Errors
/// The error of `ppoll`, for example if a file descriptor was closed.
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
        // One call silences both rings, so the next wait reaches its timeout.
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
