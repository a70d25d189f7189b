//! Checks a machine's support for receiving and steering packets, and says how to fix what is
//! missing. The checks change nothing. [`check`] returns the [`Finding`]s, one line each. A
//! [`Diagnosis`] also has numbers for scripts.
//!
//! The kernel's files are read below a root directory, for which tests use a directory of their
//! own. The module `probe` has the checks that must run on the real machine.
#![forbid(unsafe_code)]

mod cpus;
mod finding;
mod interface;
mod probe;
mod system;

use std::fmt;

use nix::net::if_::if_nametoindex;
use serde::Serialize;
use steerage::{CpuMask, topology::Topology};
use steerage_guard::sandbox::InForce;
use steerage_netlink::{ethtool::Ethtool, netdev};
use steerage_tune::{Distances, Root, facts::Card};

use cpus::Cpus;
pub use finding::{Finding, State};
use interface::Interface;
use probe::{Capability, Probes};

/// The results of all checks. As text, the results have one line for each finding.
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    schema: u32,
    #[serde(rename = "type")]
    kind: &'static str,
    version: &'static str,
    kernel: String,
    findings: Vec<Finding>,
    capabilities: Vec<Capability>,
    cpus: Cpus,
    interface: Option<Interface>,
}

/// The error for an interface name that the machine does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoInterface(pub String);

impl fmt::Display for NoInterface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no interface {}: `ip link` lists the interfaces", self.0)
    }
}

impl std::error::Error for NoInterface {}

/// Checks this machine and the interface, with the privileges of this process, for example before a
/// program opens the interface.
///
/// # Errors
/// [`NoInterface`] if the machine has no interface with this name.
///
/// ```
/// use steerage_doctor::{State, check};
///
/// for finding in check("lo")?.into_iter().filter(|finding| finding.state == State::Missing) {
///     println!("{}: {}", finding.about, finding.found);
///     finding.fix.iter().for_each(|fix| println!("  {fix}"));
/// }
/// # Ok::<(), steerage_doctor::NoInterface>(())
/// ```
pub fn check(interface: &str) -> Result<Vec<Finding>, NoInterface> {
    Diagnosis::of_this_machine(Some(interface)).map(|diagnosis| diagnosis.findings)
}

impl Diagnosis {
    /// Checks this machine, and the interface if one is named, with the privileges of this process.
    ///
    /// # Errors
    /// [`NoInterface`] if the machine has no interface with this name.
    pub fn of_this_machine(interface: Option<&str>) -> Result<Self, NoInterface> {
        let root = Root::default();
        let probes = Probes::of_this_machine();
        let interface = match interface {
            Some(name) if !Interface::is_there(&root, name) => return Err(NoInterface(name.to_owned())),
            Some(name) => {
                // If the kernel lacks a netlink family, the checks that need this family report
                // nothing.
                let cpus = Topology::read().online().len();
                let xdp = if_nametoindex(name).ok().and_then(|index| netdev::xdp_support(index).ok());
                let mut interface = Interface::read(&root, name, Card::read(name), cpus, xdp);
                let stamps = Ethtool::open().and_then(|mut ethtool| ethtool.stamped_frames(name));
                interface.stamps = stamps.unwrap_or_default();
                Some(interface)
            }
            None => None,
        };
        let mut topology = Topology::below(root.directory(), CpuMask::allowed().ok());
        let ours = topology.default_mask();
        if let Some(first) = ours.first() {
            Distances::measure(&mut topology, first, &ours);
        }
        let cpus = Cpus::of(&topology);
        let mut findings = system::findings(&root, &probes, cpus.of_a_run());
        findings.extend(cpus.findings());
        findings.extend(interface.iter().flat_map(Interface::findings));
        Ok(Self {
            schema: 2,
            kind: "doctor",
            version: env!("CARGO_PKG_VERSION"),
            kernel: system::kernel(&root),
            findings,
            capabilities: probes.capabilities,
            cpus,
            interface,
        })
    }

    /// Adds a finding about the sandbox. If the argument is `None`, the finding is that the user
    /// switched the sandbox off.
    #[must_use]
    pub fn with_sandbox(mut self, in_force: Option<InForce>) -> Self {
        let at = self.findings.iter().position(|finding| finding.about == "capabilities").map_or(0, |at| at + 1);
        self.findings.insert(at, system::sandbox(in_force));
        self
    }

    /// Returns the results of the checks.
    pub fn findings(&self) -> &[Finding] {
        &self.findings
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.findings.iter().try_for_each(|finding| writeln!(f, "{finding}"))
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_checked_together_with_the_machine() {
        let findings = check("lo").unwrap();
        let about = |name: &str| findings.iter().filter(|finding| finding.about == name).count();
        assert_eq!(["kernel", "interface", "rx queues"].map(about), [1, 1, 1]);
        let wrong = findings.iter().find(|finding| finding.state == State::Missing && finding.fix.is_none());
        assert_eq!(wrong, None, "what is missing has a fix");
        assert_eq!(check("none0").unwrap_err(), NoInterface("none0".to_owned()));
    }
}
