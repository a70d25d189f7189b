//! Checks the *walls* of the workspace, which the compiler does not check: no circles of imports
//! between files, and limits for the core (`steerage-core`) and the facade (`steerage`). cargo-deny
//! checks imports between crates (deny.toml).
//!
//! ```sh
//! cargo run -p xtask                   # check
//! cargo run -p xtask -- strict-path    # print the files of the strict path
//! ```
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the output of a tool")]

mod source;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::{env, fs, process};

use source::{Crate, File};

type Crates = BTreeMap<String, Crate>;

/// The *strict path*: the modules of the core that handle each packet.
const STRICT_PATH: &[&str] =
    &["rx", "completions", "page_cache", "queue", "backlog", "packet", "handler", "tx", "softnet"];
/// The maximum number of lines of the strict path, which one person can read in an afternoon.
const STRICT_PATH_LINES_MAX: usize = 2_707;
/// The maximum number of lines of the core. About 200 lines of the core let threads outside of the
/// receive path send packets and wake handlers.
const CORE_LINES_MAX: usize = 5_234;
/// The facade only assembles crates and re-exports names. About 60 lines of the facade list each
/// name, so that no new name of an inner crate becomes public by accident.
const FACADE_LINES_MAX: usize = 625;
/// The maximum number of names on the first page of the facade's documentation. Names that do not
/// fit belong in the facade's modules.
const FACADE_NAMES_MAX: usize = 40;

fn main() {
    let result = read(Path::new("")).and_then(|crates| match env::args().nth(1).as_deref() {
        None => check(&crates),
        Some("strict-path") => Ok(strict_path(&crates).map(|file| format!("{}\n", file.path)).collect()),
        Some(_) => Err("usage: cargo run -p xtask [-- strict-path]".to_owned()),
    });
    match result {
        Ok(text) => print!("{text}"),
        // Errors go to standard error, because scripts read standard output.
        Err(faults) => {
            eprintln!("xtask: {faults}");
            process::exit(1);
        }
    }
}

fn read(root: &Path) -> Result<Crates, String> {
    let folders = fs::read_dir(root.join("crates")).map_err(|error| format!("cannot read crates/: {error}"))?;
    let folders = folders.filter_map(|entry| Some(entry.ok()?.path()));
    // A crate that was moved leaves a folder without `Cargo.toml` behind.
    let crates = folders.filter(|folder| folder.join("Cargo.toml").exists()).map(|folder| {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, Crate::read(&folder.join("src"))?))
    });
    crates.collect()
}

fn strict_path(crates: &Crates) -> impl Iterator<Item = &File> {
    crates.get("steerage-core").into_iter().flat_map(|core| &core.files).filter(|file| {
        let name = file.path.split_once("/src/").map_or("", |(_, name)| name);
        STRICT_PATH.contains(&name.split(['/', '.']).next().unwrap_or_default())
    })
}

fn check(crates: &Crates) -> Result<String, String> {
    let lines = |name| crates.get(name).map_or(0, |krate| krate.files.iter().map(|file| file.lines).sum());
    let names = crates.get("steerage").map_or(&[][..], |facade| &facade.public);
    let sizes = [
        ("lines of steerage-core", lines("steerage-core"), CORE_LINES_MAX),
        ("lines of its strict path", strict_path(crates).map(|file| file.lines).sum(), STRICT_PATH_LINES_MAX),
        ("lines of the facade steerage", lines("steerage"), FACADE_LINES_MAX),
        ("names in the root of the facade", names.len(), FACADE_NAMES_MAX),
        ("globs in the root of the facade", names.iter().filter(|name| *name == "*").count(), 0),
    ];
    let too_large = sizes.iter().filter(|(_, count, limit)| count > limit);
    let too_large = too_large.map(|(what, count, limit)| format!("{count} {what}, and at most {limit} are allowed"));
    let faults: Vec<_> = crates.values().flat_map(Crate::circles).chain(too_large).collect();
    if !faults.is_empty() {
        return Err(faults.join("\nxtask: "));
    }
    let sizes = sizes.map(|(what, count, limit)| format!("{count:7} {what} (at most {limit})\n")).concat();
    Ok(format!("xtask: the walls of {} crates stand\n{sizes}", crates.len()))
}
