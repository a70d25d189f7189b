pub(super) mod silence;

use std::cell::OnceCell;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use nix::net::if_::if_nametoindex;
use steerage::Output;
use steerage_device::tap::TapOptions;
use steerage_device::{af_packet, af_xdp, output};
use steerage_doctor::NoInterface;
use steerage_netlink::Rtnetlink;
use steerage_router::Forwarding;
use steerage_router::kernel::{RouteUpdater, RouterInterface};

use crate::args::{ForwardArgs, RunArgs};
use crate::error::Error;
use crate::instance::{self, OpenedInputs, SendOptions};
use crate::run::{self, RunOptions};
use crate::sandbox::{Needs, SandboxProfile};
use crate::terminal::print_to_stderr;
use silence::Silence;

/// The time for which a received packet waits for other packets in its block. The kernel's rings
/// support no shorter block timeout.
const BLOCK_TIMEOUT: Duration = Duration::from_millis(1);

#[derive(Debug)]
struct ForwardDevice {
    output: String,
    interface: String,
    /// True if the kernel also receives the packets of the interface.
    shared: bool,
    ethernet: bool,
    whole: bool,
}

pub(crate) fn run(args: &ForwardArgs, verbose: bool) -> Result<(), Error> {
    let devices: Vec<ForwardDevice> = args.run.devices.iter().map(|spec| device(spec)).collect::<Result<_, _>>()?;
    check(&devices)?;
    // Super-frames are used only if no interface uses AF_XDP, which does not support them.
    let offloads = devices.iter().all(|device| device.shared || !device.ethernet);
    let mut run = listening(&args.run, offloads);
    if devices.iter().all(|device| device.whole) {
        // Passing a super-frame to another CPU costs more than forwarding it.
        run.cpus.unsteered_by_default();
    }
    let cpus = instance::count_cpus(&run.cpus)?;
    let route_updater = OnceCell::new();
    let forwarding = OnceCell::new();
    // Dropping `silence` removes the routing rules that it added to the kernel.
    let silence = OnceCell::new();
    let outputs = |OpenedInputs { queues, .. }: &OpenedInputs| -> Result<Vec<Output>, Error> {
        let spec = |device: &ForwardDevice| match device.shared && offloads {
            true => format!("af_packet:{},offload=on", device.output),
            false => device.output.clone(),
        };
        let open = |device: &ForwardDevice| output::open_for(&spec(device), cpus).map_err(Error::Output);
        let outputs = devices.iter().map(open).collect::<Result<_, _>>()?;
        let ours = forwarding.get_or_init(|| Forwarding::new(interfaces_of(queues)));
        let ours = ours.as_ref().map_err(|error| Error::Refused(format!("cannot make a pair of sockets: {error}")))?;
        let interfaces = router_interfaces(&devices)?;
        let updater = RouteUpdater::new(&interfaces, &args.route, Arc::clone(ours))?;
        if !run.report.quiet {
            updater.notes(&interfaces).iter().for_each(print_to_stderr);
        }
        let _ = route_updater.set(updater);
        let shared = devices.iter().filter(|device| device.shared).map(|device| device.interface.as_str());
        let _ = silence.set(Silence::begin(shared)?);
        Ok(outputs)
    };
    let sending = SendOptions { listens: false, rate: None, coalesce: args.gro, outputs, input_end: None };
    let ours = || forwarding.get().and_then(|made| made.as_ref().ok()).cloned();
    let gone = || Error::Refused("there is nothing to forward by".to_owned());
    let (instance, services) = instance::sending(&run, Needs::of(SandboxProfile::Forward), sending, |_| {
        let forwarding = ours().ok_or_else(gone)?;
        Ok(move |_cpu| forwarding.handler())
    })?;
    // The thread that updates routes starts after privileges are dropped, so the thread has no
    // privileges.
    route_updater.into_inner().map_or(Ok(()), RouteUpdater::start)?;
    let mut options = RunOptions::new(&run, verbose, services);
    options.sources.forwarding = ours();
    let ended = run::to_end(instance, &options)?;
    ended.report.finish(options.printer, run.report.strict)
}

/// Returns the options of a run that receives only frames to this machine's link address, with
/// little delay.
fn listening(run: &RunArgs, offloads: bool) -> RunArgs {
    let mut run = run.clone();
    run.live.direction = af_packet::Direction::In;
    run.live.no_promiscuous = true;
    run.live.block_timeout.get_or_insert(BLOCK_TIMEOUT);
    (run.live.forwards, run.live.offloads, run.live.outer_flows) = (true, offloads, true);
    run
}

/// Parses the name of a device. Returns an error if a router cannot use the interface.
fn device(spec: &str) -> Result<ForwardDevice, Error> {
    let of = |interface: &str, shared, ethernet| ForwardDevice {
        output: interface.to_owned(),
        interface: interface.to_owned(),
        shared,
        ethernet,
        whole: false,
    };
    if let Some(named) = af_xdp::Named::read(spec) {
        return Ok(ForwardDevice { output: format!("af_xdp:{}", named.interface), ..of(named.interface, false, true) });
    }
    if let Some(name) = spec.strip_prefix("tun:") {
        let interface = name.split(',').next().unwrap_or(name).to_owned();
        // If `TapOptions::parse` fails here, the error is reported when the interface is opened.
        let whole = TapOptions::parse(spec).is_ok_and(|options| options.offloads);
        return Ok(ForwardDevice { output: spec.to_owned(), interface, shared: false, ethernet: false, whole });
    }
    if spec.starts_with("tap:") {
        let message = format!(
            "{spec}: this machine's kernel is its other end, and finds no neighbours there: use a tun or a veth"
        );
        return Err(Error::Refused(message));
    }
    match af_packet::Named::read(spec) {
        Some(named) if af_packet::is_interface(named.interface) => {
            Ok(of(named.interface, true, has_ethernet(named.interface)?))
        }
        _ => Err(Error::Refused(format!("{spec} is no interface to forward by: `ip link` lists those there are"))),
    }
}

/// Returns true if the link type is `ARPHRD_ETHER` or `ARPHRD_LOOPBACK` (linux/if_arp.h).
fn has_ethernet(interface: &str) -> Result<bool, Error> {
    let link = Rtnetlink::open().and_then(|mut kernel| kernel.link(interface));
    let link = link.map_err(|error| Error::System { operation: "ask for the type of an interface", error })?;
    Ok(matches!(link.hardware, 1 | 772))
}

/// Checks that no interface is named twice, and that the kernel does not also forward the
/// interface's packets.
fn check(devices: &[ForwardDevice]) -> Result<(), Error> {
    for (nth, device) in devices.iter().enumerate() {
        let name = &device.interface;
        if devices[..nth].iter().any(|other| other.interface == *name) {
            return Err(Error::Refused(format!("{name} is named twice: name each interface once")));
        }
        if !device.shared {
            continue;
        }
        // One setting of the kernel enables IPv6 forwarding on all interfaces. In IPv6, the setting
        // of one interface does not enable forwarding, but makes the interface act as a router's.
        for switch in [format!("ipv4/conf/{name}/forwarding"), "ipv6/conf/all/forwarding".to_owned()] {
            if fs::read_to_string(format!("/proc/sys/net/{switch}")).is_ok_and(|text| text.trim() != "0") {
                let message = format!(
                    "the kernel forwards what comes by {name} as well, so each packet would go twice: sysctl -w net/{switch}=0"
                );
                return Err(Error::Refused(message));
            }
        }
    }
    Ok(())
}

fn router_interfaces(devices: &[ForwardDevice]) -> Result<Vec<RouterInterface>, Error> {
    let interface = |device: &ForwardDevice| {
        let name = device.interface.clone();
        let index = if_nametoindex(name.as_str()).map_err(|_| NoInterface(name.clone()))?;
        Ok(RouterInterface { name, index, ethernet: device.ethernet })
    };
    devices.iter().map(interface).collect()
}

/// Returns the index of each receive queue's interface, given the number of queues of each device.
fn interfaces_of(queues: &[usize]) -> Vec<u16> {
    let of = |(nth, count): (usize, &usize)| std::iter::repeat_n(nth as u16, *count);
    queues.iter().enumerate().flat_map(of).collect()
}
