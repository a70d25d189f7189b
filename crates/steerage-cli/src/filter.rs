//! `-f`: what of an interface is wanted.

use std::fs;

use steerage::LinkType;
use steerage_device::af_packet::Named;
use steerage_device::filter::Filter;

use crate::args::RunArgs;
use crate::error::Error;

/// Types of interfaces whose frames begin with an Ethernet header: `ARPHRD_ETHER` and `ARPHRD_LOOPBACK`, linux/if_arp.h.
const ETHERNET: [u32; 2] = [1, 772];

/// The filter for each device of the command line, in their order, if there are to be any. Whoever opens interfaces asks
/// for them first: it takes a child process, and after the devices are open there are none.
pub(crate) fn of_interfaces(args: &RunArgs) -> Result<Vec<Filter>, Error> {
    let Some(text) = &args.live.filter else { return Ok(Vec::new()) };
    let compile = |device: &String| match Named::read(device) {
        Some(Named { interface, .. }) => {
            Filter::compile(text, Some(interface), link_of(interface)).map_err(Error::Filter)
        }
        None => Err(Error::NothingToFilter { device: device.clone(), filter: text.clone() }),
    };
    args.devices.iter().map(compile).collect()
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
