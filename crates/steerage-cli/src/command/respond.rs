//! `steerage respond`: answers packets like a host.

use std::cell::OnceCell;
use std::io::{self, Write};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use steerage::{Output, limits::HANDLE_BUDGET};
use steerage_apps::respond::{Config, Responding};
use steerage_device::af_xdp::Take;
use steerage_device::{af_packet, af_xdp, output};

use crate::args::{DirectionArg, HostArgs, LiveArgs, RespondArgs, RunArgs};
use crate::error::Error;
use crate::instance::{self, OpenedInputs, SendOptions};
use crate::routing::links;
use crate::run::{self, RunOptions};
use crate::sandbox::{Confined, Needs};

/// How long a received packet may wait for others: the shortest time that the kernel's rings have.
const BLOCK_TIMEOUT: Duration = Duration::from_millis(1);

/// The most packets that a CPU originates per batch, apart from replies in place: each packet of a
/// full batch may send a whole buffer of its connection.
const ORIGINATED: usize = HANDLE_BUDGET * 8;

/// The first bytes of our link address on a TAP. The kernel's end has the interface's address. It is locally
/// administered, and the rest comes from the host's IP address.
const TAP_MAC: [u8; 2] = [0x02, 0x53];

/// The device that the command line names.
#[derive(Debug)]
struct RespondDevice {
    /// The output that sends by it.
    output: String,
    interface: String,
    kind: DeviceKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceKind {
    Packet,
    Xdp,
    Tap,
    Tun,
}

/// Answers until the end, and reports.
pub(crate) fn run(args: &RespondArgs, verbose: bool) -> Result<(), Error> {
    let device = device(&args.run.devices)?;
    let run = listening(&args.run, &args.host, device.kind)?;
    // This finds mistakes of the command line before a device is opened.
    config(&args.host, [2, 0, 0, 0, 0, 0], usize::MAX)?;
    let cpus = instance::count_cpus(&run.cpus)?;
    let responding = OnceCell::new();
    let outputs = |_: &OpenedInputs| -> Result<Vec<Output>, Error> {
        let output = output::open_for(&device.output, cpus).map_err(Error::Output)?;
        let made = Responding::new(of_link(args, &device)?);
        if !run.report.quiet {
            // An error means that standard error is closed.
            let _ = writeln!(io::stderr(), "{}", note(made.config()));
        }
        let _ = responding.set(made);
        Ok(vec![output])
    };
    let sending = SendOptions { rate: None, originated: ORIGINATED, outputs, input_end: None };
    let ours = || responding.get().cloned();
    let (instance, services) = instance::sending(&run, Needs::of(Confined::Respond), sending, |_| {
        let ours = ours().ok_or_else(|| Error::Respond("there is nothing to answer by".to_owned()))?;
        Ok(move |_cpu| ours.handler())
    })?;
    let options = RunOptions { responding: ours(), ..RunOptions::new(&run, verbose, services) };
    let ended = run::to_end(instance, &options)?;
    let (left_behind, failed) = (ended.outcome.left_behind.len(), ended.outcome.failed);
    ended.report.finish(options.printer, run.report.strict, left_behind, &failed)
}

/// Parses the only device.
fn device(devices: &[String]) -> Result<RespondDevice, Error> {
    let [spec] = devices else {
        return Err(Error::Respond(format!("{} devices: respond answers by one, start it for each", devices.len())));
    };
    let of = |output: &str, interface: &str, kind| {
        Ok(RespondDevice { output: output.to_owned(), interface: interface.to_owned(), kind })
    };
    if let Some(named) = af_xdp::Named::read(spec) {
        return of(&format!("af_xdp:{}", named.interface), named.interface, DeviceKind::Xdp);
    }
    for (prefix, kind) in [("tap:", DeviceKind::Tap), ("tun:", DeviceKind::Tun)] {
        if let Some(name) = spec.strip_prefix(prefix) {
            return of(spec, name.split(',').next().unwrap_or(name), kind);
        }
    }
    match af_packet::Named::read(spec) {
        Some(named) if af_packet::is_interface(named.interface) => {
            of(named.interface, named.interface, DeviceKind::Packet)
        }
        _ => Err(Error::Respond(format!(
            "{spec} is nothing to answer by: give an interface (`ip link` lists them), af_xdp:IFACE or tap:NAME"
        ))),
    }
}

/// Sets the options for receiving: only incoming packets, with little delay. AF_XDP takes the packets for the host's
/// addresses.
fn listening(run: &RunArgs, host: &HostArgs, kind: DeviceKind) -> Result<RunArgs, Error> {
    let take = match (&run.live.take, kind) {
        (None, DeviceKind::Xdp) => Some(take_for(&addresses(host))?),
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
    let config = host.max_per_peer.into_iter().fold(config, Config::per_peer_max);
    host.rr
        .iter()
        .try_fold(config, |config, rr| config.request_response(rr.port, rr.request, rr.response))
        .map_err(wrong)
}

/// The configuration, with what the kernel knows about the link.
fn of_link(args: &RespondArgs, device: &RespondDevice) -> Result<Config, Error> {
    let failed = |error| Error::System { operation: "ask the kernel for its links", error };
    let table = links::LinkTable::read().map_err(failed)?;
    let link = table.link(&device.interface).ok_or_else(|| Error::NoInterface(device.interface.clone()))?;
    for address in addresses(&args.host) {
        if let Some(interface) = table.owner(&address) {
            return Err(Error::Respond(format!(
                "{address} is this machine's own, so its kernel answers too: ip addr del {address} dev {interface}, or give another"
            )));
        }
    }
    let config = config(&args.host, mac_of(&args.host, device.kind, link.mac)?, link.mtu)?;
    // The networks of the link are the host's too, even if the command line does not give their length.
    Ok(config.networks(&v4_networks(&table.networks(link))))
}

/// The host's link address: the interface's, except for a TAP, whose interface is the other end.
fn mac_of(host: &HostArgs, kind: DeviceKind, of_interface: Option<[u8; 6]>) -> Result<[u8; 6], Error> {
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
        (DeviceKind::Tap | DeviceKind::Tun, _) => Ok(own()),
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
