//! Keeps the kernel from replying to IPv6 packets that the router forwards.
//!
//! If the router receives packets through AF_PACKET, the kernel also handles a copy of each packet.
//! With IP forwarding off, the kernel silently drops IPv4 packets for other machines. For an IPv6
//! packet without a usable route, however, the kernel sends an ICMPv6 error (`ip6_pkt_drop` in
//! net/ipv6/route.c). This is the case if the kernel has no route to the destination, or if the
//! route is `unreachable` or `prohibit`. The packet's sender would get the kernel's ICMPv6 error
//! although the router forwards the packet. If the router also sends an ICMPv6 error, the sender
//! would get two errors. Therefore this module adds a routing rule `iif INTERFACE blackhole`. The
//! rule is between the kernel's rules for the tables `local` and `main`. With the blackhole rule,
//! the kernel drops the packets of the interface without an ICMPv6 error. This machine still
//! receives packets for its own addresses, because the routes to these addresses are in the table
//! `local`. Packets that this machine itself sends do not match the rule.

use std::fs::File;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use steerage_netlink::{Rtnetlink, Rule, RuleTo};

/// The protocol number that marks the routing rules of this module. If a run of steerage was killed
/// before it removed its rule, a later run recognizes the rule by this protocol number. In
/// iproute2's `rt_protos`, no other program has the number 115.
const PROTOCOL: u8 = 115;

const TABLE_MAIN: u32 = 254;
const TABLE_LOCAL: u32 = 255;
/// The priority of the kernel's default routing rule for the table `main`.
const MAIN_PRIORITY: u32 = 32_766;

/// An earlier run of steerage may still be ending. The maximum time to wait until an earlier run
/// has removed its routing rules.
const HAND_OVER: Duration = Duration::from_secs(3);

/// Routing rules that make the kernel silently drop the packets of some interfaces, so that only
/// the router handles the packets. The rules are removed when the [`SilentKernel`] is dropped.
#[derive(Debug)]
pub struct SilentKernel {
    kernel: Rtnetlink,
    rules: Vec<Rule>,
    /// The locks of the interfaces, which are released after the rules have been removed.
    _locks: Vec<Flock<File>>,
}

impl SilentKernel {
    /// Returns the routing rules that a run needs for `interfaces`, without rules that the user has
    /// already added. A rule that another run of steerage added is included in the result, because
    /// the other run removes its rule when it ends.
    ///
    /// # Errors
    /// Returns an error if the kernel does not list its rules. Also returns an error if no rule can
    /// be inserted between the rules for the tables `local` and `main`.
    pub fn missing(interfaces: &[String]) -> io::Result<Vec<Rule>> {
        missing_of(interfaces, &Rtnetlink::open()?.rules()?)
    }

    /// Adds the [missing](Self::missing) routing rules for `interfaces`. The caller needs
    /// `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses a rule, or if another process holds the lock of an
    /// interface.
    pub fn begin(interfaces: &[String]) -> io::Result<Self> {
        let locks = interfaces.iter().map(|name| lock(name)).collect::<io::Result<_>>()?;
        let mut silent = Self { kernel: Rtnetlink::open()?, rules: Vec::new(), _locks: locks };
        let there = silent.kernel.rules()?;
        for rule in missing_of(interfaces, &there)? {
            if !there.contains(&rule) {
                silent.kernel.add_rule(&rule)?;
            }
            silent.rules.push(rule.clone());
            // This process now holds the lock of the interface. Therefore the process that left an
            // older rule for the interface behind has ended.
            let is_left = |other: &&Rule| {
                (other.protocol, &other.interface) == (PROTOCOL, &rule.interface) && other.priority != rule.priority
            };
            for left in there.iter().filter(is_left) {
                silent.kernel.delete_rule(left)?;
            }
        }
        Ok(silent)
    }

    /// Removes the added routing rules.
    ///
    /// # Errors
    /// Returns an error if a rule cannot be removed. After such an error, `end` still removes the
    /// remaining rules.
    pub fn end(mut self) -> io::Result<()> {
        self.remove()
    }

    fn remove(&mut self) -> io::Result<()> {
        let mut failed = Vec::new();
        for rule in self.rules.drain(..) {
            if let Err(error) = self.kernel.delete_rule(&rule) {
                failed.push(format!("cannot remove the rule {rule}: {error}"));
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(io::Error::other(failed.join("; "))) }
    }
}

impl Drop for SilentKernel {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            tracing::warn!("{error}");
        }
    }
}

fn missing_of(interfaces: &[String], there: &[Rule]) -> io::Result<Vec<Rule>> {
    let first = |table| {
        let of_all = |rule: &&Rule| rule.interface.is_none() && rule.action == RuleTo::Table(table);
        there.iter().filter(of_all).map(|rule| rule.priority).min()
    };
    let before_main = first(TABLE_MAIN).unwrap_or(MAIN_PRIORITY).checked_sub(1);
    // If several routing rules have the same priority, the kernel applies the newest of these rules
    // last.
    let Some(priority) = before_main.filter(|priority| first(TABLE_LOCAL).is_none_or(|local| local <= *priority))
    else {
        return Err(io::Error::other("the rule for the table local does not come before the rule for the table main"));
    };
    let is_by_user = |rule: &Rule, name: &String| {
        let is_it = rule.action == RuleTo::Blackhole && rule.interface.as_ref() == Some(name);
        is_it && rule.priority <= priority && rule.protocol != PROTOCOL
    };
    let missing = interfaces.iter().filter(|name| !there.iter().any(|rule| is_by_user(rule, name)));
    let rule =
        |name: &String| Rule { priority, interface: Some(name.clone()), action: RuleTo::Blackhole, protocol: PROTOCOL };
    Ok(missing.map(rule).collect())
}

/// Takes the lock of an interface. The lock file is in /proc, and belongs to the interface in its
/// network namespace. Only a process with `CAP_NET_ADMIN` can open the lock file. If the process is
/// killed, the kernel releases the lock.
fn lock(interface: &str) -> io::Result<Flock<File>> {
    let path = format!("/proc/sys/net/ipv6/conf/{interface}/stable_secret");
    let mut file = File::open(&path).map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
    let start = Instant::now();
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((file, Errno::EAGAIN)) if start.elapsed() < HAND_OVER => file,
            Err((_, Errno::EAGAIN)) => {
                let text = format!("another run forwards what comes by {interface}");
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
            }
            Err((_, error)) => return Err(error.into()),
        };
        thread::sleep(Duration::from_millis(10));
    }
}
