//! Routes as `ip route` writes them: `10.0.0.0/8 via 192.0.2.1 dev eth1`, `blackhole 10.9.0.0/16`.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use steerage_apps::forward::Target;

/// The syntax of a route, for error messages.
pub(crate) const ROUTE_SYNTAX: &str = "write such as '10.0.0.0/8 via 192.0.2.1', 'default via fe80::1 dev eth1', '10.1.0.0/16 dev eth1' or 'blackhole 10.9.0.0/16'";

/// A route as `--route` gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RouteArg {
    pub(crate) prefix: IpNet,
    pub(crate) next_hop: NextHopArg,
}

/// The action of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NextHopArg {
    Via { gateway: Option<IpAddr>, device: Option<String> },
    Drop(Target),
}

impl FromStr for RouteArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace().peekable();
        let drops = match words.peek() {
            Some(&"blackhole") => Some(Target::Blackhole),
            Some(&"unreachable") => Some(Target::Unreachable),
            Some(&"prohibit") => Some(Target::Prohibit),
            _ => None,
        };
        if drops.is_some() {
            words.next();
        }
        let written = words.next().ok_or(ROUTE_SYNTAX)?;
        let (mut gateway, mut device) = (None, None);
        while let Some(word) = words.next() {
            let value = words.next().ok_or(ROUTE_SYNTAX)?;
            match word {
                "via" if gateway.is_none() => {
                    gateway =
                        Some(value.parse::<IpAddr>().map_err(|_| format!("{value} is no address: {ROUTE_SYNTAX}"))?);
                }
                "dev" if device.is_none() => device = Some(value.to_owned()),
                _ => return Err(format!("{word} is not understood: {ROUTE_SYNTAX}")),
            }
        }
        let prefix = prefix(written, gateway).ok_or_else(|| format!("{written} is no prefix: {ROUTE_SYNTAX}"))?;
        let next_hop = match drops {
            Some(target) if gateway.is_none() && device.is_none() => NextHopArg::Drop(target),
            None if gateway.is_some() || device.is_some() => NextHopArg::Via { gateway, device },
            _ => return Err(ROUTE_SYNTAX.to_owned()),
        };
        Ok(Self { prefix, next_hop })
    }
}

/// Parses a prefix. `default` has the address family of the gateway, or is IPv4 without one. An address is a prefix of
/// full length.
fn prefix(text: &str, gateway: Option<IpAddr>) -> Option<IpNet> {
    match (text, gateway) {
        ("default", Some(IpAddr::V6(_))) => "::/0".parse().ok(),
        ("default", _) => "0.0.0.0/0".parse().ok(),
        _ => text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from)).map(|net| net.trunc()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_route_is_refused() {
        for wrong in [
            "",
            "default",
            "10.0.0.0/33 dev a",
            "x via 1.2.3.4",
            "default via a",
            "default dev",
            "blackhole 1.2.3.4 dev a",
            "default via 1.2.3.4 metric 5",
            "1.0.0.0/8 dev a dev b",
        ] {
            assert!(wrong.parse::<RouteArg>().is_err(), "{wrong}");
        }
    }
}
