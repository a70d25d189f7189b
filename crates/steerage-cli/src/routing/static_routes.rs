//! The user's routes (`--route`), resolved to the router's interfaces.

use std::net::IpAddr;

use ipnet::IpNet;
use steerage_apps::forward::{Hop, Target};

use super::RouterInterface;
use crate::args::{NextHopArg, ROUTE_SYNTAX, RouteArg};
use crate::error::Error;

/// Resolves the routes to `interfaces`. `member_of` returns the interface whose network has an address.
pub(super) fn resolve(
    routes: &[RouteArg],
    interfaces: &[RouterInterface],
    member_of: impl Fn(IpAddr) -> Option<u16>,
) -> Result<Vec<(IpNet, Target)>, Error> {
    let wrong = |message: String| Error::Forward(format!("--route: {message}"));
    let target_of = |route: &RouteArg| {
        let (gateway, device) = match &route.next_hop {
            NextHopArg::Drop(target) => return Ok((route.prefix, target.clone())),
            NextHopArg::Via { gateway, device } => (*gateway, device),
        };
        let interface = match (device, gateway) {
            (Some(device), _) => interfaces
                .iter()
                .position(|interface| interface.name == *device)
                .map(|at| at as u16)
                .ok_or_else(|| wrong(format!("{device} takes no part: name it among the interfaces as well")))?,
            (None, Some(gateway)) => member_of(gateway)
                .ok_or_else(|| wrong(format!("{gateway} is in no interface's network: say which with dev IFACE")))?,
            (None, None) => return Err(wrong(ROUTE_SYNTAX.to_owned())),
        };
        Ok((route.prefix, Target::Via(vec![Hop { interface, gateway, weight: 1 }])))
    };
    // Several routes to one prefix share its flows, like several `nexthop`s of `ip route`.
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

    fn read(text: &str) -> Result<RouteArg, String> {
        text.parse()
    }

    #[test]
    fn routes_are_read_as_ip_route_writes_them() {
        let interfaces: Vec<RouterInterface> = ["a", "b"]
            .iter()
            .map(|name| RouterInterface { name: (*name).to_owned(), index: 1, ethernet: true })
            .collect();
        let of = |texts: &[&str]| {
            let routes: Vec<_> = texts.iter().map(|text| read(text).unwrap()).collect();
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
        assert!(of(&["default dev c"]).unwrap_err().to_string().contains("takes no part"));
        assert!(of(&["default via 192.0.2.9"]).unwrap_err().to_string().contains("dev IFACE"));
    }
}
