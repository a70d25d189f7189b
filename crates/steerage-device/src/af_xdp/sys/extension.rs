//! Loads BPF programs that replace a function of another program (`freplace`).

use std::ffi::{CString, c_long};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::super::assembler::Instruction;
use super::bpf::{ATTACH_XDP, Attributes, HAS_FRAGS, PROG_LOAD, PROG_TYPE_XDP};
use super::bpf::{LINK_CREATE, MAP_CREATE, MAP_LOOKUP, MAP_UPDATE, TYPE_ARRAY, bpf, bpf_fd, info};

const OBJECT_PIN: c_long = 6;
const OBJECT_GET: c_long = 7;
const MAP_BY_ID: c_long = 14;
const TYPES_LOAD: c_long = 18;
const MAP_FREEZE: c_long = 22;

const PROG_TYPE_EXTENSION: u32 = 28;
/// `BPF_F_RDONLY_PROG`: BPF programs may only read the map.
const READ_BY_PROGRAMS: u32 = 1 << 7;

/// `struct bpf_func_info`: a function's first instruction, and its type id.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::af_xdp) struct Function {
    pub(in crate::af_xdp) at: u32,
    pub(in crate::af_xdp) kind: u32,
}

#[derive(Clone, Copy, Debug)]
pub(in crate::af_xdp) struct Typed<'a> {
    pub(in crate::af_xdp) name: &'a str,
    pub(in crate::af_xdp) instructions: &'a [Instruction],
    pub(in crate::af_xdp) functions: &'a [Function],
    pub(in crate::af_xdp) types: &'a [u8],
}

impl Typed<'_> {
    pub(in crate::af_xdp) fn load(&self, several: bool, log: &mut [u8]) -> io::Result<OwnedFd> {
        let flags = if several { HAS_FRAGS } else { 0 };
        self.load_with(Attributes::new().word(0, PROG_TYPE_XDP).word(44, flags).word(68, ATTACH_XDP), log)
    }

    /// Loads a replacement for the function of `target` with the type id `function`.
    pub(in crate::af_xdp) fn load_for(
        &self,
        target: BorrowedFd<'_>,
        function: u32,
        log: &mut [u8],
    ) -> io::Result<OwnedFd> {
        let attributes = Attributes::new().word(0, PROG_TYPE_EXTENSION).word(108, function).descriptor(112, target);
        self.load_with(attributes, log)
    }

    fn load_with(&self, attributes: Attributes, log: &mut [u8]) -> io::Result<OwnedFd> {
        let types = Attributes::new().pointer(0, self.types.as_ptr()).word(16, self.types.len() as u32);
        // SAFETY: the kernel reads as many bytes of the types as the request says.
        let types = unsafe { bpf_fd(TYPES_LOAD, types) }?;
        let attributes = attributes
            .program(self.name, self.instructions, log)
            .descriptor(72, types.as_fd())
            .word(76, size_of::<Function>() as u32)
            .pointer(80, self.functions.as_ptr())
            .word(88, self.functions.len() as u32);
        // SAFETY: instructions and functions have the kernel's layouts, and the license ends with a
        // zero. The kernel reads them, and writes at most the length of the log.
        unsafe { bpf_fd(PROG_LOAD, attributes) }
    }
}

/// Replaces a function of a program. The replacement lasts as long as the returned BPF link exists
/// or is pinned.
pub(in crate::af_xdp) fn replace_function(
    program: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    function: u32,
) -> io::Result<OwnedFd> {
    let attributes = Attributes::new().descriptor(0, program).descriptor(4, target).word(16, function);
    // SAFETY: numbers only.
    unsafe { bpf_fd(LINK_CREATE, attributes) }
}

/// Creates a BPF map that contains only `value`, and never changes.
pub(in crate::af_xdp) fn constant(name: &str, value: &[u8]) -> io::Result<OwnedFd> {
    let attributes = Attributes::new().word(0, TYPE_ARRAY).word(4, 4).word(8, value.len() as u32);
    let attributes = attributes.word(12, 1).word(16, READ_BY_PROGRAMS).name(28, name);
    // SAFETY: numbers only.
    let map = unsafe { bpf_fd(MAP_CREATE, attributes) }?;
    let key = 0_u32;
    let attributes = Attributes::new().descriptor(0, map.as_fd());
    let mut attributes = attributes.pointer(8, &raw const key).pointer(16, value.as_ptr());
    // SAFETY: the key has 32 bits, and the value has the length of the map's values. The kernel only
    // reads them.
    unsafe { bpf(MAP_UPDATE, &mut attributes) }?;
    // SAFETY: numbers only.
    unsafe { bpf(MAP_FREEZE, &mut Attributes::new().descriptor(0, map.as_fd())) }?;
    Ok(map)
}

/// Reads the only value of a map into `value`, which must have the length of the map's value.
pub(in crate::af_xdp) fn value_of(map: u32, value: &mut [u8]) -> io::Result<()> {
    // SAFETY: numbers only.
    let map = unsafe { bpf_fd(MAP_BY_ID, Attributes::new().word(0, map)) }?;
    // `struct bpf_map_info`: key length at offset 8, value length at 12, number of entries at 16.
    let info = info(map.as_fd())?;
    if (info.word_at(8), info.word_at(12), info.word_at(16)) != (4, value.len() as u32, 1) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let key = 0_u32;
    let attributes = Attributes::new().descriptor(0, map.as_fd());
    let mut attributes = attributes.pointer(8, &raw const key).pointer(16, value.as_mut_ptr().cast_const());
    // SAFETY: the key has 32 bits, and the kernel writes as many bytes as the value has.
    unsafe { bpf(MAP_LOOKUP, &mut attributes) }.map(drop)
}

/// Keeps a BPF program or link loaded without a file descriptor.
pub(in crate::af_xdp) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut attributes = Attributes::new().pointer(0, path.as_ptr()).descriptor(8, object);
    // SAFETY: the path ends with a zero. The kernel only reads it.
    unsafe { bpf(OBJECT_PIN, &mut attributes) }.map(drop)
}

pub(in crate::af_xdp) fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a zero. The kernel only reads it.
    unsafe { bpf_fd(OBJECT_GET, Attributes::new().pointer(0, path.as_ptr())) }
}
