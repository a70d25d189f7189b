//! Runs filters on frames of files. For live interfaces, the kernel filters the frames.
//!
//! Each BPF operation has the meaning that it has in libpcap's `bpf_filter.c`, which `tcpdump -r`
//! uses. If a program loads bytes after the end of a frame, the frame is rejected. No published
//! Rust crate runs classic BPF on a frame in memory (November 2026), neither `rbpf`, which runs
//! only extended BPF, nor `classic_bpf`, which attaches programs to sockets.

use super::operation::{Arithmetic, Comparison, MEMORY_WORDS, Operand, Operation, Size};
use super::{Filter, FilterError};

/// `SKF_LL_OFF`: a load at this or a higher offset reads the kernel's metadata of a packet, or is
/// relative to headers that the kernel has found. No frame of a file is that long.
const KERNEL_ONLY: u32 = 0xffe0_0000;

/// A filter for frames in memory, such as those of a capture file.
///
/// The work of a filter is bounded: at most [`INSTRUCTIONS_MAX`](super::INSTRUCTIONS_MAX)
/// instructions, each of which runs at most once, because all jumps go forward. Running a filter
/// allocates no memory.
///
/// ```
/// use steerage_capture::filter::Filter;
///
/// // What tcpdump prints for `ip`.
/// let filter: Filter = "4, 40 0 0 12, 21 0 1 2048, 6 0 0 262144, 6 0 0 0".parse()?;
/// let filter = filter.for_frames()?;
/// let mut frame = [0; 60];
/// assert_eq!(filter.run(&frame, 60), 0);
/// frame[12] = 0x08;
/// assert_eq!(filter.run(&frame, 60), 262_144);
/// assert_eq!(filter.run(&frame[..13], 60), 0, "the type is cut off");
/// # Ok::<(), steerage_capture::filter::FilterError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameFilter {
    operations: Box<[Operation]>,
}

impl Filter {
    /// Prepares the filter for frames in memory.
    ///
    /// # Errors
    /// [`FilterError::KernelOnly`] if the program uses information that only the kernel has.
    /// tcpdump may make such a program if it compiles a filter for an interface.
    pub fn for_frames(&self) -> Result<FrameFilter, FilterError> {
        let decoded = self.instructions.iter().enumerate().map(|(at, instruction)| {
            // `check::program` has checked that classic BPF has all operations of the program.
            let operation = Operation::decode(instruction).filter(|operation| !is_kernel_only(*operation));
            operation.ok_or(FilterError::KernelOnly { at })
        });
        Ok(FrameFilter { operations: decoded.collect::<Result<_, _>>()? })
    }
}

fn is_kernel_only(operation: Operation) -> bool {
    use Operation::{Load, LoadBeyond, SetXToHeaderLength};
    matches!(operation, Load(_, at) | LoadBeyond(_, at) | SetXToHeaderLength(at) if at >= KERNEL_ONLY)
}

impl FrameFilter {
    /// Returns how many bytes of the frame pass the filter, or 0 if the frame does not pass. The
    /// filter keywords `len`, `less` and `greater` compare `wire_len`, the frame's length on the
    /// wire.
    pub fn run(&self, frame: &[u8], wire_len: u32) -> u32 {
        self.try_run(frame, wire_len).unwrap_or(0)
    }

    /// Returns `None` if the program loads bytes after the end of the frame, or divides by 0.
    fn try_run(&self, frame: &[u8], wire_len: u32) -> Option<u32> {
        let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; MEMORY_WORDS]);
        let mut rest = self.operations.iter();
        loop {
            // `check::program` has checked that all jumps stay within the program.
            let mut skip = 0;
            match *rest.next()? {
                Operation::Load(size, at) => a = load(frame, size, at)?,
                Operation::LoadBeyond(size, at) => a = load(frame, size, x.checked_add(at)?)?,
                Operation::LoadConstant(constant) => a = constant,
                Operation::LoadLength => a = wire_len,
                Operation::LoadMemory(word) => a = *memory.get(word as usize)?,
                Operation::SetX(constant) => x = constant,
                Operation::SetXToLength => x = wire_len,
                Operation::SetXFromMemory(word) => x = *memory.get(word as usize)?,
                Operation::SetXToHeaderLength(at) => x = (load(frame, Size::Byte, at)? & 0xf) << 2,
                Operation::Store(word) => *memory.get_mut(word as usize)? = a,
                Operation::StoreX(word) => *memory.get_mut(word as usize)? = x,
                Operation::Arithmetic(what, operand) => a = what.of(a, operand.value(x))?,
                Operation::Negate => a = a.wrapping_neg(),
                Operation::XFromA => x = a,
                Operation::AFromX => a = x,
                Operation::Jump(by) => skip = by as usize,
                Operation::Branch(comparison, operand, holds, fails) => {
                    skip = usize::from(if comparison.holds(a, operand.value(x)) { holds } else { fails });
                }
                Operation::Return(bytes) => return Some(bytes),
                Operation::ReturnA => return Some(a),
            }
            if skip > 0 {
                rest = rest.as_slice().get(skip..)?.iter();
            }
        }
    }
}

#[inline(always)]
fn load(frame: &[u8], size: Size, at: u32) -> Option<u32> {
    let rest = frame.get(at as usize..)?;
    Some(match size {
        Size::Word => u32::from_be_bytes(*rest.first_chunk()?),
        Size::Half => u16::from_be_bytes(*rest.first_chunk()?).into(),
        Size::Byte => (*rest.first()?).into(),
    })
}

impl Operand {
    #[inline(always)]
    fn value(self, x: u32) -> u32 {
        match self {
            Self::Constant(constant) => constant,
            Self::X => x,
        }
    }
}

impl Arithmetic {
    #[inline(always)]
    fn of(self, a: u32, by: u32) -> Option<u32> {
        Some(match self {
            Self::Add => a.wrapping_add(by),
            Self::Subtract => a.wrapping_sub(by),
            Self::Multiply => a.wrapping_mul(by),
            Self::Divide => a.checked_div(by)?,
            Self::Or => a | by,
            Self::And => a & by,
            Self::ShiftLeft => a.checked_shl(by).unwrap_or(0),
            Self::ShiftRight => a.checked_shr(by).unwrap_or(0),
            Self::Modulo => a.checked_rem(by)?,
            Self::ExclusiveOr => a ^ by,
        })
    }
}

impl Comparison {
    #[inline(always)]
    fn holds(self, a: u32, with: u32) -> bool {
        match self {
            Self::Equal => a == with,
            Self::Greater => a > with,
            Self::AtLeast => a >= with,
            Self::AnyBit => a & with != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(program: &str, frame: &[u8], wire_len: u32) -> u32 {
        program.parse::<Filter>().unwrap().for_frames().unwrap().run(frame, wire_len)
    }

    /// The expected results are those of `bpf_filter` of libpcap 1.10.
    #[test]
    fn operations_are_those_of_libpcap() {
        let frame = [1, 2, 3, 4, 5, 6, 7, 8];
        for (program, result) in [
            ("2, 32 0 0 4, 22 0 0 0", 0x0506_0708),
            ("2, 32 0 0 5, 22 0 0 0", 0),
            ("2, 40 0 0 6, 22 0 0 0", 0x0708),
            ("2, 48 0 0 7, 22 0 0 0", 8),
            ("2, 48 0 0 8, 22 0 0 0", 0),
            ("3, 1 0 0 2, 72 0 0 1, 22 0 0 0", 0x0405),
            ("3, 1 0 0 4294967295, 80 0 0 1, 22 0 0 0", 0),
            ("3, 177 0 0 3, 135 0 0 0, 22 0 0 0", 16),
            ("2, 128 0 0 0, 22 0 0 0", 100),
            ("3, 129 0 0 0, 135 0 0 0, 22 0 0 0", 100),
            ("4, 0 0 0 9, 1 0 0 0, 60 0 0 0, 22 0 0 0", 0),
            ("4, 0 0 0 9, 1 0 0 4, 156 0 0 0, 22 0 0 0", 1),
            ("4, 0 0 0 9, 1 0 0 32, 108 0 0 0, 22 0 0 0", 0),
            ("4, 0 0 0 9, 1 0 0 31, 108 0 0 0, 22 0 0 0", 0x8000_0000),
            ("4, 0 0 0 9, 1 0 0 33, 124 0 0 0, 22 0 0 0", 0),
            ("3, 0 0 0 9, 132 0 0 0, 22 0 0 0", 9u32.wrapping_neg()),
            ("3, 0 0 0 9, 20 0 0 10, 22 0 0 0", u32::MAX),
            ("3, 0 0 0 65536, 36 0 0 65537, 22 0 0 0", 65536),
            ("4, 0 0 0 7, 2 0 0 15, 97 0 0 15, 6 0 0 3", 3),
            ("3, 5 0 0 1, 6 0 0 1, 6 0 0 2", 2),
            ("4, 0 0 0 5, 37 0 1 5, 6 0 0 1, 6 0 0 2", 2),
            ("4, 0 0 0 5, 53 0 1 5, 6 0 0 1, 6 0 0 2", 1),
            ("4, 0 0 0 6, 69 0 1 9, 6 0 0 1, 6 0 0 2", 2),
            ("5, 0 0 0 6, 1 0 0 6, 29 1 0 0, 6 0 0 1, 6 0 0 2", 2),
        ] {
            assert_eq!(run(program, &frame, 100), result, "{program}");
        }
    }

    #[test]
    fn what_only_the_kernel_knows_is_refused() {
        // Loads SKF_AD_VLAN_TAG_PRESENT, and a byte of the network header by SKF_NET_OFF.
        for operand in [4_294_963_248, u32::MAX - 0x10_0000 + 1] {
            let filter: Filter = format!("2, 48 0 0 {operand}, 6 0 0 1").parse().unwrap();
            let error = filter.for_frames().unwrap_err();
            assert!(matches!(error, FilterError::KernelOnly { at: 0 }) && error.is_mistake(), "{error}");
        }
    }
}
