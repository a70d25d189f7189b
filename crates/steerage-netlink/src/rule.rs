//! The routing rules for IPv6 (`ip -6 rule`), which select a routing table for a packet.

use std::{fmt, io};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, ParseableParametrized};
use netlink_packet_route::route::RouteProtocol;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::Rtnetlink;

/// A routing rule for IPv6 with a single condition: the interface on which a packet arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The priority. The kernel applies the rules in ascending order of their priorities.
    pub priority: u32,
    /// The interface of arrival. `None` means all packets, even packets that this machine sends.
    pub interface: Option<String>,
    /// The action for packets that match the rule.
    pub action: RuleTo,
    /// The number of the program that added the rule, as in `/etc/iproute2/rt_protos`.
    pub protocol: u8,
}

/// The action of a [`Rule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleTo {
    /// The kernel searches this routing table.
    Table(u32),
    /// The kernel drops the packets and sends no error.
    Blackhole,
}

/// Writes the rule in the syntax of `ip -6 rule`, without the protocol.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(interface) = &self.interface {
            write!(f, "iif {interface} ")?;
        }
        write!(f, "pref {} ", self.priority)?;
        match self.action {
            RuleTo::Table(table) => write!(f, "lookup {table}"),
            RuleTo::Blackhole => f.write_str("blackhole"),
        }
    }
}

impl Rtnetlink {
    /// Lists the IPv6 routing rules that have no condition except the interface.
    ///
    /// # Errors
    /// Fails if the kernel does not reply, or does not support routing rules.
    pub fn rules(&mut self) -> io::Result<Vec<Rule>> {
        let mut request = RuleMessage::default();
        request.header.family = AddressFamily::Inet6;
        let mut rules = Vec::new();
        self.exchange(&RouteNetlinkMessage::GetRule(request), NLM_F_DUMP, &mut |message| {
            let parsed = RouteNetlinkMessage::parse_with_param(message.body, message.kind);
            if let Ok(RouteNetlinkMessage::NewRule(rule)) = parsed {
                rules.extend(Rule::from_message(&rule));
            }
        })?;
        Ok(rules)
    }

    /// Adds a routing rule. Requires `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// Fails if the kernel refuses the rule, or if the rule exists already.
    pub fn add_rule(&mut self, rule: &Rule) -> io::Result<()> {
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        self.exchange(&RouteNetlinkMessage::NewRule(rule.message()), flags, &mut |_| {})
    }

    /// Deletes a routing rule. Requires `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// Fails if the kernel refuses the change, or if the rule does not exist.
    pub fn delete_rule(&mut self, rule: &Rule) -> io::Result<()> {
        self.exchange(&RouteNetlinkMessage::DelRule(rule.message()), NLM_F_ACK, &mut |_| {})
    }
}

impl Rule {
    fn message(&self) -> RuleMessage {
        let mut message = RuleMessage::default();
        message.header.family = AddressFamily::Inet6;
        message.attributes =
            vec![RuleAttribute::Priority(self.priority), RuleAttribute::Protocol(RouteProtocol::from(self.protocol))];
        message.attributes.extend(self.interface.clone().map(RuleAttribute::Iifname));
        message.header.action = match self.action {
            RuleTo::Table(table) => {
                message.attributes.push(RuleAttribute::Table(table));
                RuleAction::ToTable
            }
            RuleTo::Blackhole => RuleAction::Blackhole,
        };
        message
    }

    fn from_message(message: &RuleMessage) -> Option<Self> {
        let header = &message.header;
        if (header.dst_len, header.src_len, header.tos) != (0, 0, 0) || header.flags.contains(RuleFlags::Invert) {
            return None;
        }
        let mut table = u32::from(header.table);
        let mut rule = Self { priority: 0, interface: None, action: RuleTo::Blackhole, protocol: 0 };
        for attribute in &message.attributes {
            match attribute {
                RuleAttribute::Priority(priority) => rule.priority = *priority,
                RuleAttribute::Iifname(name) => rule.interface = Some(name.clone()),
                RuleAttribute::Table(number) => table = *number,
                RuleAttribute::Protocol(protocol) => rule.protocol = (*protocol).into(),
                // `u32::MAX` means that the rule does not suppress (ignore) any route.
                RuleAttribute::SuppressPrefixLen(u32::MAX) => {}
                _ => return None,
            }
        }
        match header.action {
            RuleAction::ToTable => rule.action = RuleTo::Table(table),
            RuleAction::Blackhole => {}
            _ => return None,
        }
        Some(rule)
    }
}

#[cfg(test)]
mod tests {
    use steerage_fixtures::namespaces::Namespaces;

    use super::*;

    #[test]
    fn rules_are_those_of_ip() {
        let Some(namespaces) = Namespaces::new(1) else { return };
        namespaces.must(0, "-6 rule add pref 900 from fd00::/8 lookup 77");
        namespaces.must(0, "-6 rule add pref 901 iif lo blackhole protocol static");
        let rules = || namespaces.within(0, || Rtnetlink::open().unwrap().rules().unwrap());
        let to = |priority, interface: Option<&str>, action, protocol| Rule {
            priority,
            interface: interface.map(str::to_owned),
            action,
            protocol,
        };
        let (local, main) = (to(0, None, RuleTo::Table(255), 2), to(32766, None, RuleTo::Table(254), 2));
        let theirs = to(901, Some("lo"), RuleTo::Blackhole, 4);
        assert_eq!(rules(), [local.clone(), theirs.clone(), main.clone()]);
        let ours = to(902, Some("nowhere"), RuleTo::Blackhole, 115);
        let (added, again) = namespaces.within(0, || {
            let mut kernel = Rtnetlink::open().unwrap();
            (kernel.add_rule(&ours), kernel.add_rule(&ours))
        });
        assert!(added.is_ok(), "{added:?}");
        assert_eq!(again.map_err(|error| error.kind()), Err(io::ErrorKind::AlreadyExists));
        assert_eq!(rules(), [local.clone(), theirs.clone(), ours.clone(), main.clone()]);
        namespaces.must(0, &format!("-6 rule del {ours} protocol 115"));
        namespaces.within(0, || Rtnetlink::open().unwrap().delete_rule(&theirs)).unwrap();
        assert_eq!(rules(), [local, main]);
    }
}
