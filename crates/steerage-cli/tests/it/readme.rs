//! README's commands, run as they are written, in the workspace's root.
//!
//! Commands stand in ```` ```sh ```` blocks, and after a `$` in ```` ```text ```` blocks, where their output follows. Not run are
//! those that begin with `sudo`, the tests themselves (`cargo test`), and those with the comment `# needs the network`. All
//! others must be the program's, and succeed. A transcript must be what the program prints, up to what differs by machine and
//! run.

use std::path::Path;
use std::process::{Command, Stdio};

use steerage_fixtures::skip;

const README: &str = include_str!("../../../../README.md");

/// How README starts the program. The test starts the one that was built with it.
const CARGO_RUN: &str = "cargo run --release -- ";

/// What a line of a report begins with that differs by machine and run.
const DIFFERING: [&str; 7] = ["cpus ", "steering ", "queues ", "memory ", "            ", "real", "CPU"];

/// A line of the head of a report ends with how long the run took.
const TOOK: &str = "  read in ";

#[derive(Debug)]
struct Example {
    command: String,
    /// What follows it in a transcript.
    output: Vec<String>,
}

/// The blocks of that language, a line each.
fn blocks(language: &str) -> Vec<Vec<&'static str>> {
    let mut blocks = Vec::new();
    let mut lines = README.lines();
    while let Some(line) = lines.next() {
        let Some(named) = line.strip_prefix("```") else { continue };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        if named == language {
            blocks.push(block);
        }
    }
    blocks
}

/// Joins a command to its next line where it goes on there.
fn joined(lines: &[&str]) -> Vec<String> {
    let text = lines.join("\n").replace("\\\n", " ");
    text.lines().map(str::to_owned).collect()
}

fn examples() -> Vec<Example> {
    let commands = blocks("sh").into_iter().flat_map(|block| joined(&block));
    let commands = commands.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut examples: Vec<Example> = commands.map(|command| Example { command, output: Vec::new() }).collect();
    for block in blocks("text") {
        let mut current: Option<Example> = None;
        for line in joined(&block) {
            if let Some(command) = line.strip_prefix("$ ") {
                examples.extend(current.replace(Example { command: command.to_owned(), output: Vec::new() }));
            } else if let Some(example) = &mut current {
                example.output.push(line);
            }
        }
        examples.extend(current);
    }
    examples
}

fn is_run(command: &str) -> bool {
    !command.starts_with("sudo ") && !command.starts_with("cargo test") && !command.contains("# needs the network")
}

/// What a transcript and a run have in common.
fn comparable<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let lines = lines.into_iter().filter(|line| !line.is_empty());
    let lines = lines.filter(|line| !DIFFERING.iter().any(|differing| line.starts_with(differing)));
    lines.map(|line| line.split(TOOK).next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn its_commands_run_in_a_clone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = env!("CARGO_BIN_EXE_steerage");
    let mut ran = 0;
    for Example { command, output } in examples().iter().filter(|example| is_run(&example.command)) {
        assert!(!command.contains("../"), "{command}: there is nothing beside a clone");
        let needs_tshark = command.contains("tshark");
        if needs_tshark
            && Command::new("tshark").arg("-v").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err()
        {
            skip("tshark is absent: install the package tshark");
            continue;
        }
        let is_ours = command.contains(CARGO_RUN) || needs_tshark;
        assert!(is_ours, "{command}: write `{CARGO_RUN}...`, or mark it as this test says");
        let script = command.replace(CARGO_RUN, &format!("'{program}' "));
        let shell =
            Command::new("bash").args(["-c", &script]).current_dir(&root).stdin(Stdio::null()).output().unwrap();
        assert!(shell.status.success(), "{command}: {shell:?}");
        ran += 1;
        let printed = String::from_utf8(shell.stdout).unwrap();
        if !output.is_empty() {
            assert_eq!(comparable(output.iter().map(String::as_str)), comparable(printed.lines()), "{command}");
        }
    }
    assert!(ran >= 3, "{ran} commands of README were run");
}
