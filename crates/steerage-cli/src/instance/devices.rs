//! Opens the devices of a run, with the filters of interfaces.

use std::fs;
use std::io::{self, Write};

use steerage::LinkType;
use steerage_device::Opened;
use steerage_device::af_packet::{AfPacketOptions, BLOCK_TIMEOUT_DEFAULT, BUFFER_DEFAULT, Named};
use steerage_device::af_xdp::AfXdpOptions;
use steerage_device::filter::Filter;

use crate::args::RunArgs;
use crate::error::Error;

/// Opens the devices of the command line.
pub(super) fn open(args: &RunArgs) -> Result<Opened, Error> {
    let mut filters = compile_filters(args)?.into_iter();
    let opened = steerage_device::open_all_taking(
        &args.devices,
        args.pace,
        |interface| {
            let options = af_packet_options(interface, args);
            Ok(match filters.next() {
                Some(filter) => options.filter(filter),
                None => options,
            })
        },
        |interface| af_xdp_options(interface, args),
    )?;
    if !args.report.quiet {
        // An error means that standard error is closed.
        opened.notes.iter().for_each(|note| drop(writeln!(io::stderr(), "{note}")));
    }
    if args.pace.is_some() && opened.capture.is_none() {
        return Err(Error::NothingToPace);
    }
    Ok(match args.stop.packets {
        Some(packets) => opened.limited(packets),
        None => opened,
    })
}

/// The options for an interface that is listened to by AF_PACKET.
fn af_packet_options(interface: &str, args: &RunArgs) -> AfPacketOptions {
    let live = &args.live;
    AfPacketOptions::new(interface)
        .queues(live.queues)
        .buffer(live.buffer_size.unwrap_or(BUFFER_DEFAULT))
        .block_timeout(live.block_timeout.unwrap_or(BLOCK_TIMEOUT_DEFAULT))
        .promiscuous(!live.no_promiscuous)
        .direction(live.direction.into())
        .kernel_hash(args.steering.hash.asks_kernel())
        .finish_checksums(live.forwards)
}

/// The options for an interface whose packets AF_XDP takes from the kernel.
fn af_xdp_options(interface: &str, args: &RunArgs) -> AfXdpOptions {
    let options = AfXdpOptions::new(interface).replace(args.live.replace).device_hash(args.steering.hash.asks_kernel());
    match args.live.take.clone() {
        Some(take) => options.take(take),
        None => options,
    }
}

/// The types of interfaces whose frames begin with an Ethernet header: `ARPHRD_ETHER` and `ARPHRD_LOOPBACK`,
/// linux/if_arp.h.
const ETHERNET: [u32; 2] = [1, 772];

/// Compiles the filter (`-f`) for each device of the command line, in their order. This runs a child process, so it
/// comes before the devices are opened: afterwards the program starts no process.
fn compile_filters(args: &RunArgs) -> Result<Vec<Filter>, Error> {
    let Some(text) = &args.live.filter else { return Ok(Vec::new()) };
    let compile = |device: &String| match Named::read(device) {
        Some(Named { interface, .. }) => {
            Filter::compile(text, Some(interface), link_type_of(interface)).map_err(Error::Filter)
        }
        None => Err(Error::NothingToFilter { device: device.clone(), filter: text.clone() }),
    };
    args.devices.iter().map(compile).collect()
}

/// The link type of an interface: Ethernet, or raw IP (tunnels). Interfaces with other headers cannot have a filter, so
/// a wrong answer for them lets no wrong frames through.
fn link_type_of(interface: &str) -> LinkType {
    let kind = fs::read_to_string(format!("/sys/class/net/{interface}/type")).ok();
    match kind.and_then(|kind| kind.trim().parse().ok()) {
        Some(kind) if !ETHERNET.contains(&kind) => LinkType::RAW,
        _ => LinkType::ETHERNET,
    }
}
