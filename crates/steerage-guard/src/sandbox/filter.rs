//! Compiles groups of system calls to seccomp programs.

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::process;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};
use syscalls::Sysno;

use super::SandboxError;
use super::calls::{Call, Group, Only};
use super::sockets::PacketSockets;

pub(crate) fn arch() -> Option<TargetArch> {
    TargetArch::try_from(std::env::consts::ARCH).ok()
}

/// Compiles a program that allows the calls of these groups, except sending through the packet
/// sockets. Any other call ends the process with SIGSYS.
pub(crate) fn allow(groups: &[Group], sockets: &PacketSockets, arch: TargetArch) -> Result<BpfProgram, SandboxError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let mut unlimited = Vec::new();
    for call in [Group::Run].iter().chain(groups).flat_map(|group| group.calls()) {
        let number = call.number.id().into();
        let barred = barred(call, sockets)?;
        let mut alternatives = conditions(call)?;
        if alternatives.is_empty() {
            if barred.is_empty() {
                unlimited.push(number);
            } else {
                alternatives.push(Vec::new());
            }
        }
        let rules = rules.entry(number).or_default();
        for mut conditions in alternatives {
            conditions.extend(barred.iter().cloned());
            rules.push(SeccompRule::new(conditions).map_err(SandboxError::filter)?);
        }
    }
    // A list without rules allows any arguments.
    for number in unlimited {
        rules.insert(number, Vec::new());
    }
    compile(rules, SeccompAction::Trap, SeccompAction::Allow, arch)
}

/// Compiles a program that answers certain calls with ENOSYS, like a kernel without these calls.
/// The C library has fallbacks for them.
pub(crate) fn do_without(arch: TargetArch) -> Result<BpfProgram, SandboxError> {
    let rules = BTreeMap::from([(Sysno::clone3.id().into(), Vec::new())]);
    compile(rules, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32), arch)
}

fn compile(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    then: SeccompAction,
    arch: TargetArch,
) -> Result<BpfProgram, SandboxError> {
    let filter = SeccompFilter::new(rules, otherwise, then, arch).map_err(SandboxError::filter)?;
    filter.try_into().map_err(SandboxError::filter)
}

/// The alternative conditions for the arguments of a call. The call is allowed if all conditions of
/// one alternative hold, or if there is no alternative.
fn conditions(call: Call) -> Result<Vec<Vec<SeccompCondition>>, SandboxError> {
    let word = |argument, how, value| condition(argument, SeccompCmpArgLen::Dword, how, value);
    let equal = |argument, value| word(argument, SeccompCmpOp::Eq, value);
    match call.only {
        Only::Any => Ok(Vec::new()),
        Only::OneOf(argument, values) => values.iter().map(|value| Ok(vec![equal(argument, *value)?])).collect(),
        Only::Pairs(pairs) => pairs.iter().map(|(one, two)| Ok(vec![equal(1, *one)?, equal(2, *two)?])).collect(),
        Only::Null(argument) => Ok(vec![vec![condition(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?]]),
        Only::Not(argument, value) => Ok(vec![vec![word(argument, SeccompCmpOp::Ne, value)?]]),
        Only::With(argument, bits) => Ok(vec![vec![word(argument, SeccompCmpOp::MaskedEq(bits), bits)?]]),
        Only::Without(argument, bits) => Ok(vec![vec![word(argument, SeccompCmpOp::MaskedEq(bits), 0)?]]),
        Only::Own(argument) => Ok(vec![vec![equal(argument, process::id().into())?]]),
    }
}

/// The conditions that prevent a call from sending through packet sockets. A call with an address
/// could choose the interface, so it may use no packet socket. Other calls send through the
/// socket's bound interface, so they may use the sockets that exist for sending.
fn barred(call: Call, sockets: &PacketSockets) -> Result<Vec<SeccompCondition>, SandboxError> {
    let has_address = !matches!(call.only, Only::Null(_));
    let sockets = match call.number {
        Sysno::write | Sysno::writev => &sockets.listening,
        Sysno::sendto | Sysno::sendmsg | Sysno::sendmmsg if has_address => &sockets.all,
        Sysno::sendto => &sockets.listening,
        _ => return Ok(Vec::new()),
    };
    let not = |socket: &RawFd| condition(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, *socket as u64);
    sockets.iter().map(not).collect()
}

fn condition(
    argument: u8,
    length: SeccompCmpArgLen,
    how: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, SandboxError> {
    SeccompCondition::new(argument, length, how, value).map_err(SandboxError::filter)
}
