//! The arguments and environment variables with a path to which the program writes.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    File,
    Directory,
}

pub(super) struct Row {
    /// The argument as `--help` shows it.
    pub(super) argument: &'static str,
    pub(super) commands: &'static [&'static str],
    pub(super) names: Names,
    /// Command lines in which `{}` stands for the path.
    pub(super) lines: &'static [&'static str],
}

pub(super) const RUNS: &[&str] = &["count", "meter", "fanout", "forward", "send"];

pub(super) const ROWS: &[Row] = &[
    Row {
        argument: "--flows <FILE>",
        commands: &["meter"],
        names: Names::File,
        lines: &["meter DEMO --virtual-cpus 1 --socket none -q --flows {}"],
    },
    Row {
        argument: "--export <WHERE>",
        commands: &["meter"],
        names: Names::File,
        lines: &["meter DEMO --virtual-cpus 1 --socket none -q --export {}"],
    },
    Row {
        argument: "--to <OUTPUT>",
        commands: &["fanout"],
        names: Names::File,
        lines: &[
            "fanout DEMO --virtual-cpus 1 --socket none -q --to pcap:{}",
            "fanout DEMO --virtual-cpus 1 --socket none -q --to fifo:{}",
        ],
    },
    Row {
        argument: "<OUTPUT>",
        commands: &["send"],
        names: Names::File,
        lines: &["send pcap:{} DEMO --virtual-cpus 1 --socket none -q"],
    },
    Row {
        argument: "--socket <PATH>",
        commands: RUNS,
        names: Names::File,
        lines: &["count DEMO --virtual-cpus 1 -q --socket {}"],
    },
    Row {
        argument: "--results <DIR>",
        commands: &["parallel"],
        names: Names::Directory,
        lines: &["parallel DEMO -j 2 -q --results {} -- cat"],
    },
    Row {
        argument: "--control <DIR>",
        commands: RUNS,
        names: Names::Directory,
        lines: &["count DEMO --virtual-cpus 1 --socket none -q --control {}"],
    },
    // `dump --write` needs a run that sends packets, so the tests of `dump` check this option with
    // planted objects.
    Row { argument: "--write <FILE>", commands: &["dump"], names: Names::File, lines: &[] },
    Row { argument: "--out <DIR>", commands: &["man"], names: Names::Directory, lines: &["man --out {}"] },
];

pub(super) const VARIABLES: &[Row] = &[
    Row {
        argument: "TMPDIR",
        commands: &["parallel"],
        names: Names::Directory,
        lines: &[
            "TMPDIR={} parallel DEMO -j 2 -q -- wc -c {file}",
            "TMPDIR={} parallel DEMO -j 2 -q --keep-order -- wc -c",
        ],
    },
    Row {
        argument: "STEERAGE_RUNTIME_DIR",
        commands: RUNS,
        names: Names::Directory,
        lines: &["STEERAGE_RUNTIME_DIR={} count DEMO --virtual-cpus 1 -q"],
    },
    // On a loopback interface, `tune` changes nothing, but writes its undo file.
    Row {
        argument: "STEERAGE_STATE_DIR",
        commands: &["tune"],
        names: Names::Directory,
        lines: &["STEERAGE_STATE_DIR={} tune lo --for listen --apply"],
    },
];

/// Arguments with a path that the program only reads, connects to, or passes to other programs.
pub(super) const READ: &[(&str, &[&str])] = &[
    ("--to <PID|NAME|PATH>", &["top", "get", "set"]),
    ("<PID|NAME|PATH>", &["dump"]),
    ("[DEVICE]...", &["count", "meter", "fanout", "send"]),
    ("<DEVICE>...", &["forward"]),
    ("<FLOW|DEVICE>...", &["explain"]),
    ("<INPUT>...", &["parallel"]),
    ("<FILE>", &["run", "check"]),
    // This argument is the command line of a program that steerage starts.
    ("<COMMAND>...", &["parallel", "exec-when-ready"]),
    // This argument is an option or a device for the command in the run file.
    ("[OPTION|DEVICE]...", &["run", "check"]),
    // This argument is the path of an attribute in the control tree, and not of a file.
    ("[PATH]", &["get"]),
    ("<PATH>", &["set"]),
];
