//! Keeps the kernel from replying to IPv6 packets that the router forwards.
//!
//! With AF_PACKET, the kernel also handles a copy of each packet. With IP forwarding off, the
//! kernel silently drops IPv4 packets for other machines. However, the kernel sends an ICMPv6 error
//! for an IPv6 packet without a usable route (`ip6_pkt_drop` in net/ipv6/route.c), although the
//! router forwards the packet or sends its own error. Therefore this module adds a rule `iif
//! INTERFACE blackhole` between the kernel's rules for the tables `local` and `main`, so that
//! packets for this machine still arrive. Packets that this machine sends do not match the rule.

use std::fs::File;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use steerage_netlink::{Rtnetlink, Rule, RuleTo};

/// Marks this module's routing rules, so that a run recognizes the rule of a run that was killed.
/// In iproute2's `rt_protos`, no other program has the number 115.
const PROTOCOL: u8 = 115;

const TABLE_MAIN: u32 = 254;
const TABLE_LOCAL: u32 = 255;
const MAIN_PRIORITY: u32 = 32_766;

/// The maximum time to wait until an earlier run of steerage has removed its routing rules.
const HAND_OVER: Duration = Duration::from_secs(3);

/// Routing rules that make the kernel silently drop the packets of some interfaces. The rules are
/// removed when the [`SilentKernel`] is dropped.
#[derive(Debug)]
pub struct SilentKernel {
    kernel: Rtnetlink,
    rules: Vec<Rule>,
    /// The locks on the interfaces, which are released after the rules have been removed.
    _locks: Vec<Flock<File>>,
}

impl SilentKernel {
    /// Returns the routing rules that a run needs for `interfaces`. An interface needs no rule if
    /// the user has added one. A rule of another run is not enough, because the other run removes
    /// its rules when it ends.
    ///
    /// # Errors
    /// Fails if the kernel lists no rules, or if no rule fits between the rules for `local` and
    /// `main`.
    pub fn missing(interfaces: &[String]) -> io::Result<Vec<Rule>> {
        missing_of(interfaces, &Rtnetlink::open()?.rules()?)
    }

    /// Adds the [missing](Self::missing) routing rules. The caller needs `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// Fails if the kernel refuses a rule, or if another process holds the lock of an interface.
    pub fn begin(interfaces: &[String]) -> io::Result<Self> {
        let locks = interfaces.iter().map(|name| lock(name)).collect::<io::Result<_>>()?;
        let mut silent = Self { kernel: Rtnetlink::open()?, rules: Vec::new(), _locks: locks };
        let there = silent.kernel.rules()?;
        for rule in missing_of(interfaces, &there)? {
            if !there.contains(&rule) {
                silent.kernel.add_rule(&rule)?;
            }
            silent.rules.push(rule.clone());
            // This process holds the lock on the interface, so a run that left an older rule has
            // ended.
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
    /// Fails if a rule cannot be removed, but removes all other rules.
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
    // Among routing rules of the same priority, the kernel applies the newest rule last.
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

/// Locks a file in /proc that belongs to the interface in its network namespace, and that requires
/// `CAP_NET_ADMIN`. If the process is killed, the kernel releases the lock.
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
