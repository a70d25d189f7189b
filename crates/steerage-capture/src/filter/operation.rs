//! The operations of classic BPF.

use super::Instruction;

/// The number of memory words of a BPF program: `BPF_MEMWORDS`.
pub(super) const MEMORY_WORDS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Load(Size, u32),
    /// Loads from a constant offset plus the register X.
    LoadBeyond(Size, u32),
    LoadConstant(u32),
    LoadLength,
    LoadMemory(u32),
    SetX(u32),
    SetXToLength,
    SetXFromMemory(u32),
    /// Sets X to four times the lower half of a byte: the length of an IPv4 header.
    SetXToHeaderLength(u32),
    Store(u32),
    StoreX(u32),
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
pub(super) enum Size {
    Word,
    Half,
    Byte,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
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
pub(super) enum Comparison {
    Equal,
    Greater,
    AtLeast,
    AnyBit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    Constant(u32),
    X,
}

impl Operation {
    /// Returns `None` if classic BPF has no operation with the instruction's code.
    pub(super) fn decode(instruction: &Instruction) -> Option<Self> {
        let Instruction { code, jump_true, jump_false, operand } = *instruction;
        let size = match code & 0x18 {
            0x00 => Size::Word,
            0x08 => Size::Half,
            _ => Size::Byte,
        };
        let of_x = if code & 0x08 == 0 { Operand::Constant(operand) } else { Operand::X };
        let arithmetic = |what| Self::Arithmetic(what, of_x);
        let branch = |what| Self::Branch(what, of_x, jump_true, jump_false);
        Some(match code {
            0x20 | 0x28 | 0x30 => Self::Load(size, operand),
            0x40 | 0x48 | 0x50 => Self::LoadBeyond(size, operand),
            0xb1 => Self::SetXToHeaderLength(operand),
            0x00 => Self::LoadConstant(operand),
            0x01 => Self::SetX(operand),
            0x80 => Self::LoadLength,
            0x81 => Self::SetXToLength,
            0x60 => Self::LoadMemory(operand),
            0x61 => Self::SetXFromMemory(operand),
            0x02 => Self::Store(operand),
            0x03 => Self::StoreX(operand),
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
            0x16 => Self::ReturnA,
            _ => return None,
        })
    }
}
