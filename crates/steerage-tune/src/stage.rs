//! The table of stages. A stage is a kind of kernel setting that `tune` can change.

use crate::knob::Knob;

/// The command-line option that permits a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// No option is needed: the knobs affect only one interface.
    Interface,
    /// `--global` is needed: the knobs affect the whole machine or network namespace.
    Global,
    /// `--irq` permits the stage, whose knobs choose the CPUs of interrupts.
    Irq,
    /// `--for` is needed: the knobs prepare the card for a capture or for a program with AF_XDP.
    Purpose,
    /// `--allow-reset` is needed: the knobs are settings of the card that may take the link down
    /// for a moment.
    Reset,
}

/// The values of a stage's knobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A mask of CPUs.
    Cpus,
    /// A number of at most [`max`](Stage::max).
    Number,
    /// A power of two: the kernel rounds other numbers up.
    PowerOfTwo,
    /// Text, such as an indirection table or a hash key.
    Text,
}

/// A row of the table of stages.
#[derive(Debug)]
pub struct Stage {
    /// The name of the stage.
    pub name: &'static str,
    /// The command-line option that permits the stage.
    pub scope: Scope,
    /// The names of the knobs: `{iface}` is the interface, and `*` a queue or an interrupt.
    pub pattern: &'static str,
    /// The kind of values that the stage's knobs have.
    pub kind: Kind,
    /// The largest number to which `tune` sets a knob of the stage.
    pub max: u64,
    /// Why `tune` sets no number above `max`.
    pub bound: &'static str,
    /// The first version of Linux with this setting.
    pub since: &'static str,
    /// Why `tune` changes the value.
    pub why: &'static str,
    /// What `--undo` cannot restore, or an empty string.
    pub not_restored: &'static str,
}

const ONE_BIT_EACH: &str = "only CPUs that are online and that this process may use";

const BASE: Stage = Stage {
    name: "",
    scope: Scope::Interface,
    pattern: "",
    kind: Kind::Cpus,
    max: 0,
    bound: ONE_BIT_EACH,
    since: "2.6.35",
    why: "",
    not_restored: "",
};

/// All stages, in the order in which a plan changes them.
pub const STAGES: &[Stage] = &[
    Stage {
        name: "channels",
        scope: Scope::Reset,
        pattern: "/ethtool/{iface}/channels/combined",
        kind: Kind::Number,
        max: 256,
        bound: "one queue for each CPU is enough, and each queue has a ring and an interrupt",
        since: "5.7",
        why: "the card itself spreads packets over more queues",
        not_restored: "packets that are in the rings while the queues are made again are lost",
    },
    Stage {
        name: "channels_rx",
        scope: Scope::Reset,
        pattern: "/ethtool/{iface}/channels/rx",
        kind: Kind::Number,
        max: 256,
        bound: "one queue for each CPU is enough, and each queue has a ring and an interrupt",
        since: "5.7",
        why: "more queues receive, each on a CPU of its own",
        not_restored: "packets that are in the rings while the queues are made again are lost",
    },
    Stage {
        name: "rings_rx",
        scope: Scope::Reset,
        pattern: "/ethtool/{iface}/rings/rx",
        kind: Kind::Number,
        max: 4096,
        bound: "a longer ring does not fit into the cache, and its packets wait longer",
        since: "5.7",
        why: "the card drops packets in bursts (rx_missed, rx_no_buffer)",
        not_restored: "packets that are in the ring while it is made again are lost",
    },
    Stage {
        name: "rings_tx",
        scope: Scope::Reset,
        pattern: "/ethtool/{iface}/rings/tx",
        kind: Kind::Number,
        max: 4096,
        bound: "a longer ring does not fit into the cache, and its packets wait longer",
        since: "5.7",
        why: "bursts find no descriptor for sending",
        not_restored: "packets that are in the ring while it is made again are lost",
    },
    Stage {
        name: "rss_table",
        scope: Scope::Reset,
        pattern: "/ethtool/{iface}/rss/table",
        kind: Kind::Text,
        bound: "only queues that exist",
        since: "6.17",
        why: "all queues get the same share of the hashes",
        ..BASE
    },
    Stage {
        name: "rss_key",
        scope: Scope::Reset,
        pattern: "/ethtool/{iface}/rss/key",
        kind: Kind::Text,
        bound: "as long as the card's key",
        since: "6.17",
        why: "both directions of a connection reach the same queue",
        ..BASE
    },
    Stage {
        name: "mtu",
        scope: Scope::Reset,
        pattern: "/sys/class/net/{iface}/mtu",
        kind: Kind::Number,
        max: 9000,
        bound: "only lower values are set, up to the driver's limit for XDP",
        since: "2.6",
        why: "the driver refuses XDP programs with longer frames",
        not_restored: "longer packets that arrive meanwhile are lost",
    },
    Stage {
        name: "offloads",
        scope: Scope::Purpose,
        pattern: "/ethtool/{iface}/features/*",
        kind: Kind::Text,
        bound: "on or off",
        since: "5.7",
        why: "programs see packets as they are on the wire",
        ..BASE
    },
    Stage {
        name: "rules",
        scope: Scope::Purpose,
        pattern: "/ethtool/{iface}/rules/*",
        kind: Kind::Text,
        bound: "only the rules of --flow",
        since: "2.6.30",
        why: "the card leads chosen traffic to chosen queues",
        ..BASE
    },
    Stage {
        name: "smp_affinity",
        scope: Scope::Irq,
        pattern: "/proc/irq/*/smp_affinity",
        since: "2.4",
        why: "each queue interrupts a CPU of its own",
        ..BASE
    },
    Stage {
        name: "rps_sock_flow_entries",
        scope: Scope::Global,
        pattern: "/proc/sys/net/core/rps_sock_flow_entries",
        kind: Kind::PowerOfTwo,
        max: 131_072,
        bound: "each entry has 4 bytes, and a larger table does not fit into the cache",
        why: "RFS needs a table of all sockets' CPUs",
        ..BASE
    },
    Stage {
        name: "flow_dissector",
        scope: Scope::Global,
        pattern: crate::knob::DISSECTOR,
        kind: Kind::Text,
        bound: "one program for a network namespace, and flower and bonding use it too",
        since: "6.1",
        why: "the kernel's hash sees the flows inside VXLAN and GTP-U",
        ..BASE
    },
    Stage {
        name: "netdev_max_backlog",
        scope: Scope::Global,
        pattern: "/proc/sys/net/core/netdev_max_backlog",
        kind: Kind::Number,
        max: 10_000,
        bound: "at a million packets per second, the last of 10,000 waits 10 ms",
        since: "2.4",
        why: "backlogs drop packets (second column of softnet_stat)",
        ..BASE
    },
    Stage {
        name: "netdev_budget",
        scope: Scope::Global,
        pattern: "/proc/sys/net/core/netdev_budget",
        kind: Kind::Number,
        max: 1200,
        bound: "four times the default: programs on that CPU wait for a whole round",
        since: "2.6.12",
        why: "polling ends before the queue is empty (third column of softnet_stat)",
        ..BASE
    },
    Stage {
        name: "netdev_budget_usecs",
        scope: Scope::Global,
        pattern: "/proc/sys/net/core/netdev_budget_usecs",
        kind: Kind::Number,
        max: 8000,
        bound: "programs on that CPU wait for a whole round, and 8 ms is two ticks at 250 Hz",
        since: "4.12",
        why: "polling ends before the queue is empty (third column of softnet_stat)",
        ..BASE
    },
    Stage {
        name: "flow_limit_cpu_bitmap",
        scope: Scope::Global,
        pattern: "/proc/sys/net/core/flow_limit_cpu_bitmap",
        since: "3.11",
        why: "one large flow cannot fill a backlog that small flows need",
        ..BASE
    },
    Stage {
        name: "rps_default_mask",
        scope: Scope::Global,
        pattern: "/proc/sys/net/core/rps_default_mask",
        since: "6.3",
        why: "queues that are created later, such as those of veths, begin with this mask",
        ..BASE
    },
    Stage {
        name: "threaded",
        pattern: "/sys/class/net/{iface}/threaded",
        kind: Kind::Number,
        max: 1,
        bound: "a switch",
        since: "5.12",
        why: "the scheduler moves polling to a CPU that is free",
        ..BASE
    },
    Stage {
        name: "napi_defer_hard_irqs",
        pattern: "/sys/class/net/{iface}/napi_defer_hard_irqs",
        kind: Kind::Number,
        max: 100,
        bound: "each further empty poll costs CPU time",
        since: "5.8",
        why: "the card interrupts less often",
        ..BASE
    },
    Stage {
        name: "gro_flush_timeout",
        pattern: "/sys/class/net/{iface}/gro_flush_timeout",
        kind: Kind::Number,
        max: 200_000,
        bound: "packets wait that long (ns) for others of their flow",
        since: "3.19",
        why: "more packets are merged, and the card interrupts less often",
        ..BASE
    },
    Stage {
        name: "rps_cpus",
        pattern: "/sys/class/net/{iface}/queues/rx-*/rps_cpus",
        why: "the kernel spreads the packets of a queue over these CPUs",
        ..BASE
    },
    Stage {
        name: "rps_flow_cnt",
        pattern: "/sys/class/net/{iface}/queues/rx-*/rps_flow_cnt",
        kind: Kind::PowerOfTwo,
        max: 32_768,
        bound: "each entry has 16 bytes, and a larger table does not fit into the cache",
        why: "packets go to the CPU on which their program runs (RFS)",
        ..BASE
    },
    Stage {
        name: "xps_cpus",
        pattern: "/sys/class/net/{iface}/queues/tx-*/xps_cpus",
        since: "2.6.38",
        why: "each CPU sends through a queue of its own",
        ..BASE
    },
];

impl Stage {
    /// Returns the stage called `name`.
    pub fn named(name: &str) -> Option<&'static Self> {
        STAGES.iter().find(|stage| stage.name == name)
    }

    /// Returns the stage of a knob.
    pub fn of(knob: &Knob) -> Option<&'static Self> {
        STAGES.iter().find(|stage| {
            let begin = stage.pattern.split(['{', '*']).next().unwrap_or_default();
            let end = stage.pattern.rsplit(['}', '*']).next().unwrap_or_default();
            let middle = stage.pattern.split(['}', '*']).nth(1).unwrap_or_default();
            knob.0.starts_with(begin) && knob.0.ends_with(end) && knob.0.contains(middle)
        })
    }
}
