//! What a card needs for a capture, or for a program with AF_XDP, as a list of facts. If a fact is
//! a problem, the fact includes the changes that fix the problem. `doctor` prints the same facts.

use std::io;

use rustix::io::Errno;
use steerage_device::rules::{Flow, Rule};
use steerage_netlink::ethtool::{Channels, Features};
use steerage_text::shell_word;

use crate::error::TuneError;
use crate::facts::Card;
use crate::knob::{Knob, NO_RULE, RULES, option, symmetric};
use crate::machine::Machine;
use crate::plan::{Change, Plan, Stages};
use crate::root::Root;
use crate::setting::Setting;
use crate::stage::{Scope, Stage};

/// The ethtool features with which the card or the kernel merges packets before programs receive
/// them. UDP packets are merged only with `rx-gro-list` or `rx-udp-gro-forwarding`.
const MERGE: [&str; 5] = ["rx-gro", "rx-lro", "rx-gro-hw", "rx-gro-list", "rx-udp-gro-forwarding"];

/// With segmentation offloads, a capture gets a large sent packet before the packet is split.
const SPLIT: [&str; 7] = [
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-generic-segmentation",
    "tx-udp-segmentation",
    "tx-udp_tnl-segmentation",
    "tx-gre-segmentation",
    "tx-gre-csum-segmentation",
];

/// If the card removes VLAN tags from frames, XDP programs cannot see the tags, but AF_PACKET
/// reports them.
const STRIP_VLAN: &str = "rx-vlan-hw-parse";

/// With ntuple filters, a card can steer chosen traffic to chosen queues.
const NTUPLE: &str = "rx-ntuple-filter";

/// If LRO or hardware GRO is on, the host of a virtio_net card merges packets. XDP programs need
/// LRO and hardware GRO off.
const VIRTIO_MERGES: [&str; 2] = ["rx-lro", "rx-gro-hw"];

/// For each driver, the largest MTU with which the driver accepts an XDP program that needs each
/// frame in a single page (`ENA_XDP_MAX_MTU`, `mlx5e_xdp_allowed`). The MTU for virtio_net is the
/// size of a page without the headroom, the Ethernet header and the kernel's description of the
/// page.
const MTU_MAX: [(&str, u32); 3] = [("ena", 3498), ("mlx5_core", 3498), ("virtio_net", 3506)];

/// The number of polls without packets after which the card may interrupt again, and the time in
/// nanoseconds after which it interrupts in any case: the kernel's suggestion for busy polling
/// (Documentation/networking/napi.rst).
const NAPI_DEFERRAL: [(&str, &str); 2] = [("napi_defer_hard_irqs", "2"), ("gro_flush_timeout", "200000")];

/// Facts that matter only if a program uses sent packets, VLAN tags or rules of the card.
const OPTIONAL: [&str; 3] = ["sent packets", "VLAN tags", "ntuple"];

/// The type of a loopback interface (linux/if_arp.h).
pub const ARPHRD_LOOPBACK: u32 = 772;

/// The purpose for which `tune` changes a card's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A program that receives packets through AF_XDP.
    AfXdp,
    /// A capture, or another program that gets copies of packets.
    Listen,
}

/// An interface. Properties that the kernel does not report are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nic {
    /// The name of the interface.
    pub name: String,
    /// The driver, or `None` for a virtual interface.
    pub driver: Option<String>,
    /// The interface's MTU in bytes.
    pub mtu: Option<u32>,
    /// The interface's offloads.
    pub features: Option<Features>,
    /// The numbers of the interface's queues.
    pub channels: Option<Channels>,
    /// The number of online CPUs.
    pub cpus: u32,
    /// True for a loopback interface, for which offloads are not checked.
    pub is_loopback: bool,
}

/// A fact about the card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// The subject in a few words, such as "VLAN tags".
    pub about: &'static str,
    /// The stage of `tune` that can change the fact.
    pub stage: &'static str,
    /// The fact as a text.
    pub found: String,
    /// True if the fact makes the card unsuitable for the purpose.
    pub is_missing: bool,
    /// The knobs that fix the fact, with their new values.
    pub changes: Vec<(Knob, String)>,
}

impl Need {
    /// Returns the commands that fix the fact, or `None` if no command can fix it.
    pub fn fix(&self) -> Option<String> {
        let features = self.changes.iter().filter(|_| self.stage == "offloads");
        let switches: Vec<String> = features
            .filter_map(|(knob, value)| Some(format!("{} {value}", option(knob.0.rsplit_once('/')?.1))))
            .collect();
        let interface = || self.changes.first().and_then(|(knob, _)| knob.0.split('/').nth(2)).map(shell_word);
        match (&self.changes[..], switches.is_empty()) {
            ([], _) => None,
            (_, false) => Some(format!("sudo ethtool -K {} {}", interface()?, switches.join(" "))),
            (changes, true) => {
                let commands: Vec<String> = changes.iter().map(|(knob, value)| typed(knob, value)).collect();
                Some(commands.join(" && "))
            }
        }
    }
}

fn typed(knob: &Knob, value: &str) -> String {
    match knob.command(value).strip_prefix("echo ") {
        Some(echo) => format!("echo {}", echo.replace(" > ", " | sudo tee ")),
        None => format!("sudo {}", knob.command(value)),
    }
}

impl Nic {
    /// Reads the properties of an interface. `card` contains those that ethtool reports, and `cpus`
    /// is the number of online CPUs.
    pub fn read(root: &Root, name: &str, card: Card, cpus: usize) -> Self {
        let at = |file: &str| format!("/sys/class/net/{name}/{file}");
        Self {
            name: name.to_owned(),
            driver: root.link(&at("device/driver")),
            mtu: root.number(&at("mtu")),
            features: card.features,
            channels: card.channels,
            cpus: cpus as u32,
            is_loopback: root.number(&at("type")) == Some(ARPHRD_LOOPBACK),
        }
    }

    /// Returns the facts that matter for the purpose.
    pub fn needs(&self, purpose: Purpose) -> Vec<Need> {
        let needs = match purpose {
            Purpose::Listen => vec![
                self.switched("offloads", &MERGE, false, "may merge packets before they are seen here"),
                self.switched("sent packets", &SPLIT, false, "cut sent packets only after they are seen here"),
            ],
            Purpose::AfXdp => vec![
                self.virtio_merges(),
                self.switched("VLAN tags", &[STRIP_VLAN], false, "takes the VLAN tag out of frames"),
                self.switched("ntuple", &[NTUPLE], true, "is off, so that traffic cannot be led to queues"),
                self.xdp_mtu(),
                self.xdp_queues(),
            ],
        };
        needs.into_iter().flatten().collect()
    }

    fn knob(&self, name: &str) -> Knob {
        Knob(format!("/ethtool/{}/{name}", self.name))
    }

    /// Returns a fact with the features that are not in the wanted state, or `None` if all features
    /// are.
    fn switched(&self, about: &'static str, names: &[&str], on: bool, what: &str) -> Option<Need> {
        let features = self.features.as_ref().filter(|_| !self.is_loopback)?;
        let is_fixed = |name: &&&str| !features.changeable.iter().any(|changeable| changeable == **name);
        let mut wrong: Vec<&&str> = names.iter().filter(|name| features.is_on(name) != on).collect();
        if on {
            // Features that this card cannot change are omitted.
            wrong.retain(|name| !is_fixed(name));
        }
        if wrong.is_empty() {
            return None;
        }
        let listed: Vec<&str> = wrong.iter().map(|name| option(name)).collect();
        let value = if on { "on" } else { "off" };
        let free = wrong.iter().filter(|name| !is_fixed(name));
        let changes: Vec<_> = free.map(|name| (self.knob(&format!("features/{name}")), value.to_owned())).collect();
        let fixed = if changes.is_empty() { ", and cannot be switched off" } else { "" };
        let found = format!("{} {what}{fixed}", listed.join(", "));
        let is_missing = !changes.is_empty() && !OPTIONAL.contains(&about);
        Some(Need { about, stage: "offloads", found, is_missing, changes })
    }

    fn virtio_merges(&self) -> Option<Need> {
        self.driver.as_ref().filter(|driver| *driver == "virtio_net")?;
        self.switched("XDP offloads", &VIRTIO_MERGES, false, "is on, and virtio_net may refuse XDP programs")
    }

    fn xdp_mtu(&self) -> Option<Need> {
        let (mtu, driver) = (self.mtu?, self.driver.as_deref()?);
        let most = MTU_MAX.iter().find(|(name, _)| *name == driver)?.1;
        (mtu > most).then(|| Need {
            about: "XDP MTU",
            stage: "mtu",
            found: format!("{mtu}: {driver} refuses XDP programs without fragments above {most}"),
            is_missing: true,
            changes: vec![(Knob(format!("/sys/class/net/{}/mtu", self.name)), most.to_string())],
        })
    }

    /// An XDP program needs additional transmit queues: with the driver ENA one for each channel,
    /// out of the card's fixed number of queues, and with the driver virtio_net one for each CPU.
    fn xdp_queues(&self) -> Option<Need> {
        let channels = self.channels.filter(|channels| channels.combined_max > 0)?;
        let (now, most) = (channels.combined, channels.combined_max);
        let change = |value: u32| vec![(self.knob("channels/combined"), value.to_string())];
        let need =
            |found, is_missing, changes| Need { about: "XDP queues", stage: "channels", found, is_missing, changes };
        match self.driver.as_deref()? {
            "ena" if 2 * now > most => {
                let found =
                    format!("{now} of {most}: ena has XDP in the driver only with half of the queues, before 2.17");
                Some(need(found, true, change((most / 2).max(1))))
            }
            "virtio_net" if now + self.cpus > most => {
                let found =
                    format!("{now} of {most}: {} CPUs share transmit queues for XDP, which takes a lock", self.cpus);
                let fewer = most.saturating_sub(self.cpus);
                let changes = if fewer > 0 { change(fewer) } else { Vec::new() };
                Some(need(found, false, changes))
            }
            _ => None,
        }
    }
}

/// Traffic that the card must steer to receive queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lead {
    /// The flows of this traffic.
    pub flows: Vec<Flow>,
    /// The receive queues over which the card spreads the packets of `flows`.
    pub queues: Vec<u32>,
}

impl Lead {
    fn rules(&self, nic: &Nic) -> Result<Vec<Rule>, TuneError> {
        let failed = |why: String| TuneError::Rules { interface: nic.name.clone(), why };
        let count = nic.channels.map_or(1, |channels| channels.receiving().max(1));
        if let Some(queue) = self.queues.iter().find(|queue| **queue >= count) {
            return Err(failed(format!("it has no receive queue {queue}, but the queues 0 to {}", count - 1)));
        }
        let rules: Result<Vec<Vec<Rule>>, _> = self.flows.iter().map(|flow| flow.to_queues(&self.queues)).collect();
        Ok(rules.map_err(|error| failed(error.to_string()))?.concat())
    }

    /// Returns the changes that add the steering rules that are not yet in `ours`. `ours` contains
    /// the rules that `tune` added before. The changes also remove rules in `ours` that are no
    /// longer wanted.
    fn changes(&self, machine: &mut Machine, nic: &Nic, ours: &Setting) -> Result<Vec<(Knob, String)>, TuneError> {
        let mut rules: Vec<String> = self.rules(nic)?.iter().map(Rule::to_string).collect();
        let mut changes: Vec<(Knob, String)> = Vec::new();
        for (knob, rule) in ours.0.iter().filter(|(knob, _)| knob.is_rule()) {
            let wanted = rules.iter().position(|wanted| wanted == rule).map(|at| rules.remove(at));
            changes.push((knob.clone(), wanted.unwrap_or_else(|| NO_RULE.to_owned())));
        }
        if !rules.is_empty() {
            let failed = |error: io::Error| TuneError::Rules { interface: nic.name.clone(), why: no_rules(&error) };
            let locations = machine.free_rules(&nic.name, rules.len()).map_err(failed)?;
            let knobs = locations.iter().map(|location| nic.knob(&format!("{RULES}{location}")));
            changes.extend(knobs.zip(rules));
        }
        Ok(changes)
    }
}

fn no_rules(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(error) if error == Errno::OPNOTSUPP.raw_os_error() => {
            "its driver has no rules for queues (ethtool -N)".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Plans the changes that prepare the card for the purpose. If `stages` does not permit a change
/// that may take the link down, the plan has only a note about the change. `ours` contains what
/// `tune` has set before.
///
/// # Errors
/// Fails if the card cannot steer the traffic to the queues.
pub fn plan(
    machine: &mut Machine,
    nic: &Nic,
    purpose: Purpose,
    lead: &Lead,
    stages: &Stages,
    ours: &Setting,
) -> Result<Plan, TuneError> {
    let mut plan = Plan::default();
    let mut needs = nic.needs(purpose);
    let several = nic.channels.is_some_and(|channels| channels.receiving() > 1);
    let key = machine.read(&nic.knob("rss/key")).ok().filter(|key| several && !key.is_empty());
    if let Some(key) = key {
        needs.push(unconditional("RSS key", "rss_key", vec![(nic.knob("rss/key"), symmetric(&key))]));
    }
    if purpose == Purpose::AfXdp {
        for (stage, value) in NAPI_DEFERRAL {
            let knob = Knob(format!("/sys/class/net/{}/{stage}", nic.name));
            needs.push(unconditional("NAPI", stage, vec![(knob, value.to_owned())]));
        }
    }
    if !lead.flows.is_empty() || ours.0.keys().any(Knob::is_rule) {
        needs.push(unconditional("rules", "rules", lead.changes(machine, nic, ours)?));
    }
    for need in needs {
        if need.changes.is_empty() {
            plan.notes.push(format!("{}: {}", need.about, need.found));
        }
        for (knob, new) in need.changes {
            let Ok(old) = machine.read(&knob) else { continue };
            if machine.is_same(&knob, &old, &new) {
                continue;
            }
            let Some(stage) = Stage::named(need.stage) else { continue };
            if stage.scope == Scope::Reset && !stages.has(Scope::Reset) {
                plan.notes.push(format!("{}: left out without --allow-reset: {}", need.stage, knob.command(&new)));
                continue;
            }
            if !stage.not_restored.is_empty() {
                plan.notes.push(format!("{}: {}", stage.name, stage.not_restored));
            }
            plan.changes.push(Change { stage: stage.name, knob, old, new, why: stage.why });
        }
    }
    Ok(plan)
}

/// Returns the setting that defers an interface's interrupts, for busy polling.
pub fn napi_deferral(interface: &str) -> Setting {
    let knob = |file: &str| Knob(format!("/sys/class/net/{interface}/{file}"));
    Setting(NAPI_DEFERRAL.into_iter().map(|(file, value)| (knob(file), value.to_owned())).collect())
}

fn unconditional(about: &'static str, stage: &'static str, changes: Vec<(Knob, String)>) -> Need {
    Need { about, stage, found: String::new(), is_missing: true, changes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(on: &[&str], changeable: &[&str]) -> Option<Features> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Some(Features { on: owned(on), changeable: owned(changeable) })
    }

    fn nic(driver: &str) -> Nic {
        Nic { name: "eth0".to_owned(), driver: Some(driver.to_owned()), mtu: Some(1500), cpus: 4, ..Nic::default() }
    }

    fn channels(combined: u32, combined_max: u32) -> Option<Channels> {
        Some(Channels { combined, combined_max, ..Channels::default() })
    }

    fn found(nic: &Nic, purpose: Purpose) -> Vec<(String, Option<String>)> {
        nic.needs(purpose).into_iter().map(|need| (format!("{}: {}", need.about, need.found), need.fix())).collect()
    }

    #[test]
    fn what_merges_or_cuts_is_in_the_way_of_a_capture() {
        let on = ["rx-gro", "rx-udp-gro-forwarding", "tx-gre-segmentation", "rx-gro-hw"];
        let nic = Nic { features: features(&on, &[on[0], on[1], on[2]]), ..nic("ice") };
        let [merges, splits] = found(&nic, Purpose::Listen).try_into().unwrap();
        assert_eq!(
            merges.0,
            "offloads: gro, rx-gro-hw, rx-udp-gro-forwarding may merge packets before they are seen here"
        );
        assert_eq!(merges.1.unwrap(), "sudo ethtool -K eth0 gro off rx-udp-gro-forwarding off");
        assert_eq!(splits.1.unwrap(), "sudo ethtool -K eth0 tx-gre-segmentation off");
        let fixed = Nic { features: features(&["rx-gro-hw"], &[]), ..nic.clone() };
        let [only] = found(&fixed, Purpose::Listen).try_into().unwrap();
        assert!(only.0.ends_with("cannot be switched off") && only.1.is_none(), "{only:?}");
        assert!(found(&Nic { is_loopback: true, ..nic }, Purpose::Listen).is_empty());
    }

    #[test]
    fn ena_has_half_of_its_queues_and_a_shorter_mtu() {
        let nic = Nic { mtu: Some(9001), channels: channels(8, 8), ..nic("ena") };
        let [mtu, queues] = found(&nic, Purpose::AfXdp).try_into().unwrap();
        assert_eq!(mtu.1.unwrap(), "echo 3498 | sudo tee /sys/class/net/eth0/mtu");
        assert_eq!(queues.1.unwrap(), "sudo ethtool -L eth0 combined 4");
        assert!(found(&Nic { mtu: Some(1500), channels: channels(4, 8), ..nic }, Purpose::AfXdp).is_empty());
    }

    #[test]
    fn virtio_must_not_merge_and_wants_transmit_queues() {
        let nic =
            Nic { features: features(&["rx-gro-hw"], &["rx-gro-hw"]), channels: channels(8, 8), ..nic("virtio_net") };
        let [merges, queues] = found(&nic, Purpose::AfXdp).try_into().unwrap();
        assert_eq!(merges.1.unwrap(), "sudo ethtool -K eth0 rx-gro-hw off");
        assert_eq!(queues.1.unwrap(), "sudo ethtool -L eth0 combined 4");
        let few = Nic { channels: channels(1, 1), features: None, ..nic };
        let [queues] = found(&few, Purpose::AfXdp).try_into().unwrap();
        assert!(queues.0.contains("4 CPUs share") && queues.1.is_none(), "{queues:?}");
    }

    #[test]
    fn a_plan_leaves_out_what_may_take_the_link_down() {
        let fake = steerage_fixtures::scratch::Scratch::with_files(&[
            ("sys/class/net/eth0/mtu", "9001"),
            ("sys/class/net/eth0/napi_defer_hard_irqs", "0"),
            ("sys/class/net/eth0/gro_flush_timeout", "0"),
            ("ethtool/eth0/channels/combined", "8"),
            ("ethtool/eth0/rss/key", "01:02:03:04"),
            ("ethtool/eth0/features/rx-vlan-hw-parse", "on"),
        ]);
        let on = features(&[STRIP_VLAN], &[STRIP_VLAN]);
        let nic = Nic { mtu: Some(9001), channels: channels(8, 8), features: on, ..nic("ena") };
        let mut machine = Machine::below(Root::below(&*fake));
        let mut plan = |stages: &Stages| {
            plan(&mut machine, &nic, Purpose::AfXdp, &Lead::default(), stages, &Setting::default()).unwrap()
        };
        let changed = |plan: &Plan| plan.changes.iter().map(|change| change.command()).collect::<Vec<_>>();
        let careful = plan(&Stages::default());
        assert_eq!(
            changed(&careful),
            [
                "ethtool -K eth0 rxvlan off",
                "echo 2 > /sys/class/net/eth0/napi_defer_hard_irqs",
                "echo 200000 > /sys/class/net/eth0/gro_flush_timeout"
            ]
        );
        assert_eq!(careful.notes.iter().filter(|note| note.contains("--allow-reset")).count(), 3, "{careful:?}");
        let all = plan(&Stages::default().with(Scope::Reset));
        assert_eq!(all.new_setting().0[&Knob("/ethtool/eth0/rss/key".to_owned())], "6d:5a:6d:5a");
        assert!(all.may_take_the_link_down() && all.changes.len() == 6, "{all:?}");
        // Each change that cannot be undone exactly has a note.
        assert!(all.notes.iter().any(|note| note.starts_with("channels: packets that are in the rings")), "{all:?}");
        assert!(!careful.notes.iter().any(|note| note.contains("lost")), "{careful:?}");
    }
}
