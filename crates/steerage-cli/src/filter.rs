//! `-f`: what of an interface is wanted.

use std::fs;
use std::path::Path;

use steerage::LinkType;
use steerage_device::filter::Filter;

use crate::args::RunArgs;
use crate::error::Error;

/// Types of interfaces whose frames begin with an Ethernet header: `ARPHRD_ETHER` and `ARPHRD_LOOPBACK`, linux/if_arp.h.
const ETHERNET: [u32; 2] = [1, 772];

/// The filter for a device of the command line, if there is to be one. Whoever opens an interface asks for it first: it
/// takes a child process, and after the devices are open there are none.
pub(crate) fn of(args: &RunArgs, device: &str) -> Result<Option<Filter>, Error> {
    let Some(text) = &args.filter else { return Ok(None) };
    if !is_interface(device) {
        return Err(Error::NothingToFilter { device: device.to_owned(), filter: text.clone() });
    }
    Filter::compile(text, Some(device), link_of(device)).map(Some).map_err(Error::Filter)
}

fn is_interface(device: &str) -> bool {
    !device.contains('/') && Path::new("/sys/class/net").join(device).exists()
}

/// What its frames begin with: an Ethernet header, or else (tunnels) the IP header. For what has other headers, nothing is
/// compiled that would let the wrong frames through, since it cannot be listened to with a filter.
fn link_of(interface: &str) -> LinkType {
    let kind = fs::read_to_string(format!("/sys/class/net/{interface}/type")).ok();
    match kind.and_then(|kind| kind.trim().parse().ok()) {
        Some(kind) if !ETHERNET.contains(&kind) => LinkType::RAW,
        _ => LinkType::ETHERNET,
    }
}
