//! Tests with fake machines, which consist of files below a directory.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use steerage::{CpuId, CpuMask};
use steerage_fixtures::scratch::Scratch;
use steerage_tune::{
    Knob, Machine, Root, STAGES, Scope, Setting, Stage, Stages, TuneError, Undo, Value, Wish, link_file,
};

pub(crate) struct MadeUp(pub(crate) Scratch);

impl MadeUp {
    pub(crate) fn new(cpus: usize, queues: usize) -> Self {
        let machine = Self(Scratch::new());
        let zero = CpuMask::new().to_bitmap(cpus);
        for list in ["online", "possible"] {
            machine.write(&format!("sys/devices/system/cpu/{list}"), &format!("0-{}", cpus - 1));
        }
        machine.write("proc/sys/kernel/random/boot_id", "boot-1");
        for (name, value) in [("ifindex", "7"), ("address", "02:00:00:00:00:07"), ("threaded", "0"), ("mtu", "1500")] {
            machine.write(&format!("sys/class/net/eth0/{name}"), value);
        }
        for (name, value) in [("napi_defer_hard_irqs", "0"), ("gro_flush_timeout", "0")] {
            machine.write(&format!("sys/class/net/eth0/{name}"), value);
        }
        for queue in 0..queues {
            let (irq, directory) = (100 + queue, "sys/class/net/eth0");
            machine.write(&format!("{directory}/queues/rx-{queue}/rps_cpus"), &zero);
            machine.write(&format!("{directory}/queues/rx-{queue}/rps_flow_cnt"), "0");
            machine.write(&format!("{directory}/queues/tx-{queue}/xps_cpus"), &zero);
            machine.write(&format!("{directory}/device/msi_irqs/{irq}"), "msix");
            machine.write(&format!("proc/irq/{irq}/eth0-TxRx-{queue}/none"), "");
            machine.write(
                &format!("proc/irq/{irq}/smp_affinity"),
                &(0..cpus as u16).map(CpuId).collect::<CpuMask>().to_bitmap(cpus),
            );
        }
        for (name, value) in [
            ("rps_sock_flow_entries", "0"),
            ("netdev_max_backlog", "1000"),
            ("netdev_budget", "300"),
            ("netdev_budget_usecs", "2000"),
            ("flow_limit_cpu_bitmap", zero.as_str()),
            ("rps_default_mask", zero.as_str()),
        ] {
            machine.write(&format!("proc/sys/net/core/{name}"), value);
        }
        for (name, value) in [
            ("channels/combined", "2"),
            ("channels/combined_max", "63"),
            ("rings/rx", "256"),
            ("rings/rx_max", "8192"),
            ("rss/key", "01:02:03:04"),
        ] {
            machine.write(&format!("ethtool/eth0/{name}"), value);
        }
        machine
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        self.0.write(path, &format!("{text}\n"));
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.0.join(path)).unwrap().trim_end().to_owned()
    }

    pub(crate) fn machine(&self) -> Machine {
        Machine::below(Root::below(&*self.0))
    }
}

pub(crate) fn rps(cpus: std::ops::Range<u16>) -> Wish {
    Wish::default().set("rps_cpus", Value::Cpus(cpus.map(CpuId).collect()))
}

#[test]
fn masks_are_longer_than_64_bits_and_queues_are_in_order() {
    let made_up = MadeUp::new(128, 64);
    let mut machine = made_up.machine();
    let plan = Stages::default().plan(&mut machine, "eth0", &rps(60..70));
    assert_eq!(plan.changes.len(), 64);
    assert_eq!(
        plan.changes[10].command(),
        "echo 00000000,0000003f,f0000000,00000000 > /sys/class/net/eth0/queues/rx-10/rps_cpus"
    );
    plan.new_setting().apply(&mut machine).unwrap();
    assert_eq!(made_up.read("sys/class/net/eth0/queues/rx-63/rps_cpus"), "00000000,0000003f,f0000000,00000000");
    assert!(Stages::default().plan(&mut machine, "eth0", &rps(60..70)).changes.is_empty(), "a second plan is empty");
    assert_eq!(plan.new_setting().differences(&mut machine), []);
    plan.old().apply(&mut machine).unwrap();
    assert_eq!(made_up.read("sys/class/net/eth0/queues/rx-63/rps_cpus"), "00000000,00000000,00000000,00000000");
}

#[test]
fn transmit_queues_share_the_cpus_and_interrupts_have_one_each() {
    let made_up = MadeUp::new(128, 64);
    let mut machine = made_up.machine();
    let all: CpuMask = (0..128).map(CpuId).collect();
    let wish = Wish::default().set("xps_cpus", Value::Spread(all.clone())).set("smp_affinity", Value::Spread(all));
    let plan = Stages::default().with(Scope::Irq).plan(&mut machine, "eth0", &wish);
    let new = plan.new_setting();
    let value = |knob: &str| new.0[&Knob(knob.to_owned())].clone();
    assert_eq!(value("/sys/class/net/eth0/queues/tx-1/xps_cpus"), "00000000,00000002,00000000,00000002");
    assert_eq!(value("/proc/irq/163/smp_affinity"), "00000000,00000000,80000000,00000000");
    let without = Stages::default().plan(&mut machine, "eth0", &wish);
    assert!(without.changes.iter().all(|change| change.stage == "xps_cpus"));
}

#[test]
fn managed_interrupts_are_skipped_with_a_note() {
    let made_up = MadeUp::new(8, 4);
    let file = made_up.0.join("proc/irq/102/smp_affinity");
    fs::set_permissions(file, fs::Permissions::from_mode(0o444)).unwrap();
    let wish = Wish::default().set("smp_affinity", Value::Spread((0..4).map(CpuId).collect()));
    let plan = Stages::default().with(Scope::Irq).plan(&mut made_up.machine(), "eth0", &wish);
    let knobs: Vec<&str> = plan.changes.iter().map(|change| change.knob.0.as_str()).collect();
    assert_eq!(knobs, ["/proc/irq/100/smp_affinity", "/proc/irq/101/smp_affinity", "/proc/irq/103/smp_affinity"]);
    assert_eq!(plan.notes, ["smp_affinity: the kernel manages interrupt 102 itself and refuses changes"]);
}

#[test]
fn no_value_exceeds_its_bound() {
    let made_up = MadeUp::new(8, 2);
    let mut machine = made_up.machine();
    let all = Stages::default().with(Scope::Global).with(Scope::Irq).with(Scope::Reset);
    for stage in STAGES.iter().filter(|stage| stage.max > 0) {
        assert!(!stage.bound.is_empty());
        let plan = all.plan(&mut machine, "eth0", &Wish::default().set(stage.name, Value::Number(u64::MAX)));
        for change in &plan.changes {
            assert_eq!(change.new, stage.max.to_string(), "{}", stage.name);
        }
        assert!(!plan.changes.is_empty() || ["rings_tx", "channels_rx"].contains(&stage.name), "{}", stage.name);
    }
    // The kernel would round 3000 up, and `tune` would then read back a different value than it
    // wrote.
    let plan = all.plan(&mut machine, "eth0", &Wish::default().set("rps_flow_cnt", Value::Number(3000)));
    assert_eq!(plan.changes[0].new, "4096");
}

#[test]
fn a_file_that_refuses_is_named_and_the_others_are_set() {
    let made_up = MadeUp::new(8, 3);
    let plan = Stages::default().plan(&mut made_up.machine(), "eth0", &rps(0..2));
    let refusing = made_up.0.join("sys/class/net/eth0/queues/rx-1/rps_cpus");
    fs::remove_file(&refusing).unwrap();
    symlink("/proc/version", &refusing).unwrap();
    let error = plan.new_setting().apply(&mut made_up.machine()).unwrap_err().to_string();
    assert!(error.starts_with("cannot set /sys/class/net/eth0/queues/rx-1/rps_cpus to 03: "), "{error}");
    assert_eq!(made_up.read("sys/class/net/eth0/queues/rx-2/rps_cpus"), "03");
    let error = |kind: std::io::ErrorKind| {
        let knob = Knob("/proc/sys/net/core/netdev_budget".to_owned());
        TuneError::Write { knob, value: "600".to_owned(), error: kind.into() }.to_string()
    };
    assert!(error(std::io::ErrorKind::ReadOnlyFilesystem).contains("run tune on the host"));
    assert!(error(std::io::ErrorKind::PermissionDenied).contains("run tune with sudo"));
}

#[test]
fn a_queue_that_vanishes_stops_nothing() {
    let made_up = MadeUp::new(8, 3);
    let mut machine = made_up.machine();
    let plan = Stages::default().plan(&mut machine, "eth0", &rps(0..2));
    fs::remove_dir_all(made_up.0.join("sys/class/net/eth0/queues/rx-1")).unwrap();
    let error = plan.new_setting().apply(&mut machine).unwrap_err().to_string();
    assert!(error.ends_with("the interface or its queue is gone; run tune again"), "{error}");
    assert!(!made_up.0.join("sys/class/net/eth0/queues/rx-1").exists(), "files are not created");
    let differences = plan.new_setting().differences(&mut machine);
    assert_eq!(differences.len(), 1);
    assert_eq!(differences[0].to_string(), "/sys/class/net/eth0/queues/rx-1/rps_cpus is gone");
}

#[test]
fn a_cpu_that_is_offline_is_no_difference() {
    let made_up = MadeUp::new(8, 1);
    let plan = Stages::default().plan(&mut made_up.machine(), "eth0", &rps(0..4));
    plan.new_setting().apply(&mut made_up.machine()).unwrap();
    made_up.write("sys/devices/system/cpu/online", "0-2,4-7");
    made_up.write("sys/class/net/eth0/queues/rx-0/rps_cpus", "07");
    assert_eq!(plan.new_setting().differences(&mut made_up.machine()), []);
    made_up.write("sys/devices/system/cpu/online", "0-7");
    assert_eq!(plan.new_setting().differences(&mut made_up.machine()).len(), 1);
}

#[test]
fn the_card_has_the_commands_of_ethtool() {
    let made_up = MadeUp::new(8, 2);
    let wish = Wish::default()
        .set("channels", Value::Number(8))
        .set("rings_rx", Value::Number(1024))
        .set("rss_key", Value::Text("6d:5a:6d:5a".to_owned()));
    let plan = Stages::default().with(Scope::Reset).plan(&mut made_up.machine(), "eth0", &wish);
    let commands: Vec<String> = plan.changes.iter().map(steerage_tune::Change::command).collect();
    assert_eq!(commands, ["ethtool -L eth0 combined 8", "ethtool -G eth0 rx 1024", "ethtool -X eth0 hkey 6d:5a:6d:5a"]);
    assert!(plan.may_take_the_link_down());
    assert_eq!(plan.notes.len(), 2, "packets in the rings are lost: {:?}", plan.notes);
    // A new number of queues makes the kernel reset the settings of each queue.
    assert_eq!(plan.dependent.0.len(), 6);
    let scoped = steerage_tune::scoped::candidates(
        &mut made_up.machine(),
        "eth0",
        &Stages::default().with(Scope::Reset),
        &(0..8).map(CpuId).collect(),
    );
    let card = &scoped.last().unwrap().wish;
    assert_eq!(card, &wish);
}

#[test]
fn an_uneven_table_of_the_card_is_evened() {
    let made_up = MadeUp::new(8, 4);
    made_up.write("ethtool/eth0/channels/combined", "4");
    made_up.write("ethtool/eth0/channels/combined_max", "4");
    let wished = |table: &str| {
        made_up.write("ethtool/eth0/rss/table", table);
        let (mut machine, stages) = (made_up.machine(), Stages::default().with(Scope::Reset));
        let cpus = (0..8).map(CpuId).collect();
        let found = steerage_tune::scoped::candidates(&mut machine, "eth0", &stages, &cpus);
        let plan = stages.plan(&mut machine, "eth0", &found.last().unwrap().wish);
        plan.changes.iter().find(|change| change.stage == "rss_table").map(|change| change.command())
    };
    assert_eq!(wished("0 1 2 3 0 1"), None);
    // This indirection table leaves out queue 3, so the queue receives nothing.
    assert_eq!(wished("0 1 2 0 1 2").as_deref(), Some("ethtool -X eth0 equal 4"));
}

/// Like a veth, this card has queues that only receive or only send.
#[test]
fn a_card_may_have_receive_queues_of_their_own() {
    let made_up = MadeUp::new(8, 1);
    for (name, value) in [("combined", "0"), ("combined_max", "0"), ("rx", "1"), ("rx_max", "16")] {
        made_up.write(&format!("ethtool/eth0/channels/{name}"), value);
    }
    fs::remove_file(made_up.0.join("ethtool/eth0/channels/combined")).unwrap();
    let (mut machine, stages) = (made_up.machine(), Stages::default().with(Scope::Reset));
    let found = steerage_tune::scoped::candidates(&mut machine, "eth0", &stages, &(0..8).map(CpuId).collect());
    let plan = stages.plan(&mut machine, "eth0", &found.last().unwrap().wish);
    assert_eq!(plan.changes[0].command(), "ethtool -L eth0 rx 8");
    assert!(plan.may_take_the_link_down() && plan.dependent.0.len() == 3, "{plan:?}");
}

#[test]
fn each_knob_has_its_stage() {
    for stage in STAGES {
        let knob = stage.pattern.replace("{iface}", "eth0").replace('*', "7");
        assert_eq!(Stage::of(&Knob(knob.clone())).map(|stage| stage.name), Some(stage.name), "{knob}");
    }
    assert!(Stage::of(&Knob("/sys/class/net/eth0/ifalias".to_owned())).is_none());
}

/// The sandbox lets `tune` write only to the files that an undo file names.
#[test]
fn an_undo_file_names_the_files_of_its_stages() {
    let (made_up, directory) = (MadeUp::new(8, 2), Scratch::new());
    let mut machine = made_up.machine();
    let stages = Stages::default().with(Scope::Global).with(Scope::Reset);
    let files = |machine: &mut Machine, wish: Wish, queues_change: bool| {
        let plan = stages.plan(machine, "eth0", &wish);
        let _ = fs::remove_file(directory.join("eth0.json"));
        let undo = Undo::begin(&directory, machine, "eth0", &[&plan]).unwrap();
        undo.files(queues_change).into_iter().collect::<Vec<_>>()
    };
    let wish = rps(0..2).set("netdev_budget", Value::Number(600)).set("rings_rx", Value::Number(1024));
    let queues = "/sys/class/net/eth0/queues";
    let (first, second) = (format!("{queues}/rx-0/rps_cpus"), format!("{queues}/rx-1/rps_cpus"));
    let budget = "/proc/sys/net/core/netdev_budget";
    assert_eq!(files(&mut machine, wish.clone(), false), [budget, &first, &second]);
    assert_eq!(files(&mut machine, wish, true), [budget, queues]);
    // If the number of queues changes, the kernel replaces the files of the queues.
    assert_eq!(files(&mut machine, Wish::default().set("channels", Value::Number(4)), false), [queues]);
}

#[test]
fn offloads_have_keys_in_a_link_file() {
    let values =
        [("features/rx-gro", "off"), ("features/rx-ntuple-filter", "on"), ("features/tx-gre-segmentation", "off")];
    let card = values.map(|(name, value)| (Knob(format!("/ethtool/eth0/{name}")), value.to_owned()));
    let file = link_file::make(&MadeUp::new(8, 1).machine(), "eth0", &Setting(card.into()));
    assert!(file.text.ends_with("\nGenericReceiveOffload=no\nNTupleFilter=yes\n"), "{}", file.text);
    assert!(file.notes[0].starts_with("systemd has no key for /ethtool/eth0/features/tx-gre-segmentation: "));
    // A rule works only while the card's feature for rules is on.
    let mut card = file.setting.clone();
    card.0.insert(Knob("/ethtool/eth0/rules/1023".to_owned()), "flow-type tcp4 dst-port 443 action 2".to_owned());
    let file = link_file::make(&MadeUp::new(8, 1).machine(), "eth0", &card);
    assert!(!file.text.contains("NTupleFilter") && file.setting.0.len() == 1, "{}", file.text);
}

#[test]
fn interrupts_have_a_policy_in_a_link_file() {
    let made_up = MadeUp::new(8, 2);
    let wish = Wish::default().set("smp_affinity", Value::Spread((2..4).map(CpuId).collect()));
    let plan = Stages::default().with(Scope::Irq).plan(&mut made_up.machine(), "eth0", &wish);
    let make = || link_file::make(&made_up.machine(), "eth0", &plan.new_setting());
    assert!(make().text.ends_with("\nIRQAffinityPolicy=spread\nIRQAffinity=2-3\n"), "{}", make().text);
    made_up.write("usr/lib/systemd/libsystemd-shared-260.so", "");
    assert!(!make().text.contains("IRQAffinity"), "{}", make().text);
    assert_eq!(make().notes, ["IRQAffinityPolicy= needs systemd 261, and this machine has 260: left out"]);
}

#[test]
fn a_link_file_repeats_the_one_in_force() {
    let made_up = MadeUp::new(8, 2);
    made_up.write("run/udev/data/n7", "E:ID_NET_LINK_FILE=/usr/lib/systemd/network/99-default.link");
    made_up.write(
        "usr/lib/systemd/network/99-default.link",
        "[Match]\nOriginalName=*\n\n[Link]\n# why\nNamePolicy=keep slot\nRxBufferSize=9\n",
    );
    made_up.write("usr/lib/systemd/libsystemd-shared-257.so", "");
    let wish = rps(0..3).set("rings_rx", Value::Number(1024)).set("threaded", Value::Number(1));
    let plan = Stages::default().with(Scope::Reset).plan(&mut made_up.machine(), "eth0", &wish);
    let file = link_file::make(&made_up.machine(), "eth0", &plan.new_setting());
    let section = file.text.split_once("[Match]").unwrap().1;
    assert_eq!(
        section,
        "\nMACAddress=02:00:00:00:00:07\nType=!vlan bridge bond\n\n[Link]\nNamePolicy=keep slot\nRxBufferSize=1024\nReceivePacketSteeringCPUMask=0-2\n"
    );
    assert_eq!(
        file.notes,
        ["systemd has no key for /sys/class/net/eth0/threaded: keep it with steerage-tune@eth0.service"]
    );
    fs::rename(
        made_up.0.join("usr/lib/systemd/libsystemd-shared-257.so"),
        made_up.0.join("usr/lib/systemd/libsystemd-shared-252.so"),
    )
    .unwrap();
    let file = link_file::make(&made_up.machine(), "eth0", &plan.new_setting());
    assert!(!file.text.contains("ReceivePacketSteering"), "{}", file.text);
    assert_eq!(file.notes[0], "ReceivePacketSteeringCPUMask= needs systemd 256, and this machine has 252: left out");
}
