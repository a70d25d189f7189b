//! `steerage doctor`: checks the machine's support for steering packets, and says how to fix what
//! is missing. The command changes nothing.
//!
//! The result consists of a list of [`Finding`]s, printed as one line each, and numbers for
//! scripts. Files are read below a root directory, which tests replace. `probe` has the checks that
//! must run on the real machine.

mod cpus;
mod host;
mod interface;
mod page;
mod probe;
mod system;

use nix::net::if_::if_nametoindex;
use serde::Serialize;
use steerage::{CpuMask, topology::Topology};
use steerage_netlink::{ethtool::Ethtool, netdev};

use crate::args::DoctorArgs;
use crate::error::Error;
use crate::sandbox::{self, Needs, SandboxProfile};
use cpus::Cpus;
use host::Host;
use interface::Interface;
use probe::{Capability, Probes};

/// The state of a checked item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Missing,
    /// Neither good nor bad, but useful to know.
    Info,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    about: &'static str,
    state: State,
    found: String,
    /// How to fix or improve the checked item: a command in most cases.
    fix: Option<String>,
}

impl Finding {
    fn ok(about: &'static str, found: impl Into<String>) -> Self {
        Self { about, state: State::Ok, found: found.into(), fix: None }
    }

    fn info(about: &'static str, found: impl Into<String>) -> Self {
        Self { about, state: State::Info, found: found.into(), fix: None }
    }

    fn missing(about: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { about, state: State::Missing, found: found.into(), fix: Some(fix.into()) }
    }

    /// Adds advice to the finding.
    fn or(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }
}

/// The results of all checks.
#[derive(Debug, Serialize)]
struct Diagnosis {
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

/// Checks the machine, and prints the results.
pub(crate) fn run(args: &DoctorArgs) -> Result<(), Error> {
    let host = Host::this();
    let probes = Probes::of_this_machine();
    let interface = match &args.interface {
        Some(name) if !Interface::is_there(&host, name) => return Err(Error::NoInterface(name.clone())),
        Some(name) => {
            // A kernel without one of these netlink families reports nothing.
            let features = Ethtool::open().and_then(|mut ethtool| ethtool.features(name)).ok();
            let xdp = if_nametoindex(name.as_str()).ok().and_then(|index| netdev::xdp_support(index).ok());
            Some(Interface::look(&host, name, features, xdp))
        }
        None => None,
    };
    let mut diagnosis = diagnose(&host, probes, interface);
    // All checks are done. The sandbox that is entered here is the sandbox of a run.
    let in_force = sandbox::enter(Needs::of(SandboxProfile::Doctor), &args.sandbox)?;
    let at = diagnosis.findings.iter().position(|finding| finding.about == "capabilities").map_or(0, |at| at + 1);
    diagnosis.findings.insert(at, system::sandbox(in_force));
    page::print(&diagnosis, args.json)
}

fn diagnose(host: &Host, probes: Probes, interface: Option<Interface>) -> Diagnosis {
    let cpus = Cpus::of(&Topology::below(host.path(""), CpuMask::allowed().ok()));
    let mut findings = system::findings(host, &probes, cpus.of_a_run());
    findings.extend(cpus.findings());
    findings.extend(interface.iter().flat_map(Interface::findings));
    Diagnosis {
        schema: 2,
        kind: "doctor",
        version: env!("CARGO_PKG_VERSION"),
        kernel: system::kernel(host),
        findings,
        capabilities: probes.capabilities,
        cpus,
        interface,
    }
}
