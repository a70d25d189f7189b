//! Evaluates a compiled seccomp program, and reads the documented lists of system calls.

use std::collections::BTreeSet;

use seccompiler::BpfProgramRef;

/// The BPF instructions that seccompiler generates, from linux/bpf_common.h.
const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_GREATER: u16 = 0x25;
const JUMP_NOT_LESS: u16 = 0x35;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;

/// `SECCOMP_RET_ALLOW` of linux/seccomp.h.
const ALLOW: u32 = 0x7fff_0000;

/// Offsets in `struct seccomp_data` of linux/seccomp.h.
const NUMBER_AT: u32 = 0;
const ARCH_AT: u32 = 4;
const ARGUMENTS_AT: u32 = 16;

/// The number of this CPU architecture, from linux/audit.h.
#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCH: u32 = 0xc000_00f3;

/// A program's decision about a system call whose arguments are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The system call is allowed with any arguments.
    Allowed,
    /// The system call is allowed with certain arguments.
    ByArguments,
    /// The system call is denied.
    Denied,
}

/// Returns the program's decision about the system call `number`.
pub fn answer(program: BpfProgramRef<'_>, number: u32) -> Answer {
    let answers = returned(program, number, None);
    match (answers.contains(&ALLOW), answers.len()) {
        (true, 1) => Answer::Allowed,
        (true, _) => Answer::ByArguments,
        (false, _) => Answer::Denied,
    }
}

/// Returns true if the program allows the system call `number` with the arguments `arguments`.
pub fn allows(program: BpfProgramRef<'_>, number: u32, arguments: &[u64; 6]) -> bool {
    returned(program, number, Some(arguments)) == BTreeSet::from([ALLOW])
}

/// Returns the rows of the tables in lab/notes/system-calls.md and docs/privileges.md.
pub fn documented_rows() -> Vec<Vec<&'static str>> {
    [include_str!("../../../lab/notes/system-calls.md"), include_str!("../../../docs/privileges.md")]
        .into_iter()
        .flat_map(str::lines)
        .filter(|line| line.starts_with("| "))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

/// Returns all values that the program can return. If the arguments are unknown, each comparison
/// with an argument can be true or false.
fn returned(program: BpfProgramRef<'_>, number: u32, arguments: Option<&[u64; 6]>) -> BTreeSet<u32> {
    let load = |at: u32| match at {
        NUMBER_AT => Some(number),
        ARCH_AT => Some(ARCH),
        _ => arguments.map(|arguments| {
            let at = (at - ARGUMENTS_AT) as usize;
            let bytes: Vec<u8> = arguments.iter().flat_map(|argument| argument.to_ne_bytes()).collect();
            bytes[at..].first_chunk().map_or(0, |word| u32::from_ne_bytes(*word))
        }),
    };
    let (mut met, mut rest, mut answers) = (BTreeSet::new(), vec![(0, None)], BTreeSet::new());
    while let Some((at, value)) = rest.pop() {
        if !met.insert((at, value)) {
            continue;
        }
        let instruction = &program[at];
        let jump = |is: fn(u32, u32) -> bool| {
            let (yes, no) = (at + 1 + usize::from(instruction.jt), at + 1 + usize::from(instruction.jf));
            match value {
                Some(value) if is(value, instruction.k) => vec![yes],
                Some(_) => vec![no],
                None => vec![yes, no],
            }
        };
        let (next, value) = match instruction.code {
            LOAD => (vec![at + 1], load(instruction.k)),
            AND => (vec![at + 1], value.map(|value| value & instruction.k)),
            JUMP => (vec![at + 1 + instruction.k as usize], value),
            JUMP_EQUAL => (jump(|value, k| value == k), value),
            JUMP_GREATER => (jump(|value, k| value > k), value),
            JUMP_NOT_LESS => (jump(|value, k| value >= k), value),
            RETURN => {
                answers.insert(instruction.k);
                continue;
            }
            other => panic!("the filter has the unknown instruction {other:#x}"),
        };
        rest.extend(next.into_iter().map(|next| (next, value)));
    }
    answers
}
