//! Keeps the kernel from answering IPv6 packets that the router forwards.
//!
//! With AF_PACKET, the kernel receives each packet too. A kernel that does not forward drops IPv4
//! packets for other machines silently. For IPv6, the kernel sends an error if it has no route, or
//! if its route is `unreachable` or `prohibit` (`ip6_pkt_drop` in net/ipv6/route.c). The sender
//! would get this error although the router forwards the packet, or in addition to the router's own
//! error. A rule `iif INTERFACE blackhole` between the tables local and main ends the kernel's part
//! in silence: packets for this machine are found in the table local, and packets that this machine
//! itself sends do not match the rule.

use std::io;

use steerage_netlink::{Rtnetlink, Rule, RuleTo};

/// Marks the rules of this module, so that a later run recognizes a rule that was left behind. No
/// other program has this number in iproute2's `rt_protos`.
const PROTOCOL: u8 = 115;

const TABLE_MAIN: u32 = 254;
const TABLE_LOCAL: u32 = 255;
/// The priority of the kernel's own rule for the table main.
const MAIN_PRIORITY: u32 = 32_766;

/// The rules by which the kernel leaves the packets of some interfaces to the router. They are
/// removed when this value is dropped.
#[derive(Debug)]
pub struct SilentKernel {
    kernel: Rtnetlink,
    rules: Vec<Rule>,
}

impl SilentKernel {
    /// Returns the rules that are missing for these interfaces. A rule that an earlier run left
    /// behind counts as missing, so that it is removed in the end. A rule of the user does not.
    ///
    /// # Errors
    /// If the kernel does not list its rules, or reads the table main before the table local.
    pub fn missing(interfaces: &[String]) -> io::Result<Vec<Rule>> {
        let there = Rtnetlink::open()?.rules()?;
        let first = |table| {
            let of_all = |rule: &&Rule| rule.interface.is_none() && rule.action == RuleTo::Table(table);
            there.iter().filter(of_all).map(|rule| rule.priority).min()
        };
        let priority = first(TABLE_MAIN).unwrap_or(MAIN_PRIORITY).saturating_sub(1);
        if first(TABLE_LOCAL).is_some_and(|local| local > priority) {
            return Err(io::Error::other("the rule for the table local comes after the rule for the table main"));
        }
        let is_by_user = |rule: &Rule, name: &String| {
            let is_it = rule.action == RuleTo::Blackhole && rule.interface.as_ref() == Some(name);
            is_it && rule.priority <= priority && rule.protocol != PROTOCOL
        };
        let missing = interfaces.iter().filter(|name| !there.iter().any(|rule| is_by_user(rule, name)));
        let rule = |name: &String| {
            let left = there.iter().find(|rule| rule.interface.as_ref() == Some(name) && rule.protocol == PROTOCOL);
            let new = Rule { priority, interface: Some(name.clone()), action: RuleTo::Blackhole, protocol: PROTOCOL };
            left.cloned().unwrap_or(new)
        };
        Ok(missing.map(rule).collect())
    }

    /// Adds the [missing](Self::missing) rules of these interfaces. Needs `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// If the kernel refuses a rule.
    pub fn begin(interfaces: &[String]) -> io::Result<Self> {
        let mut silent = Self { kernel: Rtnetlink::open()?, rules: Vec::new() };
        for rule in Self::missing(interfaces)? {
            match silent.kernel.add_rule(&rule) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => silent.rules.push(rule),
            }
        }
        Ok(silent)
    }
}

impl Drop for SilentKernel {
    fn drop(&mut self) {
        for rule in &self.rules {
            if let Err(error) = self.kernel.delete_rule(rule) {
                tracing::warn!("cannot remove the rule {rule:?}: {error}");
            }
        }
    }
}
