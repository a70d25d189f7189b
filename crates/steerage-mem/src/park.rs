//! [`Sleepers`] lets CPUs sleep and wake each other without losing a wake-up.
//!
//! Before a CPU sleeps, it sets its sleep bit, executes a fence, checks for work once more, and
//! then waits on its bell (an eventfd). Before a CPU wakes another CPU, it publishes the work,
//! executes a fence, and then checks the other CPU's sleep bit. Either the fence of the CPU that is
//! about to sleep or the fence of the CPU that wakes it is executed first. Therefore either the CPU
//! that is about to sleep sees the work, or the other CPU sees the sleep bit.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, Ordering, fence};

/// The set of CPUs that sleep, with one bit for each CPU. 64 CPUs share a cache line, so that a
/// producer reads one cache line for all of its targets.
#[derive(Debug)]
pub struct Sleepers {
    words: Box<[CachePadded<AtomicU64>]>,
}

impl Sleepers {
    /// Creates the sleep bits of `cpus` CPUs, numbered from 0. All CPUs are awake.
    pub fn new(cpus: usize) -> Self {
        Self { words: (0..cpus.div_ceil(64).max(1)).map(|_| CachePadded::new(AtomicU64::new(0))).collect() }
    }

    /// Records that `cpu` is about to sleep. After `about_to_sleep`, the caller checks for work
    /// once more. The caller sleeps only if there is no work.
    pub fn about_to_sleep(&self, cpu: usize) {
        // S1. The atomic operation on the sleep bit is relaxed, because the fence F1 orders it.
        self.words[cpu / 64].fetch_or(1 << (cpu % 64), Ordering::Relaxed);
        // F1: pairs with F2.
        fence(Ordering::SeqCst);
    }

    /// Records that `cpu` is awake, no matter whether another CPU has woken it. Returns true if the
    /// sleep bit was still set, which means that no other CPU woke `cpu`.
    pub fn awake(&self, cpu: usize) -> bool {
        let bit = 1 << (cpu % 64);
        // Relaxed: only this CPU sets its sleep bit.
        self.words[cpu / 64].fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }

    /// Of the 64 CPUs from `64 * word` on, returns the CPUs that sleep or are about to sleep. CPUs
    /// that another CPU has already woken are left out. In the result, the lowest bit is the first
    /// of the 64 CPUs.
    pub fn word(&self, word: usize) -> u64 {
        self.words[word].load(Ordering::Relaxed)
    }

    /// Orders everything that this thread has published before all following calls of
    /// [`must_wake`](Self::must_wake). Call `after_publishing` once per poll, for all targets
    /// together.
    #[inline(always)]
    pub fn after_publishing(&self) {
        // F2: pairs with F1.
        fence(Ordering::SeqCst);
    }

    /// Returns true if the caller must ring the bell of `cpu`. Each time that a CPU has set its
    /// sleep bit, only one caller gets the result true. Call
    /// [`after_publishing`](Self::after_publishing) before this function.
    #[inline(always)]
    pub fn must_wake(&self, cpu: usize) -> bool {
        let (word, bit) = (&self.words[cpu / 64], 1 << (cpu % 64));
        // This load is the access S2. S2 pairs with S1, the change of the sleep bit, through the
        // fences F1 and F2. The sleep bit is read before it is changed, so that its cache line
        // stays shared while no CPU sleeps.
        word.load(Ordering::Relaxed) & bit != 0 && word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }
}

/// For each CPU, a request flag: another thread sets it if the CPU should act between two rounds
/// (passes of its loop). A CPU reads its own request flag in each round, so each flag has a cache
/// line of its own.
#[derive(Debug)]
pub struct Requests(Box<[CachePadded<AtomicU64>]>);

impl Requests {
    /// Creates the flags of `cpus` CPUs, without any request.
    pub fn new(cpus: usize) -> Self {
        Self((0..cpus).map(|_| CachePadded::new(AtomicU64::new(0))).collect())
    }

    /// Sets a CPU's request. Returns true if the caller must wake the CPU, and false if the thread
    /// that set an earlier request wakes it.
    pub fn set(&self, cpu: usize) -> bool {
        // The memory order R1 (release) pairs with R2, so that the CPU sees the data that the
        // caller stored for it before this operation.
        self.0[cpu].swap(1, Ordering::AcqRel) == 0
    }

    /// Returns true if the CPU's request flag is set.
    #[inline(always)]
    pub fn is_set(&self, cpu: usize) -> bool {
        // Relaxed: a CPU calls `take` before it acts on a request, and `take` provides the memory
        // order.
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

    /// Rings the bell. Ringing wakes the thread that waits on the bell. If no thread waits, the
    /// next thread that waits on the bell returns immediately. If a thread waits, ringing takes
    /// about 7 us on a virtual machine.
    pub fn ring(&self) {
        // The write to the eventfd fails only if the bell has rung 2^64 - 2 times without being
        // read. The bell then rings already.
        let _ = nix::unistd::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Silences the bell, so that its file descriptor is not readable any more. Returns how often
    /// the bell rang since the last call of `hush`.
    pub fn hush(&self) -> u64 {
        let mut rings = [0; 8];
        // The error EAGAIN means that the bell did not ring, and leaves `rings` at 0.
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
    /// As [`listen`](Self::listen).
    pub fn forget(&self, device: BorrowedFd<'_>) -> io::Result<()> {
        Ok(self.0.delete(device)?)
    }

    /// Returns another file descriptor of the same epoll instance.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn try_clone(&self) -> io::Result<OwnedFd> {
        self.0.0.try_clone()
    }
}

/// Sleeps until the bell rings, one of `devices` is readable, or `timeout` has passed (`None`: no
/// timeout). A signal ends the sleep early and is not an error. The bell keeps ringing until
/// [`Bell::hush`] silences it.
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
        // One call of `hush` silences the bell after both calls of `ring`, so the next wait lasts
        // until its timeout.
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
