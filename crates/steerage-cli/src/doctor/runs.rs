//! The running instances of this machine, for the bundle. Their settings and counts come from the
//! control socket.

use serde_json::{Map, Value, json};
use steerage_control::{Client, ClientError};

use crate::instances;

/// The most instances that are asked.
const RUNS_MAX: usize = 16;
/// The most attributes of one instance. A queue has about 30.
const ATTRIBUTES_MAX: usize = 4096;
/// How deep a tree may be. Ours has six levels of directories.
const DEPTH_MAX: usize = 16;

/// The attributes of each instance. The name of a device may be the name of a file, so a number
/// replaces it.
pub(super) fn all() -> Value {
    let sockets = match instances::all() {
        Ok(sockets) => sockets,
        Err(error) => return json!([{"error": error.to_string()}]),
    };
    let one = |socket: &instances::InstanceSocket| match socket.connect() {
        Ok(mut client) => attributes(&mut client),
        Err(error) => json!({"error": error.to_string()}),
    };
    sockets.iter().take(RUNS_MAX).map(one).collect()
}

fn attributes(client: &mut Client) -> Value {
    let mut paths = Vec::new();
    if let Err(error) = collect(client, "", DEPTH_MAX, &mut paths) {
        return json!({"error": error.to_string()});
    }
    let mut devices: Vec<String> = Vec::new();
    let mut told = Map::new();
    for path in paths {
        let Some(name) = shown(&path, &mut devices) else { continue };
        // An interface may disappear meanwhile.
        if let Ok(text) = client.get(&path) {
            told.insert(name, Value::String(text.trim_end().to_owned()));
        }
    }
    Value::Object(told)
}

fn collect(client: &mut Client, directory: &str, depth: usize, paths: &mut Vec<String>) -> Result<(), ClientError> {
    let depth = depth.checked_sub(1).ok_or(ClientError::Nonsense)?;
    for (name, is_directory) in client.list(directory)? {
        let path = if directory.is_empty() { name } else { format!("{directory}/{name}") };
        if is_directory {
            collect(client, &path, depth, paths)?;
        } else if paths.len() < ATTRIBUTES_MAX {
            paths.push(path);
        }
    }
    Ok(())
}

/// The path of an attribute in the bundle, with a number instead of the device's name. Returns
/// `None` for addresses of cards and for the history, which names users.
fn shown(path: &str, devices: &mut Vec<String>) -> Option<String> {
    if path.starts_with("proc/") {
        return Some(path.to_owned());
    }
    if let Some(name) = path.strip_prefix("steerage/") {
        const OURS: [&str; 10] = [
            "version",
            "policy",
            "steering",
            "received",
            "delivered",
            "dropped",
            "in_flight",
            "reordered",
            "moves/buckets",
            "moves/slices",
        ];
        return (OURS.contains(&name) || name.starts_with("memory/")).then(|| path.to_owned());
    }
    let (device, attribute) = path.strip_prefix("sys/class/net/")?.split_once('/')?;
    const OF_DEVICE: [&str; 3] = ["kind", "mtu", "operstate"];
    let is_told = OF_DEVICE.contains(&attribute)
        || ["statistics/", "priv_flags/"].iter().any(|below| attribute.starts_with(below))
        // The load of each of 4,096 buckets adds little to the list of their CPUs.
        || attribute.starts_with("queues/") && !attribute.ends_with("/bucket_load");
    let number = devices.iter().position(|other| other == device).unwrap_or_else(|| {
        devices.push(device.to_owned());
        devices.len() - 1
    });
    is_told.then(|| format!("device-{number}/{attribute}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_device_is_named_and_no_address_shown() {
        let mut devices = Vec::new();
        let mut show = |path| shown(path, &mut devices);
        let told = [
            ("sys/class/net/secret.pcap/kind", Some("device-0/kind")),
            ("sys/class/net/eth0/address", None),
            ("sys/class/net/eth0/queues/rx-0/rps_cpus", Some("device-1/queues/rx-0/rps_cpus")),
            ("sys/class/net/secret.pcap/queues/rx-0/buckets", Some("device-0/queues/rx-0/buckets")),
            ("sys/class/net/eth0/queues/rx-0/bucket_load", None),
            ("steerage/history", None),
            ("steerage/memory/cap", Some("steerage/memory/cap")),
            ("proc/net/softnet_stat", Some("proc/net/softnet_stat")),
            ("something/else", None),
        ];
        for (path, expected) in told {
            assert_eq!(show(path).as_deref(), expected, "{path}");
        }
    }
}
