//! The paths of the attributes.

use steerage::Snapshot;

use super::masks::Form;
use super::numbers::{Number, SYSCTLS};
use super::{Attribute, interface, statistics};

/// The directory of the devices' directories.
pub(super) const NET: &str = "sys/class/net";

/// A device, with its queues and outputs of the instance.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) is_interface: bool,
    kind: &'static str,
    pub(super) queues: Vec<usize>,
    pub(super) outputs: Vec<usize>,
}

/// The kinds of devices that are network interfaces. The kernel chooses their names.
const INTERFACES: &[&str] = &["af_packet", "af_xdp", "tap", "tun"];

/// The instance's devices: first the inputs, then the devices that are only outputs.
pub(super) fn devices(snapshot: &Snapshot) -> Vec<Device> {
    let mut devices: Vec<Device> = Vec::new();
    for (at, queue) in snapshot.queues.iter().enumerate() {
        // If two devices have the same name, the second one starts again at queue 0.
        match devices.last_mut().filter(|last| last.name(snapshot) == queue.device && queue.queue > 0) {
            Some(device) => device.queues.push(at),
            None => devices.push(Device { queues: vec![at], ..Device::new(queue.kind) }),
        }
    }
    for (at, output) in snapshot.outputs.iter().enumerate() {
        let is_it = |device: &&mut Device| device.is_interface && device.name(snapshot) == output.device;
        match devices.iter_mut().find(is_it).filter(|_| INTERFACES.contains(&output.kind)) {
            Some(device) => device.outputs.push(at),
            None => devices.push(Device { outputs: vec![at], ..Device::new(output.kind) }),
        }
    }
    devices
}

/// The names of the devices' directories. An interface's directory has the kernel's name.
pub(super) fn directories(devices: &[Device], snapshot: &Snapshot) -> Vec<String> {
    directory_names(devices.iter().map(|device| (device.kind, device.name(snapshot))))
}

/// The names of the directories of devices with these kinds and names, in the instance's order: inputs first.
pub fn directory_names<'n>(devices: impl IntoIterator<Item = (&'n str, &'n str)>) -> Vec<String> {
    let mut directories: Vec<String> = Vec::new();
    for (kind, name) in devices {
        let directory = if INTERFACES.contains(&kind) { name.to_owned() } else { directory_name(name) };
        let numbered = (2..).map(|nth| format!("{directory}.{nth}"));
        let free = std::iter::once(directory.clone()).chain(numbered).find(|name| !directories.contains(name));
        directories.push(free.expect("one of endlessly many is free"));
    }
    directories
}

impl Device {
    fn new(kind: &'static str) -> Self {
        Self { is_interface: INTERFACES.contains(&kind), kind, queues: Vec::new(), outputs: Vec::new() }
    }

    /// The name of the device in `snapshot`.
    pub(super) fn name<'s>(&self, snapshot: &'s Snapshot) -> &'s str {
        let of_queue = self.queues.first().map(|at| &snapshot.queues[*at].device);
        of_queue.or_else(|| self.outputs.first().map(|at| &snapshot.outputs[*at].device)).map_or("", String::as_str)
    }
}

/// Turns a device's name into the name of a directory. Synthetic traffic loses its options, a file
/// loses its directory.
fn directory_name(name: &str) -> String {
    let name = if name.starts_with("synthetic") { name.split(':').next().unwrap_or(name) } else { name };
    let name = name.trim_end_matches('/').rsplit('/').next().unwrap_or(name);
    let plain: String =
        name.chars().map(|c| if c.is_whitespace() || c.is_control() { '_' } else { c }).take(64).collect();
    match plain.as_str() {
        "" | "." | ".." => "_".to_owned(),
        "-" => "stdin".to_owned(),
        _ => plain,
    }
}

/// Every attribute, by its path.
pub(super) fn attributes(devices: &[Device], snapshot: &Snapshot) -> Vec<(String, Attribute)> {
    let mut all: Vec<(String, Attribute)> = vec![("proc/net/softnet_stat".to_owned(), Attribute::SoftnetStat)];
    all.push(("proc/sys/net/core/flow_limit_cpu_bitmap".to_owned(), Attribute::FlowLimitCpus));
    for (name, number) in SYSCTLS {
        all.push((format!("proc/sys/net/core/{name}"), Attribute::Number(*number)));
    }
    for (nth, directory) in directories(devices, snapshot).iter().enumerate() {
        of_device((nth, &devices[nth]), directory, snapshot, &mut all);
    }
    let count = |path: &str, count: fn(&Snapshot) -> u64| (format!("steerage/{path}"), Attribute::Count(count));
    all.extend([
        ("steerage/version".to_owned(), Attribute::Fixed(env!("CARGO_PKG_VERSION"))),
        ("steerage/history".to_owned(), Attribute::History),
        ("steerage/policy".to_owned(), Attribute::Policy),
        ("steerage/steering".to_owned(), Attribute::Steering),
        count("moves/buckets", |now| now.moves.buckets),
        count("moves/slices", |now| now.moves.slices),
        count("received", Snapshot::received),
        count("delivered", Snapshot::delivered),
        count("dropped", |now| now.dropped().total()),
        count("in_flight", Snapshot::in_flight),
        count("memory/bytes", |now| now.memory_bytes),
        count("memory/backlogs", |now| now.memory.backlogs),
        count("memory/caches", |now| now.memory.caches),
        count("memory/cap", |now| now.memory.cap),
        count("memory/kept", |now| now.memory.kept),
        count("memory/lent", |now| now.memory.lent),
        count("memory/others", |now| now.memory.others),
        count("memory/parked", |now| now.memory.parked),
        count("memory/rings", |now| now.memory.rings),
        ("steerage/memory/lpc_bytes".to_owned(), Attribute::LpcBytes((0..snapshot.queues.len()).collect())),
        count("memory/page_bytes", |now| now.page_bytes),
        count("memory/pages", |now| now.pages),
        count("memory/pages_free", |now| now.pages_free),
    ]);
    if snapshot.reordered().is_some() {
        all.push(count("reordered", |now| now.reordered().unwrap_or(0)));
    }
    all
}

fn of_device(
    (nth, device): (usize, &Device),
    directory: &str,
    snapshot: &Snapshot,
    all: &mut Vec<(String, Attribute)>,
) {
    let mut add = |path: &str, attribute| all.push((format!("{NET}/{directory}/{path}"), attribute));
    if device.is_interface {
        interface::names(device.name(snapshot)).for_each(|name| add(name, Attribute::Interface(nth, name)));
    } else {
        // The kernel also reports `unknown` for a device that does not report its state.
        add("operstate", Attribute::Fixed("unknown"));
    }
    add("kind", Attribute::Fixed(device.kind));
    for (name, statistic) in statistics::of_device(device, snapshot.outputs.len()) {
        add(&format!("statistics/{name}"), Attribute::Statistic(nth, statistic));
    }
    if !device.queues.is_empty() {
        add("priv_flags/local_page_cache", Attribute::Number(Number::LocalPageCache(nth)));
    }
    for at in device.queues.iter().copied() {
        let queue = format!("queues/rx-{}", snapshot.queues[at].queue);
        add(&format!("{queue}/rps_cpus"), Attribute::Mask(at, Form::Bitmap));
        add(&format!("{queue}/rps_cpus_list"), Attribute::Mask(at, Form::List));
        add(&format!("{queue}/lpc_pages"), Attribute::Number(Number::LpcPages(at)));
        add(&format!("{queue}/lpc_bytes"), Attribute::LpcBytes(vec![at]));
        add(&format!("{queue}/copybreak"), Attribute::Number(Number::Copybreak(at)));
        add(&format!("{queue}/buckets"), Attribute::Buckets(at));
        add(&format!("{queue}/bucket_load"), Attribute::BucketLoad(at));
        for (name, count) in statistics::OF_A_QUEUE {
            add(&format!("{queue}/statistics/{name}"), Attribute::QueueCount(at, *count));
        }
        for (nth, (name, _)) in snapshot.queues[at].device_counts.iter().enumerate() {
            add(&format!("{queue}/statistics/{name}"), Attribute::DeviceCount(at, nth));
        }
        add(&format!("{queue}/cpu"), Attribute::PolledBy(at));
        add(&format!("{queue}/hash"), Attribute::HashSource(at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_have_plain_names() {
        for (name, directory) in [
            ("synthetic:rate=1000,flows=3", "synthetic"),
            ("/var/tmp/a b.pcap", "a_b.pcap"),
            ("-", "stdin"),
            ("..", "_"),
            ("dir/", "dir"),
        ] {
            assert_eq!(directory_name(name), directory);
        }
    }
}
