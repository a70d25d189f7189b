//! BPF maps, programs and links, through the system call bpf(2).

use std::ffi::c_long;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::super::assembler::Instruction;

pub(super) const MAP_CREATE: c_long = 0;
pub(super) const MAP_LOOKUP: c_long = 1;
pub(super) const MAP_UPDATE: c_long = 2;
const MAP_DELETE: c_long = 3;
pub(super) const PROG_LOAD: c_long = 5;
const PROG_ATTACH: c_long = 8;
const PROG_DETACH: c_long = 9;
const PROG_BY_ID: c_long = 13;
const INFO_BY_FD: c_long = 15;
const PROG_QUERY: c_long = 16;
pub(super) const LINK_CREATE: c_long = 28;
const LINK_UPDATE: c_long = 29;
const LINK_BY_ID: c_long = 30;
const LINK_NEXT_ID: c_long = 31;
const LINK_DETACH: c_long = 34;

const TYPE_HASH: u32 = 1;
pub(super) const TYPE_ARRAY: u32 = 2;
const TYPE_XSKMAP: u32 = 17;
const TYPE_PERCPU_ARRAY: u32 = 6;
pub(super) const PROG_TYPE_XDP: u32 = 6;
pub(super) const ATTACH_XDP: u32 = 37;
const PROG_TYPE_FLOW_DISSECTOR: u32 = 22;
const ATTACH_FLOW_DISSECTOR: u32 = 17;
const LINK_TYPE_XDP: u32 = 6;
pub(super) const HAS_FRAGS: u32 = 1 << 5;
const DEVICE_BOUND: u32 = 1 << 6;
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// The number of bytes of `union bpf_attr` that are used, and the buffer size for the kernel's
/// descriptions of BPF objects. Zero is the default of all fields of `union bpf_attr`.
const BYTES: usize = 128;

/// `NR_CPUS` of Linux. Reading a counter from a BPF map returns a value for each possible CPU.
const KERNEL_CPUS_MAX: usize = 8192;

const LINKS_MAX: usize = 10_000;

const NAME_BYTES: usize = 16;

const LOG_BYTES: usize = 1 << 16;

#[repr(C, align(8))]
pub(super) struct Attributes([u8; BYTES]);

impl Attributes {
    pub(super) fn new() -> Self {
        Self([0; BYTES])
    }

    pub(super) fn word(mut self, at: usize, value: u32) -> Self {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    pub(super) fn descriptor(self, at: usize, fd: BorrowedFd<'_>) -> Self {
        self.word(at, fd.as_raw_fd() as u32)
    }

    /// `value` must live until the system call ends.
    pub(super) fn pointer<T>(mut self, at: usize, value: *const T) -> Self {
        self.0[at..at + 8].copy_from_slice(&(value.expose_provenance() as u64).to_ne_bytes());
        self
    }

    /// Describes a program to load. `program` and `log` must live until the system call ends. If
    /// `log` is not empty, the kernel writes the verifier's messages to it.
    pub(super) fn program(self, name: &str, program: &[Instruction], log: &mut [u8]) -> Self {
        self.word(4, program.len() as u32)
            .pointer(8, program.as_ptr())
            .pointer(16, LICENSE.as_ptr())
            .word(24, u32::from(!log.is_empty()))
            .word(28, log.len() as u32)
            .pointer(32, if log.is_empty() { std::ptr::null() } else { log.as_mut_ptr().cast_const() })
            .name(48, name)
    }

    pub(super) fn name(mut self, at: usize, name: &str) -> Self {
        self.0[at..at + name.len()].copy_from_slice(name.as_bytes());
        self
    }

    pub(super) fn word_at(&self, at: usize) -> u32 {
        u32::from_ne_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]])
    }

    pub(super) fn text(&self, at: usize) -> String {
        let name = self.0[at..at + NAME_BYTES].split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(name).into_owned()
    }
}

/// The name by which steerage recognizes its XDP program.
pub(in crate::af_xdp) const NAME: &str = "steerage";

/// Some functions of the kernel require a BPF program with a GPL-compatible license.
const LICENSE: &[u8] = b"Dual MIT/GPL\0";

/// # Safety
/// Each pointer in `attributes` must be valid: alive, as long as `command` assumes, and writable if
/// `command` writes there.
pub(super) unsafe fn bpf(command: c_long, attributes: &mut Attributes) -> io::Result<i32> {
    // SAFETY: `attributes` has `BYTES` bytes. The rest is the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.0.as_mut_ptr(), BYTES) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// # Safety
/// As for [`bpf`]. In addition, `command` must return a new descriptor.
pub(super) unsafe fn bpf_fd(command: c_long, mut attributes: Attributes) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise. The descriptor is new, so nothing else owns it.
    unsafe { bpf(command, &mut attributes).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// A BPF map from 32-bit keys to sockets, counters or 32-bit numbers.
#[derive(Debug)]
pub(in crate::af_xdp) struct Map(OwnedFd);

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Map {
    pub(in crate::af_xdp) fn of_sockets(queues: u32) -> io::Result<Self> {
        Self::create(TYPE_XSKMAP, 4, queues)
    }

    pub(in crate::af_xdp) fn of_counters(count: u32) -> io::Result<Self> {
        Self::create(TYPE_PERCPU_ARRAY, 8, count)
    }

    pub(in crate::af_xdp) fn of_numbers(entries: u32) -> io::Result<Self> {
        Self::create(TYPE_HASH, 4, entries)
    }

    fn create(kind: u32, value_bytes: u32, entries: u32) -> io::Result<Self> {
        let attributes =
            Attributes::new().word(0, kind).word(4, 4).word(8, value_bytes).word(12, entries).name(28, NAME);
        // SAFETY: numbers only.
        unsafe { bpf_fd(MAP_CREATE, attributes) }.map(Self)
    }

    pub(in crate::af_xdp) fn set(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.set_number(queue, socket.as_raw_fd() as u32)
    }

    pub(in crate::af_xdp) fn set_number(&self, key: u32, value: u32) -> io::Result<()> {
        let attributes = Attributes::new().descriptor(0, self.as_fd());
        let mut attributes = attributes.pointer(8, &raw const key).pointer(16, &raw const value);
        // SAFETY: key and value have 32 bits each, like the map's. The kernel only reads them.
        unsafe { bpf(MAP_UPDATE, &mut attributes) }.map(drop)
    }

    pub(in crate::af_xdp) fn clear(&self, key: u32) -> io::Result<()> {
        let mut attributes = Attributes::new().descriptor(0, self.as_fd()).pointer(8, &raw const key);
        // SAFETY: the key has 32 bits. The kernel only reads it.
        unsafe { bpf(MAP_DELETE, &mut attributes) }.map(drop)
    }

    pub(in crate::af_xdp) fn sum(&self, key: u32, by_cpu: &mut ByCpu) -> io::Result<u64> {
        let attributes = Attributes::new().descriptor(0, self.as_fd());
        let mut attributes = attributes.pointer(8, &raw const key).pointer(16, by_cpu.0.as_mut_ptr().cast_const());
        // SAFETY: the kernel writes 8 bytes for each possible CPU, and there is room for the
        // highest possible number of CPUs.
        unsafe { bpf(MAP_LOOKUP, &mut attributes) }?;
        // `black_box`, because the compiler cannot see that the kernel has written the values.
        Ok(std::hint::black_box(&by_cpu.0).iter().sum())
    }
}

#[derive(Debug)]
pub(in crate::af_xdp) struct ByCpu(Box<[u64]>);

impl ByCpu {
    pub(in crate::af_xdp) fn new() -> Self {
        Self(vec![0; KERNEL_CPUS_MAX].into())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::af_xdp) enum Mode {
    Native,
    Skb,
}

/// Loads a program. If the kernel rejects the program, loads it again to log the verifier's reason.
pub(in crate::af_xdp) fn with_log<T>(load: impl Fn(&mut [u8]) -> io::Result<T>) -> io::Result<T> {
    load(&mut []).inspect_err(|_| {
        let mut log = vec![0; LOG_BYTES];
        let _ = load(&mut log);
        let reason = String::from_utf8_lossy(&log);
        tracing::debug!(verifier = reason.trim_end_matches('\0'), "a program would not load");
    })
}

#[derive(Debug)]
pub(in crate::af_xdp) struct Program(OwnedFd);

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Program {
    /// Loads an XDP program. A program that calls functions of the kernel must be bound to one
    /// interface.
    pub(in crate::af_xdp) fn load(
        name: &str,
        program: &[Instruction],
        bound_to: Option<u32>,
        several: bool,
        log: &mut [u8],
    ) -> io::Result<Self> {
        let flags = if several { HAS_FRAGS } else { 0 } | if bound_to.is_some() { DEVICE_BOUND } else { 0 };
        let attributes = Attributes::new().program(name, program, log).word(0, PROG_TYPE_XDP).word(44, flags);
        let attributes = attributes.word(64, bound_to.unwrap_or(0)).word(68, ATTACH_XDP);
        // SAFETY: the instructions have the kernel's layout, and the license ends with a zero. The
        // kernel reads both, and writes at most the length of the log.
        unsafe { bpf_fd(PROG_LOAD, attributes) }.map(Self)
    }

    /// Attaches the program, which stays attached until the returned link is dropped or the process
    /// ends.
    pub(in crate::af_xdp) fn attach(&self, interface: u32, mode: Mode) -> io::Result<Link> {
        let flags = match mode {
            Mode::Native => XDP_FLAGS_DRV_MODE,
            Mode::Skb => XDP_FLAGS_SKB_MODE,
        };
        let attributes = Attributes::new().descriptor(0, self.0.as_fd()).word(4, interface);
        // SAFETY: numbers only.
        unsafe { bpf_fd(LINK_CREATE, attributes.word(8, ATTACH_XDP).word(12, flags)) }.map(Link)
    }
}

#[derive(Debug)]
pub(in crate::af_xdp) struct Link(OwnedFd);

impl Link {
    /// Returns false after other software has detached the program, or after the kernel has
    /// detached it because the interface was deleted.
    pub(in crate::af_xdp) fn is_attached(&self) -> io::Result<bool> {
        // The interface index, at byte 16 of `struct bpf_link_info`, is 0 after a detach.
        Ok(info(self.0.as_fd())?.word_at(16) != 0)
    }

    /// Replaces the linked program in one step. The kernel ignores the call if `program` is already
    /// linked.
    pub(in crate::af_xdp) fn replace_program(&self, program: &Program) -> io::Result<()> {
        let mut attributes = Attributes::new().descriptor(0, self.0.as_fd()).descriptor(4, program.as_fd());
        // SAFETY: numbers only.
        unsafe { bpf(LINK_UPDATE, &mut attributes) }.map(drop)
    }

    /// Detaches the program, no matter which process attached it.
    pub(in crate::af_xdp) fn detach(&self) -> io::Result<()> {
        let mut attributes = Attributes::new().descriptor(0, self.0.as_fd());
        // SAFETY: numbers only.
        unsafe { bpf(LINK_DETACH, &mut attributes) }.map(drop)
    }
}

#[derive(Clone, Debug)]
pub(in crate::af_xdp) struct ProgramInfo {
    pub(in crate::af_xdp) id: u32,
    pub(in crate::af_xdp) name: String,
    /// The number of the first BPF map that the program uses.
    pub(in crate::af_xdp) map: Option<u32>,
}

impl ProgramInfo {
    pub(in crate::af_xdp) fn of(program: BorrowedFd<'_>) -> io::Result<Self> {
        let mut map = [0_u32];
        // `struct bpf_prog_info`: the number of maps at offset 52, the address of the list at 56.
        let info = Attributes::new().word(52, 1).pointer(56, map.as_mut_ptr().cast_const());
        // SAFETY: the kernel writes at most one number to the list, as the request says.
        let info = unsafe { info_into(program, info) }?;
        // `black_box`, because the compiler cannot see that the kernel has written the number.
        let map = std::hint::black_box(&map)[0];
        Ok(Self { id: info.word_at(4), name: info.text(64), map: (info.word_at(52) > 0).then_some(map) })
    }

    pub(in crate::af_xdp) fn of_id(id: u32) -> io::Result<Self> {
        Self::of(program_of(id)?.as_fd())
    }

    pub(in crate::af_xdp) fn is_ours(&self) -> bool {
        self.name == NAME
    }
}

/// Opens the loaded program with the number `id`. Requires CAP_SYS_ADMIN.
pub(in crate::af_xdp) fn program_of(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: numbers only.
    unsafe { bpf_fd(PROG_BY_ID, Attributes::new().word(0, id)) }
}

pub(super) fn info(fd: BorrowedFd<'_>) -> io::Result<Attributes> {
    // SAFETY: the description has no list.
    unsafe { info_into(fd, Attributes::new()) }
}

/// Like the function [`info`], but the argument `info` contains addresses of lists, which the
/// kernel also fills.
///
/// # Safety
/// Each list must be valid for writes of the number of elements that `info` states.
unsafe fn info_into(fd: BorrowedFd<'_>, mut info: Attributes) -> io::Result<Attributes> {
    let attributes = Attributes::new().descriptor(0, fd).word(4, BYTES as u32);
    let mut attributes = attributes.pointer(8, info.0.as_mut_ptr().cast_const());
    // SAFETY: the kernel writes at most `BYTES` bytes, as the request says. The lists are the
    // caller's promise.
    unsafe { bpf(INFO_BY_FD, &mut attributes) }?;
    Ok(std::hint::black_box(info))
}

pub(in crate::af_xdp) fn load_dissector(name: &str, program: &[Instruction]) -> io::Result<OwnedFd> {
    let attributes = Attributes::new().program(name, program, &mut []);
    let attributes = attributes.word(0, PROG_TYPE_FLOW_DISSECTOR).word(68, ATTACH_FLOW_DISSECTOR);
    // SAFETY: the instructions have the kernel's layout, and the license ends with a zero. The
    // kernel only reads both.
    unsafe { bpf_fd(PROG_LOAD, attributes) }
}

/// Attaches a flow dissector to the network namespace of this thread, or detaches it.
pub(in crate::af_xdp) fn set_dissector(program: BorrowedFd<'_>, is_attached: bool) -> io::Result<()> {
    let command = if is_attached { PROG_ATTACH } else { PROG_DETACH };
    let attributes = Attributes::new().descriptor(4, program);
    // SAFETY: numbers only.
    unsafe { bpf(command, &mut attributes.word(8, ATTACH_FLOW_DISSECTOR)) }.map(drop)
}

/// Returns the number of the BPF program that is attached as flow dissector to the network
/// namespace of this thread.
///
/// # Errors
/// The query requires CAP_NET_ADMIN and Linux 4.20.
pub fn attached_dissector() -> io::Result<Option<u32>> {
    let namespace = std::fs::File::open("/proc/thread-self/ns/net")?;
    let mut id = [0_u32];
    let attributes = Attributes::new().descriptor(0, namespace.as_fd()).word(4, ATTACH_FLOW_DISSECTOR);
    let mut attributes = attributes.pointer(16, id.as_mut_ptr().cast_const()).word(24, id.len() as u32);
    // SAFETY: the kernel writes at most one number, as the request says.
    unsafe { bpf(PROG_QUERY, &mut attributes) }?;
    // `black_box`, because the compiler cannot see that the kernel has written the number.
    Ok((attributes.word_at(24) > 0).then(|| std::hint::black_box(&id)[0]))
}

/// Attaches a test's program that puts a VLAN tag into the metadata of each frame that is sent.
#[cfg(test)]
pub(in crate::af_xdp) fn tag_what_is_sent(interface: u32, program: &[Instruction]) -> io::Result<Link> {
    const PROG_TYPE_SCHED_CLS: u32 = 3;
    const ATTACH_TCX_EGRESS: u32 = 47;
    let attributes = Attributes::new().program("", program, &mut []);
    let attributes = attributes.word(0, PROG_TYPE_SCHED_CLS).word(68, ATTACH_TCX_EGRESS);
    // SAFETY: the instructions have the kernel's layout, and the license ends with a zero. The
    // kernel only reads both.
    let program = unsafe { bpf_fd(PROG_LOAD, attributes) }?;
    let attributes = Attributes::new().descriptor(0, program.as_fd()).word(4, interface).word(8, ATTACH_TCX_EGRESS);
    // SAFETY: numbers only.
    unsafe { bpf_fd(LINK_CREATE, attributes) }.map(Link)
}

pub(in crate::af_xdp) fn link_of(program: u32, interface: u32) -> io::Result<Option<Link>> {
    let mut id = 0;
    for _ in 0..LINKS_MAX {
        let mut attributes = Attributes::new().word(0, id);
        // SAFETY: numbers only.
        match unsafe { bpf(LINK_NEXT_ID, &mut attributes) } {
            Ok(_) => id = attributes.word_at(4),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            Err(error) => return Err(error),
        }
        // SAFETY: numbers only. A link that was removed during the search is skipped.
        let Ok(link) = (unsafe { bpf_fd(LINK_BY_ID, Attributes::new().word(0, id)) }) else { continue };
        // `struct bpf_link_info` begins with the type, the link's number and the program's number.
        // The interface index is at offset 16.
        let info = info(link.as_fd())?;
        if (info.word_at(0), info.word_at(8), info.word_at(16)) == (LINK_TYPE_XDP, program, interface) {
            return Ok(Some(Link(link)));
        }
    }
    Ok(None)
}
