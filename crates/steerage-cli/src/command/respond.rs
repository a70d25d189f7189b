//! `steerage respond`: a host that answers.

use std::cell::OnceCell;
use std::io::{self, Write};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use steerage::{HANDLE_BUDGET, Output};
use steerage_apps::respond::{Config, Responding};
use steerage_device::af_xdp::Take;
use steerage_device::{af_packet, af_xdp, output};

use crate::args::{DirectionArg, HostArgs, LiveArgs, RespondArgs, RunArgs};
use crate::error::Error;
use crate::forward::link;
use crate::run::{self, Plan};
use crate::setup::{self, Sending};

/// Answers are not to wait for company: the shortest that the kernel's rings know.
const BLOCK_TIMEOUT: Duration = Duration::from_millis(1);

/// How many packets a CPU may say that are no answer in place: of a full batch, each connection its buffer's worth.
const ORIGINATED: usize = HANDLE_BUDGET * 8;

/// Of a TAP: the kernel's end has the interface's address. Locally administered, and the rest of the host's own address.
const TAP_MAC: [u8; 2] = [0x02, 0x53];

/// What stands behind the name of the device.
#[derive(Debug)]
struct Device {
    /// As which it is sent by.
    output: String,
    interface: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Packet,
    Xdp,
    Tap,
    Tun,
}

/// Answers until the end and reports.
pub(crate) fn run(args: &RespondArgs, verbose: bool) -> Result<(), Error> {
    let device = device(&args.run.devices)?;
    let run = listening(&args.run, &args.host, device.kind)?;
    // Before a device is opened: mistakes of the command line.
    config(&args.host, [2, 0, 0, 0, 0, 0], usize::MAX)?;
    let cpus = setup::count_cpus(&run.cpus)?;
    let responding = OnceCell::new();
    let outputs = |_: &[usize]| -> Result<Vec<Output>, Error> {
        let output = output::open_for(&device.output, cpus).map_err(Error::Output)?;
        let made = Responding::new(of_link(args, &device)?);
        if !run.report.quiet {
            // With standard error closed there is nobody to tell.
            let _ = writeln!(io::stderr(), "{}", note(made.config()));
        }
        let _ = responding.set(made);
        Ok(vec![output])
    };
    let sending = Sending { rate: None, originated: ORIGINATED, outputs };
    let ours = || responding.get().cloned();
    let (instance, around) = setup::sending(&run, None, sending, |_| {
        let ours = ours().ok_or_else(|| Error::Respond("there is nothing to answer by".to_owned()))?;
        Ok(move |_cpu| ours.handler())
    })?;
    let plan = Plan { responding: ours(), ..Plan::new(&run, verbose, around) };
    let ended = run::to_end(instance, &plan)?;
    let (left_behind, failed) = (ended.outcome.left_behind.len(), ended.outcome.failed);
    ended.report.finish(plan.printer, run.report.strict, left_behind, &failed)
}

/// The one device.
fn device(devices: &[String]) -> Result<Device, Error> {
    let [spec] = devices else {
        return Err(Error::Respond(format!("{} devices: respond answers by one, start it for each", devices.len())));
    };
    let of = |output: &str, interface: &str, kind| {
        Ok(Device { output: output.to_owned(), interface: interface.to_owned(), kind })
    };
    if let Some(named) = af_xdp::Named::read(spec) {
        return of(&format!("af_xdp:{}", named.interface), named.interface, Kind::Xdp);
    }
    for (prefix, kind) in [("tap:", Kind::Tap), ("tun:", Kind::Tun)] {
        if let Some(name) = spec.strip_prefix(prefix) {
            return of(spec, name.split(',').next().unwrap_or(name), kind);
        }
    }
    match af_packet::Named::read(spec) {
        Some(named) if af_packet::is_interface(named.interface) => of(named.interface, named.interface, Kind::Packet),
        _ => Err(Error::Respond(format!(
            "{spec} is nothing to answer by: give an interface (`ip link` lists them), af_xdp:IFACE or tap:NAME"
        ))),
    }
}

/// What comes in is listened to, with little delay; by AF_XDP what is for the host's addresses is taken.
fn listening(run: &RunArgs, host: &HostArgs, kind: Kind) -> Result<RunArgs, Error> {
    let take = match (&run.live.take, kind) {
        (None, Kind::Xdp) => Some(take_for(&addresses(host))?),
        (take, _) => take.clone(),
    };
    let live = LiveArgs {
        direction: DirectionArg::In,
        block_timeout: Some(run.live.block_timeout.unwrap_or(BLOCK_TIMEOUT)),
        forwards: true,
        take,
        ..run.live.clone()
    };
    Ok(RunArgs { live, ..run.clone() })
}

fn take_for(addresses: &[IpAddr]) -> Result<Take, Error> {
    let hosts: Vec<String> = addresses.iter().map(|address| format!("dst host {address}")).collect();
    let text = format!("arp or nd or {}", hosts.join(" or "));
    text.parse().map_err(|error| Error::Respond(format!("--take {text}: {error}")))
}

fn addresses(host: &HostArgs) -> Vec<IpAddr> {
    host.address.iter().map(IpNet::addr).collect()
}

fn v4_networks(networks: &[IpNet]) -> Vec<Ipv4Net> {
    networks.iter().filter_map(|net| if let IpNet::V4(net) = net { Some(*net) } else { None }).collect()
}

fn config(host: &HostArgs, mac: [u8; 6], mtu: usize) -> Result<Config, Error> {
    let wrong = |error| Error::Respond(format!("{error}"));
    let config = Config::new(addresses(host), host.mac.unwrap_or(mac), mtu).map_err(wrong)?.echo(&[host.echo]);
    let config = config.networks(&v4_networks(&host.address));
    let config = config.connections_max(host.max_connections).idle(host.idle).verifies(!host.trust_checksums);
    let config = host.buffer.into_iter().fold(config, Config::buffer);
    host.rr
        .iter()
        .try_fold(config, |config, rr| config.request_response(rr.port, rr.request, rr.response))
        .map_err(wrong)
}

/// With what the kernel knows of the link.
fn of_link(args: &RespondArgs, device: &Device) -> Result<Config, Error> {
    let failed = |error| Error::System { operation: "ask the kernel for its links", error };
    let known = link::Known::ask().map_err(failed)?;
    let link = known.link(&device.interface).ok_or_else(|| Error::NoInterface(device.interface.clone()))?;
    for address in addresses(&args.host) {
        if let Some(interface) = known.owner(&address) {
            return Err(Error::Respond(format!(
                "{address} is this machine's own, so its kernel answers too: ip addr del {address} dev {interface}, or give another"
            )));
        }
    }
    let config = config(&args.host, mac_of(&args.host, device.kind, link.mac)?, link.mtu)?;
    // The link's networks are the interface's as well, whether they were written or not.
    Ok(config.networks(&v4_networks(&known.networks(link))))
}

/// The interface's, but of a TAP, whose interface is the other end.
fn mac_of(host: &HostArgs, kind: Kind, of_interface: Option<[u8; 6]>) -> Result<[u8; 6], Error> {
    let own = || {
        let mut mac = [0; 6];
        mac[..2].copy_from_slice(&TAP_MAC);
        match addresses(host).first() {
            Some(IpAddr::V4(address)) => mac[2..].copy_from_slice(&address.octets()),
            Some(IpAddr::V6(address)) => mac[2..].copy_from_slice(&address.octets()[12..]),
            None => {}
        }
        mac
    };
    match (kind, of_interface) {
        (Kind::Tap | Kind::Tun, _) => Ok(own()),
        (_, Some(mac)) => Ok(mac),
        (_, None) if host.mac.is_some() => Ok(own()),
        _ => Err(Error::Respond("the interface has no Ethernet address: use one that has, or a tap".to_owned())),
    }
}

fn note(config: &Config) -> String {
    let mib = config.memory_max().div_ceil(1 << 20);
    format!(
        "TCP connections take {} bytes each, {mib} MiB at most (--max-connections, --buffer)",
        config.connection_bytes()
    )
}
