use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::thread;

use steerage_fixtures::scratch::Scratch;
use steerage_tune::candidates::Candidate;
use steerage_tune::facts::{Card, Facts, Sample};
use steerage_tune::measure::{Live, Options, search};
use steerage_tune::{Scope, Setting, Stages, Undo, Value, Watch, Wish, link_file};

use crate::made_up::{MadeUp, rps};

const RPS: &str = "sys/class/net/eth0/queues/rx-0/rps_cpus";

fn wishes() -> Vec<Wish> {
    vec![rps(0..2), rps(2..4).set("netdev_budget", Value::Number(600)), rps(0..0)]
}

/// Writes an undo file as `tune --apply` does.
fn begun(made_up: &MadeUp, directory: &Scratch) -> (Undo, Vec<steerage_tune::Plan>) {
    let mut machine = made_up.machine();
    let stages = Stages::default().with(Scope::Global);
    let plans: Vec<_> = wishes().iter().map(|wish| stages.plan(&mut machine, "eth0", wish)).collect();
    let undo = Undo::begin(directory, &mut machine, "eth0", &plans.iter().collect::<Vec<_>>()).unwrap();
    (undo, plans)
}

/// Sets the values, and stores them in the undo file as the setting to keep.
fn set_and_keep(made_up: &MadeUp, undo: &mut Undo, setting: &Setting) {
    setting.apply(&mut made_up.machine()).unwrap();
    undo.keep(&mut made_up.machine(), setting.clone()).unwrap();
}

fn load(made_up: &MadeUp, directory: &Scratch) -> Option<Undo> {
    Undo::load(directory, &made_up.machine(), "eth0").unwrap()
}

#[test]
fn an_interrupted_measurement_is_taken_back_whatever_was_set_last() {
    for last in 0..3 {
        let (made_up, directory) = (MadeUp::new(8, 2), Scratch::new());
        let (_, plans) = begun(&made_up, &directory);
        for plan in &plans[..=last] {
            plan.new_setting().apply(&mut made_up.machine()).unwrap();
        }
        let undo = load(&made_up, &directory).unwrap();
        assert_eq!(undo.kept(), None);
        let restored = undo.restore(&mut made_up.machine()).unwrap();
        assert_eq!(restored.left, [""; 0]);
        assert_eq!(
            (made_up.read(RPS).as_str(), made_up.read("proc/sys/net/core/netdev_budget").as_str()),
            ("00", "300")
        );
        assert!(load(&made_up, &directory).is_none(), "the file is removed");
    }
}

#[test]
fn a_value_of_somebody_else_is_named_and_stays() {
    let (made_up, directory) = (MadeUp::new(8, 2), Scratch::new());
    let (_, plans) = begun(&made_up, &directory);
    plans[1].new_setting().apply(&mut made_up.machine()).unwrap();
    made_up.write(RPS, "80");
    let restored = load(&made_up, &directory).unwrap().restore(&mut made_up.machine()).unwrap();
    assert_eq!(restored.left, [format!("/{RPS} is 80, which tune did not set: left alone (before tune: 00)")]);
    assert_eq!(made_up.read(RPS), "80");
    assert_eq!(made_up.read("sys/class/net/eth0/queues/rx-1/rps_cpus"), "00");
}

/// The first value of a setting of the machine returns only if the newest undo file is restored
/// first.
#[test]
fn a_setting_of_the_machine_that_two_undo_files_have_is_restored() {
    for interfaces in [["eth0", "eth1"], ["eth1", "eth0"]] {
        let (made_up, directory) = (MadeUp::new(8, 2), Scratch::new());
        let mut machine = made_up.machine();
        for (interface, budget) in interfaces.into_iter().zip([600, 900]) {
            let wish = Wish::default().set("netdev_budget", Value::Number(budget));
            let plan = Stages::default().with(Scope::Global).plan(&mut machine, interface, &wish);
            let mut undo = Undo::begin(&directory, &mut machine, interface, &[&plan]).unwrap();
            plan.new_setting().apply(&mut machine).unwrap();
            undo.keep(&mut machine, plan.new_setting()).unwrap();
        }
        assert_eq!(made_up.read("proc/sys/net/core/netdev_budget"), "900");
        for undo in Undo::load_all(&directory, &machine).unwrap().0 {
            assert_eq!(undo.restore(&mut machine).unwrap().left, [""; 0]);
        }
        assert_eq!(made_up.read("proc/sys/net/core/netdev_budget"), "300", "{interfaces:?}");
    }
}

#[test]
fn what_is_kept_is_checked_and_undone() {
    let (made_up, directory) = (MadeUp::new(8, 2), Scratch::new());
    let (mut undo, plans) = begun(&made_up, &directory);
    set_and_keep(&made_up, &mut undo, &plans[0].new_setting());
    let kept = load(&made_up, &directory).unwrap();
    assert_eq!(kept.kept().unwrap().differences(&mut made_up.machine()), []);
    // Values of candidates that were not kept no longer count as values of `tune`.
    made_up.write(RPS, "0c");
    let differences = kept.kept().unwrap().differences(&mut made_up.machine());
    assert_eq!(differences[0].to_string(), format!("/{RPS} is 0c, and not 03"));
    let restored = kept.restore(&mut made_up.machine()).unwrap();
    assert_eq!((restored.left.len(), made_up.read(RPS).as_str()), (1, "0c"));
}

#[test]
fn what_a_stage_reset_is_restored_and_what_somebody_else_set_stays() {
    for foreign in [false, true] {
        let (made_up, directory) = (MadeUp::new(8, 2), Scratch::new());
        let mut machine = made_up.machine();
        made_up.write(RPS, "10");
        let stages = Stages::default().with(Scope::Reset);
        let plan = stages.plan(&mut machine, "eth0", &Wish::default().set("channels", Value::Number(4)));
        let mut undo = Undo::begin(&directory, &mut machine, "eth0", &[&plan]).unwrap();
        plan.new_setting().apply(&mut machine).unwrap();
        // The driver creates the queues again, with empty masks.
        made_up.write(RPS, "00");
        undo.keep(&mut machine, plan.new_setting()).unwrap();
        if foreign {
            made_up.write(RPS, "80");
        }
        let restored = load(&made_up, &directory).unwrap().restore(&mut machine).unwrap();
        assert_eq!((made_up.read(RPS).as_str(), restored.left.len()), if foreign { ("80", 1) } else { ("10", 0) });
        assert_eq!(made_up.read("ethtool/eth0/channels/combined"), "2");
    }
}

#[test]
fn a_restarted_machine_and_another_interface_are_left_alone() {
    for (file, value, note) in [
        ("proc/sys/kernel/random/boot_id", "boot-2", "the machine has restarted since"),
        ("sys/class/net/eth0/ifindex", "8", "eth0 is another interface now"),
    ] {
        let (made_up, directory) = (MadeUp::new(8, 2), Scratch::new());
        let (_, plans) = begun(&made_up, &directory);
        plans[1].new_setting().apply(&mut made_up.machine()).unwrap();
        made_up.write(file, value);
        let restored = load(&made_up, &directory).unwrap().restore(&mut made_up.machine()).unwrap();
        assert!(restored.left[0].starts_with(note), "{:?}", restored.left);
        assert_eq!(made_up.read(RPS), "0c", "{file}");
        // After a restart (`boot-2`), an undo does not change the settings for the whole machine.
        let budget = if value == "boot-2" { "600" } else { "300" };
        assert_eq!(made_up.read("proc/sys/net/core/netdev_budget"), budget, "{file}");
    }
}

#[test]
fn after_a_restart_what_was_kept_is_set_again_and_can_be_undone() {
    let (made_up, directory) = (MadeUp::new(8, 2), Scratch::new());
    let (mut undo, plans) = begun(&made_up, &directory);
    undo.keep(&mut made_up.machine(), plans[0].new_setting()).unwrap();
    made_up.write("proc/sys/kernel/random/boot_id", "boot-2");
    made_up.write(RPS, "10");
    let mut undo = load(&made_up, &directory).unwrap();
    assert!(undo.renew(&mut made_up.machine()).unwrap());
    assert!(!undo.renew(&mut made_up.machine()).unwrap());
    undo.kept().unwrap().apply(&mut made_up.machine()).unwrap();
    assert_eq!(made_up.read(RPS), "03");
    undo.restore(&mut made_up.machine()).unwrap();
    assert_eq!(made_up.read(RPS), "10");
}

/// The value that `tune` set for the machine must not become the old value.
#[test]
fn a_setting_of_the_machine_keeps_its_old_value_when_the_interface_is_replaced() {
    let (made_up, directory) = (MadeUp::new(8, 2), Scratch::new());
    let (mut undo, plans) = begun(&made_up, &directory);
    set_and_keep(&made_up, &mut undo, &plans[1].new_setting());
    made_up.write("sys/class/net/eth0/ifindex", "8");
    made_up.write(RPS, "10");
    let mut undo = load(&made_up, &directory).unwrap();
    assert!(undo.renew(&mut made_up.machine()).unwrap());
    undo.kept().unwrap().apply(&mut made_up.machine()).unwrap();
    let restored = load(&made_up, &directory).unwrap().restore(&mut made_up.machine()).unwrap();
    assert_eq!(restored.left, [""; 0]);
    assert_eq!((made_up.read(RPS).as_str(), made_up.read("proc/sys/net/core/netdev_budget").as_str()), ("10", "300"));
}

#[test]
fn an_interface_that_gets_another_address_is_restored() {
    let (made_up, directory) = (MadeUp::new(8, 2), Scratch::new());
    let (mut undo, plans) = begun(&made_up, &directory);
    set_and_keep(&made_up, &mut undo, &plans[0].new_setting());
    made_up.write("sys/class/net/eth0/address", "02:00:00:00:00:08");
    let mut undo = load(&made_up, &directory).unwrap();
    assert!(!undo.renew(&mut made_up.machine()).unwrap());
    assert_eq!(undo.restore(&mut made_up.machine()).unwrap().left, [""; 0]);
    assert_eq!(made_up.read(RPS), "00");
}

#[test]
fn interfaces_of_two_namespaces_with_one_name_have_two_files() {
    let (one, other, directory) = (MadeUp::new(8, 1), MadeUp::new(8, 1), Scratch::new());
    for (made_up, namespace) in [(&one, "net:[11]"), (&other, "net:[22]")] {
        fs::create_dir_all(made_up.0.join("proc/thread-self/ns")).unwrap();
        std::os::unix::fs::symlink(namespace, made_up.0.join("proc/thread-self/ns/net")).unwrap();
    }
    let (first, second) = (begun(&one, &directory).0, begun(&other, &directory).0);
    assert_ne!(first.path(), second.path());
    assert_eq!(load(&one, &directory).unwrap().path(), first.path());
    assert_eq!(load(&other, &directory).unwrap().path(), second.path());
    assert_eq!(Undo::load_all(&directory, &other.machine()).unwrap().0.len(), 1);
}

#[test]
fn a_damaged_file_is_an_error_and_not_ignored() {
    let (made_up, directory) = (MadeUp::new(8, 1), Scratch::new());
    let (undo, _) = begun(&made_up, &directory);
    assert_eq!(fs::metadata(undo.path()).unwrap().permissions().mode() & 0o777, 0o644, "--check needs no privilege");
    fs::write(undo.path(), "{").unwrap();
    let error = Undo::load(&directory, &made_up.machine(), "eth0").unwrap_err().to_string();
    assert!(error.starts_with("cannot read the undo file "), "{error}");
}

#[test]
fn a_link_file_is_removed_unless_somebody_changed_it() {
    for changed in [false, true] {
        let (made_up, directory) = (MadeUp::new(8, 1), Scratch::new());
        let (mut undo, plans) = begun(&made_up, &directory);
        let file = link_file::make(&made_up.machine(), "eth0", &plans[0].new_setting());
        undo.write_link_file(&mut made_up.machine(), &file).unwrap();
        assert_eq!(undo.link_file_differs(), None);
        if changed {
            fs::write(&file.path, "mine").unwrap();
        }
        assert_eq!(undo.link_file_differs().is_some(), changed);
        let restored = undo.restore(&mut made_up.machine()).unwrap();
        assert_eq!((file.path.exists(), restored.left.len()), (changed, usize::from(changed)));
    }
}

/// Restoring the old number of queues made the kernel reset values that the .link file does not
/// contain.
#[test]
fn what_a_link_file_sets_is_not_kept_as_well() {
    let (made_up, directory) = (MadeUp::new(8, 2), Scratch::new());
    let mut machine = made_up.machine();
    let (xps, channels) = ("sys/class/net/eth0/queues/tx-0/xps_cpus", "ethtool/eth0/channels/combined");
    let spread = Value::Spread((0..2).map(steerage::CpuId).collect());
    let wish = rps(0..2).set("channels", Value::Number(4)).set("xps_cpus", spread);
    let plan = Stages::default().with(Scope::Reset).plan(&mut machine, "eth0", &wish);
    let mut undo = Undo::begin(&directory, &mut machine, "eth0", &[&plan]).unwrap();
    plan.new_setting().apply(&mut machine).unwrap();
    undo.keep(&mut machine, plan.new_setting()).unwrap();
    let values = |made_up: &MadeUp| [RPS, xps, channels].map(|file| made_up.read(file));
    assert_eq!(values(&made_up), ["03", "01", "4"]);

    let file = link_file::make(&machine, "eth0", &plan.new_setting());
    undo.write_link_file(&mut machine, &file).unwrap();
    assert_eq!(values(&made_up), ["00", "01", "2"]);
    let kept: Vec<&str> = undo.kept().unwrap().0.keys().map(|knob| knob.0.as_str()).collect();
    assert_eq!(kept, ["/sys/class/net/eth0/queues/tx-0/xps_cpus", "/sys/class/net/eth0/queues/tx-1/xps_cpus"]);
    // systemd has set the values in the .link file. Writing the .link file again does not change
    // the knobs.
    made_up.write(RPS, "03");
    made_up.write(channels, "4");
    let mut undo = load(&made_up, &directory).unwrap();
    let file = link_file::make(&machine, "eth0", undo.linked());
    assert!(file.text.contains("CombinedChannels=4\nReceivePacketSteeringCPUMask=0-1\n"), "{}", file.text);
    undo.write_link_file(&mut machine, &file).unwrap();
    assert_eq!(values(&made_up), ["03", "01", "4"]);
    assert_eq!(undo.restore(&mut machine).unwrap().left, [""; 0]);
    assert_eq!((values(&made_up), file.path.exists()), (["00", "00", "2"].map(str::to_owned), false));
}

/// Returns the messages that a fake irqbalance received while `body` ran.
fn with_irqbalance(made_up: &MadeUp, requests: usize, body: impl FnOnce()) -> Vec<String> {
    let directory = made_up.0.join("run/irqbalance");
    fs::create_dir_all(&directory).unwrap();
    let listener = UnixListener::bind(directory.join("irqbalance7.sock")).unwrap();
    thread::scope(|scope| {
        let server = scope.spawn(|| {
            let answer = |_| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut message = [0; 500];
                let bytes = stream.read(&mut message).unwrap();
                let message = String::from_utf8_lossy(&message[..bytes]).into_owned();
                if message == "setup" {
                    stream.write_all(b"SLEEP 10 IRQ 100 LOAD 0 DIFF 0 CLASS 0 IRQ 101 LOAD 0 BANNED 0").unwrap();
                }
                message
            };
            (0..requests).map(answer).collect()
        });
        body();
        server.join().unwrap()
    })
}

#[test]
fn irqbalance_gets_back_the_interrupts_that_were_not_kept() {
    let (made_up, directory) = (MadeUp::new(8, 2), Scratch::new());
    let (mut undo, plans) = begun(&made_up, &directory);
    undo.record_bans(&[100, 101]).unwrap();
    undo.keep(&mut made_up.machine(), plans[0].new_setting()).unwrap();
    let said = with_irqbalance(&made_up, 2, || undo.release_interrupts(made_up.machine().root()).unwrap());
    assert_eq!(said, ["setup", "settings ban irqs NONE"]);
}

/// Drivers reset the CPUs of interrupts when the link goes up. After a restart, irqbalance does not
/// know which interrupts it must not move.
#[test]
fn a_watch_sets_interrupts_again_and_tells_irqbalance() {
    let (made_up, directory) = (MadeUp::new(8, 2), Scratch::new());
    let mut machine = made_up.machine();
    let wish = Wish::default().set("smp_affinity", Value::Spread((2..4).map(steerage::CpuId).collect()));
    let plan = Stages::default().with(Scope::Irq).plan(&mut machine, "eth0", &wish);
    let mut undo = Undo::begin(&directory, &mut machine, "eth0", &[&plan]).unwrap();
    plan.new_setting().apply(&mut machine).unwrap();
    undo.record_bans(&[100, 101]).unwrap();
    undo.keep(&mut machine, plan.new_setting()).unwrap();
    let watch = Watch::open(&machine, "eth0").unwrap();
    made_up.write("proc/irq/101/smp_affinity", "ff");
    let mut lines = Vec::new();
    let said = with_irqbalance(&made_up, 2, || {
        watch.set_again(&mut made_up.machine(), &mut undo, &mut |change| lines.push(change.to_string())).unwrap();
    });
    assert_eq!(said, ["setup", "settings ban irqs 100 101"]);
    assert_eq!(lines, ["set /proc/irq/101/smp_affinity to 08 again (it was ff)"]);
    assert_eq!(made_up.read("proc/irq/101/smp_affinity"), "08");
    watch.set_again(&mut made_up.machine(), &mut undo, &mut |change| panic!("{change}")).unwrap();
}

#[test]
fn a_queue_that_vanishes_while_it_is_measured_is_named() {
    let (made_up, directory) = (MadeUp::new(8, 3), Scratch::new());
    let mut machine = made_up.machine();
    let facts = Facts::read(machine.root(), "eth0", Card::default(), &Sample::default(), None);
    let candidate = Candidate { name: "RPS to CPUs 0-1".to_owned(), wish: rps(0..2), predicted: None };
    let stages = Stages::default();
    let plan = stages.plan(&mut machine, "eth0", &candidate.wish);
    let undo = Undo::begin(&directory, &mut machine, "eth0", &[&plan]).unwrap();
    let mut waits = 0;
    let mut wait = |_| {
        waits += 1;
        if made_up.read(RPS) == "03" {
            let _ = fs::remove_dir_all(made_up.0.join("sys/class/net/eth0/queues/rx-1"));
        }
        true
    };
    let mut live = Live::new(&mut machine, &stages, "eth0", &mut wait);
    let error = search(&mut live, &facts, [candidate], &Options::default(), &mut |_| {}).unwrap_err().to_string();
    assert!(error.ends_with("the interface or its queue is gone; run tune again"), "{error}");
    assert!(waits > 2);
    let restored = undo.restore(&mut machine).unwrap();
    assert_eq!(restored.left, ["/sys/class/net/eth0/queues/rx-1/rps_cpus is gone"]);
    assert_eq!(
        [0, 2].map(|queue| made_up.read(&format!("sys/class/net/eth0/queues/rx-{queue}/rps_cpus"))),
        ["00", "00"]
    );
}
