//! Tests that `rps_cpus` is parsed, stored and printed as in Linux, through `Tree`, the socket, and
//! files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use steerage::{CpuMask, limits::BUCKETS};
use steerage_control::{CpuView, ErrorCode};
use steerage_fixtures::HANG;

use crate::common::{ByFiles, BySocket, Direct, Instance, Way};

const MASK: &str = "sys/class/net/synthetic/queues/rx-0/rps_cpus";
const LIST: &str = "sys/class/net/synthetic/queues/rx-0/rps_cpus_list";

type Case = (&'static str, Result<&'static str, &'static str>);

/// Writes each value, and reads it again. After an error, a read must still return the old value.
fn play(way: &mut dyn Way, path: &str, cases: &[Case]) {
    for (written, expected) in cases {
        if written.is_empty() && !way.writes_nothing() {
            continue;
        }
        let before = way.read(path).unwrap();
        let done = way.write(path, written.as_bytes());
        let now = way.read(path).unwrap();
        match expected {
            Ok(read) => assert_eq!((done, now), (Ok(()), format!("{read}\n")), "{written:?}"),
            Err(code) => assert_eq!((done, now), (Err((*code).to_owned()), before), "{written:?}"),
        }
    }
}

fn by_each_way(instance: &Instance, path: &str, cases: &[Case]) {
    play(&mut Direct(Arc::clone(&instance.tree)), path, cases);
    play(&mut BySocket::new(&instance.tree), path, cases);
    if let Some(mut files) = ByFiles::new(&instance.tree) {
        play(&mut files, path, cases);
    }
}

#[test]
fn the_cpu_that_polls() {
    let cases = &[
        ("3", Ok("3")),
        ("\t0x7\n", Ok("7")),
        ("7", Ok("7")),
        ("8", Err("EINVAL")),
        ("-1", Err("EINVAL")),
        ("x", Err("EINVAL")),
        ("0", Ok("0")),
    ];
    by_each_way(&Instance::quiet(8), "sys/class/net/synthetic/queues/rx-0/cpu", cases);
}

#[test]
fn of_8_cpus() {
    by_each_way(
        &Instance::quiet(8),
        MASK,
        &[
            ("3\nzz", Ok("03")),
            ("c\0zz", Ok("0c")),
            ("5\n", Ok("05")),
            ("aB", Ok("ab")),
            ("Ff", Ok("ff")),
            // These values are errors: a chunk with a ninth digit, too many chunks (even zeros),
            // and a CPU that does not exist.
            ("100", Err("EOVERFLOW")),
            ("0,1", Err("EOVERFLOW")),
            ("000000001", Err("EOVERFLOW")),
            ("00000001", Ok("01")),
            ("0xff", Err("EINVAL")),
            ("0-3", Err("EINVAL")),
            ("g", Err("EINVAL")),
            ("-1", Err("EINVAL")),
            ("", Ok("00")),
            ("f0", Ok("f0")),
            (",", Ok("00")),
            ("1", Ok("01")),
            ("\n", Ok("00")),
            ("2", Ok("02")),
            ("0", Ok("00")),
        ],
    );
}

#[test]
fn of_36_cpus() {
    by_each_way(
        &Instance::quiet(36),
        MASK,
        &[
            // The first chunk of a mask has only the digits that it needs. Later chunks have 8
            // digits.
            ("1", Ok("0,00000001")),
            // Commas and white space separate the chunks of a mask. Several separators count as
            // one.
            ("1,5", Ok("1,00000005")),
            ("8,,5", Ok("8,00000005")),
            ("1 5", Ok("1,00000005")),
            (" \t4 ,\x0b, 6,\r\n", Ok("4,00000006")),
            ("10,0", Err("EOVERFLOW")),
            ("000000001", Err("EOVERFLOW")),
            ("0,0,0", Err("EOVERFLOW")),
            ("f,ffffffff", Ok("f,ffffffff")),
        ],
    );
}

#[test]
fn of_12_cpus_and_as_lists() {
    let instance = Instance::quiet(12);
    by_each_way(&instance, MASK, &[("f", Ok("00f")), ("fff", Ok("fff")), ("1000", Err("EOVERFLOW"))]);
    by_each_way(
        &instance,
        LIST,
        &[
            ("0-3,8", Ok("0-3,8")),
            ("all", Ok("0-11")),
            ("N", Ok("11")),
            ("8-N\n", Ok("8-11")),
            ("0-11:2/4", Ok("0-1,4-5,8-9")),
            ("12", Err("ERANGE")),
            ("0-99999999999", Err("ERANGE")),
            ("3-0", Err("EINVAL")),
            ("0xf", Err("EINVAL")),
            ("0-3:2", Err("EINVAL")),
            ("", Ok("")),
            ("7", Ok("7")),
        ],
    );
    assert_eq!(Direct(Arc::clone(&instance.tree)).read(MASK), Ok("080\n".to_owned()));
}

/// The pattern in the mask is from the kernel's documentation. CPUs that the instance does not have
/// count as offline.
#[test]
fn a_pattern_over_1024_cpus() {
    let instance = Instance::new("synthetic:rate=1000", 4, CpuView::new(1024));
    let mut tree = Direct(Arc::clone(&instance.tree));
    play(&mut tree, LIST, &[("3", Ok("3")), ("0-1023:2/256", Ok("0-1")), ("256-257", Ok("")), ("1024", Err("ERANGE"))]);
}

/// A user without permission gets `EPERM` even if the value is wrong. Every user may read the mask.
#[test]
fn only_root_and_the_instances_user_may_write() {
    const OWNER: u32 = 12345;
    let instance = Instance::of_user(OWNER, "synthetic:rate=1000", 8, CpuView::new(8));
    let (tree, id) = (&instance.tree, instance.tree.find(MASK).unwrap());
    for value in ["3", "zz", "100"] {
        let error = tree.write(id, value.as_bytes(), OWNER + 1).unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotPermitted, "{value}");
    }
    assert_eq!((tree.read(id).unwrap().as_str(), tree.entry(id).unwrap().mode), ("ff\n", 0o644));
    tree.write(id, b"3", 0).unwrap();
    tree.write(id, b"7", OWNER).unwrap();
    assert_eq!(tree.read(id).unwrap(), "07\n");
    assert_eq!(tree.events_since(0).iter().map(|event| event.uid).collect::<Vec<_>>(), [0, OWNER]);
}

#[test]
fn isolated_cpus_are_taken_out() {
    let isolated = CpuMask::parse_list("2-3", 4).unwrap();
    let instance = Instance::new("synthetic:rate=1000", 4, CpuView::new(4).isolated(isolated));
    let cases: &[Case] = &[("e", Ok("2")), ("c", Err("EINVAL")), ("0", Ok("0")), ("f", Ok("3")), ("4", Err("EINVAL"))];
    by_each_way(&instance, MASK, cases);
}

/// A CPU that is removed from the mask because it is offline does not return to the mask when it
/// comes online.
#[test]
fn offline_cpus_are_dropped() {
    let is_back = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&is_back);
    let online = move || {
        let list = if asked.load(Ordering::Relaxed) { "0-3" } else { "0-1" };
        CpuMask::parse_list(list, 4).unwrap()
    };
    let instance = Instance::new("synthetic:rate=1000", 4, CpuView::new(4).online(online));
    let mut tree = Direct(Arc::clone(&instance.tree));
    play(&mut tree, MASK, &[("c", Ok("0")), ("f", Ok("3")), ("8", Ok("0")), ("7", Ok("3"))]);
    is_back.store(true, Ordering::Relaxed);
    assert_eq!(tree.read(MASK), Ok("3\n".to_owned()));
    play(&mut tree, MASK, &[("7", Ok("7")), ("10", Err("EOVERFLOW"))]);
}

/// Each CPU of the mask gets a range of hashes of equal size (`cpus[hash * len >> 32]`). If the
/// mask is empty, the polling CPU gets all packets.
#[test]
fn buckets_follow_the_mask() {
    let instance = Instance::quiet(4);
    let mut tree = Direct(Arc::clone(&instance.tree));
    let buckets = "sys/class/net/synthetic/queues/rx-0/buckets";
    assert_eq!(tree.read(buckets).unwrap(), "0-1023 0\n1024-2047 1\n2048-3071 2\n3072-4095 3\n");
    tree.write(MASK, b"0").unwrap();
    assert_eq!(tree.read(buckets).unwrap(), format!("0-{} 0\n", BUCKETS - 1));
    assert_eq!(tree.read("sys/class/net/synthetic/queues/rx-0/cpu").unwrap(), "0\n");
    // A CPU may count handled packets late, so the counts are read while other CPUs are idle.
    let processed = || -> Vec<u64> { instance.handle().snapshot().cpus.iter().map(|cpu| cpu.processed).collect() };
    let start = Instant::now();
    loop {
        let before = processed();
        while processed()[0] < before[0] + 500 {
            std::thread::yield_now();
        }
        if processed()[1..] == before[1..] {
            break;
        }
        assert!(start.elapsed() < HANG, "other CPUs go on: {before:?}, {:?}", processed());
    }
    tree.write(MASK, b"a").unwrap();
    let text = tree.read(buckets).unwrap();
    let shares = |cpu: &str| -> usize {
        let lines = text.lines().filter_map(|line| line.strip_suffix(cpu));
        lines
            .map(|range| {
                range
                    .trim()
                    .split_once('-')
                    .map_or(1, |(a, b)| b.parse::<usize>().unwrap() + 1 - a.parse::<usize>().unwrap())
            })
            .sum()
    };
    assert_eq!((shares(" 1"), shares(" 3")), (BUCKETS / 2, BUCKETS / 2), "{text}");
}

#[test]
fn the_tree_tells_what_the_handle_set() {
    let instance = Instance::quiet(4);
    let mut tree = Direct(Arc::clone(&instance.tree));
    play(&mut tree, MASK, &[("0", Ok("0"))]);
    instance.handle().set_rps_cpus(&CpuMask::parse_list("1-2", 4).unwrap()).unwrap();
    assert_eq!(tree.read(MASK), Ok("6\n".to_owned()));
    play(&mut tree, MASK, &[("6", Ok("6")), ("0", Ok("0"))]);
}
