use std::fs;
use std::io;
use std::path::PathBuf;

use crate::error::{AttributeError, ErrorCode};

/// The kernel's files that describe an interface, or that node_exporter's collector `netclass`
/// reads.
const NAMES: &[&str] = &[
    "addr_assign_type",
    "addr_len",
    "address",
    "broadcast",
    "carrier",
    "carrier_changes",
    "carrier_down_count",
    "carrier_up_count",
    "dev_id",
    "dormant",
    "duplex",
    "flags",
    "ifalias",
    "ifindex",
    "iflink",
    "link_mode",
    "mtu",
    "name_assign_type",
    "netdev_group",
    "operstate",
    "phys_port_id",
    "phys_port_name",
    "phys_switch_id",
    "speed",
    "tx_queue_len",
    "type",
];

pub(super) fn names(interface: &str) -> impl Iterator<Item = &'static str> {
    NAMES.iter().copied().filter(move |name| file(interface, name).exists())
}

/// Reads a file of the kernel. The kernel refuses some reads, for example of `speed` for an
/// interface that has no speed.
pub(super) fn read(interface: &str, name: &str) -> Result<String, AttributeError> {
    let failed = |error: io::Error| {
        let code = error.raw_os_error().map_or(ErrorCode::Invalid, ErrorCode::Kernel);
        AttributeError::new(code, format!("the kernel does not report {name} of {interface}: {error}"))
    };
    fs::read_to_string(file(interface, name)).map_err(failed)
}

fn file(interface: &str, name: &str) -> PathBuf {
    PathBuf::from("/sys/class/net").join(interface).join(name)
}
