//! Runs the commands of README and of the tutorials as they are written, in the workspace's root.
//!
//! Commands are in ```` ```sh ```` blocks. In ```` ```text ```` blocks they follow a `$`, and their
//! output follows the command.
//!
//! The test skips commands that begin with `sudo`, the tests themselves (`cargo test`), and
//! commands with the comment `# needs the network`. All other commands must be the program's, and
//! succeed. A transcript must match the output, except for lines that differ between machines and
//! runs.

use std::path::Path;
use std::process::{Command, Stdio};

use steerage_fixtures::skip;

const PAGES: [&str; 3] = [
    include_str!("../../../../README.md"),
    include_str!("../../../../docs/first-capture.md"),
    include_str!("../../../../docs/first-interface.md"),
];

/// The command with which these pages start the program. The test starts the program that was built
/// with it instead.
const CARGO_RUN: &str = "cargo run --release -- ";

/// The starts of report lines that differ between machines and runs.
const DIFFERING: [&str; 7] = ["cpus ", "steering ", "queues ", "memory ", "            ", "real", "CPU"];

/// The end of the report's first line. The time of the run follows.
const TOOK: &str = "  read in ";

#[derive(Debug)]
struct Example {
    command: String,
    /// The output that follows the command in a transcript.
    output: Vec<String>,
}

/// The blocks of a page in that language, as lines.
fn blocks(page: &'static str, language: &str) -> Vec<Vec<&'static str>> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(named) = line.strip_prefix("```") else { continue };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        if named == language {
            blocks.push(block);
        }
    }
    blocks
}

/// Joins a command with its continuation lines.
fn joined(lines: &[&str]) -> Vec<String> {
    let text = lines.join("\n").replace("\\\n", " ");
    text.lines().map(str::to_owned).collect()
}

fn examples(page: &'static str) -> Vec<Example> {
    let commands = blocks(page, "sh").into_iter().flat_map(|block| joined(&block));
    let commands = commands.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut examples: Vec<Example> = commands.map(|command| Example { command, output: Vec::new() }).collect();
    for block in blocks(page, "text") {
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

/// The parts of lines that a transcript and a run must have in common.
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
    let examples: Vec<Example> = PAGES.into_iter().flat_map(examples).collect();
    for Example { command, output } in examples.iter().filter(|example| is_run(&example.command)) {
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
    assert!(ran >= 6, "only {ran} commands were run");
}
