//! The signal handler that reports a forbidden system call, and all unsafe code of this crate.

use std::fmt::{self, Write as _};
use std::io::{self, Cursor, Write as _};
use std::mem;
use std::os::fd::RawFd;
use std::ptr;

use libc::{c_char, c_int, c_void, ucontext_t};

use super::calls::{self, Argument};

/// `SYS_SECCOMP` of asm-generic/siginfo.h: a seccomp filter caused the SIGSYS.
const SYS_SECCOMP: c_int = 1;

/// `TASK_COMM_LEN` of linux/sched.h, including the terminating NUL.
const NAME_BYTES: usize = 16;

const LINE_BYTES: usize = 320;
const PATH_BYTES: usize = 128;

/// The exit code if SIGSYS does not end the process: 128 plus the signal, as in a shell.
const ENDED: c_int = 128 + libc::SIGSYS;

/// Files that the C library may read in any thread that allocates or frees memory, but does not
/// need: opening them fails with "permission denied" instead of ending the process.
const ASKED_BY_LIBC: [&[u8]; 3] = [b"/proc/sys/vm/overcommit_memory", b"/sys/devices/system/cpu/online", b"/proc/stat"];

#[repr(C)]
struct SysInfo {
    signo: c_int,
    _errno: c_int,
    code: c_int,
    _pad: c_int,
    _call_addr: *mut c_void,
    syscall: c_int,
    _arch: u32,
}

const _: () = assert!(size_of::<SysInfo>() <= size_of::<libc::siginfo_t>());

/// The SIGSYS handler prints one line about the forbidden system call, and ends the process.
pub(crate) fn name_violations() -> io::Result<()> {
    // SAFETY: `sigaction` is plain data, and all zeros is an empty mask without flags.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = on_violation as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `action` is valid. Its handler has the signature that SA_SIGINFO requires, and calls
    // only functions that are safe in a signal handler.
    if unsafe { libc::sigaction(libc::SIGSYS, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A packet socket, and the protocol number to which the socket is bound.
    Packet(u16),
    Udp,
}

/// Returns the kind of a socket, or `None` if the descriptor is neither a packet socket nor a UDP
/// socket.
pub(crate) fn socket_kind(descriptor: RawFd) -> Option<Kind> {
    // SAFETY: all zeros is a valid address.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    let mut len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel writes no more than `len` bytes, which are those of `address`. If the descriptor
    // is no socket, the call fails.
    let failed = unsafe { libc::getsockname(descriptor, (&raw mut address).cast(), &raw mut len) };
    match i32::from(address.sll_family) {
        _ if failed != 0 => None,
        libc::AF_PACKET => Some(Kind::Packet(u16::from_be(address.sll_protocol))),
        libc::AF_INET | libc::AF_INET6 if socket_type(descriptor) == Some(libc::SOCK_DGRAM) => Some(Kind::Udp),
        _ => None,
    }
}

fn socket_type(descriptor: RawFd) -> Option<c_int> {
    let (mut kind, mut len) = (0, size_of::<c_int>() as libc::socklen_t);
    // SAFETY: the kernel writes no more than `len` bytes, which are those of `kind`.
    let failed =
        unsafe { libc::getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast(), &raw mut len) };
    (failed == 0).then_some(kind)
}

/// Returns the kernel's error if the kernel supports Landlock but refuses to apply it.
pub(crate) fn landlock_refusal() -> Option<io::Error> {
    /// From linux/landlock.h.
    const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
    // SAFETY: with this flag, the kernel returns its version and reads no memory.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, ptr::null::<c_void>(), 0, LANDLOCK_CREATE_RULESET_VERSION)
    };
    let error = (version < 0).then(io::Error::last_os_error)?;
    (![Some(libc::ENOSYS), Some(libc::EOPNOTSUPP)].contains(&error.raw_os_error())).then_some(error)
}

pub(crate) fn has_seccomp() -> bool {
    // SAFETY: PR_GET_SECCOMP takes no pointer.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) >= 0 }
}

extern "C" fn on_violation(_signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`. It is at least as long as `SysInfo`, and also
    // aligned for a pointer.
    let info = unsafe { &*info.cast::<SysInfo>() };
    // SAFETY: with SA_SIGINFO, the third argument is this thread's `ucontext_t`, and nothing else
    // refers to it now.
    let context = unsafe { &mut *context.cast::<ucontext_t>() };
    if info.signo != libc::SIGSYS || info.code != SYS_SECCOMP {
        end();
    }
    let call = info.syscall as usize;
    if calls::blocks_signals(call) && block(context) {
        return;
    }
    let mut buffer = [0; PATH_BYTES];
    let path = calls::path_of(call).and_then(|which| path(context, which, &mut buffer));
    if calls::opens(call) && path.is_some_and(|path| ASKED_BY_LIBC.contains(&path)) {
        set_result(context, -libc::EACCES);
        return;
    }
    if calls::begins_backtrace(call) {
        abort_without_backtrace();
    }
    let mut name = [0u8; NAME_BYTES];
    // SAFETY: PR_GET_NAME writes up to 16 bytes, which is the length of `name`.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let thread = Printable(name.split(|byte| *byte == 0).next().unwrap_or_default());
    let (call, number) = (calls::call_name(call), info.syscall as u32);
    // Formatting text and numbers into an array allocates no memory. A longer line is cut.
    let mut line = Cursor::new([0; LINE_BYTES]);
    let _ = write!(
        line,
        "steerage: the sandbox ended this process: thread {thread} made the system call {call} ({number})"
    );
    if let Some(path) = path {
        let _ = write!(line, " for {}", Printable(path));
    }
    let _ = line.write_all(b"; please report this, --no-sandbox runs without the sandbox\n");
    // SAFETY: the bytes are valid. If standard error is closed, there is no way to report it.
    unsafe { libc::write(libc::STDERR_FILENO, line.get_ref().as_ptr().cast(), line.position() as usize) };
    end();
}

/// Ends the process like `abort`, but without a backtrace, after the standard library has reported
/// a failed memory allocation. `abort` may block signals, so the SIGSYS handler cannot call it.
fn abort_without_backtrace() -> ! {
    let line = b"steerage: the sandbox allows no backtrace; with --no-sandbox there is one\n";
    // SAFETY: the bytes are valid. If standard error is closed, there is no way to report it.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
    // SAFETY: the call takes numbers only.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), libc::SIGABRT) };
    // SAFETY: the call ends the process, if SIGABRT is blocked.
    unsafe { libc::_exit(128 + libc::SIGABRT) }
}

/// Emulates a call of `rt_sigprocmask` that blocks signals, but leaves SIGSYS unblocked. The C
/// library blocks all signals while it starts a thread or a program.
fn block(context: &mut ucontext_t) -> bool {
    let (Some(wanted), Some(old)) = (argument(context, Argument::Second), argument(context, Argument::Third)) else {
        return false;
    };
    let mask = (&raw mut context.uc_sigmask).cast::<u64>();
    // SAFETY: the kernel's mask has 64 bits, and is at the start of the C library's mask, which is
    // longer.
    let before = unsafe { mask.read_unaligned() };
    if old != 0 {
        // SAFETY: the program made the call with a pointer to 64 bits that receive the old mask.
        unsafe { (old as *mut u64).write_unaligned(before) };
    }
    if wanted != 0 {
        // SAFETY: the program made the call with a pointer to the 64 bits of the signals to block.
        let wanted = unsafe { (wanted as *const u64).read_unaligned() };
        let sigsys = 1 << (libc::SIGSYS - 1);
        // SAFETY: as above. The thread has this mask after the handler returns.
        unsafe { mask.write_unaligned(before | (wanted & !sigsys)) };
    }
    set_result(context, 0);
    true
}

/// SIGSYS is blocked while its handler runs, so a forbidden system call in the handler ends the
/// process with SIGSYS. This function calls `kexec_load`, which no seccomp filter of this crate
/// allows, and which has no effect with null arguments.
fn end() -> ! {
    // SAFETY: without segments to load, the system call reads no memory.
    unsafe { libc::syscall(libc::SYS_kexec_load, 0, 0, 0, 0) };
    // SAFETY: the call ends the process.
    unsafe { libc::_exit(ENDED) }
}

fn path<'a>(context: &ucontext_t, which: Argument, buffer: &'a mut [u8; PATH_BYTES]) -> Option<&'a [u8]> {
    let at = argument(context, which)? as *const c_char;
    if at.is_null() {
        return None;
    }
    for (index, byte) in buffer.iter_mut().enumerate() {
        // SAFETY: the program made the call with this pointer to a path that ends with NUL, and no
        // byte after the NUL is read. If the pointer is wrong, the process ends with SIGSEGV
        // instead of SIGSYS.
        *byte = unsafe { *at.add(index) } as u8;
        if *byte == 0 {
            return Some(&buffer[..index]);
        }
    }
    Some(buffer)
}

#[cfg(target_arch = "x86_64")]
fn argument(context: &ucontext_t, which: Argument) -> Option<u64> {
    let register = match which {
        Argument::First => libc::REG_RDI,
        Argument::Second => libc::REG_RSI,
        Argument::Third => libc::REG_RDX,
    };
    Some(context.uc_mcontext.gregs[register as usize] as u64)
}

#[cfg(target_arch = "x86_64")]
fn set_result(context: &mut ucontext_t, result: c_int) {
    context.uc_mcontext.gregs[libc::REG_RAX as usize] = result.into();
}

#[cfg(target_arch = "aarch64")]
fn argument(context: &ucontext_t, which: Argument) -> Option<u64> {
    Some(context.uc_mcontext.regs[which as usize])
}

#[cfg(target_arch = "aarch64")]
fn set_result(context: &mut ucontext_t, result: c_int) {
    context.uc_mcontext.regs[0] = i64::from(result) as u64;
}

// On architectures other than x86_64 and aarch64, the handler reports no path and emulates no
// system call.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn argument(_: &ucontext_t, _: Argument) -> Option<u64> {
    None
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn set_result(_: &mut ucontext_t, _: c_int) {}

/// Text with `?` in place of each byte that is not printable.
struct Printable<'a>(&'a [u8]);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let printable = |byte: &u8| if matches!(byte, b' '..=b'~') { char::from(*byte) } else { '?' };
        self.0.iter().try_for_each(|byte| f.write_char(printable(byte)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_an_end() {
        let mut line = Cursor::new([0; LINE_BYTES]);
        write!(line, "{} {}", u32::MAX, Printable(b"a\x1b[1m\n~\x7f")).unwrap();
        assert!(line.get_ref().starts_with(b"4294967295 a?[1m?~?\0"));
        (0..100).for_each(|_| drop(write!(line, "more than fits")));
        assert_eq!(line.position(), LINE_BYTES as u64);
    }
}
