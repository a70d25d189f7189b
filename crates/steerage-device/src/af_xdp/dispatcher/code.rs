//! The instructions, the BPF types and the configuration of a dispatcher.
//!
//! The dispatcher calls one function for each component. The kernel replaces each function by a
//! component, a BPF program, which must have the function's signature.

use super::super::assembler::{Assembler, Instruction, Label, R0, R1, R2, R6, When};
use super::super::sys::extension::Function;

pub(super) const DISPATCHER: &str = "xdp_dispatcher";

pub(super) const COMPONENTS_MAX: usize = 10;

/// The number by which libxdp recognizes the configuration, and the version of its layout.
const MAGIC: u8 = 236;
const VERSION: u8 = 2;

/// `BPF_F_XDP_HAS_FRAGS`, which libxdp stores for each component.
const HAS_FRAGS: u32 = 1 << 5;

/// The return value of a function that no component replaces. After this value, the next component
/// always runs.
const NOT_REPLACED: i32 = 31;

const XDP_PASS: i32 = 2;
const ADJUST_TAIL: i32 = 65;

/// The length of the dispatcher's configuration: four bytes, and three numbers of four bytes for
/// each component.
pub(super) const CONFIGURATION_BYTES: usize = 4 + 3 * COMPONENTS_MAX * 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// The component with the lowest priority number runs first.
    pub(super) priority: u32,
    /// The return values after which the next component runs, with one bit per value.
    pub(super) goes_on_after: u32,
    pub(super) several: bool,
}

impl Rule {
    /// Returns the rule for steerage's program: packets that the program leaves to the kernel go to
    /// the next component.
    pub(super) fn of_ours(priority: u32) -> Self {
        Self { priority, goes_on_after: 1 << XDP_PASS, several: true }
    }
}

/// Returns the configuration of a dispatcher: libxdp's `struct xdp_dispatcher_config`.
pub(super) fn configuration(rules: &[Rule]) -> [u8; CONFIGURATION_BYTES] {
    let mut bytes = [0; CONFIGURATION_BYTES];
    bytes[..4].copy_from_slice(&[MAGIC, VERSION, rules.len() as u8, several(rules).into()]);
    for (nth, rule) in rules.iter().enumerate() {
        let flags = if rule.several { HAS_FRAGS } else { 0 };
        for (list, number) in [rule.goes_on_after | 1 << NOT_REPLACED, rule.priority, flags].into_iter().enumerate() {
            let at = number_at(list, nth);
            bytes[at..at + 4].copy_from_slice(&number.to_ne_bytes());
        }
    }
    bytes
}

/// Returns true if all components support frames of several chunks. Only then may the dispatcher
/// support frames of several chunks.
pub(super) fn several(rules: &[Rule]) -> bool {
    rules.iter().all(|rule| rule.several)
}

/// Parses a configuration. `Err` contains the version of a layout that this module does not
/// support.
pub(super) fn rules(bytes: &[u8; CONFIGURATION_BYTES]) -> Result<Vec<Rule>, u8> {
    let [magic, version, count, ..] = *bytes;
    if (magic, version) != (MAGIC, VERSION) || usize::from(count) > COMPONENTS_MAX {
        return Err(if magic == MAGIC { version } else { 1 });
    }
    let number = |list, nth| {
        let at = number_at(list, nth);
        u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    };
    let rule = |nth| Rule {
        goes_on_after: number(0, nth) & !(1 << NOT_REPLACED),
        priority: number(1, nth),
        several: number(2, nth) & HAS_FRAGS != 0,
    };
    Ok((0..usize::from(count)).map(rule).collect())
}

fn number_at(list: usize, nth: usize) -> usize {
    4 + (list * COMPONENTS_MAX + nth) * 4
}

/// Returns the dispatcher and a function for each component. `map` is the file descriptor of the
/// map with the configuration.
pub(super) fn dispatcher(rules: &[Rule], map: i32) -> Option<(Vec<Instruction>, Vec<Function>)> {
    let mut asm = Assembler::default();
    let mut functions = vec![Function { at: 0, kind: FIRST_FUNCTION }];
    let labels: Vec<Label> = rules.iter().map(|_| asm.label()).collect();
    let end = asm.label();
    asm.copy(R6, R1);
    // libxdp searches for the configuration in the maps that the dispatcher uses.
    asm.load_map(R1, map);
    for (rule, function) in rules.iter().zip(&labels) {
        let next = asm.label();
        asm.copy(R1, R6);
        asm.call_function(*function);
        let goes_on_after = rule.goes_on_after | 1 << NOT_REPLACED;
        for result in (0..u32::BITS).filter(|bit| goes_on_after >> bit & 1 == 1) {
            asm.jump_if(R0, When::Equal, result, next);
        }
        asm.jump(end);
        asm.bind(next);
    }
    asm.set(R0, XDP_PASS);
    asm.bind(end);
    asm.exit();
    for (nth, label) in labels.into_iter().enumerate() {
        functions.push(Function { at: asm.len() as u32, kind: function_of(nth) });
        asm.bind(label);
        // Packet-changing programs can replace only functions that call a packet-changing helper.
        asm.set(R2, 0);
        asm.call(ADJUST_TAIL);
        asm.set(R0, NOT_REPLACED);
        asm.exit();
    }
    Some((asm.finish()?, functions))
}

pub(super) const FIRST_FUNCTION: u32 = 5;

pub(super) fn function_of(nth: usize) -> u32 {
    FIRST_FUNCTION + 1 + nth as u32
}

/// Returns the BTF types (Documentation/bpf/btf.rst of the kernel) of a program with these
/// functions. Each function is `int name(struct xdp_md *ctx)`.
pub(super) fn types<'a>(functions: impl Iterator<Item = &'a str>) -> Vec<u8> {
    const MAGIC: u16 = 0xeb9f;
    const VERSION: u8 = 1;
    const HEADER_BYTES: u32 = 24;
    let [int_kind, pointer, structure, function_kind, prototype] = [1, 2, 4, 12, 13];
    const SIGNED_32_BITS: u32 = 1 << 24 | 32;
    const GLOBAL: u32 = 1;
    const CONTEXT_BYTES: u32 = 24;
    let mut names = vec![0];
    let mut name = |text: &str| {
        let at = names.len() as u32;
        names.extend(text.bytes().chain([0]));
        at
    };
    let kind = |kind: u32, members: u32| kind << 24 | members;
    let (int, context, argument) = (name("int"), name("xdp_md"), name("ctx"));
    let mut words = vec![int, kind(int_kind, 0), 4, SIGNED_32_BITS];
    words.extend([context, kind(structure, 0), CONTEXT_BYTES]);
    words.extend([0, kind(pointer, 0), 2]);
    words.extend([0, kind(prototype, 1), 1, argument, 3]);
    for function in functions {
        words.extend([name(function), kind(function_kind, GLOBAL), 4]);
    }
    let bytes = 4 * words.len() as u32;
    let [first, second] = MAGIC.to_ne_bytes();
    let header = [u32::from_ne_bytes([first, second, VERSION, 0]), HEADER_BYTES, 0, bytes, bytes, names.len() as u32];
    header.into_iter().chain(words).flat_map(u32::to_ne_bytes).chain(names).collect()
}
