//! Writes a setting to a .link file, which systemd applies at each start of the machine
//! (systemd.link(5)).

use std::fs;
use std::path::{Path, PathBuf};

use steerage::CpuMask;
use steerage_guard::file::{Readers, write_durably};
use steerage_guard::path::Directory;

use crate::error::TuneError;
use crate::knob::Knob;
use crate::machine::Machine;
use crate::root::Root;
use crate::setting::Setting;
use crate::unit::unit;

/// The directories outside of /sys that [`make`] reads. The name of a library contains systemd's
/// version, and udev's data contain the path of the .link file that an interface uses.
pub const READ: [&str; 9] = [
    "/usr/lib/systemd",
    "/usr/lib64/systemd",
    "/usr/lib/x86_64-linux-gnu/systemd",
    "/usr/lib/aarch64-linux-gnu/systemd",
    "/lib/systemd/network",
    "/usr/local/lib/systemd/network",
    "/run/systemd/network",
    "/etc/systemd/network",
    "/run/udev/data",
];

const LIBRARY: &str = "libsystemd-shared-";

/// The section `[Link]` of systemd's `99-default.link`. systemd applies only one .link file to an
/// interface, so a new file must repeat the lines of the file that was applied before.
const DEFAULT_LINK: &str = "NamePolicy=keep kernel database onboard slot path\nAlternativeNamesPolicy=database onboard slot path\nMACAddressPolicy=persistent\n";

/// Each entry has the end of a knob's name, the key of this knob in a .link file (systemd.link(5)),
/// and systemd's first version with the key.
const KEYS: [(&str, &str, u32); 14] = [
    ("/channels/combined", "CombinedChannels", 239),
    ("/channels/rx", "RxChannels", 239),
    ("/rings/rx", "RxBufferSize", 244),
    ("/rings/tx", "TxBufferSize", 244),
    ("/rps_cpus", "ReceivePacketSteeringCPUMask", 256),
    ("/mtu", "MTUBytes", 211),
    ("/features/rx-gro", "GenericReceiveOffload", 232),
    ("/features/rx-gro-hw", "GenericReceiveOffloadHardware", 250),
    ("/features/rx-lro", "LargeReceiveOffload", 232),
    ("/features/tx-tcp-segmentation", "TCPSegmentationOffload", 232),
    ("/features/tx-tcp6-segmentation", "TCP6SegmentationOffload", 235),
    ("/features/tx-generic-segmentation", "GenericSegmentationOffload", 232),
    ("/features/rx-vlan-hw-parse", "ReceiveVLANCTAGHardwareAcceleration", 250),
    ("/features/rx-ntuple-filter", "NTupleFilter", 250),
];

/// The first version of systemd with `IRQAffinity=`, which sets the CPUs for all interrupts.
const IRQ_AFFINITY: u32 = 261;

/// A .link file that has not been written yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkFile {
    /// The path of the .link file.
    pub path: PathBuf,
    /// The text of the .link file.
    pub text: String,
    /// The knobs and values that the .link file sets.
    pub setting: Setting,
    /// Notes for the user: one line for each knob that the .link file cannot set.
    pub notes: Vec<String>,
}

/// Returns the version of systemd on this machine, if known.
pub fn systemd_version(root: &Root) -> Option<u32> {
    let names = READ.iter().flat_map(|directory| root.names(directory));
    let version = |name: String| {
        let rest = name.strip_prefix(LIBRARY)?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    };
    names.filter_map(version).max()
}

/// Creates the text of a .link file that sets `setting` for the interface.
pub fn make(machine: &Machine, interface: &str, setting: &Setting) -> LinkFile {
    let root = machine.root();
    let version = systemd_version(root);
    let (mut lines, mut notes, mut of_file) = (Vec::new(), Vec::new(), Setting::default());
    for (end, key, since) in KEYS {
        let of_key: Vec<(&Knob, &String)> =
            setting.0.iter().filter(|(knob, _)| knob.is_of(interface) && knob.0.ends_with(end)).collect();
        let Some((_, first)) = of_key.first() else { continue };
        if key == "NTupleFilter" && setting.0.keys().any(Knob::is_rule) {
            notes.push(format!("{key}= is left out, because the rules of --flow need the feature now"));
        } else if version.is_some_and(|version| version < since) {
            let version = version.unwrap_or_default();
            notes.push(format!("{key}= needs systemd {since}, and this machine has {version}: left out"));
        } else if of_key.iter().any(|(_, value)| value != first) {
            notes.push(format!("{key}= is one value for all queues, and the queues differ: left out"));
        } else {
            lines.push(format!("{key}={}", in_systemds_words(machine, of_key[0].0, first)));
            of_file.0.extend(of_key.into_iter().map(|(knob, value)| (knob.clone(), value.clone())));
        }
    }
    let interrupts: Vec<(&Knob, &String)> = setting.0.iter().filter(|(knob, _)| is_interrupt(knob)).collect();
    if !interrupts.is_empty() {
        let masks = interrupts.iter().filter_map(|(_, value)| CpuMask::parse_bitmap(value, machine.nr_cpu_ids()).ok());
        let cpus: CpuMask = masks.flat_map(|mask| mask.iter().collect::<Vec<_>>()).collect();
        match version {
            Some(version) if version < IRQ_AFFINITY => notes.push(format!(
                "IRQAffinityPolicy= needs systemd {IRQ_AFFINITY}, and this machine has {version}: left out"
            )),
            _ => {
                lines.push(format!("IRQAffinityPolicy=spread\nIRQAffinity={}", cpus.to_list()));
                notes.push("systemd itself chooses which of these CPUs gets which interrupt".to_owned());
                of_file.0.extend(interrupts.into_iter().map(|(knob, value)| (knob.clone(), value.clone())));
            }
        }
    }
    let without: Vec<&str> = (setting.0.keys().filter(|knob| !is_interrupt(knob)).map(|knob| knob.0.as_str()))
        .filter(|name| !KEYS.iter().any(|(end, ..)| name.ends_with(end)))
        .collect();
    if !without.is_empty() {
        notes.push(format!("systemd has no key for {}: keep it with {}.service", without.join(", "), unit(interface)));
    }
    if version.is_none() {
        notes.push("the version of systemd is unknown, so the file may have keys that it does not know".to_owned());
    }
    let read = |name: &str| root.read(&format!("/sys/class/net/{interface}/{name}")).unwrap_or_default();
    let section = present_section(root, &read("ifindex"));
    let kept: String = section.lines().filter(|line| !is_ours(line)).map(|line| format!("{line}\n")).collect();
    let text = format!(
        "# Written by steerage tune {interface} --write link; steerage tune --undo {interface} removes it.\n\
         [Match]\nMACAddress={}\nType=!vlan bridge bond\n\n[Link]\n{kept}{}\n",
        read("address"),
        lines.join("\n")
    );
    let path = root.path(&format!("/etc/systemd/network/10-steerage-{interface}.link"));
    LinkFile { path, text, setting: of_file, notes }
}

fn is_interrupt(knob: &Knob) -> bool {
    knob.0.starts_with("/proc/irq/")
}

fn is_ours(line: &str) -> bool {
    let keys = KEYS.iter().map(|(_, key, _)| *key).chain(["IRQAffinityPolicy", "IRQAffinity"]);
    let name = line.split('=').next().unwrap_or_default().trim();
    keys.into_iter().any(|key| key == name)
}

fn in_systemds_words(machine: &Machine, knob: &Knob, value: &str) -> String {
    if !knob.is_mask() {
        let switch = [("on", "yes"), ("off", "no")].into_iter().find(|(word, _)| *word == value);
        return switch.map_or(value, |(_, word)| word).to_owned();
    }
    let cpus = CpuMask::parse_bitmap(value, machine.nr_cpu_ids()).unwrap_or_default();
    if cpus.is_empty() { "disable".to_owned() } else { cpus.to_list() }
}

/// Returns the section `[Link]` of the .link file that systemd applies now. udev records the path
/// of this file.
fn present_section(root: &Root, index: &str) -> String {
    let record = root.read(&format!("/run/udev/data/n{index}")).unwrap_or_default();
    let path = record.lines().find_map(|line| line.strip_prefix("E:ID_NET_LINK_FILE="));
    let Some(text) = path.and_then(|path| root.read(path).ok()) else { return DEFAULT_LINK.to_owned() };
    let lines = text.lines().map(str::trim).skip_while(|line| *line != "[Link]").skip(1);
    let of_section = lines.take_while(|line| !line.starts_with('['));
    of_section.filter(|line| !line.is_empty() && !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
}

/// Returns the command with which systemd applies its .link files to an interface at once.
pub fn apply_now(interface: &str) -> String {
    format!("sudo udevadm control --reload && sudo udevadm trigger --action=add /sys/class/net/{interface}")
}

pub(crate) fn write(file: &LinkFile) -> Result<(), TuneError> {
    write_durably(&file.path, file.text.as_bytes(), Readers::All)
        .map_err(|error| TuneError::WriteFile { path: file.path.clone(), error })
}

/// Removes the .link file, unless another program has changed it. An error is one line of text.
pub(crate) fn remove(path: &Path, text: &str) -> Result<(), String> {
    match fs::read_to_string(path) {
        Ok(now) if now == text => {
            let removed = Directory::holding(path).and_then(|(directory, name)| directory.remove_file(&name));
            removed.map_err(|error| format!("cannot remove {}: {error}", path.display()))
        }
        Ok(_) => Err(format!("{} was changed since tune wrote it: left alone", path.display())),
        Err(_) => Ok(()),
    }
}
