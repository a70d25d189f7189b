use steerage_capture::CaptureOptions;
use steerage_device::af_packet::{AfPacketOptions, BLOCK_TIMEOUT_DEFAULT, BUFFER_DEFAULT};
use steerage_device::af_xdp::{AfXdpOptions, COALESCE_DEFAULT};
use steerage_device::{OpenError, Opened};

use super::set_if_given;
use crate::args::RunArgs;
use crate::error::{CommandLineError, Error};
use crate::habits;
use crate::terminal::print_to_stderr;

pub(super) fn open(args: &RunArgs, listens: bool) -> Result<Opened, Error> {
    let filter = args.live.filter.as_deref();
    check_filter(&args.devices, filter)?;
    let files = set_if_given(capture_options(filter), args.pace, CaptureOptions::pace);
    let opened = steerage_device::open_all_taking(
        &args.devices,
        &files,
        |interface| af_packet_options(interface, args),
        |interface| af_xdp_options(interface, args, listens),
    )?;
    if !args.report.quiet {
        opened.notes.iter().for_each(print_to_stderr);
    }
    if args.pace.is_some() && opened.capture.is_none() {
        return Err(CommandLineError::NothingToPace.into());
    }
    Ok(set_if_given(opened, args.stop.packets, Opened::limited))
}

fn af_packet_options(interface: &str, args: &RunArgs) -> Result<AfPacketOptions, OpenError> {
    let live = &args.live;
    let options = AfPacketOptions::new(interface)
        .queues(live.queues)
        .buffer(live.buffer_size.unwrap_or(BUFFER_DEFAULT))
        .block_timeout(live.block_timeout.unwrap_or(BLOCK_TIMEOUT_DEFAULT))
        .promiscuous(!live.no_promiscuous)
        .direction(live.direction)
        .device_hash(args.steering.hash.of_interfaces(live.outer_flows))
        .finish_checksums(live.forwards)
        .offloads(live.offloads);
    Ok(match &live.filter {
        Some(filter) => options.filtered(filter)?,
        None => options,
    })
}

fn af_xdp_options(interface: &str, args: &RunArgs, listens: bool) -> AfXdpOptions {
    let hash = args.steering.hash.of_interfaces(args.live.outer_flows);
    let options = AfXdpOptions::new(interface).replace(args.live.replace).device_hash(hash);
    let options = if listens { options.coalesce(COALESCE_DEFAULT) } else { options };
    let options = set_if_given(options, args.live.xdp_priority, AfXdpOptions::priority);
    set_if_given(options, args.live.take.clone(), AfXdpOptions::take)
}

pub(crate) fn capture_options(filter: Option<&str>) -> CaptureOptions {
    set_if_given(CaptureOptions::new(), filter, CaptureOptions::filter)
}

/// Returns an error if a device looks like the beginning of a filter without `-f`. If there is a
/// filter, all devices must support it.
pub(crate) fn check_filter(devices: &[String], filter: Option<&str>) -> Result<(), Error> {
    if let Some(filter) = habits::filter_among(devices) {
        return Err(CommandLineError::BareFilter { filter }.into());
    }
    match devices.iter().find(|device| filter.is_some() && !steerage_device::takes_filter(device)) {
        Some(device) => Err(CommandLineError::NothingToFilter { device: device.clone() }.into()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{self, Command};

    #[test]
    fn packets_may_wait_only_if_they_are_not_sent_on() {
        let Command::Count(args) = args::parse(["steerage", "count", "eth1"].map(Into::into)).unwrap().command else {
            panic!("it is count")
        };
        let coalesce = |listens| af_xdp_options("eth1", &args, listens).coalesce;
        assert_eq!([true, false].map(coalesce), [Some(COALESCE_DEFAULT), None]);
    }
}
