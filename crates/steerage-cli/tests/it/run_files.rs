//! `steerage run` and `steerage check`. The options in a run file have the effect of those on a
//! command line.

use std::fs;
use std::path::Path;

use crate::program::{Ran, run};

fn with_file(command: &str, name: &str, text: &str, more: &[&str]) -> Ran {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("run_files").replace("::", "-");
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    fs::create_dir_all(&directory).unwrap();
    let path = directory.join(name);
    fs::write(&path, text).unwrap();
    let ran = run(&[&[command, path.to_str().unwrap()], more].concat());
    // Shortens the path of the run file to its name.
    let short = |text: &str| text.replace(path.to_str().unwrap(), name);
    Ran { out: short(&ran.out), err: short(&ran.err), ..ran }
}

/// Returns the error message for an invalid run file. `check` and `run` must both print this error.
fn wrong(text: &str, more: &[&str]) -> String {
    let checked = with_file("check", "wrong.toml", text, more);
    let ran = with_file("run", "wrong.toml", text, more);
    assert_eq!((checked.code, checked.out.as_str(), ran.out.as_str()), (Some(1), "", ""), "{checked:?} {ran:?}");
    assert_eq!(checked.complaint(), ran.complaint());
    checked.complaint().strip_prefix("steerage: ").unwrap().to_owned()
}

const RUN: &str = r#"
command = "count"
devices = [
    "synthetic:packets=1000",
    { name = "synthetic", packets = 2_000, mix = "udp4+tcp6" },
]
virtual-cpus = 2
rps-cpus = "2"
memory = "512M"
backlog = 0x1000
check-order = true
strict = false
json = true
"#;

#[test]
fn a_file_runs_as_its_command_line_would() {
    let ran = with_file("run", "run.toml", RUN, &[]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    let report = ran.report();
    assert_eq!((&report["snapshot"]["received"], &report["snapshot"]["reordered"]), (&3000.into(), &0.into()));
    assert_eq!(report["snapshot"]["queues"][1]["device"], "synthetic:packets=2000,mix=udp4+tcp6");
    assert_eq!(report["snapshot"]["cpus"][0]["processed"], 0);
}

/// A user may check another user's run file.
#[test]
fn control_characters_of_a_file_are_not_shown() {
    let text = "command = \"count\"\ndevices = [\"a\\u001b[2J\"]\nhash-key = \"\\u009b\"\n";
    assert!(wrong(text, &[]).starts_with("wrong.toml:3: hash-key: invalid value '\\u{9b}': "));
    let text = text.replace("hash-key", "filter");
    let checked = with_file("check", "shown.toml", &text, &[]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(!checked.out.replace('\n', "").contains(char::is_control), "{checked:?}");
    assert!(checked.out.contains(r"steerage count $'a\033[2J' $'--filter=\302\233'"), "{checked:?}");
}

#[test]
fn what_stands_behind_the_file_takes_its_place() {
    // A device on the command line replaces the devices of the run file. An option on the command
    // line replaces a conflicting option of the run file.
    let more = ["synthetic:packets=10", "--rps-cpus-list", "0", "--virtual-cpus", "3"];
    let report = with_file("run", "over.toml", RUN, &more).report();
    assert_eq!(
        (&report["snapshot"]["received"], &report["snapshot"]["cpus"][0]["processed"]),
        (&10.into(), &10.into())
    );
    assert_eq!(report["snapshot"]["cpus"].as_array().unwrap().len(), 3);
    let behind_dashes = with_file("run", "over.toml", RUN, &["-c", "7", "--", "synthetic"]).report();
    assert_eq!(behind_dashes["snapshot"]["received"], 7);
    // `a.pcap` directly after `--pace` could be mistaken for its value.
    let pace = "command = \"count\"\npace = true\nvirtual-cpus = 1";
    let checked = with_file("check", "pace.toml", pace, &["a.pcap"]);
    assert!(checked.out.contains("    steerage count --virtual-cpus=1 a.pcap --pace\n"), "{checked:?}");

    // These errors are in the command line, and not in the run file. `--help` works after the run
    // file's name, too.
    let usage = with_file("run", "over.toml", RUN, &["--backlog", "0"]);
    assert_eq!(usage.code, Some(2));
    let expected = "steerage: invalid value '0' for '--backlog <N>': write a number from 1 to 1048576; see --help";
    assert_eq!(usage.complaint(), expected);
    assert_eq!(with_file("run", "over.toml", RUN, &["--rx-cpu", "99"]).code, Some(2));
    let help = with_file("run", "over.toml", RUN, &["--json", "--help"]);
    assert_eq!((help.code, help.err.as_str()), (Some(0), ""));
    assert!(help.out.contains("Usage: steerage count"), "{help:?}");
}

#[test]
fn a_check_says_what_it_would_do_and_does_nothing() {
    let checked = with_file("check", "run.toml", RUN, &[]);
    let expected = "run.toml is right; it runs

    steerage count synthetic:packets=1000 synthetic:packets=2000,mix=udp4+tcp6 --virtual-cpus=2 --rps-cpus=2 \
                    --memory=512M --backlog=4096 --check-order --json

run.toml:4    synthetic:packets=1000
run.toml:5    synthetic:packets=2000,mix=udp4+tcp6
run.toml:7    virtual-cpus
run.toml:8    rps-cpus
run.toml:9    memory
run.toml:10   backlog
run.toml:11   check-order
run.toml:13   json
CPUs 0-1 work, 0-1 receive, packets are spread over 1
";
    assert_eq!((checked.code, checked.out.as_str(), checked.err.as_str()), (Some(0), expected, ""));

    let flows = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run-files/never's/flows.csv");
    let text = format!("command = \"meter\"\ndevices = \"nowhere.pcap\"\nflows = \"{}\"", flows.display());
    let checked = with_file("check", "idle.toml", &text, &[]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(checked.out.contains("    steerage meter nowhere.pcap '--flows=") && checked.out.contains("never'\\''s"));
    assert!(!flows.parent().unwrap().exists());
}

#[test]
fn a_queue_has_its_mask() {
    let text = "command = \"count\"\ndevices = \"synthetic:queues=2,packets=100\"\nvirtual-cpus = 3\njson = true\n\
                rps-cpus = [\"rx-0=2\", \"rx-1=0\"]";
    let checked = with_file("check", "queues.toml", text, &[]);
    let line = "CPUs 0-2 work, 0-2 receive, packets are spread over 0-2, packets of rx-0 are spread over 1, packets of rx-1 \
                stay where they are received\n";
    assert!(checked.out.ends_with(line), "{checked:?}");
    let queues = with_file("run", "queues.toml", text, &[]).report()["snapshot"]["queues"].clone();
    assert_eq!((&queues[0]["rps_cpus_list"], &queues[1]["rps_cpus_list"]), (&"1".into(), &"1".into()));
}

#[test]
fn a_mistake_is_told_with_its_line() {
    let count = |lines: &str| wrong(&format!("command = \"count\"\n{lines}"), &[]);
    let no_option = "`count` has no such option";
    let expected = [
        ("backlgo = 3", format!("2: backlgo: {no_option}; a similar key exists: `backlog`; see --help")),
        ("\n\nrps_cpus = 3", format!("4: rps_cpus: {no_option}; a similar key exists: `rps-cpus`; see --help")),
        ("device = 3", format!("2: device: {no_option}; a similar key exists: `devices`; see --help")),
        ("zzz = 3\njson = 3", format!("2: zzz: {no_option}; see --help")),
        ("help = true", format!("2: help: {no_option}; see --help")),
        ("top = 3", format!("2: top: {no_option}; see --help")),
        ("backlog = 0", "2: backlog: invalid value '0': write a number from 1 to 1048576".to_owned()),
        ("backlog = 1.5", "2: backlog: invalid value '1.5': write a number from 1 to 1048576".to_owned()),
        (
            "seconds = \"soon\"",
            "2: seconds: invalid value 'soon': write a number of seconds, such as 10 or 0.5".to_owned(),
        ),
        ("backlog = true", "2: backlog: write a value: it is no option to switch on or off".to_owned()),
        ("json = \"yes\"", "2: json: write true or false".to_owned()),
        ("cpus = [0, 1]", "2: cpus: write a string or a number, not a list".to_owned()),
        ("cpus = 2020-01-01", "2: cpus: write a string or a number, not a date or time".to_owned()),
        ("verbose = 256", "2: verbose: 256 is not how often it can be given".to_owned()),
        ("json = true\njson = true", "3: duplicate key".to_owned()),
        (
            "cpus = \"0-9\"\nvirtual-cpus = 4",
            "2: --cpus: `0-9` has a CPU that there isn't: the last of 4 is CPU 3".to_owned(),
        ),
        (
            "devices = \"-x\"",
            "2: devices: `-x` would be read as an option: write ./-x for a file of that name".to_owned(),
        ),
        ("devices = [3]", "2: devices: write a name, a list of names, or a table with a `name`".to_owned()),
        ("[[devices]]\nflows = 1", "2: devices: a device needs a name: write such as name = \"synthetic\"".to_owned()),
    ];
    for (lines, message) in expected {
        assert_eq!(count(lines), format!("wrong.toml:{message}"), "{lines}");
    }
    let hash = count("hash = \"md5\"");
    assert!(hash.starts_with("wrong.toml:2: hash: ") && hash.contains("possible values: auto, device, aes"), "{hash}");
    let device = count("devices = [\n\"synthetic:packets=1\",\n\"synthetic:flow=1\"]");
    assert!(device.starts_with("wrong.toml:4: devices: synthetic: option `flow=1` does not exist"), "{device}");
    let device = count("[[devices]]\nname = \"synthetic\"\nflow = 1");
    assert!(device.starts_with("wrong.toml:4: devices: synthetic: option `flow=1` does not exist"), "{device}");
    let device = count("[[devices]]\nname = \"capture.pcap\"\nrate = 1");
    assert!(
        device.starts_with(
            "wrong.toml:4: devices: capture.pcap: rate: only synthetic traffic and interfaces have options"
        ),
        "{device}"
    );
    let interface = count("[[devices]]\nname = \"lo\"\nqueues = 2\nbuffer = 1");
    assert!(interface.starts_with("wrong.toml:5: devices: af_packet: option `buffer=1`"), "{interface}");
    let pace = count("pace = 2\nvirtual-cpus = 1");
    assert!(pace.starts_with("wrong.toml:2: --pace is for capture files"), "{pace}");
    let mask = count("virtual-cpus = 2\ncpus = \"0\"\nrps-cpus-list = \"1\"");
    assert!(mask.starts_with("wrong.toml:4: CPU 1 of the mask is not among the CPUs that work"), "{mask}");
    let queue = count("virtual-cpus = 2\nrps-cpus = [\"1\", \"rx-0=x\"]");
    assert!(queue.starts_with("wrong.toml:3: --rps-cpus: "), "{queue}");
    let syntax = count("json = [true");
    assert!(syntax.starts_with("wrong.toml:2: "), "{syntax}");

    let meter = |lines: &str| wrong(&format!("command = \"meter\"\n{lines}"), &[]);
    let rotate = meter("virtual-cpus = 1\nrotate = \"5m\"");
    assert!(rotate.contains("--flows"), "{rotate}");
    let both = meter("rps-cpus = \"1\"\nrps-cpus-list = \"0\"");
    assert!(both.starts_with("wrong.toml:2: ") && both.contains("cannot be used with"), "{both}");
    let flows = meter("flows = \"flows.txt\"");
    assert!(flows.starts_with("wrong.toml:2: --flows flows.txt: write a name that ends in"), "{flows}");

    assert_eq!(
        wrong("command = \"explain\"", &[]),
        "wrong.toml:1: command: write command = \"count\" or command = \"meter\" or command = \"parallel\" or command = \"fanout\" or command = \"forward\""
    );
    assert!(wrong("", &[]).starts_with("wrong.toml: it does not say which command it is for: write command = "));
}

#[test]
fn a_device_that_is_not_there_is_told_with_its_line() {
    let text = "command = \"count\"\ndevices = [\n  \"synthetic:packets=1\",\n  \"nowhere.pcap\"\n]\nvirtual-cpus = 1";
    assert_eq!(with_file("check", "absent.toml", text, &[]).code, Some(0));
    let ran = with_file("run", "absent.toml", text, &[]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.complaint().starts_with("steerage: absent.toml:4: nowhere.pcap: "), "{ran:?}");
}

#[test]
fn files_that_are_none() {
    for path in ["nowhere.toml", "/", env!("CARGO_BIN_EXE_steerage")] {
        let ran = run(&["check", path]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{ran:?}");
        ran.complaint();
    }
}

/// The program accepts each key in a run file, but may refuse the key's value.
#[test]
fn every_long_option_is_a_key() {
    for command in ["count", "meter"] {
        let help = run(&[command, "--help"]).out;
        let words = help.split([' ', '\n', ',', '[', ']']).filter_map(|word| word.strip_prefix("--"));
        let options: Vec<&str> = words.filter(|word| !word.is_empty() && *word != "help").collect();
        assert!(options.len() > 15, "{options:?}");
        for option in options {
            let ran = with_file("check", "key.toml", &format!("command = \"{command}\"\n{option} = true"), &[]);
            assert!(!ran.err.contains("has no such option"), "{ran:?}");
        }
    }
}

const JOBS: &str = r#"
command = "parallel"
devices = "synthetic:packets=1000"
jobs = 2
key = "hosts"
tag = true
json = true
job = ["sh", "-c", "wc -c"]
"#;

#[test]
fn jobs_of_a_file_run_as_those_of_the_command_line() {
    let ran = with_file("run", "jobs.toml", JOBS, &[]);
    assert_eq!((ran.code, ran.out.lines().count()), (Some(0), 2), "{ran:?}");
    assert_eq!(crate::parallel::summary(&ran)["delivered"], 1000);
    // The words after `--` replace the job in the run file.
    let ran = with_file("run", "jobs.toml", JOBS, &["--jobs", "1", "--", "sh", "-c", "cat >/dev/null; echo other"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "1\tother\n"), "{ran:?}");
    let checked = with_file("check", "jobs.toml", JOBS, &[]);
    let line = "steerage parallel synthetic:packets=1000 --jobs=2 --key=hosts --tag --json -- sh -c 'wc -c'";
    assert!(checked.out.contains(line), "{checked:?}");
    for (from, to, said) in [
        ("job = [\"sh\", \"-c\", \"wc -c\"]", "job = \"wc -c\"", "wrong.toml:8: job: write a list of words"),
        ("\"wc -c\"", "\"{fifo} {file}\"", "leave the others out"),
        ("\"hosts\"", "\"colour\"", "wrong.toml:5: key: invalid value 'colour'"),
        ("jobs = 2", "jobs = 0", "wrong.toml:4: jobs: invalid value '0'"),
        ("tag = true", "no-merge = true\ntag = true", "cannot be used with"),
    ] {
        let checked = with_file("check", "wrong.toml", &JOBS.replace(from, to), &[]);
        assert_eq!(checked.code, Some(1), "{checked:?}");
        assert!(checked.complaint().contains(said), "{checked:?}");
    }
    let without = JOBS.replace("job = [\"sh\", \"-c\", \"wc -c\"]", "");
    assert_eq!(with_file("check", "wrong.toml", &without, &[]).code, Some(1));
}
