//! Reads the configuration file, which has the format of `wg setconf` and `wg-quick`.

use std::error::Error;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use base64::prelude::{BASE64_STANDARD, Engine};
use boringtun::x25519::{PublicKey, StaticSecret};
use ip_network::IpNetwork;

/// The contents of a configuration file: the section `[Interface]` and all sections `[Peer]`.
#[derive(Default)]
pub(crate) struct Config {
    pub(crate) private_key: Option<StaticSecret>,
    pub(crate) listen_port: u16,
    pub(crate) peers: Vec<PeerConfig>,
    /// Configuration keys that only wg-quick uses, such as `Address`. The gateway ignores the
    /// configuration keys that only wg-quick uses.
    pub(crate) ignored: Vec<String>,
}

/// One section `[Peer]` of the configuration file.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerConfig {
    pub(crate) public_key: [u8; 32],
    pub(crate) preshared_key: Option<[u8; 32]>,
    pub(crate) allowed_ips: Vec<IpNetwork>,
    pub(crate) endpoint: Option<SocketAddr>,
    pub(crate) keepalive: Option<u16>,
}

impl PeerConfig {
    pub(crate) fn public_key(&self) -> PublicKey {
        PublicKey::from(self.public_key)
    }
}

/// Reads a configuration. If a line of the file is wrong, the error message contains that line.
pub(crate) fn read(text: &str) -> Result<Config, String> {
    let mut config = Config::default();
    for (nth, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        read_line(&mut config, line).map_err(|error| format!("line {}: {line}: {error}", nth + 1))?;
    }
    match config.peers.iter().position(|peer| peer.public_key == [0; 32]) {
        Some(nth) => Err(format!("[Peer] number {} has no PublicKey", nth + 1)),
        None => Ok(config),
    }
}

fn read_line(config: &mut Config, line: &str) -> Result<(), Box<dyn Error>> {
    match line.to_ascii_lowercase().as_str() {
        "" | "[interface]" => return Ok(()),
        "[peer]" => {
            config.peers.push(PeerConfig::default());
            return Ok(());
        }
        _ => {}
    }
    let (name, value) = line.split_once('=').ok_or("write NAME = VALUE")?;
    let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
    match (name.as_str(), config.peers.last_mut()) {
        ("privatekey", None) => config.private_key = Some(key(value)?.into()),
        ("listenport", None) => config.listen_port = value.parse()?,
        ("publickey", Some(peer)) => peer.public_key = key(value)?,
        ("presharedkey", Some(peer)) => peer.preshared_key = Some(key(value)?),
        ("allowedips", Some(peer)) => {
            for prefix in value.split(',').map(str::trim).filter(|prefix| !prefix.is_empty()) {
                peer.allowed_ips.push(network(prefix)?);
            }
        }
        ("endpoint", Some(peer)) => {
            peer.endpoint = Some(value.to_socket_addrs()?.next().ok_or("the name has no address")?);
        }
        ("persistentkeepalive", Some(peer)) => {
            peer.keepalive = if value == "off" { None } else { Some(value.parse()?).filter(|seconds| *seconds > 0) };
        }
        (_, None) => config.ignored.push(name),
        (_, Some(_)) => return Err("no such key in a [Peer]".into()),
    }
    Ok(())
}

fn key(base64: &str) -> Result<[u8; 32], Box<dyn Error>> {
    BASE64_STANDARD.decode(base64)?.try_into().map_err(|_| "a key has 32 bytes".into())
}

/// Parses a prefix such as `10.0.0.0/24`, or a single address.
fn network(prefix: &str) -> Result<IpNetwork, Box<dyn Error>> {
    let (address, bits) = prefix.split_once('/').unwrap_or((prefix, ""));
    let address: IpAddr = address.parse()?;
    let bits = match bits {
        "" if address.is_ipv4() => 32,
        "" => 128,
        bits => bits.parse()?,
    };
    IpNetwork::new_truncate(address, bits).map_err(|_| "the prefix is too long".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "oCWYpaoXCKHZLyYfcPQHJ+GGCHZZrvVEVz/vdQjZ5GA=";

    #[test]
    fn a_file_of_wg_quick_is_read() {
        let config = read(&format!(
            "[Interface] # the gateway\nPrivateKey = {KEY}\nListenPort=51820\nAddress = 10.0.0.1/24\n\n[Peer]\n\
             PublicKey = {KEY}\nAllowedIPs = 10.0.0.7/24, fd00::2\nEndpoint = 192.0.2.1:4500\nPersistentKeepalive = 25\n\
             [peer]\npublickey={KEY}\npresharedkey={KEY}\nPersistentKeepalive = off\n"
        ))
        .unwrap();
        assert_eq!((config.listen_port, config.peers.len(), &config.ignored[..]), (51820, 2, &["address".into()][..]));
        let [first, second] = &config.peers[..] else { unreachable!() };
        assert_eq!(
            first.allowed_ips.iter().map(IpNetwork::to_string).collect::<Vec<_>>(),
            ["10.0.0.0/24", "fd00::2/128"]
        );
        assert_eq!((first.endpoint, first.keepalive), ("192.0.2.1:4500".parse().ok(), Some(25)));
        assert_eq!((second.keepalive, second.preshared_key), (None, Some(first.public_key)));
    }

    #[test]
    fn an_error_names_the_line() {
        let error = |text: &str| read(text).err().unwrap();
        assert_eq!(error("[Interface]\nPrivateKey = abcd"), "line 2: PrivateKey = abcd: a key has 32 bytes");
        assert_eq!(
            error("[Peer]\nAllowedIPs = 10.0.0.0/33"),
            "line 2: AllowedIPs = 10.0.0.0/33: the prefix is too long"
        );
        assert_eq!(error("[Peer]\nEndpoints = x"), "line 2: Endpoints = x: no such key in a [Peer]");
        assert_eq!(error("[Peer]\n"), "[Peer] number 1 has no PublicKey");
    }
}
