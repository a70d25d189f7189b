//! Tests attributes that have no separate test file, and rules for all attributes.

use std::collections::BTreeSet;
use std::sync::Arc;

use steerage::stats::DropReason;
use steerage_control::{CpuView, ErrorCode, NodeId, Tree};

use crate::common::{Direct, Instance, Way, owner};

fn all(tree: &Tree, at: NodeId) -> Vec<String> {
    let below = |entry: &steerage_control::Entry| match entry.is_directory {
        true => all(tree, entry.id),
        false => vec![tree.path(entry.id)],
    };
    tree.list(at).iter().flat_map(below).collect()
}

/// The files in the directory `statistics` of Linux 6.18.
const KERNELS: [&str; 24] = [
    "collisions",
    "multicast",
    "rx_bytes",
    "rx_compressed",
    "rx_crc_errors",
    "rx_dropped",
    "rx_errors",
    "rx_fifo_errors",
    "rx_frame_errors",
    "rx_length_errors",
    "rx_missed_errors",
    "rx_nohandler",
    "rx_over_errors",
    "rx_packets",
    "tx_aborted_errors",
    "tx_bytes",
    "tx_carrier_errors",
    "tx_compressed",
    "tx_dropped",
    "tx_errors",
    "tx_fifo_errors",
    "tx_heartbeat_errors",
    "tx_packets",
    "tx_window_errors",
];

#[test]
fn every_attribute_can_be_read_and_found_by_its_path() {
    let instance = Instance::quiet(2);
    let tree = &instance.tree;
    let paths = all(tree, NodeId::ROOT);
    assert_eq!(paths.iter().collect::<BTreeSet<_>>().len(), paths.len(), "twice the same path");
    for path in &paths {
        let id = tree.find(path).unwrap();
        let text = tree.read(id).unwrap();
        assert!(path == "steerage/history" || text.ends_with('\n'), "{path}: {text:?}");
        assert_eq!(tree.is_writable(id), tree.entry(id).unwrap().mode == 0o644, "{path}");
        assert_eq!(tree.find(&format!("//{path}/")).unwrap(), id);
    }
    let statistics = |path: &String| path.strip_prefix("sys/class/net/synthetic/statistics/").map(str::to_owned);
    let ours: BTreeSet<String> = paths.iter().filter_map(statistics).collect();
    // steerage does not count multicast packets, and a count of 0 would be wrong.
    let expected = KERNELS.iter().filter(|name| **name != "multicast").map(|name| (*name).to_owned()).collect();
    assert_eq!(ours, expected);
}

#[test]
fn what_is_not_there_and_what_cannot_be_written() {
    let instance = Instance::quiet(2);
    let tree = &instance.tree;
    for path in ["x", "proc/net/softnet_stat/x", "sys/class/net/synthetic/queues/rx-1/rps_cpus", "..", "proc/./net"] {
        assert_eq!(tree.find(path).unwrap_err().code(), ErrorCode::NoEntry, "{path}");
    }
    let code = |path: &str| {
        let id = tree.find(path).unwrap();
        (tree.read(id).err().map(|e| e.code()), tree.write(id, b"1", owner()).err().map(|e| e.code()))
    };
    assert_eq!(code("proc/net"), (Some(ErrorCode::IsDirectory), Some(ErrorCode::IsDirectory)));
    assert_eq!(code("proc/net/softnet_stat"), (None, Some(ErrorCode::Access)));
    assert_eq!(code("sys/class/net/synthetic/statistics/rx_packets"), (None, Some(ErrorCode::Access)));
}

#[test]
fn counts_are_the_ledgers() {
    let machine = CpuView::new(3);
    let instance = Instance::new("synthetic:packets=50000,flows=100,queues=2", 3, machine);
    while !instance.handle().is_finished() {
        std::thread::yield_now();
    }
    let mut tree = Direct(Arc::clone(&instance.tree));
    // The packet threads count wake-ups until they end, so the final counts are read after the end.
    let ledger = instance.end().snapshot;
    let mut number = |path: &str| tree.read(path).unwrap().trim().parse::<u64>().unwrap();
    let device = "sys/class/net/synthetic/statistics";
    assert_eq!(number(&format!("{device}/rx_packets")), 50_000);
    assert_eq!(number(&format!("{device}/rx_bytes")), ledger.received_bytes());
    assert_eq!(number(&format!("{device}/rx_dropped")), ledger.dropped().total());
    assert_eq!(number(&format!("{device}/rx_missed_errors")), ledger.dropped().get(DropReason::Device));
    assert_eq!(
        (number("steerage/received"), number("steerage/in_flight"), number("steerage/reordered")),
        (50_000, 0, 0)
    );

    let softnet = tree.read("proc/net/softnet_stat").unwrap();
    assert_eq!(softnet.lines().count(), 3);
    for (line, cpu) in softnet.lines().zip(&ledger.cpus) {
        assert!(line.len() == 15 * 9 - 1 && !line.contains(|c: char| c.is_ascii_uppercase()), "{line}");
        let columns: Vec<u64> = line.split(' ').map(|column| u64::from_str_radix(column, 16).unwrap()).collect();
        let mut expected = [0; 15];
        expected[0] = cpu.processed;
        expected[2] = cpu.time_squeeze;
        expected[9] = cpu.wakes_received;
        expected[12] = u64::from(cpu.cpu.0);
        assert_eq!(columns, expected, "{line}");
    }
}

#[test]
fn sysctls_are_in_force_when_they_are_read() {
    let instance = Instance::quiet(2);
    let mut tree = Direct(Arc::clone(&instance.tree));
    let core = |name: &str| format!("proc/sys/net/core/{name}");
    for (name, written, read) in [
        // The instance starts with a backlog limit of 256, which may rise to 16 times as much while
        // the instance runs.
        ("netdev_max_backlog", "100\n", Ok("100\n")),
        ("netdev_max_backlog", "0x80", Ok("128\n")),
        ("netdev_max_backlog", "250000\n", Ok("4096\n")),
        ("netdev_max_backlog", "0", Err("EINVAL")),
        ("netdev_max_backlog", "many", Err("EINVAL")),
        ("dev_weight", "16", Ok("16\n")),
        ("dev_weight", "600", Ok("64\n")),
        ("dev_weight", "-1", Err("EINVAL")),
        ("netdev_budget", "600\n", Ok("600\n")),
        ("netdev_budget", "", Err("EINVAL")),
        ("flow_limit_table_len", "8192", Ok("8192\n")),
        ("flow_limit_table_len", "8193", Err("EINVAL")),
        ("flow_limit_table_len", "1048576", Ok("65536\n")),
        ("netdev_budget_usecs", "8000\n", Ok("8000\n")),
        ("netdev_budget_usecs", "-8000\n", Err("EINVAL")),
    ] {
        let before = tree.read(&core(name)).unwrap();
        match (tree.write(&core(name), written.as_bytes()), read) {
            (Ok(()), Ok(read)) => assert_eq!(tree.read(&core(name)).unwrap(), read, "{name} {written:?}"),
            (done, read) => {
                assert_eq!(done, read.map(drop).map_err(str::to_owned), "{name} {written:?}");
                assert_eq!(tree.read(&core(name)).unwrap(), before);
            }
        }
    }
    let limits = instance.handle().limits();
    assert_eq!((limits.backlog, limits.dev_weight, limits.budget), (16 * 256, 64, 600));
    assert_eq!(limits.budget_time.as_micros(), 8000);
    // Writing the current value to an attribute does not count as a change.
    let changes: Vec<(String, String)> =
        instance.tree.events_since(0).into_iter().map(|event| (event.from, event.to)).collect();
    let expected = [("256", "100"), ("100", "128"), ("128", "4096"), ("64", "16"), ("16", "64")];
    assert_eq!(changes[..5], expected.map(|(from, to)| (from.to_owned(), to.to_owned())));
}

#[test]
fn the_flow_limit_has_a_mask_of_its_own() {
    let instance = Instance::quiet(4);
    let mut tree = Direct(Arc::clone(&instance.tree));
    let path = "proc/sys/net/core/flow_limit_cpu_bitmap";
    assert_eq!(tree.read(path).unwrap(), "0\n");
    tree.write(path, b"a\n").unwrap();
    assert_eq!(
        (tree.read(path).unwrap().as_str(), instance.handle().flow_limit_cpus().to_list()),
        ("a\n", "1,3".to_owned())
    );
    assert_eq!(tree.write(path, b"10"), Err("EOVERFLOW".to_owned()));
    assert_eq!(tree.write(path, b"0-1"), Err("EINVAL".to_owned()));
    assert_eq!(tree.read(path).unwrap(), "a\n");
    tree.write(path, b"").unwrap();
    assert_eq!(tree.read(path).unwrap(), "0\n");
}

/// A private flag (as in ethtool) switches all local page caches of a device. Each queue has its
/// own cache size.
#[test]
fn the_local_page_cache_is_switched_and_sized() {
    let instance = Instance::new("synthetic:rate=1000,queues=2", 2, CpuView::new(2));
    let mut tree = Direct(Arc::clone(&instance.tree));
    let flag = "sys/class/net/synthetic/priv_flags/local_page_cache";
    let queue = |queue: usize, file: &str| format!("sys/class/net/synthetic/queues/rx-{queue}/{file}");
    let size = |nth: usize| queue(nth, "lpc_pages");
    let page_bytes: u64 = tree.read("steerage/memory/page_bytes").unwrap().trim().parse().unwrap();
    let mut is = |flag_is: &str, sizes: [u64; 2]| {
        let mut read = |path: &str| tree.read(path).unwrap().trim().to_owned();
        assert_eq!(read(flag), flag_is);
        assert_eq!([0, 1].map(|nth| read(&size(nth))), sizes.map(|size| size.to_string()));
        let bytes = sizes.map(|size| size * page_bytes);
        assert_eq!([0, 1].map(|nth| read(&queue(nth, "lpc_bytes"))), bytes.map(|bytes| bytes.to_string()));
        assert_eq!(read("steerage/memory/lpc_bytes"), (bytes[0] + bytes[1]).to_string());
        tree.clone()
    };
    is("1", [2048, 2048]).write(&size(1), b"4096\n").unwrap();
    is("1", [2048, 4096]).write(&size(0), b"0\n").unwrap();
    is("1", [0, 4096]).write(flag, b"1\n").unwrap();
    is("1", [2048, 4096]).write(flag, b"0\n").unwrap();
    assert_eq!(is("0", [0, 0]).write(flag, b"2\n"), Err("EINVAL".to_owned()));
    is("0", [0, 0]).write(flag, b"1\n").unwrap();
    is("1", [2048, 2048]).write(&size(1), b"32769\n").unwrap();
    is("1", [2048, 32768]);
    let copybreak = "sys/class/net/synthetic/queues/rx-0/copybreak";
    assert_eq!(tree.write(copybreak, b"256"), Err("EOPNOTSUPP".to_owned()));
    tree.write(copybreak, b"0").unwrap();
    assert_eq!(tree.read(copybreak).unwrap(), "0\n");
    let mut statistic =
        |name: &str| tree.read(&queue(0, &format!("statistics/{name}"))).unwrap().trim().parse::<u64>().unwrap();
    assert_eq!(statistic("lpc_wrong_numa"), 0);
    assert!(statistic("lpc_warm_up") + statistic("lpc_full") <= statistic("alloc_slow"));
}

/// Frames in several buffers can be copied to one page.
#[test]
fn copybreak_is_set_where_frames_can_be_copied() {
    let instance = Instance::new("synthetic:rate=1000,size=9000,buffer=2048", 2, CpuView::new(2));
    let mut tree = Direct(Arc::clone(&instance.tree));
    let copybreak = "sys/class/net/synthetic/queues/rx-0/copybreak";
    tree.write(copybreak, b"256").unwrap();
    assert_eq!(tree.read(copybreak).unwrap(), "256\n");
}

#[test]
fn of_a_long_value_a_page_is_read() {
    let instance = Instance::quiet(2);
    let mut tree = Direct(Arc::clone(&instance.tree));
    let mask = "sys/class/net/synthetic/queues/rx-0/rps_cpus";
    let long = |spaces: usize| [&b" ".repeat(spaces)[..], b"1"].concat();
    tree.write(mask, &long(4095)).unwrap();
    assert_eq!(tree.read(mask).unwrap(), "1\n");
    tree.write(mask, &long(4096)).unwrap();
    assert_eq!(tree.read(mask).unwrap(), "0\n");
}
