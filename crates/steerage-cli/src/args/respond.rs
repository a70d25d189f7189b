//! The options of `steerage respond`.

use std::net::IpAddr;
use std::time::Duration;

use clap::Args;
use ipnet::IpNet;
use steerage_apps::respond::{BUFFER_DEFAULT, BUFFER_MAX, BUFFER_MIN, CONNECTIONS_DEFAULT, ECHO_PORT};

use super::RunArgs;
use super::memory::size;
use super::values::{duration, number};

pub(super) const RESPOND_HELP: &str = "\
DEVICE is IFACE, af_xdp:IFACE or tap:NAME. It then leads to another host with addresses of its own. That host answers ARP, \
neighbour discovery, ping, and echo over UDP and TCP (port 7). With --rr it answers requests of REQ bytes with RESP bytes over TCP. \
Its addresses must not be addresses of this machine.

With af_xdp, ARP, neighbour discovery and packets for these addresses are taken from the kernel, unless --take is given. \
`steerage help respond` lists what is answered.

Examples:
  steerage respond tap:peer0 --address 10.0.0.2/24
                         then: ip addr add 10.0.0.1/24 dev peer0
  steerage respond eth1 --address 10.0.0.2 --address fd00::2 --rr 5000:1:1
  steerage respond af_xdp:eth1 --address 10.0.0.2 --rps-cpus 3 --seconds 60";

/// The most connections that can be asked for. Memory limits their number before that.
const CONNECTIONS_MAX: usize = 10_000_000;

/// The longest request or response that can be asked for.
const MESSAGE_BYTES_MAX: usize = 1 << 30;

#[derive(Debug, Args)]
pub(crate) struct RespondArgs {
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) host: HostArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Host")]
pub(crate) struct HostArgs {
    /// IPv4 or IPv6 address to answer for; can be repeated up to 8 times
    #[arg(long, value_name = "ADDR[/LEN]", required = true, action = clap::ArgAction::Append, value_parser = address)]
    pub(crate) address: Vec<IpNet>,

    /// MAC address to answer with [default: the interface's; for a TAP, its own]
    #[arg(hide_short_help = true, long, value_name = "MAC", value_parser = mac)]
    pub(crate) mac: Option<[u8; 6]>,

    /// Answer each request of REQ bytes with RESP bytes at this TCP port
    #[arg(long, value_name = "PORT:REQ:RESP", action = clap::ArgAction::Append, value_parser = exchange)]
    pub(crate) rr: Vec<Exchange>,

    /// TCP and UDP port of the echo service
    #[arg(long, value_name = "PORT", default_value_t = ECHO_PORT, value_parser = port)]
    pub(crate) echo: u16,

    /// Most TCP connections at a time; further ones are reset
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = CONNECTIONS_DEFAULT, allow_negative_numbers = true,
        value_parser = |text: &str| number(text, CONNECTIONS_MAX))]
    pub(crate) max_connections: usize,

    /// Most TCP connections of one peer (IPv6: /64) [default: a quarter of --max-connections]
    #[arg(hide_short_help = true, long, value_name = "N", allow_negative_numbers = true,
        value_parser = |text: &str| number(text, CONNECTIONS_MAX))]
    pub(crate) max_per_peer: Option<usize>,

    /// Reset a connection whose peer is silent for DURATION
    #[arg(hide_short_help = true, long, value_name = "DURATION", default_value = "300", value_parser = duration)]
    pub(crate) idle: Duration,

    /// Buffer of a connection for each direction, with K [default: 8K]
    #[arg(hide_short_help = true, long, value_name = "SIZE", value_parser = buffer)]
    pub(crate) buffer: Option<usize>,

    /// Do not check checksums: packets of a veth by af_xdp have none
    #[arg(hide_short_help = true, long)]
    pub(crate) trust_checksums: bool,
}

/// A TCP port, and the sizes of the requests and responses there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exchange {
    pub(crate) port: u16,
    pub(crate) request: usize,
    pub(crate) response: usize,
}

/// Parses an address. The length of its network's prefix may follow it, as for `ip addr`.
fn address(text: &str) -> Result<IpNet, &'static str> {
    let alone = || text.parse::<IpAddr>().map(IpNet::from);
    text.parse().or_else(|_| alone()).map_err(|_| "write an address, such as 10.0.0.2/24 or fd00::2")
}

fn mac(text: &str) -> Result<[u8; 6], &'static str> {
    let wrong = "write six bytes in hex, such as 02:00:00:00:00:01";
    let bytes: Vec<u8> = text
        .split([':', '-'])
        .map(|byte| u8::from_str_radix(byte, 16).ok().filter(|_| byte.len() == 2).ok_or(wrong))
        .collect::<Result<_, _>>()?;
    bytes.try_into().map_err(|_| wrong)
}

fn port(text: &str) -> Result<u16, &'static str> {
    text.parse().ok().filter(|port| *port > 0).ok_or("write a port from 1 to 65535")
}

fn exchange(text: &str) -> Result<Exchange, &'static str> {
    let wrong = "write a port and two lengths in bytes, such as 5000:1:1";
    let parts: Vec<&str> = text.split(':').collect();
    let [at, request, response] = parts[..] else { return Err(wrong) };
    let length = |text: &str, least| {
        text.parse().ok().filter(|length| (least..=MESSAGE_BYTES_MAX).contains(length)).ok_or(wrong)
    };
    Ok(Exchange { port: port(at).map_err(|_| wrong)?, request: length(request, 1)?, response: length(response, 0)? })
}

fn buffer(text: &str) -> Result<usize, String> {
    let wrong = || format!("write a size from {BUFFER_MIN} to {BUFFER_MAX} bytes; the default is {BUFFER_DEFAULT}");
    size(text).ok().filter(|bytes| (BUFFER_MIN..=BUFFER_MAX).contains(bytes)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(address("10.0.0.2/24").unwrap().to_string(), "10.0.0.2/24");
        assert_eq!(address("10.0.0.2"), address("10.0.0.2/32"));
        assert!(["10.0.0.2/33", "fd00::2/129", "10.0.0", "10.0.0.2/x", ""].iter().all(|text| address(text).is_err()));
        assert_eq!(mac("02:00:00:00:0a:FF"), Ok([2, 0, 0, 0, 10, 255]));
        assert!(["02:00:00:00:00", "2:0:0:0:0:1", "02:00:00:00:00:0g", ""].iter().all(|text| mac(text).is_err()));
        assert_eq!(exchange("5000:1:65536"), Ok(Exchange { port: 5000, request: 1, response: 65_536 }));
        assert!(["5000", "0:1:1", "5000:0:1", "5000:1:1:1", "x:1:1"].iter().all(|text| exchange(text).is_err()));
        assert!(buffer("8K").is_ok() && buffer("64K").is_err() && buffer("1").is_err());
    }
}
