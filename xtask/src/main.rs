//! Checks the rules for imports that the compiler does not check (the *walls* of the workspace).
//! The files of a crate must not import each other in a circle. A crate may import only the crates
//! that deny.toml permits. The sizes of the core and of the facade are limited.
//!
//! ```sh
//! cargo run -p xtask                   # check
//! cargo run -p xtask -- lines          # print the lines of code of each crate, and of each file of steerage-core
//! cargo run -p xtask -- strict-path    # print the files of the strict path
//! ```
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the output of a tool")]

mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::{env, fs};

use source::{Crate, File};

/// The modules of the core that a packet passes, in the order in which the packet passes them.
const STRICT_PATH: &[&str] =
    &["rx", "completions", "page_cache", "queue", "backlog", "packet", "handler", "tx", "softnet"];
/// The maximum number of lines of the strict path, which one person can read in an afternoon.
const STRICT_PATH_LINES_MAX: usize = 2_725;
/// The maximum number of lines of the core. About 200 of these lines let threads outside of the
/// path send packets and wake handlers. The queues for packets from such threads are in
/// steerage-mem. Messages, and state for each bucket, are in steerage-handler.
const CORE_LINES_MAX: usize = 5_270;
/// The maximum number of lines of the facade, which assembles the crates and re-exports their
/// names. Code beyond this limit belongs in another crate. About 60 of the lines name each
/// re-export of a module. Therefore a new public name of an inner crate does not become public by
/// accident.
const FACADE_LINES_MAX: usize = 625;
/// The maximum number of names on the first page of the facade's documentation. Further names
/// belong in the facade's modules.
const FACADE_NAMES_MAX: usize = 40;

fn main() -> ExitCode {
    let result = Workspace::read(Path::new("")).and_then(|workspace| match env::args().nth(1).as_deref() {
        None => workspace.check(),
        Some("lines") => Ok(workspace.line_table()),
        Some("strict-path") => Ok(workspace.strict_path().map(|file| format!("{}\n", file.path)).collect()),
        Some(_) => Err("usage: cargo run -p xtask [-- lines | strict-path]".to_owned()),
    });
    match result {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        // Scripts read the standard output, so errors go to standard error.
        Err(faults) => {
            eprintln!("xtask: {faults}");
            ExitCode::FAILURE
        }
    }
}

struct Workspace {
    crates: BTreeMap<String, Crate>,
    /// Pairs of two crates of the workspace. The first crate imports the second crate outside of
    /// its tests.
    arrows: Vec<(String, String)>,
    /// Each line of deny.toml that names crates of the workspace. Only the other crates in a line
    /// may import the first crate of the line.
    rules: Vec<Vec<String>>,
}

impl Workspace {
    fn read(root: &Path) -> Result<Self, String> {
        let (mut crates, mut arrows) = (BTreeMap::new(), Vec::new());
        let folders = fs::read_dir(root.join("crates")).map_err(|error| format!("cannot read crates/: {error}"))?;
        for folder in folders.filter_map(|entry| Some(entry.ok()?.path())) {
            // A folder without Cargo.toml is the rest of a crate that was moved away, and contains
            // nothing to check.
            let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) else { continue };
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let mut section = "";
            for line in manifest.lines() {
                if line.starts_with('[') {
                    section = line.trim_matches(['[', ']']);
                }
                let key = line.split(['.', ' ', '=']).next().unwrap_or_default();
                if key.starts_with("steerage") && section.rsplit('.').next() == Some("dependencies") {
                    arrows.push((name.clone(), key.to_owned()));
                }
            }
            crates.insert(name, Crate::read(&folder.join("src"))?);
        }
        let deny =
            fs::read_to_string(root.join("deny.toml")).map_err(|error| format!("cannot read deny.toml: {error}"))?;
        let lines = deny.lines().filter(|line| line.contains("wrappers = ["));
        let rules = lines.map(|line| line.split('"').skip(1).step_by(2).map(str::to_owned).collect()).collect();
        Ok(Self { crates, arrows, rules })
    }

    fn strict_path(&self) -> impl Iterator<Item = &File> {
        self.crates.get("steerage-core").into_iter().flat_map(|core| &core.files).filter(|file| {
            let name = file.path.split_once("/src/").map_or("", |(_, name)| name);
            STRICT_PATH.contains(&name.split(['/', '.']).next().unwrap_or_default())
        })
    }

    fn check(&self) -> Result<String, String> {
        let mut faults = Vec::new();
        for (from, to) in &self.arrows {
            if self.rules.iter().any(|rule| rule[0] == *to && !rule[1..].contains(from)) {
                faults.push(format!("{from} imports {to}, which deny.toml does not permit"));
            }
        }
        for (name, krate) in &self.crates {
            faults.extend(krate.circles().iter().map(|circle| format!("{name}: {circle}")));
        }
        let lines = |name| self.crates.get(name).map_or(0, Crate::lines);
        let names = self.crates.get("steerage").map_or(&[][..], |facade| &facade.public);
        let strict = self.strict_path().map(|file| file.lines).sum();
        for (what, count, limit) in [
            ("lines of steerage-core", lines("steerage-core"), CORE_LINES_MAX),
            ("lines of its strict path", strict, STRICT_PATH_LINES_MAX),
            ("lines of the facade steerage", lines("steerage"), FACADE_LINES_MAX),
            ("names in the root of the facade", names.len(), FACADE_NAMES_MAX),
            ("globs in the root of the facade", names.iter().filter(|name| *name == "*").count(), 0),
        ] {
            if count > limit {
                faults.push(format!("{count} {what}, and at most {limit} are allowed"));
            }
        }
        if faults.is_empty() {
            Ok(format!("xtask: the walls of {} crates stand\n", self.crates.len()))
        } else {
            Err(faults.join("\nxtask: "))
        }
    }

    fn line_table(&self) -> String {
        let row = |lines: usize, what: &str| format!("{lines:7}  {what}\n");
        let core = self.crates.get("steerage-core").into_iter().flat_map(|core| &core.files);
        let all = self.crates.values().map(Crate::lines).sum();
        let crates = self.crates.iter().map(|(name, krate)| row(krate.lines(), name));
        let strict = self.strict_path().map(|file| file.lines).sum();
        let ends = [row(all, "all crates"), row(strict, "strict path of steerage-core")];
        crates.chain(ends).chain(core.map(|file| row(file.lines, &file.path))).collect()
    }
}
