//! Checks whether the kernel would accept a program: the rules of `bpf_check_classic`, net/core/filter.c.

use super::{FilterError, INSTRUCTIONS_MAX, Instruction};

/// Memory words of a program: `BPF_MEMWORDS`.
const MEMORY_WORDS: u32 = 16;

/// Loads from here on are not from the packet but from what the kernel knows of it: `SKF_AD_OFF`.
const ANCILLARY: u32 = 0xffff_f000;
/// What it can be asked for lies at the even multiples of 4 below this: `SKF_AD_MAX`.
const ANCILLARY_END: u32 = ANCILLARY + 64;

/// What an instruction does, as far as the rules are concerned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Nothing that could be wrong.
    Plain,
    Divide,
    Shift,
    LoadPacket,
    LoadMemory,
    Store,
    Jump,
    Branch,
    Return,
}

/// What the operation code stands for; `None` if it is none of the kernel's.
fn kind(code: u16) -> Option<Kind> {
    Some(match code {
        // Divide and modulo by a constant, then shifts by one.
        0x34 | 0x94 => Kind::Divide,
        0x64 | 0x74 => Kind::Shift,
        // The others of arithmetic: by a constant, by X, and the sign.
        0x04 | 0x14 | 0x24 | 0x44 | 0x54 | 0xa4 => Kind::Plain,
        0x0c | 0x1c | 0x2c | 0x3c | 0x4c | 0x5c | 0x6c | 0x7c | 0x9c | 0xac | 0x84 => Kind::Plain,
        // A word, a half, a byte of the packet.
        0x20 | 0x28 | 0x30 => Kind::LoadPacket,
        // The same beyond X; constants; lengths; and four times the low half of a byte.
        0x40 | 0x48 | 0x50 | 0x00 | 0x01 | 0x80 | 0x81 | 0xb1 => Kind::Plain,
        0x60 | 0x61 => Kind::LoadMemory,
        0x02 | 0x03 => Kind::Store,
        // Between A and X.
        0x07 | 0x87 => Kind::Plain,
        0x05 => Kind::Jump,
        0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => Kind::Branch,
        0x06 | 0x16 => Kind::Return,
        _ => return None,
    })
}

/// Refuses what the kernel would.
pub(super) fn program(program: &[Instruction]) -> Result<(), FilterError> {
    let wrong = |at, what| Err(FilterError::Program { at, what });
    if program.is_empty() {
        return wrong(0, "is missing");
    }
    if program.len() > INSTRUCTIONS_MAX {
        return wrong(INSTRUCTIONS_MAX, "is one too many (BPF_MAXINSNS)");
    }
    for (at, instruction) in program.iter().enumerate() {
        if let Some(what) = instruction_is_wrong(instruction, program.len() - at - 1) {
            return wrong(at, what);
        }
    }
    if program.last().and_then(|last| kind(last.code)) != Some(Kind::Return) {
        return wrong(program.len() - 1, "is the last and does not return");
    }
    memory_is_written_before_it_is_read(program)
}

/// What is wrong with an instruction that has so many behind it.
fn instruction_is_wrong(instruction: &Instruction, behind: usize) -> Option<&'static str> {
    let Instruction { operand, jump_true, jump_false, .. } = *instruction;
    match kind(instruction.code) {
        None => Some("is no operation of classic BPF"),
        Some(Kind::Divide) => (operand == 0).then_some("divides by 0"),
        Some(Kind::Shift) => (operand >= u32::BITS).then_some("shifts by 32 bits or more"),
        Some(Kind::LoadPacket) => {
            let known = operand < ANCILLARY_END && operand % 4 == 0;
            (operand >= ANCILLARY && !known).then_some("asks for what the kernel does not know of a packet")
        }
        Some(Kind::LoadMemory | Kind::Store) => {
            (operand >= MEMORY_WORDS).then_some("names a memory word beyond the 16 that there are")
        }
        Some(Kind::Jump) => (operand as usize >= behind).then_some("jumps beyond the end"),
        Some(Kind::Branch) => (usize::from(jump_true.max(jump_false)) >= behind).then_some("jumps beyond the end"),
        Some(Kind::Plain | Kind::Return) => None,
    }
}

/// Whatever the way through the program, no memory word is read that was not written: `check_load_and_stores`. Jumps go
/// forward only, so one pass sees every way to an instruction before the instruction.
fn memory_is_written_before_it_is_read(program: &[Instruction]) -> Result<(), FilterError> {
    // What is written for certain when control jumps to an instruction, a bit for each word.
    let mut on_arrival = vec![u16::MAX; program.len()];
    // And when it comes to the next one without a jump.
    let mut written: u16 = 0;
    for (at, instruction) in program.iter().enumerate() {
        written &= on_arrival[at];
        let mut arrives = |by: usize, written: u16| {
            if let Some(mask) = on_arrival.get_mut(at + 1 + by) {
                *mask &= written;
            }
        };
        match kind(instruction.code) {
            Some(Kind::Store) => written |= 1 << instruction.operand,
            Some(Kind::LoadMemory) if written & 1 << instruction.operand == 0 => {
                return Err(FilterError::Program { at, what: "reads a memory word that may not have been written" });
            }
            Some(Kind::Jump) => {
                arrives(instruction.operand as usize, written);
                written = u16::MAX;
            }
            Some(Kind::Branch) => {
                arrives(instruction.jump_true.into(), written);
                arrives(instruction.jump_false.into(), written);
                written = u16::MAX;
            }
            _ => {}
        }
    }
    Ok(())
}
