//! The kernel's rules for filter programs: `bpf_check_classic` in net/core/filter.c.

use super::operation::{Arithmetic, MEMORY_WORDS, Operand, Operation};
use super::{FilterError, INSTRUCTIONS_MAX, Instruction};

/// `SKF_AD_OFF`: a load at this or a higher offset reads the kernel's metadata of the packet.
const ANCILLARY: u32 = 0xffff_f000;
/// `SKF_AD_MAX`: the first offset after the kernel's metadata, whose fields are at multiples of 4.
const ANCILLARY_END: u32 = ANCILLARY + 64;

pub(super) fn program(program: &[Instruction]) -> Result<(), FilterError> {
    let wrong = |at, what| FilterError::Program { at, what };
    if program.is_empty() {
        return Err(wrong(0, "is missing"));
    }
    if program.len() > INSTRUCTIONS_MAX {
        return Err(wrong(INSTRUCTIONS_MAX, "is one too many (BPF_MAXINSNS)"));
    }
    let mut operations = Vec::with_capacity(program.len());
    for (at, instruction) in program.iter().enumerate() {
        let known = Operation::decode(instruction).ok_or("is no operation of classic BPF");
        let operation = known.and_then(|operation| check(operation, program.len() - at - 1));
        operations.push(operation.map_err(|what| wrong(at, what))?);
    }
    if !matches!(operations.last(), Some(Operation::Return(_) | Operation::ReturnA)) {
        return Err(wrong(program.len() - 1, "is the last and does not return"));
    }
    memory_is_written_before_it_is_read(&operations)
}

/// Checks one operation, which `behind` instructions follow.
fn check(operation: Operation, behind: usize) -> Result<Operation, &'static str> {
    use Arithmetic::{Divide, Modulo, ShiftLeft, ShiftRight};
    use Operand::Constant;
    match operation {
        Operation::Arithmetic(Divide | Modulo, Constant(0)) => Err("divides by 0"),
        Operation::Arithmetic(ShiftLeft | ShiftRight, Constant(u32::BITS..)) => Err("shifts by 32 bits or more"),
        Operation::Load(_, at) if at >= ANCILLARY && (at >= ANCILLARY_END || at % 4 != 0) => {
            Err("asks for what the kernel does not know of a packet")
        }
        Operation::LoadMemory(word)
        | Operation::SetXFromMemory(word)
        | Operation::Store(word)
        | Operation::StoreX(word)
            if word as usize >= MEMORY_WORDS =>
        {
            Err("names a memory word beyond the 16 that there are")
        }
        Operation::Jump(by) if by as usize >= behind => Err("jumps beyond the end"),
        Operation::Branch(_, _, holds, fails) if usize::from(holds.max(fails)) >= behind => Err("jumps beyond the end"),
        operation => Ok(operation),
    }
}

/// The kernel makes this check in `check_load_and_stores`. All jumps go forward, so one pass sees
/// every path to an instruction before the instruction itself.
fn memory_is_written_before_it_is_read(program: &[Operation]) -> Result<(), FilterError> {
    // For each instruction, the memory words that are written on every path that jumps to it, one
    // bit per word.
    let mut on_arrival = vec![u16::MAX; program.len()];
    // The memory words that are written if the previous instruction does not jump.
    let mut written: u16 = 0;
    for (at, operation) in program.iter().enumerate() {
        written &= on_arrival[at];
        let mut arrives = |by: usize, written: u16| {
            if let Some(mask) = on_arrival.get_mut(at + 1 + by) {
                *mask &= written;
            }
        };
        match *operation {
            Operation::Store(word) | Operation::StoreX(word) => written |= 1 << word,
            Operation::LoadMemory(word) | Operation::SetXFromMemory(word) if written & 1 << word == 0 => {
                return Err(FilterError::Program { at, what: "reads a memory word that may not have been written" });
            }
            Operation::Jump(by) => {
                arrives(by as usize, written);
                written = u16::MAX;
            }
            Operation::Branch(_, _, holds, fails) => {
                arrives(holds.into(), written);
                arrives(fails.into(), written);
                written = u16::MAX;
            }
            _ => {}
        }
    }
    Ok(())
}
