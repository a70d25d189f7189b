//! Runs the commands in README.md exactly as they are written, in the root directory of the
//! workspace.
//!
//! The test skips commands that begin with `sudo`, `cargo test`, and commands with the comment `#
//! needs the network`. All other commands must be commands of `steerage`, must succeed, and must
//! print the output that README.md shows, except for lines that differ between machines and runs.

use std::path::Path;
use std::process::{Command, Stdio};

use steerage_fixtures::is_installed;

use crate::pages::{CARGO_RUN, examples};

const PAGE: &str = include_str!("../../../../README.md");

fn is_run(command: &str) -> bool {
    !command.starts_with("sudo ") && !command.starts_with("cargo test") && !command.contains("# needs the network")
}

#[test]
fn its_commands_run_in_a_clone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = env!("CARGO_BIN_EXE_steerage");
    let (mut ran, mut skipped) = (0, 0);
    for example in examples(PAGE).iter().filter(|example| is_run(&example.command)) {
        let command = &example.command;
        assert!(!command.contains("../"), "{command}: there is nothing beside a clone");
        let needs_tshark = command.contains("tshark");
        if needs_tshark && !is_installed("tshark", "tshark") {
            skipped += 1;
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
        assert!(example.output.is_empty() || example.is_shown(&printed), "{example:?}\n{printed}");
    }
    assert!(ran + skipped >= 6, "only {ran} commands were run");
}
