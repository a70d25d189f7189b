//! The kernel's rules for filter programs: `bpf_check_classic` in net/core/filter.c.

use super::{FilterError, INSTRUCTIONS_MAX, Instruction};

/// The number of memory words of a BPF program: `BPF_MEMWORDS`.
const MEMORY_WORDS: u32 = 16;

/// `SKF_AD_OFF`: loads from this offset on read the kernel's information about the packet.
const ANCILLARY: u32 = 0xffff_f000;
/// `SKF_AD_MAX`: the end of the kernel's information, whose fields are at multiples of 4.
const ANCILLARY_END: u32 = ANCILLARY + 64;

/// The kinds of instructions that the kernel's rules distinguish.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// An instruction that is valid at any position and with any operand.
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

fn kind(code: u16) -> Option<Kind> {
    Some(match code {
        // Division and modulo by a constant, and then shifts by a constant.
        0x34 | 0x94 => Kind::Divide,
        0x64 | 0x74 => Kind::Shift,
        // Other arithmetic instructions: with a constant, with the register X, and negation.
        0x04 | 0x14 | 0x24 | 0x44 | 0x54 | 0xa4 => Kind::Plain,
        0x0c | 0x1c | 0x2c | 0x3c | 0x4c | 0x5c | 0x6c | 0x7c | 0x9c | 0xac | 0x84 => Kind::Plain,
        // Loads of a word, a half-word or a byte of the packet.
        0x20 | 0x28 | 0x30 => Kind::LoadPacket,
        // Loads relative to the register X, and of constants, lengths, and four times the lower
        // half of a byte.
        0x40 | 0x48 | 0x50 | 0x00 | 0x01 | 0x80 | 0x81 | 0xb1 => Kind::Plain,
        0x60 | 0x61 => Kind::LoadMemory,
        0x02 | 0x03 => Kind::Store,
        // Transfers between the registers A and X.
        0x07 | 0x87 => Kind::Plain,
        0x05 => Kind::Jump,
        0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => Kind::Branch,
        0x06 | 0x16 => Kind::Return,
        _ => return None,
    })
}

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

/// `behind` is the number of instructions after the checked instruction.
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

/// The kernel makes this check in `check_load_and_stores`. All jumps go forward, so one pass sees
/// every path to an instruction before the instruction itself.
fn memory_is_written_before_it_is_read(program: &[Instruction]) -> Result<(), FilterError> {
    // For each instruction, the memory words that are written on every path that jumps to it, one
    // bit per word.
    let mut on_arrival = vec![u16::MAX; program.len()];
    // The memory words that are written on the path from the previous instruction.
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
