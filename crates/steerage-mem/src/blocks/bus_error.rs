//! Keeps the process alive if bytes of a memory-mapped file cannot be read, because a page is lost
//! or the file became shorter. The handler of SIGBUS replaces the page by zeros, and records that
//! the address range has failed, which the reader of the file then reports. A SIGBUS for any other
//! address goes to the previous handler.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Each open capture file has one watched address range. If no range is free, the file is read
/// without mapping it.
const RANGES_MAX: usize = 256;

struct Range {
    start: AtomicUsize,
    end: AtomicUsize,
    failed: AtomicBool,
}

impl Range {
    fn contains(&self, address: usize) -> bool {
        // Acquire: pairs with the release store in `Watched::new`.
        let end = self.end.load(Ordering::Acquire);
        (self.start.load(Ordering::Relaxed)..end).contains(&address)
    }
}

static RANGES: [Range; RANGES_MAX] =
    [const { Range { start: AtomicUsize::new(0), end: AtomicUsize::new(0), failed: AtomicBool::new(false) } };
        RANGES_MAX];

/// The previous action for SIGBUS, or `None` if this module's handler could not be installed.
static PREVIOUS: OnceLock<Option<libc::sigaction>> = OnceLock::new();

#[derive(Debug)]
pub(super) struct Watched(usize);

impl Watched {
    /// `None` if too many ranges are watched, or if the handler cannot be installed.
    pub(super) fn new(start: usize, bytes: usize) -> Option<Self> {
        PREVIOUS.get_or_init(install).as_ref()?;
        let claim = |range: &Range| {
            // Acquire: pairs with the last store in `drop`, so the stores of the range's previous
            // owner come before those of the new owner.
            range.start.compare_exchange(0, start, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let index = RANGES.iter().position(claim)?;
        // Release: pairs with the load of `end` in `contains`, which then sees `start` too.
        RANGES[index].end.store(start + bytes, Ordering::Release);
        Some(Self(index))
    }

    pub(super) fn has_failed(&self) -> bool {
        // Relaxed: no memory is published through `failed`.
        RANGES[self.0].failed.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn contains(&self, address: usize) -> bool {
        RANGES[self.0].contains(address)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let range = &RANGES[self.0];
        // `start` is cleared last: this store pairs with `compare_exchange` in `new`, by which the
        // next owner claims the range.
        range.end.store(0, Ordering::Release);
        range.failed.store(false, Ordering::Release);
        range.start.store(0, Ordering::Release);
    }
}

fn install() -> Option<libc::sigaction> {
    // SAFETY: all-zero bytes are a valid `sigaction`, and both structs outlive the call. The
    // handler calls only functions that signal handlers may call.
    unsafe {
        let (mut action, mut previous): (libc::sigaction, libc::sigaction) = (std::mem::zeroed(), std::mem::zeroed());
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = handle;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        (libc::sigaction(libc::SIGBUS, &raw const action, &raw mut previous) == 0).then_some(previous)
    }
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`, in which SIGBUS has an address.
    let (address, by_kernel) = unsafe { ((*info).si_addr() as usize, (*info).si_code > 0) };
    if let Some(range) = RANGES.iter().find(|range| range.contains(address)).filter(|_| by_kernel) {
        if replace_page(address) {
            range.failed.store(true, Ordering::Relaxed);
            return;
        }
    }
    pass_on(signal, info, context, by_kernel);
}

/// Without a previous handler for SIGBUS, the previous action takes effect when the faulting
/// instruction runs again.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, by_kernel: bool) {
    // SAFETY: as in `install`. The previous action has the address of a function of the form that
    // its flags state.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        let previous = PREVIOUS.get().and_then(Option::as_ref).unwrap_or(&default);
        match previous.sa_sigaction {
            libc::SIG_IGN if !by_kernel => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                libc::sigaction(signal, previous, std::ptr::null_mut());
                if !by_kernel {
                    libc::raise(signal);
                }
            }
            function if previous.sa_flags & libc::SA_SIGINFO != 0 => {
                let function: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = std::mem::transmute(function);
                function(signal, info, context);
            }
            function => {
                let function: extern "C" fn(c_int) = std::mem::transmute(function);
                function(signal);
            }
        }
    }
}

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

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::process::Command;

    use super::*;

    const PAGE_BYTES: usize = 64 << 10;
    const TEST: &str = "blocks::bus_error::tests::a_previous_handler_gets_all_signals_for_other_addresses";
    const VARIABLE: &str = "STEERAGE_MEM_PREVIOUS_HANDLER";

    static CALLS: AtomicUsize = AtomicUsize::new(0);
    static FAULTS_AT: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn plain(_: c_int) {
        CALLS.fetch_add(1, Ordering::SeqCst);
        let at = FAULTS_AT.swap(0, Ordering::SeqCst);
        assert!(at == 0 || replace_page(at));
    }

    extern "C" fn with_info(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel passes a valid `siginfo_t`.
        let (at, by_kernel) = unsafe { ((*info).si_addr() as usize, (*info).si_code > 0) };
        assert!(!context.is_null());
        assert!(!by_kernel || at == FAULTS_AT.load(Ordering::SeqCst));
        plain(signal);
    }

    fn pages_without_bytes(pages: usize) -> usize {
        // SAFETY: the mapping is new, and the name ends with a zero.
        unsafe {
            let file = libc::memfd_create(c"empty".as_ptr(), 0);
            assert_eq!(libc::ftruncate(file, (pages * PAGE_BYTES) as libc::off_t), 0);
            let bytes = pages * PAGE_BYTES;
            let mapped = libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file, 0);
            assert_ne!(mapped, libc::MAP_FAILED);
            assert_eq!(libc::ftruncate(file, 0), 0);
            mapped as usize
        }
    }

    fn read(at: usize) {
        FAULTS_AT.store(at, Ordering::SeqCst);
        // SAFETY: the address is mapped, and one of the two handlers maps zeros there.
        assert_eq!(unsafe { std::ptr::read_volatile(at as *const u8) }, 0);
    }

    fn set(handler: usize, flags: c_int) {
        // SAFETY: as in `install`.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            (action.sa_sigaction, action.sa_flags) = (handler, flags);
            assert_eq!(libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()), 0);
        }
    }

    fn with_previous_handler(form: &str) {
        let with_info: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = with_info;
        let plain: extern "C" fn(c_int) = plain;
        match form {
            "with info" => set(with_info as usize, libc::SA_SIGINFO),
            "plain" => set(plain as usize, 0),
            _ => set(libc::SIG_IGN, 0),
        }
        let at = pages_without_bytes(4);
        let watched = Watched::new(at + PAGE_BYTES, PAGE_BYTES).unwrap();
        assert!(!watched.contains(at) && watched.contains(at + PAGE_BYTES) && !watched.contains(at + 2 * PAGE_BYTES));
        // SAFETY: a handler for the signal is installed.
        let raise = || assert_eq!(unsafe { libc::raise(libc::SIGBUS) }, 0);
        if form == "ignored" {
            raise();
        } else {
            read(at);
            FAULTS_AT.store(0, Ordering::SeqCst);
            raise();
            read(at + 2 * PAGE_BYTES);
            assert_eq!(CALLS.load(Ordering::SeqCst), 3);
        }
        assert!(!watched.has_failed());
        let calls = CALLS.load(Ordering::SeqCst);
        read(at + PAGE_BYTES);
        assert_eq!((watched.has_failed(), CALLS.load(Ordering::SeqCst)), (true, calls), "the handler is gone");
    }

    /// The test runs in a child process, because a process has only one handler for each signal.
    #[test]
    fn a_previous_handler_gets_all_signals_for_other_addresses() {
        if let Ok(form) = std::env::var(VARIABLE) {
            return with_previous_handler(&form);
        }
        for form in ["with info", "plain", "ignored"] {
            let mut child = Command::new(std::env::current_exe().unwrap());
            let output = child.args(["--exact", TEST]).env(VARIABLE, form).output().unwrap();
            assert!(output.status.success(), "{form}: {output:?}");
            assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{form}: {output:?}");
        }
    }

    #[test]
    fn a_fault_at_another_address_ends_a_process_without_a_handler() {
        if std::env::var_os(VARIABLE).is_some() {
            set(libc::SIG_DFL, 0);
            let at = pages_without_bytes(2);
            let _watched = Watched::new(at, PAGE_BYTES).unwrap();
            return read(at + PAGE_BYTES);
        }
        let test = "blocks::bus_error::tests::a_fault_at_another_address_ends_a_process_without_a_handler";
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output = child.args(["--exact", test]).env(VARIABLE, "none").output().unwrap();
        let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
        assert_eq!(signal, Some(libc::SIGBUS), "{output:?}");
    }
}
