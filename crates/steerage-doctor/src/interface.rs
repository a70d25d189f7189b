//! Checks an interface: its queues, and offloads that change packets before programs see them.

use serde::Serialize;
use steerage_netlink::netdev::XdpSupport;
use steerage_text::shell_word;
use steerage_tune::Root;
use steerage_tune::facts::Card;
use steerage_tune::purpose::{Need, Nic, Purpose};

use crate::Finding;

/// `IFF_UP` in net/if.h.
const UP: u32 = 1;

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Interface {
    name: String,
    /// The driver, or `None` for a virtual interface.
    driver: Option<String>,
    mtu: Option<i64>,
    /// The kernel's name of the interface's state: `up`, `down`, or `unknown` for an interface
    /// without a link.
    state: Option<String>,
    up: bool,
    /// The speed of the link in Mbit/s, if the driver reports it.
    speed: Option<i64>,
    rx_queues: Vec<RxQueue>,
    /// The names that ethtool uses for the offloads that are on, or `None` if the kernel does not
    /// report them.
    features: Option<Vec<String>>,
    #[serde(skip)]
    nic: Nic,
    xdp: Option<Xdp>,
    /// Whether the driver passes the card's hash to XDP programs, or `None` if the kernel does not
    /// report it.
    xdp_hash: Option<bool>,
    /// Whether the driver passes the card's time of reception to XDP programs.
    xdp_time: Option<bool>,
    xdp_vlan_tag: Option<bool>,
    /// The kinds of received frames that the card can timestamp, with the names that ethtool uses.
    pub(crate) stamps: Vec<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct RxQueue {
    queue: u32,
    /// The mask of the kernel's own steering (RPS) for this queue, or 0.
    rps_cpus: Option<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Xdp {
    driver: bool,
    zero_copy: bool,
}

impl Xdp {
    /// If a driver has no zero-copy mode, AF_XDP moves the kernel's part of receiving to the
    /// polling CPU, which then receives fewer packets than with AF_PACKET. Only `forward` is faster
    /// with AF_XDP, because with AF_PACKET the kernel also handles each packet
    /// (lab/notes/interfaces.md).
    fn fastest_way(&self) -> &'static str {
        match self {
            Self { driver: true, zero_copy: true } => "AF_XDP, if packets may be taken from the kernel",
            Self { driver: true, zero_copy: false } => "AF_PACKET to listen, AF_XDP for forward",
            Self { driver: false, .. } => "AF_PACKET",
        }
    }
}

impl Interface {
    pub(crate) fn is_there(root: &Root, name: &str) -> bool {
        let is_name = !name.is_empty() && !name.contains('/') && name != "." && name != "..";
        is_name && root.exists(&format!("/sys/class/net/{name}/ifindex"))
    }

    pub(crate) fn read(root: &Root, name: &str, card: Card, cpus: usize, xdp: Option<XdpSupport>) -> Self {
        let at = |file: &str| format!("/sys/class/net/{name}/{file}");
        let flags = root.read(&at("flags")).ok();
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok());
        let queue = |name: String| {
            let rps_cpus = root.read(&at(&format!("queues/{name}/rps_cpus"))).ok();
            Some(RxQueue { queue: name.strip_prefix("rx-")?.parse().ok()?, rps_cpus })
        };
        let nic = Nic::read(root, name, card, cpus);
        Self {
            name: name.to_owned(),
            driver: nic.driver.clone(),
            mtu: root.number(&at("mtu")),
            state: root.read(&at("operstate")).ok(),
            up: flags.is_some_and(|flags| flags & UP != 0),
            speed: root.number::<i64>(&at("speed")).filter(|speed| *speed > 0),
            rx_queues: root.queues(name, "rx-").into_iter().filter_map(queue).collect(),
            features: nic.features.as_ref().map(|features| features.on.clone()),
            nic,
            xdp_hash: xdp.and_then(|xdp| xdp.hash),
            xdp_time: xdp.and_then(|xdp| xdp.time),
            xdp_vlan_tag: xdp.and_then(|xdp| xdp.vlan_tag),
            stamps: Vec::new(),
            xdp: xdp.map(|xdp| Xdp { driver: xdp.driver, zero_copy: xdp.zero_copy }),
        }
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![self.what_it_is(), self.link(), self.queues()];
        findings.extend(self.kernel_steers());
        if self.features.is_some() {
            findings.extend(self.listening());
        }
        findings.extend(self.features.as_ref().map(|on| {
            let hashing = on.iter().any(|name| name == "rx-hashing");
            Finding::info("hardware hash", if hashing { "the card hashes flows" } else { "none" })
        }));
        findings.extend(self.xdp.as_ref().map(|xdp| match xdp {
            Xdp { driver: true, zero_copy: true } => Finding::ok("XDP", "in the driver, zero-copy"),
            Xdp { driver: true, zero_copy: false } => Finding::ok("XDP", "in the driver, with a copy"),
            Xdp { driver: false, .. } => {
                Finding::info("XDP", "not in the driver: generic XDP is no faster than AF_PACKET")
            }
        }));
        if self.xdp.as_ref().is_some_and(|xdp| xdp.driver) {
            findings.extend(self.nic.needs(Purpose::AfXdp).iter().map(finding));
        }
        findings.extend(self.xdp.as_ref().map(|xdp| Finding::info("fastest", xdp.fastest_way())));
        // For each value: what it is for programs if the driver reports it, and if it does not.
        let reported = [
            (
                "AF_XDP hash",
                self.xdp_hash,
                "the card's, which its driver reports, if that is safe; else ours",
                "ours: the driver does not report the card's",
            ),
            (
                "AF_XDP time",
                self.xdp_time,
                "the card's clock, for frames that the card stamps; else the system's",
                "the system's clock: the driver does not report the card's",
            ),
            (
                "AF_XDP VLAN tags",
                self.xdp_vlan_tag,
                "tags that the card removes are put back",
                "tags that the card removes are lost: the driver does not report them (ethtool -K NAME rxvlan off)",
            ),
        ];
        for (about, is_reported, yes, no) in reported {
            findings.extend(is_reported.map(|is_reported| Finding::info(about, if is_reported { yes } else { no })));
        }
        if !self.stamps.is_empty() {
            let (name, frames) = (&self.name, self.stamps.join(", "));
            let time = format!("the system's clock; the card can stamp {frames} (af_packet:{name},time=card)");
            findings.push(Finding::info("AF_PACKET time", time));
        }
        findings
    }

    fn what_it_is(&self) -> Finding {
        let driver = self.driver.as_deref().unwrap_or("none, it is virtual");
        let mtu = self.mtu.map_or("unknown".to_owned(), |mtu| mtu.to_string());
        Finding::info("interface", format!("{}: driver {driver}, MTU {mtu}", self.name))
    }

    fn link(&self) -> Finding {
        let name = &self.name;
        let state = self.state.as_deref().unwrap_or("unknown");
        let speed = self.speed.map_or(String::new(), |speed| format!(", {speed} Mbit/s"));
        match (self.up, state) {
            (false, _) => {
                Finding::missing("link", "it is switched off", format!("sudo ip link set {} up", shell_word(name)))
            }
            (true, "down" | "lowerlayerdown" | "dormant") => Finding::missing(
                "link",
                format!("{state}: nothing comes"),
                "plug the cable in, or switch its other end on",
            ),
            (true, _) => Finding::ok("link", format!("{state}{speed}")),
        }
    }

    fn queues(&self) -> Finding {
        let found = match self.rx_queues.len() {
            0 => "unknown".to_owned(),
            1 => "1: one CPU takes all packets from it, and steerage spreads them".to_owned(),
            several => format!("{several}: it spreads flows over as many CPUs by itself"),
        };
        Finding::info("rx queues", found)
    }

    fn kernel_steers(&self) -> Option<Finding> {
        let is_set = |mask: &&String| mask.contains(|c| !"0,".contains(c));
        let mask = |it: &RxQueue| Some(format!("rx-{} {}", it.queue, it.rps_cpus.as_ref().filter(is_set)?));
        let masks: Vec<String> = self.rx_queues.iter().filter_map(mask).collect();
        let remedy = format!(
            "steerage tune {} measures whether that helps; a run of steerage steers by itself",
            shell_word(&self.name)
        );
        let found = || format!("the kernel steers {}", masks.join(", "));
        (!masks.is_empty()).then(|| Finding::info("rps_cpus", found()).or(remedy))
    }

    fn listening(&self) -> Vec<Finding> {
        let needs = self.nic.needs(Purpose::Listen);
        let ok = || Finding::ok("offloads", "none merges packets: they are seen as on the wire");
        let merges = needs.iter().any(|need| need.about == "offloads");
        (!merges).then(ok).into_iter().chain(needs.iter().map(finding)).collect()
    }
}

fn finding(need: &Need) -> Finding {
    match need.fix() {
        Some(fix) if need.is_missing => Finding::missing(need.about, need.found.clone(), fix),
        Some(fix) => Finding::info(need.about, need.found.clone()).or(fix),
        None => Finding::info(need.about, need.found.clone()),
    }
}

#[cfg(test)]
mod tests {
    use steerage_fixtures::scratch::Scratch;
    use steerage_netlink::ethtool::{Channels, Features};

    use super::*;
    use crate::State;

    fn found(interface: &Interface) -> String {
        let line = |finding: Finding| format!("{:?} {}: {}\n", finding.state, finding.about, finding.found);
        interface.findings().into_iter().map(line).collect()
    }

    #[test]
    fn a_cloud_machines_only_queue() {
        let fake = Scratch::with_files(&[
            ("sys/class/net/eth0/ifindex", "2"),
            ("sys/class/net/eth0/mtu", "1500"),
            ("sys/class/net/eth0/flags", "0x1003"),
            ("sys/class/net/eth0/operstate", "up"),
            ("sys/class/net/eth0/speed", "-1"),
            ("sys/class/net/eth0/queues/rx-0/rps_cpus", "3"),
            ("sys/class/net/eth0/queues/tx-0/xps_cpus", "0"),
        ]);
        fake.link("sys/class/net/eth0/device/driver", "../../bus/virtio/drivers/virtio_net");
        let on = vec!["rx-gro".to_owned(), "rx-gro-hw".to_owned()];
        let features = Features { on, changeable: vec!["rx-gro".to_owned()] };
        let xdp =
            XdpSupport { driver: true, zero_copy: false, hash: Some(true), time: Some(false), vlan_tag: Some(true) };
        let interface = Interface::read(
            &Root::below(&*fake),
            "eth0",
            Card { features: Some(features), channels: None },
            2,
            Some(xdp),
        );
        assert_eq!(
            found(&interface),
            "Info interface: eth0: driver virtio_net, MTU 1500\n\
             Ok link: up\n\
             Info rx queues: 1: one CPU takes all packets from it, and steerage spreads them\n\
             Info rps_cpus: the kernel steers rx-0 3\n\
             Missing offloads: gro, rx-gro-hw may merge packets before they are seen here\n\
             Info hardware hash: none\n\
             Ok XDP: in the driver, with a copy\n\
             Info XDP offloads: rx-gro-hw is on, and virtio_net may refuse XDP programs, and cannot be switched off\n\
             Info fastest: AF_PACKET to listen, AF_XDP for forward\n\
             Info AF_XDP hash: the card's, which its driver reports, if that is safe; else ours\n\
             Info AF_XDP time: the system's clock: the driver does not report the card's\n\
             Info AF_XDP VLAN tags: tags that the card removes are put back\n"
        );
        let off = interface.findings().into_iter().find(|one| one.state == State::Missing).unwrap().fix.unwrap();
        assert_eq!(off, "sudo ethtool -K eth0 gro off");
    }

    /// Tests a card with properties that users notice only when something fails: too many queues
    /// for AF_XDP, the MTU, and merged UDP packets.
    #[test]
    fn a_cloud_machine_with_ena() {
        let fake = Scratch::with_files(&[
            ("sys/class/net/eth0/ifindex", "2"),
            ("sys/class/net/eth0/mtu", "9001"),
            ("sys/class/net/eth0/flags", "0x1003"),
            ("sys/class/net/eth0/operstate", "up"),
            ("sys/class/net/eth0/queues/rx-0/rps_cpus", "0"),
        ]);
        fake.link("sys/class/net/eth0/device/driver", "../../bus/pci/drivers/ena");
        let on = vec!["rx-udp-gro-forwarding".to_owned(), "tx-gre-segmentation".to_owned()];
        let features = Features { changeable: on.clone(), on };
        let channels = Channels { combined: 8, combined_max: 8, ..Channels::default() };
        let xdp = XdpSupport { driver: true, zero_copy: false, ..XdpSupport::default() };
        let interface = Interface::read(
            &Root::below(&*fake),
            "eth0",
            Card { features: Some(features), channels: Some(channels) },
            8,
            Some(xdp),
        );
        let fixes: Vec<(State, &str, String)> = interface
            .findings()
            .into_iter()
            .filter_map(|finding| Some((finding.state, finding.about, finding.fix?)))
            .collect();
        let expected = [
            (State::Missing, "offloads", "sudo ethtool -K eth0 rx-udp-gro-forwarding off"),
            (State::Info, "sent packets", "sudo ethtool -K eth0 tx-gre-segmentation off"),
            (State::Missing, "XDP MTU", "echo 3498 | sudo tee /sys/class/net/eth0/mtu"),
            (State::Missing, "XDP queues", "sudo ethtool -L eth0 combined 4"),
        ];
        assert_eq!(fixes, expected.map(|(state, about, fix)| (state, about, fix.to_owned())));
    }

    #[test]
    fn a_card_of_many_queues_that_is_down() {
        let queues: Vec<String> = (0..16).map(|queue| format!("sys/class/net/p1/queues/rx-{queue}/rps_cpus")).collect();
        let mut files: Vec<(&str, &str)> = queues.iter().map(|path| (path.as_str(), "00000000,00000000")).collect();
        files.extend([("sys/class/net/p1/ifindex", "7"), ("sys/class/net/p1/flags", "0x1002")]);
        let fake = Scratch::with_files(&files);
        let mut interface = Interface::read(&Root::below(&*fake), "p1", Card::default(), 2, None);
        interface.stamps = ["all", "ptpv2-event"].map(str::to_owned).into();
        assert_eq!(
            found(&interface),
            "Info interface: p1: driver none, it is virtual, MTU unknown\n\
             Missing link: it is switched off\n\
             Info rx queues: 16: it spreads flows over as many CPUs by itself\n\
             Info AF_PACKET time: the system's clock; the card can stamp all, ptpv2-event (af_packet:p1,time=card)\n"
        );
        // Receive queues are sorted by number: `rx-10` comes after `rx-9`.
        assert_eq!(
            interface.rx_queues.iter().map(|queue| queue.queue).collect::<Vec<_>>(),
            (0..16).collect::<Vec<_>>()
        );
    }

    #[test]
    fn the_fastest_way_depends_on_the_driver() {
        let way = |driver, zero_copy| Xdp { driver, zero_copy }.fastest_way();
        assert!(way(true, true).starts_with("AF_XDP"));
        assert!(way(true, false).starts_with("AF_PACKET to listen"));
        assert_eq!(way(false, false), "AF_PACKET");
    }

    #[test]
    fn names_that_are_none_are_not_there() {
        let fake = Scratch::with_files(&[("sys/class/net/eth0/ifindex", "2"), ("sys/class/ifindex", "9")]);
        let root = Root::below(&*fake);
        assert!(Interface::is_there(&root, "eth0"));
        for name in ["", ".", "..", "eth1", "../net/eth0", "eth0/"] {
            assert!(!Interface::is_there(&root, name), "{name}");
        }
    }
}
