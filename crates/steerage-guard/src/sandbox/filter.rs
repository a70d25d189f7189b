//! Compiles groups of system calls to seccomp programs.

use std::collections::BTreeMap;
use std::process;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};
use syscalls::Sysno;

use super::SandboxError;
use super::calls::{Call, Group, Only};

/// The architecture of this machine, if seccompiler supports it.
pub(crate) fn arch() -> Option<TargetArch> {
    TargetArch::try_from(std::env::consts::ARCH).ok()
}

/// A program that allows the calls of these groups. Any other call ends the process with SIGSYS.
pub(crate) fn allow(groups: &[Group], arch: TargetArch) -> Result<BpfProgram, SandboxError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let mut unlimited = Vec::new();
    for call in [Group::Run].iter().chain(groups).flat_map(|group| group.calls()) {
        let number = call.number.id().into();
        let conditions = conditions(call)?;
        if conditions.is_empty() {
            unlimited.push(number);
        }
        let rules = rules.entry(number).or_default();
        for condition in conditions {
            rules.push(SeccompRule::new(vec![condition]).map_err(SandboxError::filter)?);
        }
    }
    // A list without rules allows any arguments.
    for number in unlimited {
        rules.insert(number, Vec::new());
    }
    compile(rules, SeccompAction::Trap, SeccompAction::Allow, arch)
}

/// A program that answers certain calls with ENOSYS, like a kernel without them. The C library can do
/// without them.
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

/// The conditions of a call. It is allowed if one of them holds.
fn conditions(call: Call) -> Result<Vec<SeccompCondition>, SandboxError> {
    let condition = |argument, length, how, value| {
        SeccompCondition::new(argument, length, how, value).map_err(SandboxError::filter)
    };
    let word = SeccompCmpArgLen::Dword;
    match call.only {
        Only::Any => Ok(Vec::new()),
        Only::OneOf(argument, values) => {
            values.iter().map(|value| condition(argument, word.clone(), SeccompCmpOp::Eq, *value)).collect()
        }
        Only::Not(argument, value) => Ok(vec![condition(argument, word, SeccompCmpOp::Ne, value)?]),
        Only::With(argument, bits) => Ok(vec![condition(argument, word, SeccompCmpOp::MaskedEq(bits), bits)?]),
        Only::Without(argument, bits) => Ok(vec![condition(argument, word, SeccompCmpOp::MaskedEq(bits), 0)?]),
        Only::Own(argument) => Ok(vec![condition(argument, word, SeccompCmpOp::Eq, process::id().into())?]),
    }
}
