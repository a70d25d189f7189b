//! Runs filters on frames of files. For live interfaces, the kernel filters the frames.
//!
//! Each BPF operation has the meaning that it has in libpcap's `bpf_filter.c`, which `tcpdump -r`
//! uses. If a program loads bytes after the end of a frame, the frame is rejected. No published
//! Rust crate runs classic BPF on a frame in memory (November 2026): `rbpf` runs only extended BPF,
//! and `classic_bpf` attaches programs to sockets.

use super::{Filter, FilterError, Instruction};

/// The number of memory words of a BPF program: `BPF_MEMWORDS`.
const MEMORY_WORDS: usize = 16;

/// Loads from this offset (`SKF_LL_OFF`) on read the kernel's information about a packet, or are
/// relative to headers that the kernel has found. No frame of a file is long enough for such an
/// offset.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Load(Size, u32),
    /// Loads from a constant offset plus the register X.
    LoadBeyond(Size, u32),
    LoadConstant(u32),
    LoadLength,
    LoadMemory(u8),
    SetX(u32),
    SetXToLength,
    SetXFromMemory(u8),
    /// Sets X to four times the lower half of a byte: the length of an IPv4 header.
    SetXToHeaderLength(u32),
    Store(u8),
    StoreX(u8),
    Arithmetic(Arithmetic, Operand),
    Negate,
    XFromA,
    AFromX,
    Jump(u32),
    /// Compares the register A. If the comparison is true, the first number of instructions is
    /// skipped, and otherwise the second number.
    Branch(Comparison, Operand, u8, u8),
    Return(u32),
    ReturnA,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    Word,
    Half,
    Byte,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Or,
    And,
    ShiftLeft,
    ShiftRight,
    Modulo,
    ExclusiveOr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    Greater,
    AtLeast,
    AnyBit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    Constant(u32),
    X,
}

impl Filter {
    /// Prepares the filter for frames in memory.
    ///
    /// # Errors
    /// [`FilterError::KernelOnly`] if the program uses information that only the kernel has.
    /// tcpdump may make such a program if it compiles a filter for an interface.
    pub fn for_frames(&self) -> Result<FrameFilter, FilterError> {
        let decoded = self.instructions.iter().enumerate();
        let operations = decoded.map(|(at, one)| Operation::decode(one).ok_or(FilterError::KernelOnly { at }));
        Ok(FrameFilter { operations: operations.collect::<Result<_, _>>()? })
    }
}

impl Operation {
    /// Returns `None` if only the kernel can run the instruction.
    fn decode(instruction: &Instruction) -> Option<Self> {
        let Instruction { code, jump_true, jump_false, operand } = *instruction;
        let size = match code & 0x18 {
            0x00 => Size::Word,
            0x08 => Size::Half,
            _ => Size::Byte,
        };
        let of_x = if code & 0x08 == 0 { Operand::Constant(operand) } else { Operand::X };
        let arithmetic = |what| Self::Arithmetic(what, of_x);
        let branch = |what| Self::Branch(what, of_x, jump_true, jump_false);
        let from_frame = |operation: Self| (operand < KERNEL_ONLY).then_some(operation);
        Some(match code {
            0x20 | 0x28 | 0x30 => from_frame(Self::Load(size, operand))?,
            0x40 | 0x48 | 0x50 => from_frame(Self::LoadBeyond(size, operand))?,
            0xb1 => from_frame(Self::SetXToHeaderLength(operand))?,
            0x00 => Self::LoadConstant(operand),
            0x01 => Self::SetX(operand),
            0x80 => Self::LoadLength,
            0x81 => Self::SetXToLength,
            // `check::program` has checked that the numbers of memory words are below 16.
            0x60 => Self::LoadMemory(operand as u8),
            0x61 => Self::SetXFromMemory(operand as u8),
            0x02 => Self::Store(operand as u8),
            0x03 => Self::StoreX(operand as u8),
            0x04 | 0x0c => arithmetic(Arithmetic::Add),
            0x14 | 0x1c => arithmetic(Arithmetic::Subtract),
            0x24 | 0x2c => arithmetic(Arithmetic::Multiply),
            0x34 | 0x3c => arithmetic(Arithmetic::Divide),
            0x44 | 0x4c => arithmetic(Arithmetic::Or),
            0x54 | 0x5c => arithmetic(Arithmetic::And),
            0x64 | 0x6c => arithmetic(Arithmetic::ShiftLeft),
            0x74 | 0x7c => arithmetic(Arithmetic::ShiftRight),
            0x94 | 0x9c => arithmetic(Arithmetic::Modulo),
            0xa4 | 0xac => arithmetic(Arithmetic::ExclusiveOr),
            0x84 => Self::Negate,
            0x07 => Self::XFromA,
            0x87 => Self::AFromX,
            0x05 => Self::Jump(operand),
            0x15 | 0x1d => branch(Comparison::Equal),
            0x25 | 0x2d => branch(Comparison::Greater),
            0x35 | 0x3d => branch(Comparison::AtLeast),
            0x45 | 0x4d => branch(Comparison::AnyBit),
            0x06 => Self::Return(operand),
            // `check::program` rejects all other operation codes.
            _ => Self::ReturnA,
        })
    }
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
            let skip = match *rest.next()? {
                Operation::Load(size, at) => {
                    a = load(frame, size, at)?;
                    0
                }
                Operation::LoadBeyond(size, at) => {
                    a = load(frame, size, x.checked_add(at)?)?;
                    0
                }
                Operation::LoadConstant(constant) => {
                    a = constant;
                    0
                }
                Operation::LoadLength => {
                    a = wire_len;
                    0
                }
                Operation::LoadMemory(word) => {
                    a = *memory.get(usize::from(word))?;
                    0
                }
                Operation::SetX(constant) => {
                    x = constant;
                    0
                }
                Operation::SetXToLength => {
                    x = wire_len;
                    0
                }
                Operation::SetXFromMemory(word) => {
                    x = *memory.get(usize::from(word))?;
                    0
                }
                Operation::SetXToHeaderLength(at) => {
                    x = (load(frame, Size::Byte, at)? & 0xf) << 2;
                    0
                }
                Operation::Store(word) => {
                    *memory.get_mut(usize::from(word))? = a;
                    0
                }
                Operation::StoreX(word) => {
                    *memory.get_mut(usize::from(word))? = x;
                    0
                }
                Operation::Arithmetic(what, operand) => {
                    a = what.of(a, operand.value(x))?;
                    0
                }
                Operation::Negate => {
                    a = a.wrapping_neg();
                    0
                }
                Operation::XFromA => {
                    x = a;
                    0
                }
                Operation::AFromX => {
                    a = x;
                    0
                }
                Operation::Jump(by) => by as usize,
                Operation::Branch(comparison, operand, holds, fails) => {
                    usize::from(if comparison.holds(a, operand.value(x)) { holds } else { fails })
                }
                Operation::Return(bytes) => return Some(bytes),
                Operation::ReturnA => return Some(a),
            };
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
