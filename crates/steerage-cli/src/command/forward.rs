//! `steerage forward`: a router.

use std::cell::OnceCell;
use std::fs;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use nix::net::if_::if_nametoindex;
use steerage::Output;
use steerage_apps::forward::Forwarding;
use steerage_device::{af_packet, af_xdp, output};

use crate::args::{DirectionArg, ForwardArgs, LiveArgs, RunArgs};
use crate::error::Error;
use crate::forward::{Control, Leg};
use crate::run::{self, Plan};
use crate::setup::{self, Sending};

/// Packets are not to wait for company on their way: the shortest that the kernel's rings know.
const BLOCK_TIMEOUT: Duration = Duration::from_millis(1);

/// An interface that takes part.
#[derive(Debug)]
struct Device {
    /// As which it is sent by.
    output: String,
    interface: String,
    /// Whether the kernel sees its packets as well.
    shared: bool,
    /// Whether packets begin with an Ethernet header.
    ethernet: bool,
}

/// Forwards until the end and reports.
pub(crate) fn run(args: &ForwardArgs, verbose: bool) -> Result<(), Error> {
    let devices: Vec<Device> = args.run.devices.iter().map(|spec| device(spec)).collect::<Result<_, _>>()?;
    check(&devices)?;
    let run = listening(&args.run);
    let cpus = setup::count_cpus(&run.cpus)?;
    let control = OnceCell::new();
    let forwarding = OnceCell::new();
    let outputs = |queues: &[usize]| -> Result<Vec<Output>, Error> {
        let open = |device: &Device| output::open_for(&device.output, cpus).map_err(Error::Output);
        let outputs = devices.iter().map(open).collect::<Result<_, _>>()?;
        let ours = forwarding.get_or_init(|| Forwarding::new(interfaces_of(queues)));
        let ours = ours.as_ref().map_err(|error| Error::Forward(format!("cannot make a pair of sockets: {error}")))?;
        let legs = legs(&devices)?;
        let made = Control::new(&legs, &args.route, Arc::clone(ours))?;
        if !run.report.quiet {
            // With standard error closed there is nobody to tell.
            made.notes(&legs).iter().for_each(|note| drop(writeln!(io::stderr(), "{note}")));
        }
        let _ = control.set(made);
        Ok(outputs)
    };
    let sending = Sending { rate: None, originated: 0, outputs };
    let ours = || forwarding.get().and_then(|made| made.as_ref().ok()).cloned();
    let gone = || Error::Forward("there is nothing to forward by".to_owned());
    let (instance, capture) = setup::sending(&run, None, sending, |_| {
        let forwarding = ours().ok_or_else(gone)?;
        Ok(move |_cpu| forwarding.handler())
    })?;
    // With the privileges gone: it is to have none.
    control.into_inner().map_or(Ok(()), Control::start)?;
    let plan = Plan { forwarding: ours(), ..Plan::new(&run, verbose, capture) };
    let ended = run::to_end(instance, &plan)?;
    let (left_behind, failed) = (ended.outcome.left_behind.len(), ended.outcome.failed);
    ended.report.finish(plan.printer, run.report.strict, left_behind, &failed)
}

/// What comes in is listened to, with little delay, and for this machine's link address only.
fn listening(run: &RunArgs) -> RunArgs {
    let live = LiveArgs {
        direction: DirectionArg::In,
        no_promiscuous: true,
        block_timeout: Some(run.live.block_timeout.unwrap_or(BLOCK_TIMEOUT)),
        forwards: true,
        ..run.live.clone()
    };
    RunArgs { live, ..run.clone() }
}

/// What `spec` names, if it is an interface that can take part.
fn device(spec: &str) -> Result<Device, Error> {
    let of = |interface: &str, shared, ethernet| Device {
        output: interface.to_owned(),
        interface: interface.to_owned(),
        shared,
        ethernet,
    };
    if let Some(named) = af_xdp::Named::read(spec) {
        return Ok(Device { output: format!("af_xdp:{}", named.interface), ..of(named.interface, false, true) });
    }
    if let Some(name) = spec.strip_prefix("tun:") {
        let interface = name.split(',').next().unwrap_or(name).to_owned();
        return Ok(Device { output: spec.to_owned(), interface, shared: false, ethernet: false });
    }
    if spec.starts_with("tap:") {
        let message = format!(
            "{spec}: this machine's kernel is its other end, and finds no neighbours there: use a tun or a veth"
        );
        return Err(Error::Forward(message));
    }
    match af_packet::Named::read(spec) {
        Some(named) if af_packet::is_interface(named.interface) => {
            Ok(of(named.interface, true, has_ethernet(named.interface)))
        }
        _ => Err(Error::Forward(format!("{spec} is no interface to forward by: `ip link` lists those there are"))),
    }
}

/// Its type is Ethernet or loopback: `ARPHRD_ETHER`, `ARPHRD_LOOPBACK` of linux/if_arp.h.
fn has_ethernet(interface: &str) -> bool {
    let kind = fs::read_to_string(format!("/sys/class/net/{interface}/type")).unwrap_or_default();
    // Of another namespace than the one that is mounted there, there is nothing to be read.
    matches!(kind.trim(), "1" | "772" | "")
}

/// Each is there once, and the kernel does not forward what comes by them.
fn check(devices: &[Device]) -> Result<(), Error> {
    for (nth, device) in devices.iter().enumerate() {
        let name = &device.interface;
        if devices[..nth].iter().any(|other| other.interface == *name) {
            return Err(Error::Forward(format!("{name} is named twice: name each interface once")));
        }
        if !device.shared {
            continue;
        }
        // Of IPv6 it is one switch for all: what an interface has is whether it behaves as a router's.
        for switch in [format!("ipv4/conf/{name}/forwarding"), "ipv6/conf/all/forwarding".to_owned()] {
            if fs::read_to_string(format!("/proc/sys/net/{switch}")).is_ok_and(|text| text.trim() != "0") {
                let message = format!(
                    "the kernel forwards what comes by {name} as well, so each packet would go twice: sysctl -w net/{switch}=0"
                );
                return Err(Error::Forward(message));
            }
        }
    }
    Ok(())
}

fn legs(devices: &[Device]) -> Result<Vec<Leg>, Error> {
    let leg = |device: &Device| {
        let name = device.interface.clone();
        let index = if_nametoindex(name.as_str()).map_err(|_| Error::NoInterface(name.clone()))?;
        Ok(Leg { name, index, ethernet: device.ethernet })
    };
    devices.iter().map(leg).collect()
}

/// Of each receive queue by its number, which interface it is of: inputs are in the order of the devices.
fn interfaces_of(queues: &[usize]) -> Vec<u16> {
    let of = |(nth, count): (usize, &usize)| std::iter::repeat_n(nth as u16, *count);
    queues.iter().enumerate().flat_map(of).collect()
}
