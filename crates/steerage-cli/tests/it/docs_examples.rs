//! Runs the commands in the pages of docs/ exactly as they are written, without root, interfaces or
//! the network.
//!
//! The commands of a page run in order, in a directory that at first contains only the repository's
//! folder `examples`. A command must succeed, unless the page shows its error message, and must
//! print the output that the page shows. `args::documented` checks the command lines that
//! [`kept_back`] excludes.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use steerage_fixtures::is_installed;
use steerage_fixtures::scratch::Scratch;

use crate::how_tos;
use crate::pages::{CARGO_RUN, Example, examples};

/// The folder in which the Debian package installs `examples`.
const PACKAGED: &str = "/usr/share/doc/steerage/examples/";

/// The time limit of a command in seconds. Only a command that hangs reaches this limit.
const PATIENCE: &str = "60";

/// The programs that the test runs. `time` is a keyword of bash.
const PROGRAMS: [&str; 11] =
    ["steerage", "time", "tshark", "tcpdump", "mkdir", "ls", "cat", "head", "sed", "gzip", "printf"];

/// Words that name an interface, or a device that creates an interface.
const INTERFACES: [&str; 6] = ["eth0", "eth1", "eth2", "any", "lo", "tap"];

fn kept_back(command: &str) -> Option<&'static str> {
    let command = command.split(" #").next().unwrap_or_default().trim_end();
    let mut words = command.split(' ');
    let (program, subcommand) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let mut names = command.split(|c: char| !c.is_ascii_alphanumeric());
    if ["sudo", "#"].contains(&program) {
        Some("need root")
    } else if !PROGRAMS.contains(&program) {
        Some("run another program")
    } else if names.any(|name| INTERFACES.contains(&name)) {
        Some("need an interface")
    } else if ["get", "set", "top", "dump"].contains(&subcommand) || command.ends_with('&') {
        Some("need a second terminal")
    } else {
        None
    }
}

fn pages(docs: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(docs).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    pages.sort();
    pages
}

/// Commands may overwrite files, so the commands of each page get their own copy of `examples`.
fn directory_for(page: &Path, scratch: &Path, root: &Path) -> PathBuf {
    let directory = scratch.join(page.file_stem().unwrap());
    fs::create_dir_all(directory.join("examples")).unwrap();
    let entries = fs::read_dir(root.join("examples")).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.filter(|path| path.is_file());
    assert!(Command::new("cp").args(files).arg(directory.join("examples")).status().unwrap().success());
    directory
}

fn run(command: &str, directory: &Path, programs: &Path) -> Output {
    let path = std::env::var("PATH").unwrap();
    let script = command.replace(PACKAGED, "examples/");
    Command::new("timeout")
        .args([PATIENCE, "bash", "-o", "pipefail", "-c", &script])
        .current_dir(directory)
        .env("PATH", format!("{}:{path}", programs.display()))
        .env("HOME", directory)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Describes how the result of a command differs from the page. Returns `None` if the result does
/// not differ from the page.
fn fault(example: &Example, output: &Output) -> Option<String> {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let error = example.output.first().filter(|line| line.starts_with("steerage: "));
    // Output about generated traffic is not compared, because such traffic differs between runs.
    let is_compared = !example.output.is_empty() && !example.command.contains("synthetic");
    let is_right = match error {
        Some(error) => matches!(output.status.code(), Some(1 | 2)) && err.lines().any(|line| line == error),
        None => output.status.success() && (!is_compared || example.is_shown(&out)),
    };
    (!is_right).then(|| format!("{example:#?}\n{}\n{out}\n{err}", output.status))
}

#[test]
fn examples_run_in_a_clone() {
    if [("tshark", "tshark"), ("tcpdump", "tcpdump"), ("jq", "jq")]
        .iter()
        .any(|(name, package)| !is_installed(name, package))
    {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let scratch = Scratch::new();
    let programs = scratch.join("programs");
    fs::create_dir(&programs).unwrap();
    symlink(env!("CARGO_BIN_EXE_steerage"), programs.join("steerage")).unwrap();
    let of_how_tos: Vec<Example> = how_tos::SECTIONS.iter().flat_map(|name| examples(how_tos::section(name))).collect();
    let (mut ran, mut faults, mut kept) = (0, Vec::new(), BTreeMap::<&str, usize>::new());
    for page in pages(&root.join("docs")) {
        let directory = directory_for(&page, &scratch, &root);
        for mut example in examples(&fs::read_to_string(&page).unwrap()) {
            let is_of_how_tos = of_how_tos.iter().any(|other| other.command == example.command);
            example.command = example.command.replace(CARGO_RUN, "steerage ");
            let why = if is_of_how_tos { Some("run in other tests") } else { kept_back(&example.command) };
            if let Some(why) = why {
                *kept.entry(why).or_default() += 1;
                continue;
            }
            ran += 1;
            let output = run(&example.command, &directory, &programs);
            faults.extend(fault(&example, &output).map(|fault| format!("{}: {fault}", page.display())));
        }
    }
    let _ = writeln!(io::stderr(), "docs/: {ran} commands ran, and these did not: {kept:?}");
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
    assert!(ran >= 45, "only {ran} commands ran");
}

#[test]
fn commands_are_kept_back_by_the_rule() {
    for (command, expected) in [
        ("steerage count examples/demo.pcapng    # eth1 is only a comment", None),
        ("sudo steerage top", Some("need root")),
        ("# mkdir /tmp/tree", Some("need root")),
        ("steerage forward af_xdp:eth1 af_xdp:eth2", Some("need an interface")),
        ("steerage get steerage/policy", Some("need a second terminal")),
        ("nc 127.0.0.1 57012 | zeek -C -r -", Some("run another program")),
    ] {
        assert_eq!(kept_back(command), expected, "{command}");
    }
}
