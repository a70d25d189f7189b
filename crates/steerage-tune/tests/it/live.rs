//! Tests that change the kernel's own files in network namespaces.

use std::process::Command;
use std::sync::mpsc;
use std::thread;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use steerage_fixtures::cable::Net;
use steerage_fixtures::scratch::Scratch;
use steerage_tune::{Machine, Root, Stages, Undo, Watch, Watched, reached_through};

use crate::made_up::rps;

/// Mounts /sys in the namespace `near`, because a mount of /sys shows the interfaces of the
/// namespace in which it was made.
fn below(net: &Net, body: impl FnOnce(&Root) + Send) {
    net.near(|| {
        let place = Scratch::new();
        let (sys, proc) = (place.join("sys"), place.join("proc"));
        std::fs::create_dir(&sys).unwrap();
        std::os::unix::fs::symlink("/proc", proc).unwrap();
        mount("sysfs", &sys, "sysfs", MountFlags::empty(), None::<&std::ffi::CStr>).unwrap();
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(&Root::below(&*place))));
        unmount(&sys, UnmountFlags::DETACH).unwrap();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn values(root: &Root) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for queue in root.names("/sys/class/net/near0/queues") {
        for name in ["rps_cpus", "rps_flow_cnt", "xps_cpus"] {
            let name = format!("/sys/class/net/near0/queues/{queue}/{name}");
            all.extend(root.read(&name).ok().map(|value| (name, value)));
        }
    }
    assert!(all.len() >= 6, "{all:?}");
    all
}

#[test]
fn the_kernel_reads_back_what_was_set_and_restored() {
    let Some(net) = Net::with("numrxqueues 2 numtxqueues 2") else { return };
    below(&net, |root| {
        let (before, directory) = (values(root), Scratch::new());
        let mut machine = Machine::below(root.clone());
        let wish = rps(0..2).set("rps_flow_cnt", steerage_tune::Value::Number(5000));
        let plan = Stages::default().plan(&mut machine, "near0", &wish);
        assert_eq!(plan.changes.len(), 4);
        let mut undo = Undo::begin(&directory, &mut machine, "near0", &[&plan]).unwrap();
        plan.new_setting().apply(&mut machine).unwrap();
        undo.keep(&mut machine, plan.new_setting()).unwrap();
        assert_eq!(plan.new_setting().differences(&mut machine), []);
        assert!(Stages::default().plan(&mut machine, "near0", &wish).changes.is_empty());
        let undo = Undo::load(&directory, &machine, "near0").unwrap().unwrap();
        assert_eq!(undo.restore(&mut machine).unwrap().left, [""; 0]);
        assert_eq!(values(root), before);
    });
}

#[test]
fn a_watch_sets_values_again_and_knows_new_queues() {
    let Some(net) = Net::with("numrxqueues 2 numtxqueues 2") else { return };
    if !steerage_fixtures::is_installed("ethtool", "ethtool") {
        return;
    }
    below(&net, |root| {
        let directory = Scratch::new();
        let ethtool = |queues: &str| {
            let done = Command::new("ethtool").args(["-L", "near0", "rx", queues]).output().unwrap();
            assert!(done.status.success(), "{done:?}");
        };
        ethtool("1");
        let mut machine = Machine::below(root.clone());
        let plan = Stages::default().plan(&mut machine, "near0", &rps(0..1));
        let mut undo = Undo::begin(&directory, &mut machine, "near0", &[&plan]).unwrap();
        plan.new_setting().apply(&mut machine).unwrap();
        undo.keep(&mut machine, plan.new_setting()).unwrap();
        let mut watch = Watch::open(&machine, "near0").unwrap();
        let (stop, _end) = rustix::pipe::pipe().unwrap();
        let stop = std::os::fd::AsFd::as_fd(&stop);
        let (first, second) =
            ("/sys/class/net/near0/queues/rx-0/rps_cpus", "/sys/class/net/near0/queues/rx-1/rps_cpus");
        root.write(first, "0").unwrap();
        for state in ["down", "up"] {
            net.must(&format!("-n {} link set near0 {state}", net.near));
        }
        let mut lines = Vec::new();
        assert_eq!(watch.wait(stop).unwrap(), Watched::Changed);
        watch.set_again(&mut machine, &mut undo, &mut |change| lines.push(change.to_string())).unwrap();
        assert_eq!(lines, [format!("set {first} to {} again (it was {})", root.read(first).unwrap(), "0")]);

        ethtool("2");
        while !undo.knobs().any(|knob| knob.0 == second) {
            assert_eq!(watch.wait(stop).unwrap(), Watched::Changed);
            watch.set_again(&mut machine, &mut undo, &mut |_| {}).unwrap();
        }
        assert_eq!(root.read(second).unwrap(), root.read(first).unwrap());
        let counts = watch.counts();
        let of = |counts: &[(&str, u64)], name: &str| counts.iter().find(|(it, _)| *it == name).unwrap().1;
        assert!(of(&counts.events(), "link") >= 2 && of(&counts.events(), "queues") >= 1, "{counts:?}");
        assert_eq!((of(&counts.set_again(), "rps_cpus"), of(&counts.failures(), "rps_cpus")), (2, 0), "{counts:?}");
        undo.restore(&mut machine).unwrap();
        assert_eq!((root.read(first).unwrap().as_str(), root.read(second).unwrap().as_str()), ("0", "0"));
    });
}

#[test]
fn a_watch_ends_with_its_interface_and_when_it_is_stopped() {
    let Some(net) = Net::new() else { return };
    below(&net, |root| {
        let machine = Machine::below(root.clone());
        let mut watch = Watch::open(&machine, "near0").unwrap();
        let (stop, end) = rustix::pipe::pipe().unwrap();
        let (ended, ends) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let stop = std::os::fd::AsFd::as_fd(&stop);
                ended.send(watch.wait(stop)).unwrap();
            });
            drop(end);
            assert_eq!(ends.recv().unwrap().unwrap(), Watched::Stopped);
        });
    });
}

#[test]
fn the_interface_of_the_default_route_is_found() {
    let Some(net) = Net::new() else { return };
    let near = net.near.clone();
    below(&net, |root| {
        assert_eq!(reached_through(root, "near0").unwrap(), None);
        net.must(&format!("-n {near} route add default via 10.209.0.2 dev near0"));
        assert_eq!(reached_through(root, "near0").unwrap().as_deref(), Some("near0 has the default route"));
        assert_eq!(reached_through(root, "lo").unwrap(), None);
    });
}
