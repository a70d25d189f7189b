use std::path::PathBuf;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use serde::Serialize;
use steerage::{
    flow::{FlowHasher, HashKey},
    memory::usable_memory,
};
use steerage_guard::program;

/// A Linux capability (capabilities(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Capability {
    pub(crate) name: &'static str,
    pub(crate) held: bool,
    #[serde(rename = "for")]
    pub(crate) what_for: &'static str,
}

const CAPABILITIES: [(CapabilitySet, &str, &str); 6] = [
    (CapabilitySet::NET_RAW, "CAP_NET_RAW", "listening to interfaces"),
    (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN", "attaching XDP programs"),
    (CapabilitySet::BPF, "CAP_BPF", "loading XDP programs"),
    (CapabilitySet::PERFMON, "CAP_PERFMON", "loading XDP programs that find headers behind others"),
    (CapabilitySet::SYS_NICE, "CAP_SYS_NICE", "priorities and NUMA placement"),
    (CapabilitySet::IPC_LOCK, "CAP_IPC_LOCK", "locking memory beyond the limit"),
];

#[derive(Debug)]
pub(crate) struct Probes {
    pub(crate) af_packet: Result<(), Errno>,
    pub(crate) af_xdp: Result<(), Errno>,
    pub(crate) fuse: Result<(), Errno>,
    pub(crate) capabilities: Vec<Capability>,
    /// The bytes that this process may lock, or `None` if there is no limit.
    pub(crate) memlock: Option<u64>,
    /// The bytes of memory that this process may use, if known.
    pub(crate) memory: Option<u64>,
    pub(crate) tcpdump: Option<PathBuf>,
    /// The path of `fusermount3`, which mounts FUSE file systems for unprivileged users.
    pub(crate) fusermount: Option<PathBuf>,
    pub(crate) aes: bool,
    pub(crate) gfni: bool,
}

impl Probes {
    pub(crate) fn of_this_machine() -> Self {
        Self {
            af_packet: opens(AddressFamily::PACKET),
            af_xdp: opens(AddressFamily::XDP),
            fuse: accessat(CWD, "/dev/fuse", Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS),
            capabilities: held(),
            memlock: getrlimit(Resource::Memlock).current,
            memory: usable_memory(),
            tcpdump: program::find("tcpdump"),
            fusermount: program::find("fusermount3"),
            aes: FlowHasher::aes(&HashKey::MICROSOFT).is_some(),
            gfni: FlowHasher::toeplitz_gfni(&HashKey::MICROSOFT).is_some(),
        }
    }

    pub(crate) fn holds(&self, name: &str) -> bool {
        self.capabilities.iter().any(|capability| capability.name == name && capability.held)
    }
}

/// Returns an error if this process cannot open a raw socket. The socket has no protocol, so it
/// receives no packets.
fn opens(family: AddressFamily) -> Result<(), Errno> {
    socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, None).map(drop)
}

fn held() -> Vec<Capability> {
    let effective = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    CAPABILITIES
        .iter()
        .map(|(set, name, what_for)| Capability { name, held: effective.contains(*set), what_for })
        .collect()
}

#[cfg(test)]
pub(crate) mod fake {
    use super::*;

    pub(crate) fn probes() -> Probes {
        let held = |(_, name, what_for): &(_, &'static str, &'static str)| Capability { name, held: true, what_for };
        Probes {
            af_packet: Ok(()),
            af_xdp: Ok(()),
            fuse: Ok(()),
            capabilities: CAPABILITIES.iter().map(held).collect(),
            memlock: None,
            memory: None,
            tcpdump: Some(PathBuf::from("/usr/bin/tcpdump")),
            fusermount: Some(PathBuf::from("/usr/bin/fusermount3")),
            aes: true,
            gfni: true,
        }
    }
}
