//! Routes in the words of `ip route`: `10.0.0.0/8 via 192.0.2.1 dev eth1`, `blackhole 10.9.0.0/16`.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use steerage_apps::forward::{Hop, Target};

use super::Leg;
use crate::error::Error;

const WORDS: &str = "write such as '10.0.0.0/8 via 192.0.2.1', 'default via fe80::1 dev eth1', '10.1.0.0/16 dev eth1' or 'blackhole 10.9.0.0/16'";

/// A route as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RouteArg {
    prefix: IpNet,
    says: Says,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Says {
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
        let written = words.next().ok_or(WORDS)?;
        let (mut gateway, mut device) = (None, None);
        while let Some(word) = words.next() {
            let value = words.next().ok_or(WORDS)?;
            match word {
                "via" if gateway.is_none() => {
                    gateway = Some(value.parse::<IpAddr>().map_err(|_| format!("{value} is no address: {WORDS}"))?);
                }
                "dev" if device.is_none() => device = Some(value.to_owned()),
                _ => return Err(format!("{word} is not understood: {WORDS}")),
            }
        }
        let prefix = prefix(written, gateway).ok_or_else(|| format!("{written} is no prefix: {WORDS}"))?;
        let says = match drops {
            Some(target) if gateway.is_none() && device.is_none() => Says::Drop(target),
            None if gateway.is_some() || device.is_some() => Says::Via { gateway, device },
            _ => return Err(WORDS.to_owned()),
        };
        Ok(Self { prefix, says })
    }
}

/// `default` is of the gateway's family, or IPv4; an address is a prefix of all its bits.
fn prefix(text: &str, gateway: Option<IpAddr>) -> Option<IpNet> {
    match (text, gateway) {
        ("default", Some(IpAddr::V6(_))) => "::/0".parse().ok(),
        ("default", _) => "0.0.0.0/0".parse().ok(),
        _ => text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from)).map(|net| net.trunc()),
    }
}

/// What they come to among `legs`; `member_of` says in which one's network an address is.
pub(super) fn resolved(
    routes: &[RouteArg],
    legs: &[Leg],
    member_of: impl Fn(IpAddr) -> Option<u16>,
) -> Result<Vec<(IpNet, Target)>, Error> {
    let wrong = |message: String| Error::Forward(format!("--route: {message}"));
    let resolve = |route: &RouteArg| {
        let (gateway, device) = match &route.says {
            Says::Drop(target) => return Ok((route.prefix, target.clone())),
            Says::Via { gateway, device } => (*gateway, device),
        };
        let interface = match (device, gateway) {
            (Some(device), _) => legs
                .iter()
                .position(|leg| leg.name == *device)
                .map(|at| at as u16)
                .ok_or_else(|| wrong(format!("{device} takes no part: name it among the interfaces as well")))?,
            (None, Some(gateway)) => member_of(gateway)
                .ok_or_else(|| wrong(format!("{gateway} is in no interface's network: say which with dev IFACE")))?,
            (None, None) => return Err(wrong(WORDS.to_owned())),
        };
        Ok((route.prefix, Target::Via(vec![Hop { interface, gateway, weight: 1 }])))
    };
    // Of the same prefix several are ways beside each other, as several `nexthop`s are.
    let mut all: Vec<(IpNet, Target)> = Vec::with_capacity(routes.len());
    for route in routes {
        let (prefix, target) = resolve(route)?;
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

    fn read(text: &str) -> Result<RouteArg, String> {
        text.parse()
    }

    #[test]
    fn routes_are_read_as_ip_route_writes_them() {
        let legs: Vec<Leg> =
            ["a", "b"].iter().map(|name| Leg { name: (*name).to_owned(), index: 1, ethernet: true }).collect();
        let of = |texts: &[&str]| {
            let routes: Vec<_> = texts.iter().map(|text| read(text).unwrap()).collect();
            resolved(&routes, &legs, |address| (address == IpAddr::from([192, 0, 2, 1])).then_some(1))
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
        assert!(of(&["default dev c"]).unwrap_err().to_string().contains("takes no part"));
        assert!(of(&["default via 192.0.2.9"]).unwrap_err().to_string().contains("dev IFACE"));
    }

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
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
