use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::process;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};
use syscalls::Sysno;

use super::SandboxError;
use super::calls::{Call, Group, Only};
use super::sockets::Sockets;

pub(crate) fn arch() -> Option<TargetArch> {
    TargetArch::try_from(std::env::consts::ARCH).ok()
}

/// Compiles a seccomp program that allows the system calls of `groups`. If `signalled` is given,
/// `kill` may signal only the process groups whose leaders are in `signalled`. The thread cannot
/// send through the packet sockets in `sockets`, and can send messages only through UDP sockets.
/// Any other system call ends the process with SIGSYS.
pub(crate) fn allow(
    groups: &[Group],
    sockets: &Sockets,
    signalled: Option<&[i32]>,
    arch: TargetArch,
) -> Result<BpfProgram, SandboxError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let mut unlimited = Vec::new();
    for call in [Group::Run].iter().chain(groups).flat_map(|group| group.calls()) {
        let number = call.number.id().into();
        let barred = barred(call, sockets)?;
        let mut alternatives = conditions(call)?;
        if let Some(udp) = sockets.udp.as_ref().filter(|_| sends_messages(call)) {
            alternatives =
                udp.iter().map(|socket| Ok(vec![is(*socket, SeccompCmpOp::Eq)?])).collect::<Result<_, _>>()?;
        } else if let Some(leaders) = signalled.filter(|_| call.number == Sysno::kill) {
            // If the first argument of `kill` is negative, it names a process group.
            let to = |leader: &i32| condition(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::from(-leader as u32));
            alternatives = leaders.iter().map(|leader| Ok(vec![to(leader)?])).collect::<Result<_, _>>()?;
        } else if alternatives.is_empty() {
            if barred.is_empty() {
                unlimited.push(number);
            } else {
                alternatives.push(Vec::new());
            }
        }
        for mut conditions in alternatives {
            conditions.extend(barred.iter().cloned());
            let rule = SeccompRule::new(conditions).map_err(SandboxError::filter)?;
            // In `rules`, an entry without a rule would allow the system call with any arguments.
            rules.entry(number).or_default().push(rule);
        }
    }
    // With an empty list of rules, seccompiler allows a system call with any arguments.
    for number in unlimited {
        rules.insert(number, Vec::new());
    }
    compile(rules, SeccompAction::Trap, SeccompAction::Allow, arch)
}

/// Compiles a seccomp program that makes `clone3` return ENOSYS, so that the C library calls
/// `clone`.
pub(crate) fn do_without(arch: TargetArch) -> Result<BpfProgram, SandboxError> {
    let rules = BTreeMap::from([(Sysno::clone3.id().into(), Vec::new())]);
    compile(rules, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32), arch)
}

/// Compiles a seccomp program that makes `close` succeed without effect for the packet and UDP
/// sockets in `sockets`. If `close` had an effect, the kernel could give the socket's descriptor
/// number to another socket, such as that of the next client.
pub(crate) fn keep_open(sockets: &Sockets, arch: TargetArch) -> Result<BpfProgram, SandboxError> {
    let named = sockets.packet.iter().chain(sockets.udp.iter().flatten());
    let rule = |socket: &RawFd| {
        is(*socket, SeccompCmpOp::Eq).and_then(|it| SeccompRule::new(vec![it]).map_err(SandboxError::filter))
    };
    let rules: Vec<SeccompRule> = named.map(rule).collect::<Result<_, _>>()?;
    // A `close` entry without rules would make `close` ineffective for all descriptors.
    let rules = if rules.is_empty() { BTreeMap::new() } else { BTreeMap::from([(Sysno::close.id().into(), rules)]) };
    compile(rules, SeccompAction::Allow, SeccompAction::Errno(0), arch)
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

/// A system call is allowed if all conditions of one list hold, or if there is no list.
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

/// Returns the conditions that prevent a system call from sending through packet sockets. A call
/// that passes an address could choose the interface, so it may not use any packet socket. A call
/// without an address sends through the interface to which the socket is bound, so it may use the
/// packet sockets that were opened for sending.
fn barred(call: Call, sockets: &Sockets) -> Result<Vec<SeccompCondition>, SandboxError> {
    let sockets: Vec<RawFd> = match call.number {
        Sysno::write | Sysno::writev => sockets.listening.clone(),
        _ if sends_messages(call) && sockets.udp.is_none() => sockets.packet.clone(),
        Sysno::sendto if sends_messages(call) => return Ok(Vec::new()),
        Sysno::sendto => sockets.listening.clone(),
        _ => return Ok(Vec::new()),
    };
    sockets.into_iter().map(|socket| is(socket, SeccompCmpOp::Ne)).collect()
}

/// Returns true if the system call can send to an address, or can send file descriptors.
fn sends_messages(call: Call) -> bool {
    match call.number {
        Sysno::sendmsg | Sysno::sendmmsg => true,
        Sysno::sendto => !matches!(call.only, Only::Null(_)),
        _ => false,
    }
}

fn is(socket: RawFd, how: SeccompCmpOp) -> Result<SeccompCondition, SandboxError> {
    condition(0, SeccompCmpArgLen::Dword, how, socket as u64)
}

fn condition(
    argument: u8,
    length: SeccompCmpArgLen,
    how: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, SandboxError> {
    SeccompCondition::new(argument, length, how, value).map_err(SandboxError::filter)
}

#[cfg(test)]
mod tests {
    use steerage_fixtures::seccomp;

    use super::super::children::CHILDREN_MAX;
    use super::super::sockets::SOCKETS_MAX;
    use super::*;

    /// Creates descriptor numbers of sockets: from 100 on of listening packet sockets, from 1,000
    /// on of other packet sockets, and from 2,000 on of UDP sockets.
    fn sockets(count: usize) -> Sockets {
        let from = |first: RawFd| (first..).take(count).collect::<Vec<_>>();
        let listening = from(100);
        let packet = [listening.clone(), from(1000)].concat();
        Sockets { listening, packet, udp: Some(from(2000)), too_many: false }
    }

    #[test]
    fn messages_go_by_sockets_for_udp_alone() {
        let Some(arch) = arch() else { return };
        for count in [0, 2] {
            let groups = [Group::Receive, Group::Send, Group::SendTo];
            let filter = allow(&groups, &sockets(count), None, arch).unwrap();
            let allows = |call: Sysno, socket: u64, address: u64| {
                seccomp::allows(&filter, call.id() as u32, &[socket, 0, 0, 0, address, 0])
            };
            for call in [Sysno::sendmsg, Sysno::sendmmsg] {
                for socket in [0, 3, 100, 101, 1000, 1001, 1999, 2002] {
                    assert!(!allows(call, socket, 0), "{call} {socket}");
                }
                assert_eq!((allows(call, 2000, 0), allows(call, 2001, 0)), (count > 0, count > 0));
            }
            // A thread may send without an address, except through packet sockets that listen.
            assert!(allows(Sysno::sendto, 3, 0) && allows(Sysno::sendto, 1001, 0) && !allows(Sysno::sendto, 3, 1));
            assert_eq!((allows(Sysno::sendto, 100, 0), allows(Sysno::sendto, 2001, 1)), (count == 0, count > 0));
            assert!(allows(Sysno::close, 100, 0) && allows(Sysno::write, 2000, 0));
            let kept = keep_open(&sockets(count), arch).unwrap();
            let closes = |socket| seccomp::allows(&kept, Sysno::close.id() as u32, &[socket, 0, 0, 0, 0, 0]);
            assert_eq!([100, 1001, 2001].map(closes), [count == 0; 3]);
            assert!(closes(3) && seccomp::allows(&kept, Sysno::read.id() as u32, &[100, 0, 0, 0, 0, 0]));
        }
    }

    #[test]
    fn signals_go_to_the_process_groups_of_children_alone() {
        let Some(arch) = arch() else { return };
        let filter = allow(&[Group::Signal], &Sockets::default(), Some(&[700, 701]), arch).unwrap();
        let allows = |to: i64| seccomp::allows(&filter, Sysno::kill.id() as u32, &[to as u64, 15, 0, 0, 0, 0]);
        assert!(allows(-700) && allows(-701));
        assert!([-1, 0, 1, 700, 701, -699, -702].iter().all(|to| !allows(*to)));
        let children: Vec<i32> = (1..=CHILDREN_MAX as i32).collect();
        assert!(allow(&Group::ALL, &Sockets::default(), Some(&children), arch).is_ok());
    }

    #[test]
    fn as_many_sockets_as_a_filter_can_name() {
        let Some(arch) = arch() else { return };
        let mut sockets = sockets(SOCKETS_MAX);
        sockets.packet.truncate(SOCKETS_MAX);
        let filter =
            allow(&[Group::Receive, Group::Send, Group::SendTo, Group::XdpMaps], &sockets, None, arch).unwrap();
        // The kernel allows 4096 instructions, but an older kernel may add some to the filter.
        assert!(filter.len() < 4000, "{}", filter.len());
    }
}
