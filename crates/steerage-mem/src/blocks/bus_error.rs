//! Keeps the process alive if mapped bytes of a file cannot be read.
//!
//! The kernel reports such an error by SIGBUS: the page was removed from the page cache and cannot
//! be read again, or the file became shorter. The handler puts a page of zeros in place of the page,
//! and records that the range has failed. The reader of the file then reports an error. A SIGBUS
//! for any other address goes to the previous handler.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The most ranges in one process. Each open capture has one range. A capture without a range is
/// read without mapping it.
const RANGES_MAX: usize = 256;

struct Range {
    start: AtomicUsize,
    end: AtomicUsize,
    failed: AtomicBool,
}

static RANGES: [Range; RANGES_MAX] =
    [const { Range { start: AtomicUsize::new(0), end: AtomicUsize::new(0), failed: AtomicBool::new(false) } };
        RANGES_MAX];

/// The previous action for SIGBUS. `None` if the handler could not be installed.
static PREVIOUS: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// A range of addresses that the handler watches until this value is dropped.
#[derive(Debug)]
pub(super) struct Watched(usize);

impl Watched {
    /// Watches `bytes` bytes at `start`. `None` if there are too many ranges, or if the handler
    /// cannot be installed.
    pub(super) fn new(start: usize, bytes: usize) -> Option<Self> {
        PREVIOUS.get_or_init(install).as_ref()?;
        let claim = |range: &Range| {
            // Relaxed: the owner publishes the range by `end`, and until then its end is 0.
            range.start.compare_exchange(0, start, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let index = RANGES.iter().position(claim)?;
        // Release pairs with the load in `handle`, which then sees the start too.
        RANGES[index].end.store(start + bytes, Ordering::Release);
        Some(Self(index))
    }

    /// Whether the handler has replaced a page of the range by zeros.
    pub(super) fn has_failed(&self) -> bool {
        // Relaxed: the flag publishes no memory.
        RANGES[self.0].failed.load(Ordering::Relaxed)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let range = &RANGES[self.0];
        // Release pairs with the claim of the next owner only by the value of `start`, which is
        // therefore stored last.
        range.end.store(0, Ordering::Release);
        range.failed.store(false, Ordering::Release);
        range.start.store(0, Ordering::Release);
    }
}

fn install() -> Option<libc::sigaction> {
    // SAFETY: all-zero bytes are a valid `sigaction`, and both structs outlive the call. The handler
    // only makes calls that are allowed in signal handlers.
    unsafe {
        let (mut action, mut previous): (libc::sigaction, libc::sigaction) = (std::mem::zeroed(), std::mem::zeroed());
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = handle;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        (libc::sigaction(libc::SIGBUS, &raw const action, &raw mut previous) == 0).then_some(previous)
    }
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`, in which SIGBUS has an address.
    let (address, by_kernel) = unsafe { ((*info).si_addr() as usize, (*info).si_code > 0) };
    let within = |range: &&Range| {
        // Acquire pairs with `Watched::new`. The range cannot end during an access to it.
        let end = range.end.load(Ordering::Acquire);
        (range.start.load(Ordering::Relaxed)..end).contains(&address)
    };
    if let Some(range) = RANGES.iter().find(within).filter(|_| by_kernel) {
        if replace_page(address) {
            range.failed.store(true, Ordering::Relaxed);
            return;
        }
    }
    // SAFETY: as in `install`. The faulting instruction runs again and raises the signal for the
    // previous handler. A signal that a process sent is sent again.
    unsafe {
        let otherwise: libc::sigaction = std::mem::zeroed();
        let previous = PREVIOUS.get().and_then(Option::as_ref).unwrap_or(&otherwise);
        libc::sigaction(signal, previous, std::ptr::null_mut());
        if !by_kernel {
            libc::raise(signal);
        }
    }
}

/// Maps zeros in place of the page at `address`. Returns whether that succeeded.
fn replace_page(address: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the page belongs to a watched range, which is only read. `sysconf` and `mmap` may be
    // called in a signal handler, and `errno` is restored for the interrupted code.
    unsafe {
        let errno = *libc::__errno_location();
        let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        let start = (address - address % page) as *mut c_void;
        let mapped = libc::mmap(start, page, libc::PROT_READ, flags, -1, 0);
        *libc::__errno_location() = errno;
        mapped != libc::MAP_FAILED
    }
}
