//! The host names to which the HTTP server answers. A browser lets a web page read only replies
//! from the host name that served the page, but the owner of a DNS name can make it resolve to this
//! machine (DNS rebinding). IP addresses are safe, because no attacker decides to which machine
//! they lead.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The name that always means the local machine (RFC 6761, 6.3).
const LOCALHOST: &str = "localhost";

const HOST_NAME: &str = "/proc/sys/kernel/hostname";

#[derive(Clone, Debug, Default)]
pub(super) struct Hosts(Vec<String>);

impl Hosts {
    pub(super) fn new(more: &[String]) -> Self {
        Self(more.iter().map(|name| plain(name)).collect())
    }

    pub(super) fn with_own_name(more: &[String]) -> Self {
        let own = std::fs::read_to_string(HOST_NAME).unwrap_or_default();
        let mut hosts = Self::new(more);
        hosts.0.extend(Some(plain(own.trim())).filter(|own| !own.is_empty()));
        hosts
    }

    /// Returns true if the server answers requests to `host`, which is a name or an IP address,
    /// with or without a port.
    pub(super) fn accept(&self, host: &[u8]) -> bool {
        let Ok(host) = std::str::from_utf8(host) else { return false };
        let host = host.trim_matches([' ', '\t']);
        if let Some(rest) = host.strip_prefix('[') {
            let Some((address, port)) = rest.split_once(']') else { return false };
            return address.parse::<Ipv6Addr>().is_ok()
                && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
        }
        let name = match host.split_once(':') {
            Some((name, port)) if is_port(port) => name,
            Some(_) => return false,
            None => host,
        };
        // HTTP/1.1 allows an empty `Host` header (RFC 9112, 3.2).
        name.is_empty() || name.parse::<Ipv4Addr>().is_ok() || {
            let name = plain(name);
            name == LOCALHOST || self.0.contains(&name)
        }
    }
}

/// Removes the dot at the end of a fully qualified name, and converts the name to lower case.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_own_names_are_accepted() {
        let hosts = Hosts::new(&["Router.example".to_owned(), "probe".to_owned()]);
        let ours = [
            "localhost",
            "LOCALHOST:10777",
            "localhost.",
            "127.0.0.1",
            "127.0.0.1:10777",
            "192.0.2.7:80",
            "[::1]",
            "[::1]:10777",
            "[2001:db8::7]:80",
            "router.example",
            "ROUTER.EXAMPLE:80",
            "router.example.:80",
            "probe",
            "probe.",
            "",
            " probe ",
        ];
        let strange = [
            "rebound.example",
            "rebound.example:10777",
            "localhost.rebound.example",
            "xlocalhost",
            "127.0.0.1.rebound.example",
            "127.0.0.1:80:80",
            "127.0.0.1:x",
            "127.1",
            "0x7f000001",
            "2130706433",
            "[::1",
            "[rebound.example]",
            "[::1]x",
            "::1",
            "a@probe",
            "probe,probe",
        ];
        for host in ours {
            assert!(hosts.accept(host.as_bytes()), "{host}");
        }
        for host in strange {
            assert!(!hosts.accept(host.as_bytes()), "{host}");
        }
        assert!(!hosts.accept(b"\xff"));
    }

    #[test]
    fn the_machines_own_name_is_accepted() {
        let own = std::fs::read_to_string(HOST_NAME).unwrap();
        assert!(Hosts::with_own_name(&[]).accept(own.trim().as_bytes()));
        assert!(!Hosts::new(&[]).accept(b"probe"));
    }
}
