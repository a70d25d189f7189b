use std::borrow::Cow;

use steerage::Snapshot;

#[derive(Debug)]
pub(super) struct Device {
    pub(super) is_interface: bool,
    pub(super) kind: Cow<'static, str>,
    pub(super) queues: Vec<usize>,
    pub(super) outputs: Vec<usize>,
}

/// The types of devices that have the names of network interfaces.
const INTERFACES: &[&str] = &["af_packet", "af_xdp", "tap", "tun"];

/// Returns the devices. The inputs come first, followed by the devices that are only outputs.
pub(super) fn devices(snapshot: &Snapshot) -> Vec<Device> {
    let mut devices: Vec<Device> = Vec::new();
    for (at, queue) in snapshot.queues.iter().enumerate() {
        // Two consecutive devices may have the same name, so queue 0 begins the next device.
        match devices.last_mut().filter(|last| last.name(snapshot) == queue.device && queue.queue > 0) {
            Some(device) => device.queues.push(at),
            None => devices.push(Device { queues: vec![at], ..Device::new(queue.kind.clone()) }),
        }
    }
    for (at, output) in snapshot.outputs.iter().enumerate() {
        let is_it = |device: &&mut Device| device.is_interface && device.name(snapshot) == output.device;
        match devices.iter_mut().find(is_it).filter(|_| INTERFACES.contains(&&*output.kind)) {
            Some(device) => device.outputs.push(at),
            None => devices.push(Device { outputs: vec![at], ..Device::new(output.kind.clone()) }),
        }
    }
    devices
}

pub(super) fn directories(devices: &[Device], snapshot: &Snapshot) -> Vec<String> {
    directory_names(devices.iter().map(|device| (&*device.kind, device.name(snapshot))))
}

/// Returns the directory names of `devices`, a list of the type and name of each device. The inputs
/// must come first.
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
    fn new(kind: Cow<'static, str>) -> Self {
        Self { is_interface: INTERFACES.contains(&&*kind), kind, queues: Vec::new(), outputs: Vec::new() }
    }

    pub(super) fn name<'s>(&self, snapshot: &'s Snapshot) -> &'s str {
        let of_queue = self.queues.first().map(|at| &snapshot.queues[*at].device);
        of_queue.or_else(|| self.outputs.first().map(|at| &snapshot.outputs[*at].device)).map_or("", String::as_str)
    }
}

/// Returns the directory name of a device: its name without the options of synthetic traffic, or
/// without the directory of a file.
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
