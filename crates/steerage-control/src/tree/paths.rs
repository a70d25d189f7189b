use steerage::Snapshot;

use super::devices::{Device, directories};
use super::masks::Form;
use super::numbers::{Number, SYSCTLS};
use super::{Attribute, interface, statistics};

pub(super) const NET: &str = "sys/class/net";

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
        ("steerage/version".to_owned(), Attribute::Fixed(env!("CARGO_PKG_VERSION").into())),
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
        // The kernel also reports `unknown` if a driver does not report the state.
        add("operstate", Attribute::Fixed("unknown".into()));
    }
    add("kind", Attribute::Fixed(device.kind.clone()));
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
