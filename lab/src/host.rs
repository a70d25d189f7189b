//! The command `steerage-lab respond`: a TCP/IP host, and the server of the experiment `rr`.

use std::io::{self, Read as _, Write as _};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::Args;
use ipnet::{IpNet, Ipv4Net};
use nix::ifaddrs::getifaddrs;
use serde_json::{Value, json};
use steerage::{Builder, CpuId, Input, Instance, limits::HANDLE_BUDGET};
use steerage_device::af_packet::{self, AfPacketOptions, Direction};
use steerage_device::af_xdp::{self, AfXdpOptions};
use steerage_device::output;

use crate::error::LabError;
use crate::experiment::cpus;
use crate::respond::{Config, End, Fate, Responding};

/// The shortest block timeout of the kernel's packet rings.
const BLOCK_TIMEOUT: Duration = Duration::from_millis(1);

/// For each packet of a full batch, the limit allows a connection to send a whole buffer. The
/// maximum number of packets that a CPU may create per batch. Replies that overwrite a received
/// packet do not count.
const ORIGINATED: usize = HANDLE_BUDGET * 8;

/// The first bytes of the host's link address on a TAP (locally administered). The remaining bytes
/// of the link address are from the host's IP address. The kernel's end of the TAP has a link
/// address of its own, that of the interface.
const TAP_MAC: [u8; 2] = [0x02, 0x53];

/// The options of `respond`.
#[derive(Clone, Debug, Args)]
pub struct HostArgs {
    /// Interface to answer by: IFACE, `af_xdp:IFACE` or tap:NAME
    #[arg(value_name = "DEVICE")]
    pub device: String,
    /// Address to answer for, which no interface of this machine has; can be repeated
    #[arg(long, value_name = "ADDR[/LEN]", required = true, value_parser = network)]
    pub address: Vec<IpNet>,
    /// Answer each request of REQ bytes with RESP bytes at this TCP port
    #[arg(long, value_name = "PORT:REQ:RESP", value_parser = exchange)]
    pub rr: Vec<(u16, usize, usize)>,
    /// CPUs that send replies [default: all CPUs that this process may use]
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// CPU that receives packets [default: the first of --cpus]
    #[arg(long, value_name = "CPU")]
    pub rx_cpu: Option<u16>,
    /// Longest IP packet of the link
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    pub mtu: usize,
    /// Do not check checksums: packets of a veth by `af_xdp` have none
    #[arg(long)]
    pub trust_checksums: bool,
    /// Merge consecutive segments of a TCP or UDP flow before they are answered
    #[arg(long)]
    pub gro: bool,
    /// Check that no flow is reordered
    #[arg(long)]
    pub check_order: bool,
    /// Stop after this time
    #[arg(long, value_name = "S")]
    pub seconds: Option<u64>,
}

/// Parses an address with an optional prefix length, as `ip addr` does.
fn network(text: &str) -> Result<IpNet, &'static str> {
    let alone = || text.parse::<IpAddr>().map(IpNet::from);
    text.parse().or_else(|_| alone()).map_err(|_| "write an address, such as 10.0.0.2/24 or fd00::2")
}

fn exchange(text: &str) -> Result<(u16, usize, usize), &'static str> {
    let wrong = "write a port and two lengths in bytes, such as 5000:1:1";
    let mut parts = text.split(':');
    let mut next = || parts.next().ok_or(wrong);
    let port = next()?.parse().map_err(|_| wrong)?;
    let [request, response] = [next()?.parse().map_err(|_| wrong)?, next()?.parse().map_err(|_| wrong)?];
    if parts.next().is_none() && request > 0 { Ok((port, request, response)) } else { Err(wrong) }
}

/// Replies to packets until standard input or the time of the run ends, and then prints the
/// counters as JSON.
///
/// # Errors
/// Returns an error if the device cannot be opened, or if an address is not valid for this host.
pub fn run(args: &HostArgs) -> Result<(), LabError> {
    let order = cpus(args.cpus.as_deref())?;
    let (input, spec, is_tap) = open(args)?;
    let output = output::open_for(&spec, order.len()).map_err(|error| LabError::set_up("the output", error))?;
    let responding = Responding::new(config(args, &input.name.get(), is_tap)?);
    let mask = order.iter().map(|cpu| CpuId(*cpu as u16)).collect();
    let rx: Vec<CpuId> = args.rx_cpu.map(CpuId).or(order.first().map(|cpu| CpuId(*cpu as u16))).into_iter().collect();
    let builder = Builder::new()
        .cpus(mask)
        .check_order(args.check_order)
        .originated_max(ORIGINATED)
        .always_hash(true)
        .coalesce(args.gro);
    let ours = Arc::clone(&responding);
    let instance = builder.input_on(input, &rx, None).output(output).build(move |_| ours.handler())?;
    let running = Instance::start(instance)?;
    let handle = running.handle();
    let _ = writeln!(io::stderr(), "{READY}");
    until_end(args.seconds.map(Duration::from_secs));
    handle.stop();
    let outcome = running.join();
    if !outcome.failed.is_empty() {
        return Err(LabError::Panicked);
    }
    let snapshot = handle.snapshot();
    let mut report = counts(&responding);
    report["delivered"] = snapshot.delivered().into();
    report["reordered"] = snapshot.reordered().into();
    writeln!(io::stdout(), "{report}").map_err(LabError::Output)
}

/// The line on standard error when the host is ready to reply.
pub const READY: &str = "ready";

fn until_end(most: Option<Duration>) {
    let (ended, has_ended) = mpsc::channel();
    thread::spawn(move || {
        let mut piece = [0; 64];
        while io::stdin().read(&mut piece).is_ok_and(|read| read > 0) {}
        // `send` fails if the time of the run is over.
        let _ = ended.send(());
    });
    let _ = match most {
        Some(most) => has_ended.recv_timeout(most).is_ok(),
        None => has_ended.recv().is_ok(),
    };
}

/// Opens the device. Also returns the name of the output, and whether the device is a TAP.
fn open(args: &HostArgs) -> Result<(Input, String, bool), LabError> {
    let failed = |error: steerage_device::OpenError| LabError::set_up("the device", error);
    let device = args.device.as_str();
    if device.starts_with("tap:") {
        return Ok((steerage_device::open(device).map_err(failed)?, device.to_owned(), true));
    }
    if let Some(named) = af_xdp::Named::read(device) {
        let hosts: Vec<String> = args.address.iter().map(|net| format!("dst host {}", net.addr())).collect();
        let take = format!("arp or nd or {}", hosts.join(" or "));
        let take = take.parse().map_err(|error| LabError::set_up("the packets of the host", error))?;
        let options = named.apply(AfXdpOptions::new(named.interface).take(take));
        let options = options.map_err(|error| LabError::set_up("the device", error))?;
        let taken = options.open().map_err(|error| LabError::set_up("the device", error))?;
        return Ok((taken.input, format!("af_xdp:{}", named.interface), false));
    }
    let Some(named) = af_packet::Named::read(device) else {
        return Err(LabError::set_up("the device", format!("{device} is no interface: `ip link` lists them")));
    };
    let options = AfPacketOptions::new(named.interface).direction(Direction::In);
    let options = named.apply(options.block_timeout(BLOCK_TIMEOUT).finish_checksums(true));
    let options = options.map_err(|error| LabError::set_up("the device", error))?;
    let opened = options.open().map_err(|error| LabError::set_up("the device", error))?;
    Ok((opened.input, named.interface.to_owned(), false))
}

fn config(args: &HostArgs, interface: &str, is_tap: bool) -> Result<Config, LabError> {
    let wrong = |error: &dyn std::fmt::Display| LabError::set_up("a host", error);
    let addresses: Vec<IpAddr> = args.address.iter().map(IpNet::addr).collect();
    let mut mac = None;
    for found in getifaddrs().map_err(|error| wrong(&error))? {
        let Some(address) = found.address else { continue };
        if found.interface_name == interface && !is_tap {
            mac = mac.or(address.as_link_addr().and_then(nix::sys::socket::LinkAddr::addr));
        }
        let v4 = address.as_sockaddr_in().map(|at| IpAddr::from(at.ip()));
        let taken = v4.or(address.as_sockaddr_in6().map(|at| at.ip().into()));
        if let Some(address) = taken.filter(|address| addresses.contains(address)) {
            let name = found.interface_name;
            return Err(wrong(&format!(
                "{address} is this machine's own, so its kernel answers too: ip addr del {address} dev {name}, or give another"
            )));
        }
    }
    let own = || {
        let mut mac = [0; 6];
        mac[..2].copy_from_slice(&TAP_MAC);
        match addresses.first() {
            Some(IpAddr::V4(address)) => mac[2..].copy_from_slice(&address.octets()),
            Some(IpAddr::V6(address)) => mac[2..].copy_from_slice(&address.octets()[12..]),
            None => {}
        }
        mac
    };
    let networks = args.address.iter().filter_map(|net| if let IpNet::V4(net) = net { Some(*net) } else { None });
    let networks: Vec<Ipv4Net> = networks.collect();
    let mac = mac.filter(|_| !is_tap).unwrap_or_else(own);
    let config = Config::new(addresses.clone(), mac, args.mtu).map_err(|error| wrong(&error))?;
    let config = config.networks(&networks).verifies(!args.trust_checksums);
    // The limit for one peer is off, because the load generator is the only peer.
    let config = config.per_peer_max(usize::MAX);
    let with = |config: Config, rr: &(u16, usize, usize)| config.request_response(rr.0, rr.1, rr.2);
    args.rr.iter().try_fold(config, with).map_err(|error| wrong(&error))
}

fn counts(responding: &Responding) -> Value {
    let counts = responding.so_far();
    let fates = |is_served: bool| -> Value {
        let of = Fate::ALL.iter().filter(|fate| fate.is_served() == is_served);
        of.map(|fate| (fate.name().to_owned(), counts.get(*fate).into())).collect::<serde_json::Map<_, _>>().into()
    };
    let ended = End::ALL.iter().map(|end| (end.name().to_owned(), counts.ended(*end).into()));
    json!({
        "served": fates(true),
        "others": fates(false),
        "connections": {
            "opened": counts.opened,
            "refused": counts.refused,
            "ended": Value::Object(ended.collect()),
        },
        "transactions": counts.transactions,
        "tcp_bytes_in": counts.tcp_bytes_in,
        "tcp_bytes_out": counts.tcp_bytes_out,
        "merged": counts.merged,
    })
}
