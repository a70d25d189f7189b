use std::time::Duration;

use super::*;
use crate::probe::{PAIR_TIME_MAX, PAIRS_MAX};
use crate::test_machines::{Made, Says, four_caches, hybrid, list, two_sockets};
use crate::watch::Watch;

fn order(topology: &Topology, owner: u16, candidates: &str) -> Vec<u16> {
    topology.joining_order(CpuId(owner), &list(candidates)).into_iter().map(|cpu| cpu.0).collect()
}

fn cpus(lists: &[&str]) -> Vec<u16> {
    lists.iter().flat_map(|one| list(one).iter().map(|cpu| cpu.0).collect::<Vec<_>>()).collect()
}

#[test]
fn two_sockets_with_odd_numbers() {
    let made = two_sockets();
    let topology = made.topology(None);
    let cores = ["1,5,7,9,11,13,15", "17,21,23,25,27,29,31", "19", "0-14:1/2", "16-30:1/2"];
    assert_eq!(order(&topology, 3, "0-31"), cpus(&cores));
    // If the first hardware thread of a core is no candidate, the second thread takes the position
    // of the first thread.
    assert_eq!(order(&topology, 0, "0,2,16,18,20"), [2, 20, 18, 16]);
    let place = topology.place(CpuId(19)).unwrap();
    assert_eq!((place.node, place.package, place.capacity), (Some(1), Some(1), 1024));
    assert_eq!(place.siblings, list("3,19"));
    assert_eq!(*place.cache.as_ref().unwrap(), SharedCache { level: 3, cpus: list("1-31:1/2") });
    assert_eq!((topology.cores().len(), topology.nodes().len(), topology.nr_cpu_ids()), (16, 2, Some(32)));
}

#[test]
fn a_node_has_several_caches() {
    let made = four_caches();
    let topology = made.topology(None);
    let expected = ["4,6,7", "20,22,23", "21", "0-3,8-15", "16-19,24-31"];
    assert_eq!(order(&topology, 5, "0-31"), cpus(&expected));
    assert_eq!(order(&topology, 5, "0,4,8"), [4, 0, 8]);
}

#[test]
fn small_cores_are_cores_all_the_same() {
    let expected = ["2,4,6", "8-11", "3,5,7", "1"];
    let told = hybrid(|cpu| Some(if cpu < 8 { 1024 } else { 600 }));
    assert_eq!(order(&told.topology(None), 0, "0-11"), cpus(&expected));
    // Some kernels list the efficient cores, but not their capacity.
    let named = hybrid(|_| None);
    named.write("sys/devices/cpu_atom/cpus", "8-11");
    assert_eq!(order(&named.topology(None), 0, "0-11"), cpus(&expected));
    let unknown = hybrid(|_| None);
    assert_eq!(order(&unknown.topology(None), 8, "0-11"), cpus(&["0,2,4,6", "9-11", "1,3,5,7"]));
}

#[test]
fn nodes_come_by_their_distance() {
    let made = Made::of(6, |cpu| Says {
        node: u32::from(cpu / 2),
        package: u32::from(cpu / 2),
        siblings: cpu.to_string(),
        cache: format!("{}-{}", cpu / 2 * 2, cpu / 2 * 2 + 1),
        capacity: None,
    });
    assert_eq!(order(&made.topology(None), 0, "0-5"), [1, 2, 3, 4, 5]);
    made.write("sys/devices/system/node/node0/distance", "10 31 21");
    assert_eq!(order(&made.topology(None), 0, "0-5"), [1, 4, 5, 2, 3]);
}

#[test]
fn a_machine_that_shows_nothing() {
    let nothing = Made::new(&[]);
    let topology = nothing.topology(Some("0-3"));
    assert_eq!((topology.online(), topology.allowed()), (&list("0-3"), &list("0-3")));
    assert_eq!(order(&topology, 2, "0-3"), [0, 1, 3]);
    assert_eq!((topology.nr_cpu_ids(), topology.place(CpuId(0)), topology.quota()), (None, None, None));
    assert_eq!(topology.default_mask(), list("0-3"));
    assert_eq!(nothing.topology(None).default_mask(), CpuMask::new());
    // These files contain CPU lists that no kernel writes, so they count as missing.
    let odd =
        Made::new(&[("sys/devices/system/cpu/online", "all of them"), ("sys/devices/system/cpu/nohz_full", "(null)")]);
    assert_eq!((odd.topology(Some("1")).online(), odd.topology(None).isolated()), (&list("1"), &CpuMask::new()));
}

#[test]
fn what_is_not_ours_is_not_in_the_default() {
    let made = two_sockets();
    made.write("sys/devices/system/cpu/online", "0-29,31");
    made.write("proc/self/cgroup", "0::/");
    made.write("sys/fs/cgroup/cpuset.cpus.effective", "8-31");
    made.write("sys/devices/system/cpu/isolated", "10-11");
    made.write("sys/devices/system/cpu/nohz_full", "12");
    let topology = made.topology(Some("4-31"));
    assert_eq!((topology.allowed(), topology.isolated()), (&list("8-29,31"), &list("10-12")));
    assert_eq!(topology.default_mask(), list("8-9,13-29,31"));
    assert_eq!(order(&topology, 8, "8-12,30"), [10, 12, 9, 11, 30]);
    // If all allowed CPUs are isolated, the administrator has reserved them for this process.
    assert_eq!(made.topology(Some("10-11")).default_mask(), list("10-11"));
    made.write("sys/fs/cgroup/cpu.max", "350000 100000");
    assert_eq!(made.topology(None).default_mask(), list("8,14,16"));
    made.write("sys/fs/cgroup/cpu.max", "10000 100000");
    assert_eq!(made.topology(None).default_mask(), list("8"));
}

fn set(topology: &mut Topology, owner: u16, nanoseconds: &[(u16, u64)]) {
    for (cpu, latency) in nanoseconds {
        topology.set_latency(CpuId(*cpu), CpuId(owner), Duration::from_nanos(*latency));
    }
}

#[test]
fn what_was_measured_goes_before_what_is_told() {
    // The kernel of a virtual machine reports one last-level cache or none, although the host has
    // two.
    let made = Made::of(4, |cpu| Says {
        node: 0,
        package: 0,
        siblings: cpu.to_string(),
        cache: "0-3".to_owned(),
        capacity: None,
    });
    for mut topology in [made.topology(None), Made::new(&[]).topology(Some("0-3")), Topology::even(4)] {
        assert_eq!(order(&topology, 0, "0-3"), [1, 2, 3]);
        set(&mut topology, 0, &[(1, 203), (2, 61), (3, 58)]);
        assert_eq!(order(&topology, 0, "0-3"), [2, 3, 1]);
        assert_eq!(topology.latency(CpuId(0), CpuId(1)), Some(Duration::from_nanos(203)));
        assert_eq!(order(&topology, 2, "0-3"), [0, 1, 3]);
        set(&mut topology, 0, &[(1, 63)]);
        assert_eq!(order(&topology, 0, "0-3"), [1, 2, 3]);
    }
}

#[test]
fn threads_of_one_core_have_no_distance() {
    let mut topology = two_sockets().topology(None);
    set(&mut topology, 3, &[(19, 10), (5, 60)]);
    let near = Nearness::of(&topology, &[3, 19, 5, 7].map(CpuId), &[0]);
    assert_eq!(near.apart, [((0, 2), Duration::from_nanos(60))].into());
    assert_eq!(near.orders, [vec![2, 3, 1], vec![], vec![], vec![]]);
}

#[test]
fn those_measured_stand_for_their_cache() {
    let made = four_caches();
    let mut topology = made.topology(None);
    // In these measurements, CPU 8, which has another cache, is as near to CPU 0 as CPU 1, which
    // has the same cache. The owner's second hardware thread is the nearest CPU, but still comes
    // after unused cores.
    set(&mut topology, 0, &[(1, 22), (16, 7), (4, 80), (8, 25), (12, 90)]);
    let expected = ["1-3", "17-19", "16", "8-11", "24-27", "4-7,12-15", "20-23,28-31"];
    assert_eq!(order(&topology, 0, "0-31"), cpus(&expected));
}

#[test]
fn of_many_cpus_some_of_each_cache_are_measured() {
    let made = Made::of(128, |cpu| Says {
        node: 0,
        package: 0,
        siblings: cpu.to_string(),
        cache: format!("{}-{}", cpu / 16 * 16, cpu / 16 * 16 + 15),
        capacity: None,
    });
    let sample = made.topology(None).sample(CpuId(0), &list("0-127"));
    assert_eq!(sample.len(), PAIRS_MAX);
    for cache in 0..8 {
        assert_eq!(sample.iter().filter(|cpu| cpu.0 / 16 == cache).count(), PAIRS_MAX / 8);
    }
    let few = made.topology(None).sample(CpuId(0), &list("0-3,64"));
    assert_eq!(few.into_iter().map(|cpu| cpu.0).collect::<Vec<_>>(), [1, 64, 2, 3]);
}

/// This test repeats its measurement, because a CPU may be busy.
#[test]
fn real_cpus_are_measured() {
    let mut topology = Topology::read();
    let ours = topology.default_mask();
    let owner = ours.first().unwrap();
    let wanted = topology.sample(owner, &ours).len();
    let mut measured = 0;
    for _ in 0..10_000 {
        measured = measured.max(topology.measure(owner, &ours));
        if measured > 0 || wanted == 0 {
            break;
        }
    }
    assert_eq!(measured > 0, wanted > 0, "of {wanted} pairs");
    for cpu in ours.iter() {
        // A measurement that reaches the upper limit of the latency ends without a result.
        if let Some(latency) = topology.latency(owner, cpu) {
            assert!(latency > Duration::ZERO && latency < PAIR_TIME_MAX / 64, "{owner} {cpu}: {latency:?}");
        }
    }
    assert_eq!(topology.measure(owner, &list("65535")), 0);
}

#[test]
fn the_watch_tells_each_change_once() {
    let made = two_sockets();
    made.write("proc/self/cgroup", "0::/");
    let (tell, told) = std::sync::mpsc::channel::<Option<CpuMask>>();
    let mut affinity = Some(list("0-31"));
    let mut watch = Watch::below(made.root(), list("0-7"), move || {
        if let Ok(told) = told.try_recv() {
            affinity = told;
        }
        affinity.clone()
    });
    assert_eq!(watch.poll(), None);
    let online = |cpus| made.write("sys/devices/system/cpu/online", cpus);
    online("0-4,6-31");
    assert_eq!(watch.poll(), Some(list("0-4,6-7")));
    assert_eq!((watch.poll(), watch.living()), (None, &list("0-4,6-7")));
    made.write("sys/fs/cgroup/cpuset.cpus.effective", "2-31");
    assert_eq!(watch.poll(), Some(list("2-4,6-7")));
    // CPU 5 is back. CPUs 0 and 1 remain absent, because they are outside of the cpuset.
    online("0-20");
    assert_eq!(watch.poll(), Some(list("2-7")));
    online("0-19");
    assert_eq!(watch.poll(), None);
    made.remove("sys/fs/cgroup/cpuset.cpus.effective");
    assert_eq!(watch.poll(), Some(list("0-7")));
    // In this test, CPUs first leave the affinity, and later the affinity cannot be read.
    tell.send(Some(list("4-31"))).unwrap();
    assert_eq!(watch.poll(), Some(list("4-7")));
    tell.send(None).unwrap();
    assert_eq!(watch.poll(), Some(list("0-7")));
    online("8-31");
    assert_eq!(watch.poll(), Some(CpuMask::new()));
}

/// `taskset -c 0 steerage --cpus 4-5`: users may name CPUs outside of the affinity.
#[test]
fn an_affinity_that_was_gone_beyond_is_no_bound() {
    let made = two_sockets();
    let mut affinity = [list("0"), list("0,4-5"), list("0,5")].into_iter().cycle();
    let mut watch = Watch::below(made.root(), list("4-5"), move || affinity.next());
    assert_eq!((watch.poll(), watch.poll()), (None, None));
    // CPU 4 was in the affinity and has left it, so CPU 4 is absent.
    assert_eq!(watch.poll(), Some(list("5")));
}
