//! An assembler for the eBPF instructions (RFC 9669) of steerage's programs, with labels.

/// One BPF instruction, the kernel's `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Instruction {
    code: u8,
    /// The two registers of an instruction. On little-endian machines, the destination register is
    /// in the lower four bits.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// `R0` is the result of a call. A call destroys its arguments `R1` to `R5`. `R10` is the frame
/// pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Register(u8);

pub(super) const R0: Register = Register(0);
pub(super) const R1: Register = Register(1);
pub(super) const R2: Register = Register(2);
pub(super) const R3: Register = Register(3);
pub(super) const R6: Register = Register(6);
pub(super) const R7: Register = Register(7);
pub(super) const R8: Register = Register(8);
pub(super) const R9: Register = Register(9);
pub(super) const FRAME: Register = Register(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
    Double = 0x18,
}

/// The condition of a jump, which compares the lower 32 bits of a register with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Equal = 0x10,
    Above = 0x20,
    /// The register has at least one of the number's bits set.
    AnyOf = 0x40,
    NotEqual = 0x50,
    Below = 0xa0,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Label(usize);

const LOAD_DOUBLE: u8 = 0x18;
const LOAD: u8 = 0x61;
const STORE_IMMEDIATE: u8 = 0x62;
const STORE: u8 = 0x63;
const ADD: u8 = 0x07;
const ADD_REGISTER: u8 = 0x0f;
const AND: u8 = 0x57;
const SHIFT_LEFT: u8 = 0x67;
const MOVE: u8 = 0xb7;
const MOVE_REGISTER: u8 = 0xbf;
/// The operation that converts to network order, and also from network order.
const TO_NETWORK: u8 = 0xdc;
const JUMP: u8 = 0x05;
const JUMP_EQUAL: u8 = 0x15;
const JUMP_ABOVE_REGISTER: u8 = 0x2d;
const JUMP_32: u8 = 0x06;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// `BPF_PSEUDO_MAP_FD`: the loaded number is the file descriptor of a BPF map.
const BY_MAP: Register = Register(1);
/// `BPF_PSEUDO_KFUNC_CALL`: calls the kernel function with this number in the kernel's type
/// information.
const BY_TYPE: Register = Register(2);
/// `BPF_PSEUDO_CALL`: calls a function of the same program.
const BY_DISTANCE: Register = Register(1);

#[derive(Debug, Default)]
pub(super) struct Assembler {
    instructions: Vec<Instruction>,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
    calls: Vec<(usize, Label)>,
}

impl Assembler {
    fn put(&mut self, code: u8, to: Register, from: Register, offset: i16, immediate: i32) {
        let registers = if cfg!(target_endian = "little") { to.0 | from.0 << 4 } else { to.0 << 4 | from.0 };
        self.instructions.push(Instruction { code, registers, offset, immediate });
    }

    pub(super) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    pub(super) fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.instructions.len());
    }

    pub(super) fn copy(&mut self, to: Register, from: Register) {
        self.put(MOVE_REGISTER, to, from, 0, 0);
    }

    pub(super) fn set(&mut self, to: Register, number: i32) {
        self.put(MOVE, to, R0, 0, number);
    }

    pub(super) fn add(&mut self, to: Register, number: i32) {
        self.put(ADD, to, R0, 0, number);
    }

    pub(super) fn add_register(&mut self, to: Register, from: Register) {
        self.put(ADD_REGISTER, to, from, 0, 0);
    }

    pub(super) fn and(&mut self, to: Register, bits: u32) {
        self.put(AND, to, R0, 0, bits as i32);
    }

    pub(super) fn shift_left(&mut self, to: Register, by: i32) {
        self.put(SHIFT_LEFT, to, R0, 0, by);
    }

    /// Converts two bytes from network order to host order.
    pub(super) fn half_to_host(&mut self, to: Register) {
        self.put(TO_NETWORK, to, R0, 0, 16);
    }

    pub(super) fn load(&mut self, size: Size, to: Register, from: Register, at: i16) {
        self.put(LOAD | size as u8, to, from, at, 0);
    }

    pub(super) fn store(&mut self, size: Size, to: Register, at: i16, from: Register) {
        self.put(STORE | size as u8, to, from, at, 0);
    }

    pub(super) fn store_number(&mut self, size: Size, to: Register, at: i16, number: u32) {
        self.put(STORE_IMMEDIATE | size as u8, to, R0, at, number as i32);
    }

    pub(super) fn load_map(&mut self, to: Register, map: i32) {
        self.put(LOAD_DOUBLE, to, BY_MAP, 0, map);
        self.put(0, R0, R0, 0, 0);
    }

    pub(super) fn call(&mut self, helper: i32) {
        self.put(CALL, R0, R0, 0, helper);
    }

    pub(super) fn call_kernel(&mut self, function: u32) {
        self.put(CALL, R0, BY_TYPE, 0, function as i32);
    }

    pub(super) fn call_function(&mut self, function: Label) {
        self.calls.push((self.instructions.len(), function));
        self.put(CALL, R0, BY_DISTANCE, 0, 0);
    }

    pub(super) fn len(&self) -> usize {
        self.instructions.len()
    }

    pub(super) fn exit(&mut self) {
        self.put(EXIT, R0, R0, 0, 0);
    }

    pub(super) fn jump(&mut self, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.put(JUMP, R0, R0, 0, 0);
    }

    pub(super) fn jump_if(&mut self, register: Register, when: When, number: u32, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.put(JUMP_32 | when as u8, register, R0, 0, number as i32);
    }

    /// Compares unsigned 64-bit numbers. The kernel recognizes this form of comparison as a bounds
    /// check.
    pub(super) fn jump_if_above(&mut self, register: Register, other: Register, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.put(JUMP_ABOVE_REGISTER, register, other, 0, 0);
    }

    pub(super) fn jump_if_null(&mut self, register: Register, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.put(JUMP_EQUAL, register, R0, 0, 0);
    }

    /// Returns `None` if a label is missing, or too far from a jump.
    pub(super) fn finish(mut self) -> Option<Vec<Instruction>> {
        for (at, label) in self.jumps {
            let distance = self.labels[label.0]? as i64 - at as i64 - 1;
            self.instructions[at].offset = i16::try_from(distance).ok()?;
        }
        for (at, label) in self.calls {
            self.instructions[at].immediate = i32::try_from(self.labels[label.0]? as i64 - at as i64 - 1).ok()?;
        }
        Some(self.instructions)
    }
}
