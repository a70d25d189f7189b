//! What a live interface hands over, chosen in the kernel: a program of classic BPF, as tcpdump compiles its expressions to.

/// One instruction of classic BPF, laid out as the kernel's `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// What it does.
    pub code: u16,
    /// How many instructions to skip if the comparison holds.
    pub jump_true: u8,
    /// How many if it doesn't.
    pub jump_false: u8,
    /// Its operand.
    pub operand: u32,
}

/// A compiled filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    instructions: Box<[Instruction]>,
}

impl Filter {
    /// The program, for `SO_ATTACH_FILTER`.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }
}
