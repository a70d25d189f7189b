use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

use super::RouterInterface;
use crate::{Hop, Target};

/// A route that the user specifies. Routes of the user replace the kernel's own routes.
///
/// ```
/// use steerage_router::kernel::Route;
///
/// let route: Route = "10.0.0.0/8 via 192.0.2.1 dev eth1".parse()?;
/// assert_eq!(route.prefix, "10.0.0.0/8".parse()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destination prefix of the route.
    pub prefix: IpNet,
    /// The action for packets whose destination address is in the prefix.
    pub next_hop: NextHop,
}

/// The action of a [`Route`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// The packets leave through an interface. `gateway` or `device` is set, or both.
    Via {
        /// The address of the next router. `None` if the destination itself is a neighbour.
        gateway: Option<IpAddr>,
        /// The interface's name. `None`: the interface whose network contains the gateway.
        device: Option<String>,
    },
    /// The packets are dropped: [`Target::Blackhole`], [`Target::Unreachable`] or
    /// [`Target::Prohibit`].
    Drop(Target),
}

/// The reason why a [`Route`] is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// The route lacks a necessary word, or two words of the route contradict each other.
    #[error("{SYNTAX}")]
    Syntax,
    /// The route contains a word that is not a part of the syntax.
    #[error("{0} is not understood: {SYNTAX}")]
    Word(String),
    /// The text after `via` is not an address.
    #[error("{0} is no address: {SYNTAX}")]
    Address(String),
    /// The first word of the route is not a prefix.
    #[error("{0} is no prefix: {SYNTAX}")]
    Prefix(String),
    /// The name after `dev` is not the name of one of the router's interfaces.
    #[error("{0} takes no part: name it among the interfaces as well")]
    Device(String),
    /// The route has no `dev`, and no network of the router's interfaces contains the gateway.
    #[error("{0} is in no interface's network: say which with dev IFACE")]
    Gateway(IpAddr),
}

const SYNTAX: &str = "write such as '10.0.0.0/8 via 192.0.2.1', 'default via fe80::1 dev eth1', '10.1.0.0/16 dev eth1' or 'blackhole 10.9.0.0/16'";

impl FromStr for Route {
    type Err = RouteError;

    fn from_str(text: &str) -> Result<Self, RouteError> {
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
        let written = words.next().ok_or(RouteError::Syntax)?;
        let (mut gateway, mut device) = (None, None);
        while let Some(word) = words.next() {
            let value = words.next().ok_or(RouteError::Syntax)?;
            match word {
                "via" if gateway.is_none() => {
                    gateway = Some(value.parse::<IpAddr>().map_err(|_| RouteError::Address(value.to_owned()))?);
                }
                "dev" if device.is_none() => device = Some(value.to_owned()),
                _ => return Err(RouteError::Word(word.to_owned())),
            }
        }
        let prefix = prefix(written, gateway).ok_or_else(|| RouteError::Prefix(written.to_owned()))?;
        let next_hop = match drops {
            Some(target) if gateway.is_none() && device.is_none() => NextHop::Drop(target),
            None if gateway.is_some() || device.is_some() => NextHop::Via { gateway, device },
            _ => return Err(RouteError::Syntax),
        };
        Ok(Self { prefix, next_hop })
    }
}

/// `default` is a prefix of the gateway's address family, or of IPv4 if there is no gateway. An
/// address without a prefix length is a prefix of this address only.
fn prefix(text: &str, gateway: Option<IpAddr>) -> Option<IpNet> {
    match (text, gateway) {
        ("default", Some(IpAddr::V6(_))) => "::/0".parse().ok(),
        ("default", _) => "0.0.0.0/0".parse().ok(),
        _ => text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from)).map(|net| net.trunc()),
    }
}

/// `member_of` returns the index of the interface whose network contains an address.
pub(super) fn resolve(
    routes: &[Route],
    interfaces: &[RouterInterface],
    member_of: impl Fn(IpAddr) -> Option<u16>,
) -> Result<Vec<(IpNet, Target)>, RouteError> {
    let target_of = |route: &Route| {
        let (gateway, device) = match &route.next_hop {
            NextHop::Drop(target) => return Ok((route.prefix, target.clone())),
            NextHop::Via { gateway, device } => (*gateway, device),
        };
        let interface = match (device, gateway) {
            (Some(device), _) => interfaces
                .iter()
                .position(|interface| interface.name == *device)
                .map(|at| at as u16)
                .ok_or_else(|| RouteError::Device(device.clone()))?,
            (None, Some(gateway)) => member_of(gateway).ok_or(RouteError::Gateway(gateway))?,
            (None, None) => return Err(RouteError::Syntax),
        };
        Ok((route.prefix, Target::Via(vec![Hop { interface, gateway, weight: 1 }])))
    };
    // Flows are spread over all of the user's routes to a prefix, as over `nexthop`s in `ip route`.
    let mut all: Vec<(IpNet, Target)> = Vec::with_capacity(routes.len());
    for route in routes {
        let (prefix, target) = target_of(route)?;
        match (all.iter_mut().find(|(other, _)| *other == prefix), target) {
            (Some((_, Target::Via(ways))), Target::Via(more)) => ways.extend(more),
            (Some((_, before)), target) => *before = target,
            (None, target) => all.push((prefix, target)),
        }
    }
    Ok(all)
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
            assert!(wrong.parse::<Route>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn routes_are_read_as_ip_route_writes_them() {
        let interfaces: Vec<RouterInterface> = ["a", "b"]
            .iter()
            .map(|name| RouterInterface { name: (*name).to_owned(), index: 1, ethernet: true })
            .collect();
        let of = |texts: &[&str]| {
            let routes: Vec<Route> = texts.iter().map(|text| text.parse().unwrap()).collect();
            resolve(&routes, &interfaces, |address| (address == IpAddr::from([192, 0, 2, 1])).then_some(1))
        };
        let hop = |interface, gateway: Option<&str>| Hop {
            interface,
            gateway: gateway.map(|text| text.parse().unwrap()),
            weight: 1,
        };
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        assert_eq!(
            of(&["10.1.2.3/8 via 192.0.2.1", "default via fe80::1 dev a", "10.0.0.9 dev b", "prohibit fd00::/8"])
                .unwrap(),
            [
                (net("10.0.0.0/8"), Target::Via(vec![hop(1, Some("192.0.2.1"))])),
                (net("::/0"), Target::Via(vec![hop(0, Some("fe80::1"))])),
                (net("10.0.0.9/32"), Target::Via(vec![hop(1, None)])),
                (net("fd00::/8"), Target::Prohibit),
            ]
        );
        let ways = of(&["default dev a", "default via 192.0.2.1"]).unwrap();
        assert_eq!(ways, [(net("0.0.0.0/0"), Target::Via(vec![hop(0, None), hop(1, Some("192.0.2.1"))]))]);
        assert_eq!(of(&["default dev c"]), Err(RouteError::Device("c".to_owned())));
        assert_eq!(of(&["default via 192.0.2.9"]), Err(RouteError::Gateway([192, 0, 2, 9].into())));
    }
}
