//! The walls of the workspace: what each crate may import, and that the modules of a crate do not import each other in
//! a circle.
//!
//! ```sh
//! rustc --edition 2024 -O -o target/walls .ci/walls.rs
//! target/walls                     # check this workspace
//! target/walls --lines             # count the lines of code of each crate, and of each file of steerage-core
//! target/walls --imports steerage  # list what each module of a crate imports, and where
//! target/walls --strict-path       # list the files of the strict path, one per line
//! ```
//!
//! The check reads source text, not what the compiler makes of it. It sees `use`, and paths that begin with `crate`,
//! `self` or `super`. It does not see method calls, or names that a macro puts together.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

/// Our crates that each crate may import, lowest crate first. Dev-dependencies are free.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("steerage-flow", &[]),
    ("steerage-topology", &[]),
    ("steerage-mem", &[]),
    ("steerage-guard", &[]),
    ("steerage-moves", &[]),
    ("steerage-ledger", &["steerage-mem", "steerage-flow", "steerage-topology", "steerage-moves"]),
    ("steerage-core", &["steerage-mem", "steerage-flow", "steerage-topology", "steerage-ledger", "steerage-moves"]),
    ("steerage-policy", &["steerage-flow", "steerage-topology", "steerage-ledger", "steerage-core"]),
    ("steerage-testing", &["steerage-mem", "steerage-flow", "steerage-topology", "steerage-ledger", "steerage-core"]),
    (
        "steerage",
        &[
            "steerage-mem",
            "steerage-flow",
            "steerage-topology",
            "steerage-ledger",
            "steerage-core",
            "steerage-policy",
            "steerage-testing",
        ],
    ),
    // For tests alone: other crates name it as a dev-dependency.
    ("steerage-fixtures", &["steerage"]),
    ("steerage-device", &["steerage", "steerage-guard"]),
    ("steerage-apps", &["steerage", "steerage-guard"]),
    ("steerage-control", &["steerage", "steerage-guard"]),
    (
        "steerage-sim",
        &[
            "steerage-mem",
            "steerage-flow",
            "steerage-topology",
            "steerage-core",
            "steerage-policy",
            "steerage-testing",
            "steerage",
        ],
    ),
    ("steerage-bench", &["steerage-mem", "steerage-flow", "steerage", "steerage-device", "steerage-apps"]),
    (
        "steerage-cli",
        &[
            "steerage-mem",
            "steerage-flow",
            "steerage-topology",
            "steerage-guard",
            "steerage-core",
            "steerage-policy",
            "steerage-testing",
            "steerage",
            "steerage-device",
            "steerage-apps",
            "steerage-control",
            "steerage-sim",
            "steerage-bench",
        ],
    ),
    // For fuzz targets and tests alone.
    ("steerage-fuzzed", &["steerage", "steerage-device", "steerage-apps", "steerage-control", "steerage-cli"]),
];

const CORE: &str = "steerage-core";
/// The modules of the core that a packet passes, in the order in which it meets them.
const STRICT_PATH: &[&str] =
    &["rx", "completions", "page_cache", "queue", "backlog", "packet", "handler", "tx", "softnet"];
/// One person reads this much in an afternoon.
const STRICT_PATH_LINES_MAX: usize = 2_700;
const CORE_LINES_MAX: usize = 5_000;
/// The facade assembles and re-exports. Anything longer belongs in another crate.
const FACADE: &str = "steerage";
const FACADE_LINES_MAX: usize = 500;
/// The items on its first page of documentation. Further names belong in its modules.
const FACADE_NAMES_MAX: usize = 40;

const USAGE: &str = "usage: walls [--lines | --imports CRATE | --strict-path] [WORKSPACE]";

fn main() -> ExitCode {
    let mut lines = false;
    let mut strict_path = false;
    let mut imports_of = None;
    let mut root = PathBuf::from(".");
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--lines" => lines = true,
            "--strict-path" => strict_path = true,
            "--imports" => match arguments.next() {
                Some(name) => imports_of = Some(name),
                None => return usage("--imports needs the name of a crate"),
            },
            "--help" | "-h" => {
                println!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            option if option.starts_with('-') => return usage(&format!("unknown option {option}")),
            folder => root = PathBuf::from(folder),
        }
    }
    let workspace = match Workspace::read(&root) {
        Ok(workspace) => workspace,
        Err(error) => {
            eprintln!("walls: {error}");
            return ExitCode::FAILURE;
        }
    };
    if lines {
        print!("{}", workspace.line_table());
        return ExitCode::SUCCESS;
    }
    if strict_path {
        for file in workspace.strict_files() {
            println!("{}", file.path);
        }
        return ExitCode::SUCCESS;
    }
    if let Some(name) = imports_of {
        let Some(krate) = workspace.crates.iter().find(|krate| krate.name == name) else {
            return usage(&format!("no crate of this workspace is named {name}"));
        };
        print!("{}", krate.import_list());
        return ExitCode::SUCCESS;
    }
    let faults = workspace.faults();
    if faults.is_empty() {
        println!("{}", workspace.summary());
        return ExitCode::SUCCESS;
    }
    for fault in &faults {
        println!("walls: {fault}");
    }
    println!("walls: {} faults", faults.len());
    ExitCode::FAILURE
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("walls: {problem}\n{USAGE}");
    ExitCode::from(2)
}

// ---------------------------------------------------------------------------------------------------------------------
// The workspace
// ---------------------------------------------------------------------------------------------------------------------

struct Workspace {
    crates: Vec<Crate>,
}

/// One crate: what its manifest and its sources say.
struct Crate {
    name: String,
    dependencies: Vec<Dependency>,
    files: Vec<SourceFile>,
    imports: Imports,
    /// `use crate::*` and the like: what such an import takes from where cannot be read off the text.
    root_globs: Vec<Place>,
    interface: Interface,
}

/// The items that the root of a crate offers to other crates.
#[derive(Default)]
struct Interface {
    names: BTreeSet<String>,
    /// `pub use a::*`, whose names cannot be read off the text.
    globs: Vec<Place>,
}

struct Dependency {
    name: String,
    line: usize,
}

struct SourceFile {
    /// As printed, from the root of the workspace.
    path: String,
    /// The top-level module the file belongs to; `None` for lib.rs and main.rs.
    module: Option<String>,
    lines: usize,
}

impl SourceFile {
    /// The position of its module in [`STRICT_PATH`].
    fn place_on_path(&self) -> Option<usize> {
        let module = self.module.as_deref()?;
        STRICT_PATH.iter().position(|name| *name == module)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    file: String,
    line: usize,
}

/// From a top-level module to another module: each place that imports it.
type Imports = BTreeMap<String, BTreeMap<String, Vec<Place>>>;

impl Workspace {
    fn read(root: &Path) -> Result<Self, String> {
        let folder = root.join("crates");
        let entries = fs::read_dir(&folder).map_err(|error| cannot_read(&folder, &error))?;
        let mut folders: Vec<PathBuf> =
            entries.filter_map(Result::ok).map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
        folders.sort();
        let mut crates = Vec::new();
        for folder in folders {
            // A folder whose crate was moved away keeps nothing that is checked.
            let manifest = folder.join("Cargo.toml");
            if manifest.exists() {
                crates.push(Crate::read(root, &folder)?);
            }
        }
        Ok(Self { crates })
    }

    fn faults(&self) -> Vec<String> {
        let mut faults = self.crate_faults(MAY_IMPORT);
        for krate in &self.crates {
            faults.extend(krate.circles());
            for place in &krate.root_globs {
                faults.push(format!(
                    "{}:{}: a glob import of the crate root hides what is imported. Name each item.",
                    place.file, place.line
                ));
            }
        }
        faults.extend(self.line_faults());
        faults.extend(self.interface_faults());
        faults
    }

    fn crate_faults(&self, may_import: &[(&str, &[&str])]) -> Vec<String> {
        let mut faults = Vec::new();
        for krate in &self.crates {
            let Some((_, allowed)) = may_import.iter().find(|(name, _)| *name == krate.name) else {
                faults.push(format!(
                    "crate {} is not in the table of .ci/walls.rs. Add a line to MAY_IMPORT: below every crate that it \
                     imports, with the names of those crates.",
                    krate.name
                ));
                continue;
            };
            for dependency in &krate.dependencies {
                let ours = self.crates.iter().any(|other| other.name == dependency.name)
                    || may_import.iter().any(|(name, _)| *name == dependency.name);
                if ours && !allowed.contains(&dependency.name.as_str()) {
                    let allowed = if allowed.is_empty() { "no crate of ours".to_owned() } else { allowed.join(", ") };
                    faults.push(format!(
                        "crates/{}/Cargo.toml:{}: {} imports {}. It may import {allowed}. Move the code that needs it \
                         up, or what is needed down.",
                        krate.name, dependency.line, krate.name, dependency.name
                    ));
                }
            }
        }
        faults
    }

    fn line_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        // The limits are those of the layout with a core. Without it, everything is in the facade.
        let Some(core) = self.crates.iter().find(|krate| krate.name == CORE) else { return faults };
        for module in STRICT_PATH {
            if !core.files.iter().any(|file| file.module.as_deref() == Some(module)) {
                faults.push(format!(
                    "{CORE} has no module {module}, which the strict path names. Correct STRICT_PATH in .ci/walls.rs."
                ));
            }
        }
        let mut at_most = |what: &str, lines: usize, limit: usize| {
            if lines > limit {
                faults.push(format!("{what} has {lines} lines of code, and may have {limit}. See walls --lines."));
            }
        };
        at_most("the strict path of steerage-core", core.strict_lines(), STRICT_PATH_LINES_MAX);
        at_most("steerage-core", core.lines(), CORE_LINES_MAX);
        if let Some(facade) = self.facade() {
            at_most("the facade steerage", facade.lines(), FACADE_LINES_MAX);
        }
        faults
    }

    fn interface_faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let Some(facade) = self.facade() else { return faults };
        for place in &facade.interface.globs {
            faults.push(format!(
                "{}:{}: a public glob in the root of {FACADE} hides which names it offers. Name each item.",
                place.file, place.line
            ));
        }
        let names: Vec<&str> = facade.interface.names.iter().map(String::as_str).collect();
        if names.len() > FACADE_NAMES_MAX {
            faults.push(format!(
                "the root of {FACADE} has {} names, and may have {FACADE_NAMES_MAX}. Leave some to its modules: {}",
                names.len(),
                names.join(", ")
            ));
        }
        faults
    }

    fn facade(&self) -> Option<&Crate> {
        self.crates.iter().find(|krate| krate.name == FACADE)
    }

    fn line_table(&self) -> String {
        let mut table = String::from("lines of code, without tests, comments and blank lines\n\n");
        let mut total = 0;
        for krate in &self.crates {
            let limit = match krate.name.as_str() {
                CORE => format!("  (limit {CORE_LINES_MAX})"),
                FACADE => format!("  (limit {FACADE_LINES_MAX})"),
                _ => String::new(),
            };
            let _ = writeln!(table, "{:7}  {}{limit}", krate.lines(), krate.name);
            total += krate.lines();
        }
        let _ = writeln!(table, "{total:7}  all crates");
        if let Some(core) = self.crates.iter().find(|krate| krate.name == CORE) {
            let _ = writeln!(table, "\n{:7}  strict path  (limit {STRICT_PATH_LINES_MAX})", core.strict_lines());
            for file in self.strict_files() {
                let _ = writeln!(table, "{:7}    {}", file.lines, file.path);
            }
            let _ = writeln!(table, "{:7}  the rest of {CORE}", core.lines() - core.strict_lines());
            for file in core.files.iter().filter(|file| file.place_on_path().is_none()) {
                let _ = writeln!(table, "{:7}    {}", file.lines, file.path);
            }
        }
        table
    }

    /// The files of the strict path, in the order in which a packet meets them.
    fn strict_files(&self) -> Vec<&SourceFile> {
        let core = self.crates.iter().filter(|krate| krate.name == CORE);
        let mut files: Vec<&SourceFile> =
            core.flat_map(|core| &core.files).filter(|file| file.place_on_path().is_some()).collect();
        files.sort_by_key(|file| (file.place_on_path(), &file.path));
        files
    }

    fn summary(&self) -> String {
        let mut text = format!("{} crates import downwards only, and no modules import in a circle", self.crates.len());
        if let Some(core) = self.crates.iter().find(|krate| krate.name == CORE) {
            let _ = write!(
                text,
                "; {CORE} has {} lines of code of {CORE_LINES_MAX}, its strict path {} of {STRICT_PATH_LINES_MAX}",
                core.lines(),
                core.strict_lines()
            );
        }
        if let Some(facade) = self.facade() {
            let names = facade.interface.names.len();
            let _ = write!(text, "; the root of {FACADE} has {names} names of {FACADE_NAMES_MAX}");
        }
        text
    }
}

impl Crate {
    fn read(root: &Path, folder: &Path) -> Result<Self, String> {
        let manifest = folder.join("Cargo.toml");
        let text = fs::read_to_string(&manifest).map_err(|error| cannot_read(&manifest, &error))?;
        let (name, dependencies) = parse_manifest(&text);
        let mut sources = Sources { root: root.to_owned(), modules: Vec::new() };
        for start in ["src/lib.rs", "src/main.rs"] {
            let path = folder.join(start);
            if path.exists() {
                sources.read_file(&path, &[])?;
            }
        }
        let (imports, root_globs) = module_imports(&sources.modules);
        let interface = Interface::of(&sources.modules);
        let mut files: Vec<SourceFile> = Vec::new();
        for source in &sources.modules {
            files.push(SourceFile {
                path: source.file.clone(),
                module: source.path.first().cloned(),
                lines: source
                    .tokens
                    .iter()
                    .flat_map(|token| token.line..=token.last_line)
                    .collect::<BTreeSet<_>>()
                    .len(),
            });
        }
        files.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(Self { name, dependencies, files, imports, root_globs, interface })
    }

    fn lines(&self) -> usize {
        self.files.iter().map(|file| file.lines).sum()
    }

    fn strict_lines(&self) -> usize {
        self.files.iter().filter(|file| file.place_on_path().is_some()).map(|file| file.lines).sum()
    }

    /// Describes each group of modules that import each other, with its shortest circle.
    fn circles(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for group in knots(&self.imports) {
            let circle = shortest_circle(&self.imports, &group);
            let mut text = format!("{}: {} modules import each other: {}", self.name, group.len(), group.join(", "));
            let _ = write!(text, "\n  {}", circle.join(" -> "));
            for pair in circle.windows(2) {
                let places = &self.imports[&pair[0]][&pair[1]];
                let _ = write!(text, "\n    {}:{} imports {}", places[0].file, places[0].line, pair[1]);
                if places.len() > 1 {
                    let _ = write!(text, " (and {} more places)", places.len() - 1);
                }
            }
            let _ = write!(text, "\n  Move what both need into a module below both. To see all imports: ");
            let _ = write!(text, "target/walls --imports {}", self.name);
            faults.push(text);
        }
        faults
    }

    fn import_list(&self) -> String {
        let mut text = String::new();
        for (from, imported) in &self.imports {
            let _ = writeln!(text, "{from}");
            for (to, places) in imported {
                let places: Vec<String> = places.iter().map(|place| format!("{}:{}", place.file, place.line)).collect();
                let _ = writeln!(text, "    {to:16} {}", places.join(" "));
            }
        }
        text
    }
}

fn cannot_read(path: &Path, error: &io::Error) -> String {
    format!("cannot read {}: {error}", path.display())
}

/// The name of the package, and what it depends on outside of tests.
fn parse_manifest(text: &str) -> (String, Vec<Dependency>) {
    let mut name = String::new();
    let mut dependencies = Vec::new();
    let mut section = String::new();
    // Inside of an array that goes on over several lines, nothing is a key.
    let mut open_brackets = 0_isize;
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if open_brackets == 0 && line.starts_with('[') {
            section = line.trim_matches(['[', ']']).to_owned();
            // A table of its own: [dependencies.name]
            if let Some((table, dependency)) = section.rsplit_once('.')
                && is_dependency_table(table)
            {
                dependencies.push(Dependency { name: dependency.trim_matches('"').to_owned(), line: line_number });
            }
            continue;
        }
        if open_brackets == 0
            && let Some((key, value)) = line.split_once('=')
        {
            let key = key.trim();
            if section == "package" && key == "name" {
                name = value.trim().trim_matches('"').to_owned();
            }
            if is_dependency_table(&section) {
                let key = key.split('.').next().unwrap_or(key).trim_matches('"');
                let package = value.split_once("package").and_then(|(_, rest)| rest.split('"').nth(1));
                dependencies.push(Dependency { name: package.unwrap_or(key).to_owned(), line: line_number });
            }
        }
        for character in line.chars() {
            match character {
                '[' | '{' => open_brackets += 1,
                ']' | '}' => open_brackets -= 1,
                _ => {}
            }
        }
    }
    (name, dependencies)
}

/// [dependencies], [build-dependencies] and the same for one target; not [dev-dependencies].
fn is_dependency_table(section: &str) -> bool {
    let last = if section.starts_with("target.") { section.rsplit('.').next().unwrap_or(section) } else { section };
    last == "dependencies" || last == "build-dependencies"
}

// ---------------------------------------------------------------------------------------------------------------------
// Rust source, as far as it matters here
// ---------------------------------------------------------------------------------------------------------------------

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Word(String),
    /// `::`, or a single character.
    Sign(&'static str),
    Other(char),
    /// The inside of a string is kept for `#[path = "..."]`.
    Text(String),
    /// A number, a character or a lifetime.
    Literal,
}

#[derive(Clone, Debug)]
struct Token {
    kind: Kind,
    line: usize,
    last_line: usize,
}

impl Token {
    fn is_word(&self, word: &str) -> bool {
        matches!(&self.kind, Kind::Word(own) if own == word)
    }

    fn is(&self, character: char) -> bool {
        self.kind == Kind::Other(character)
    }

    fn is_path_sign(&self) -> bool {
        self.kind == Kind::Sign("::")
    }

    fn word(&self) -> Option<&str> {
        match &self.kind {
            Kind::Word(word) => Some(word),
            _ => None,
        }
    }
}

/// Cuts source text into tokens. Comments, and with them documentation, leave nothing.
fn tokens_of(text: &str) -> Vec<Token> {
    let mut cutter = Cutter { rest: text, line: 1, tokens: Vec::new() };
    while !cutter.rest.is_empty() {
        cutter.step();
    }
    cutter.tokens
}

struct Cutter<'a> {
    rest: &'a str,
    line: usize,
    tokens: Vec<Token>,
}

impl<'a> Cutter<'a> {
    fn step(&mut self) {
        let Some(first) = self.rest.chars().next() else { return };
        if first.is_whitespace() {
            self.take(first.len_utf8());
        } else if self.rest.starts_with("//") {
            self.take(self.rest.find('\n').unwrap_or(self.rest.len()));
        } else if self.rest.starts_with("/*") {
            self.take(block_comment_bytes(self.rest));
        } else if let Some((bytes, inside)) = string_literal(self.rest) {
            self.push(Kind::Text(inside), bytes);
        } else if first == '\'' || self.rest.starts_with("b'") {
            self.push(Kind::Literal, quote_bytes(self.rest));
        } else if first == '_' || first.is_alphabetic() {
            let plain = self.rest.strip_prefix("r#").unwrap_or(self.rest);
            let word = leading_word(plain);
            let prefix = self.rest.len() - plain.len();
            self.push(Kind::Word(word.to_owned()), prefix + word.len());
        } else if first.is_ascii_digit() {
            self.push(Kind::Literal, leading_word(self.rest).len());
        } else if self.rest.starts_with("::") {
            self.push(Kind::Sign("::"), 2);
        } else {
            self.push(Kind::Other(first), first.len_utf8());
        }
    }

    fn push(&mut self, kind: Kind, bytes: usize) {
        let line = self.line;
        self.take(bytes);
        self.tokens.push(Token { kind, line, last_line: self.line });
    }

    fn take(&mut self, bytes: usize) {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.bytes().filter(|&byte| byte == b'\n').count();
        self.rest = rest;
    }
}

fn leading_word(text: &str) -> &str {
    let end = text.find(|character: char| character != '_' && !character.is_alphanumeric()).unwrap_or(text.len());
    &text[..end]
}

fn block_comment_bytes(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// The length of the string literal at the beginning of the text, and what stands between its quotes.
fn string_literal(text: &str) -> Option<(usize, String)> {
    let start = text.trim_start_matches(['b', 'c', 'r']);
    let prefix = &text[..text.len() - start.len()];
    if !["", "b", "c", "r", "br", "cr"].contains(&prefix) {
        return None;
    }
    if prefix.ends_with('r') {
        let quoted = start.trim_start_matches('#');
        let hashes = start.len() - quoted.len();
        let inside = quoted.strip_prefix('"')?;
        let end_mark = format!("\"{}", "#".repeat(hashes));
        let end = inside.find(&end_mark).unwrap_or(inside.len());
        let bytes = (prefix.len() + hashes + 1 + end + end_mark.len()).min(text.len());
        return Some((bytes, inside[..end].to_owned()));
    }
    let inside = start.strip_prefix('"')?;
    let mut escaped = false;
    for (at, byte) in inside.bytes().enumerate() {
        match byte {
            b'"' if !escaped => return Some((prefix.len() + 1 + at + 1, inside[..at].to_owned())),
            b'\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    Some((text.len(), inside.to_owned()))
}

/// The length of what begins with a single quote: a lifetime, or the literal of a character or a byte.
fn quote_bytes(text: &str) -> usize {
    let start = text.strip_prefix('b').unwrap_or(text);
    let prefix = text.len() - start.len();
    let inside = &start[1..];
    let Some(first) = inside.chars().next() else { return text.len() };
    if first == '\\' {
        // The character behind the backslash may be a quote itself.
        let end = inside.char_indices().skip(2).find(|(_, character)| *character == '\'');
        return prefix + 1 + end.map_or(inside.len(), |(at, _)| at + 1);
    }
    if inside[first.len_utf8()..].starts_with('\'') {
        return prefix + 1 + first.len_utf8() + 1;
    }
    prefix + 1 + leading_word(inside).len()
}

/// Takes out what only tests see: each item, field or statement behind `#[cfg(test)]` or `#[cfg(all(test, ...))]`.
fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match attribute(tokens, at) {
            // The whole file: #![cfg(test)]
            Some(found) if found.inner && found.for_tests => return Vec::new(),
            Some(found) if found.for_tests => at = item_end(tokens, found.end),
            // A cfg may come after other attributes: the item goes with all of them.
            Some(found) if !found.inner => {
                let mut end = found.end;
                let mut for_tests = false;
                while let Some(next) = attribute(tokens, end).filter(|next| !next.inner) {
                    for_tests |= next.for_tests;
                    end = next.end;
                }
                if for_tests {
                    at = item_end(tokens, end);
                } else {
                    kept.extend_from_slice(&tokens[at..end]);
                    at = end;
                }
            }
            _ => {
                kept.push(tokens[at].clone());
                at += 1;
            }
        }
    }
    kept
}

struct Attribute {
    /// `#![...]`, which is about the item around it.
    inner: bool,
    for_tests: bool,
    end: usize,
}

fn attribute(tokens: &[Token], at: usize) -> Option<Attribute> {
    if !tokens.get(at)?.is('#') {
        return None;
    }
    let inner = tokens.get(at + 1)?.is('!');
    let open = at + 1 + usize::from(inner);
    if !tokens.get(open)?.is('[') {
        return None;
    }
    let end = closing(tokens, open) + 1;
    let body = &tokens[open + 1..end - 1];
    let for_tests = body.len() > 2 && body[0].is_word("cfg") && needs_test(&body[2..body.len() - 1]);
    Some(Attribute { inner, for_tests, end })
}

/// Whether a condition of `cfg` can hold in tests only.
fn needs_test(condition: &[Token]) -> bool {
    let Some(first) = condition.first().and_then(Token::word) else { return false };
    if condition.len() == 1 {
        return first == "test";
    }
    let inside = &condition[2.min(condition.len())..condition.len() - 1];
    match first {
        "all" => arguments(inside).into_iter().any(needs_test),
        "any" => arguments(inside).into_iter().all(needs_test),
        _ => false,
    }
}

fn arguments(tokens: &[Token]) -> Vec<&[Token]> {
    let mut found = Vec::new();
    let mut depth = 0_usize;
    let mut start = 0;
    for (at, token) in tokens.iter().enumerate() {
        match token.kind {
            Kind::Other('(') => depth += 1,
            Kind::Other(')') => depth = depth.saturating_sub(1),
            Kind::Other(',') if depth == 0 => {
                found.push(&tokens[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if start < tokens.len() {
        found.push(&tokens[start..]);
    }
    found
}

/// The index of the bracket that closes the one at `open`.
fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.kind {
            Kind::Other('(' | '[' | '{') => depth += 1,
            Kind::Other(')' | ']' | '}') => {
                depth -= 1;
                if depth == 0 {
                    return at;
                }
            }
            _ => {}
        }
    }
    tokens.len() - 1
}

/// The index behind the item, field, arm or statement that begins at `start`; attributes may come first.
fn item_end(tokens: &[Token], mut start: usize) -> usize {
    while let Some(found) = attribute(tokens, start) {
        start = found.end;
    }
    let mut at = start;
    if tokens.get(at).is_some_and(|token| token.is_word("pub")) {
        at += 1;
        if tokens.get(at).is_some_and(|token| token.is('(')) {
            at = closing(tokens, at) + 1;
        }
    }
    let first = tokens.get(at).and_then(Token::word).unwrap_or_default();
    let second = tokens.get(at + 1).and_then(Token::word).unwrap_or_default();
    let is_function = first == "const" && ["fn", "unsafe", "extern", "async"].contains(&second);
    let ends_at_semicolon = ["use", "let", "const", "static", "type"].contains(&first) && !is_function
        || (first == "extern" && second == "crate");
    let words_of_items =
        ["fn", "struct", "enum", "union", "impl", "trait", "mod", "unsafe", "async", "extern", "const"];
    let is_item = words_of_items.contains(&first);
    while at < tokens.len() {
        match tokens[at].kind {
            Kind::Other(';') => return at + 1,
            Kind::Other(',') if !is_item && !ends_at_semicolon => return at + 1,
            Kind::Other(')' | ']' | '}') => return at, // the end of the item around the field or statement
            Kind::Other('(' | '[') => at = closing(tokens, at),
            Kind::Other('{') => {
                at = closing(tokens, at);
                let goes_on = tokens.get(at + 1).is_some_and(|token| token.is_word("else"));
                if !ends_at_semicolon && !goes_on {
                    // An arm or a field may have a comma behind its block.
                    let comma = !is_item && tokens.get(at + 1).is_some_and(|token| token.is(','));
                    return at + 1 + usize::from(comma);
                }
            }
            _ => {}
        }
        at += 1;
    }
    tokens.len()
}

// ---------------------------------------------------------------------------------------------------------------------
// The modules of a crate
// ---------------------------------------------------------------------------------------------------------------------

/// The files of a crate, found from its root by the `mod` declarations that not only tests see.
struct Sources {
    root: PathBuf,
    modules: Vec<ModuleFile>,
}

struct ModuleFile {
    file: String,
    /// Empty for the root.
    path: Vec<String>,
    tokens: Vec<Token>,
}

impl Sources {
    fn read_file(&mut self, file: &Path, path: &[String]) -> Result<(), String> {
        let text = fs::read_to_string(file).map_err(|error| cannot_read(file, &error))?;
        let tokens = without_tests(&tokens_of(&text));
        let folder = file.parent().unwrap_or(Path::new(""));
        let stem = file.file_stem().unwrap_or_default();
        let owns_folder = path.is_empty() || stem == "mod";
        let children = if owns_folder { folder.to_owned() } else { folder.join(stem) };

        let mut found = Vec::new();
        walk(&tokens, path, |module, at| {
            if let (true, Some(name), Some(true)) = (
                tokens[at].is_word("mod"),
                tokens.get(at + 1).and_then(Token::word),
                tokens.get(at + 2).map(|token| token.is(';')),
            ) {
                let mut inline_folder = children.clone();
                inline_folder.extend(&module[path.len()..]);
                let candidates = match path_attribute(&tokens, at) {
                    Some(given) => vec![folder.join(given)],
                    None => vec![inline_folder.join(format!("{name}.rs")), inline_folder.join(name).join("mod.rs")],
                };
                let mut child = module.to_vec();
                child.push(name.to_owned());
                found.push((candidates, child, tokens[at].line));
            }
        });
        let shown = file.strip_prefix(&self.root).unwrap_or(file).display().to_string();
        for (candidates, child, line) in found {
            let Some(child_file) = candidates.iter().find(|candidate| candidate.exists()) else {
                return Err(format!("{shown}:{line}: there is no file for module {}", child.join("::")));
            };
            self.read_file(child_file, &child)?;
        }
        self.modules.push(ModuleFile { file: shown, path: path.to_vec(), tokens });
        Ok(())
    }
}

/// The file that `#[path = "..."]` in front of a module names.
fn path_attribute(tokens: &[Token], module: usize) -> Option<&str> {
    let mut at = module;
    // Back over `pub(crate)` to the attributes, and no further than this item goes.
    while at > 0 && !matches!(tokens[at - 1].kind, Kind::Other(';' | '}' | '{')) {
        at -= 1;
        if tokens[at].is_word("path") && tokens.get(at + 1).is_some_and(|token| token.is('=')) {
            return match &tokens.get(at + 2)?.kind {
                Kind::Text(text) => Some(text),
                _ => None,
            };
        }
    }
    None
}

/// Calls back for each token with its module.
fn walk(tokens: &[Token], path: &[String], mut visit: impl FnMut(&[String], usize)) {
    let mut module = path.to_vec();
    // For each open brace: whether it is that of an inline module.
    let mut braces = Vec::new();
    for at in 0..tokens.len() {
        visit(&module, at);
        if tokens[at].is('{') {
            let name = at.checked_sub(1).and_then(|before| tokens[before].word());
            let inline = at >= 2 && tokens[at - 2].is_word("mod") && name.is_some();
            if let (true, Some(name)) = (inline, name) {
                module.push(name.to_owned());
            }
            braces.push(inline);
        } else if tokens[at].is('}') && braces.pop() == Some(true) {
            module.pop();
        }
    }
}

/// One path out of a `use`, or out of code.
#[derive(Debug, PartialEq, Eq)]
struct Named {
    segments: Vec<String>,
    /// The name that it has from there on; empty in code, and for `*`.
    name: String,
    glob: bool,
    line: usize,
}

/// All that a file names by path: each with its module, and whether it is a `use`.
fn named_in(tokens: &[Token], path: &[String]) -> Vec<(Vec<String>, bool, Named)> {
    let mut found = Vec::new();
    // Tokens in front of this one belong to something that was read as a whole.
    let mut read_to = 0;
    walk(tokens, path, |module, at| {
        if at < read_to {
            return;
        }
        let token = &tokens[at];
        let next = tokens.get(at + 1);
        if token.is_word("pub") && next.is_some_and(|next| next.is('(')) {
            read_to = closing(tokens, at + 1) + 1; // pub(in crate::a) shows, and does not import
        } else if token.is_word("use") && !next.is_some_and(|next| next.is('<')) {
            let mut leaves = Vec::new();
            read_to = use_tree(tokens, at + 1, Vec::new(), &mut leaves);
            found.extend(leaves.into_iter().map(|leaf| (module.to_vec(), true, leaf)));
        } else if token.word().is_some() && next.is_some_and(Token::is_path_sign) {
            let mut segments = Vec::new();
            let mut end = at;
            while let Some(word) = tokens.get(end).and_then(Token::word) {
                segments.push(word.to_owned());
                end += 1;
                if !tokens.get(end).is_some_and(Token::is_path_sign) {
                    break;
                }
                end += 1;
            }
            read_to = end;
            // `<T as Trait>::Name::Other` and `::extern_crate::name` do not begin here.
            if at == 0 || !tokens[at - 1].is_path_sign() {
                found.push((
                    module.to_vec(),
                    false,
                    Named { segments, name: String::new(), glob: false, line: token.line },
                ));
            }
        }
    });
    found
}

/// Reads one tree of a `use` from `at` on; returns the index behind it.
fn use_tree(tokens: &[Token], mut at: usize, mut segments: Vec<String>, leaves: &mut Vec<Named>) -> usize {
    let line = tokens.get(at).map_or(0, |token| token.line);
    if segments.is_empty() && tokens.get(at).is_some_and(Token::is_path_sign) {
        segments.push("::".to_owned()); // an extern crate for sure
        at += 1;
    }
    loop {
        let Some(token) = tokens.get(at) else { return at };
        if token.is('{') {
            let end = closing(tokens, at);
            at += 1;
            while at < end {
                at = use_tree(tokens, at, segments.clone(), leaves);
                if tokens.get(at).is_some_and(|token| token.is(',')) {
                    at += 1;
                }
            }
            return end + 1;
        }
        if token.is('*') {
            leaves.push(Named { segments, name: String::new(), glob: true, line });
            return at + 1;
        }
        let Some(word) = token.word() else { return at + 1 };
        // a::{self} is a.
        if word != "self" || segments.is_empty() {
            segments.push(word.to_owned());
        }
        at += 1;
        if tokens.get(at).is_some_and(Token::is_path_sign) {
            at += 1;
            continue;
        }
        let mut name = segments.last().cloned().unwrap_or_default();
        if tokens.get(at).is_some_and(|token| token.is_word("as")) {
            name = tokens.get(at + 1).and_then(Token::word).unwrap_or_default().to_owned();
            at += 2;
        }
        leaves.push(Named { segments, name, glob: false, line });
        return at;
    }
}

/// A path from the root of the crate, if it begins with `crate`, `self` or `super`.
fn from_root(module: &[String], segments: &[String], aliases: &BTreeSet<String>) -> Option<Vec<String>> {
    let mut base = match segments.first()?.as_str() {
        "crate" => Vec::new(),
        "self" => module.to_vec(),
        "super" => module[..module.len().saturating_sub(1)].to_vec(),
        first if aliases.contains(first) => Vec::new(),
        _ => return None,
    };
    for segment in &segments[1..] {
        if segment == "super" {
            base.pop();
        } else {
            base.push(segment.clone());
        }
    }
    Some(base)
}

/// Which top-level module imports which, and the globs of the root.
fn module_imports(files: &[ModuleFile]) -> (Imports, Vec<Place>) {
    let mut imports = Imports::new();
    for file in files {
        walk(&file.tokens, &file.path, |module, at| {
            // A module in a file, or inline in the root.
            let inline = module.is_empty() && file.tokens[at].is_word("mod");
            let name = if inline { file.tokens.get(at + 1).and_then(Token::word) } else { None };
            if let Some(name) = name.or(module.first().map(String::as_str)) {
                imports.entry(name.to_owned()).or_default();
            }
        });
    }
    let modules: BTreeSet<String> = imports.keys().cloned().collect();
    let aliases = names_of_this_crate(files);
    let root_names = root_names(files, &modules, &aliases);

    let mut root_globs = Vec::new();
    for file in files {
        for (module, is_use, named) in named_in(&file.tokens, &file.path) {
            let Some(own) = module.first() else { continue };
            let Some(target) = from_root(&module, &named.segments, &aliases) else { continue };
            let place = Place { file: file.file.clone(), line: named.line };
            let Some(first) = target.first() else {
                if is_use && named.glob {
                    root_globs.push(place);
                }
                continue;
            };
            let to = if modules.contains(first) { Some(first) } else { root_names.get(first) };
            if let Some(to) = to.filter(|to| *to != own) {
                let places = imports.entry(own.clone()).or_default().entry(to.clone()).or_default();
                if !places.contains(&place) {
                    places.push(place);
                }
            }
        }
    }
    for imported in imports.values_mut() {
        for places in imported.values_mut() {
            places.sort();
        }
    }
    (imports, root_globs)
}

/// `extern crate self as name` makes `name::` another word for `crate::`.
fn names_of_this_crate(files: &[ModuleFile]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in files.iter().filter(|file| file.path.is_empty()) {
        for window in file.tokens.windows(5) {
            let words: Vec<&str> = window.iter().filter_map(Token::word).collect();
            if let ["extern", "crate", "self", "as", name] = words[..] {
                names.insert(name.to_owned());
            }
        }
    }
    names
}

/// The names that the root takes out of its modules, each with its module: `crate::Name` is an import of that module.
fn root_names(
    files: &[ModuleFile],
    modules: &BTreeSet<String>,
    aliases: &BTreeSet<String>,
) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    // A macro with #[macro_export] lies in the root, wherever it was written.
    for file in files {
        let Some(module) = file.path.first() else { continue };
        for (at, token) in file.tokens.iter().enumerate() {
            if token.is_word("macro_rules")
                && let Some(name) = file.tokens.get(at + 2).and_then(Token::word)
            {
                names.insert(name.to_owned(), module.clone());
            }
        }
    }
    let mut globs = Vec::new();
    for file in files.iter().filter(|file| file.path.is_empty()) {
        for (module, is_use, named) in named_in(&file.tokens, &file.path) {
            if !is_use || !module.is_empty() {
                continue;
            }
            let target = from_root(&module, &named.segments, aliases).unwrap_or(named.segments);
            let Some(first) = target.first().filter(|first| modules.contains(*first)) else { continue };
            if named.glob {
                globs.push(target.clone());
            } else if named.name != *first {
                names.insert(named.name, first.clone());
            }
        }
    }
    for target in globs {
        for file in files.iter().filter(|file| file.path == target) {
            for name in declared_names(&file.tokens, &file.path) {
                names.entry(name).or_insert_with(|| target[0].clone());
            }
        }
    }
    names
}

/// The names of the items of a file, and of what it re-exports.
fn declared_names(tokens: &[Token], path: &[String]) -> Vec<String> {
    let words_of_items = ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "mod"];
    let mut names: Vec<String> = named_in(tokens, path)
        .into_iter()
        .filter(|(module, is_use, named)| *is_use && module == path && !named.glob)
        .map(|(_, _, named)| named.name)
        .collect();
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        match &token.kind {
            Kind::Other('{' | '(' | '[') => depth += 1,
            Kind::Other('}' | ')' | ']') => depth = depth.saturating_sub(1),
            Kind::Word(word) if depth == 0 && words_of_items.contains(&word.as_str()) => {
                names.extend(tokens.get(at + 1).and_then(Token::word).map(str::to_owned));
            }
            _ => {}
        }
    }
    names
}

impl Interface {
    fn of(files: &[ModuleFile]) -> Self {
        let mut interface = Self::default();
        for file in files.iter().filter(|file| file.path.is_empty()) {
            interface.add(file);
        }
        interface
    }

    fn add(&mut self, root: &ModuleFile) {
        let tokens = &root.tokens;
        let mut at = 0;
        while at < tokens.len() {
            let public = tokens[at].is_word("pub") && !tokens.get(at + 1).is_some_and(|token| token.is('('));
            if public && tokens.get(at + 1).is_some_and(|token| token.is_word("use")) {
                let mut leaves = Vec::new();
                at = use_tree(tokens, at + 2, Vec::new(), &mut leaves);
                for leaf in leaves {
                    if leaf.glob {
                        self.globs.push(Place { file: root.file.clone(), line: leaf.line });
                    } else if leaf.name != "_" {
                        self.names.insert(leaf.name);
                    }
                }
                continue;
            }
            if public {
                self.names.extend(item_name(&tokens[at + 1..]).map(str::to_owned));
            }
            // Text in brackets is inside of an item.
            let open = matches!(tokens[at].kind, Kind::Other('{' | '(' | '['));
            at = if open { closing(tokens, at) + 1 } else { at + 1 };
        }
    }
}

/// The name of the item whose first token behind `pub` is given.
fn item_name(tokens: &[Token]) -> Option<&str> {
    // `const` comes twice: in front of a name, and in front of `fn`.
    let words_before_names = ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "mod", "mut"];
    let words_before_those = ["unsafe", "async", "extern"];
    tokens
        .iter()
        .filter_map(Token::word)
        .find(|word| !words_before_names.contains(word) && !words_before_those.contains(word))
}

// ---------------------------------------------------------------------------------------------------------------------
// Circles
// ---------------------------------------------------------------------------------------------------------------------

/// The groups of modules in which each module reaches every other, the largest first.
fn knots(imports: &Imports) -> Vec<Vec<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        imports.keys().map(|module| (module.as_str(), reached_from(imports, module))).collect();
    let mut groups: Vec<Vec<String>> = Vec::new();
    for module in imports.keys() {
        if groups.iter().any(|group| group.contains(module)) {
            continue;
        }
        let group: Vec<String> = imports
            .keys()
            .filter(|other| {
                reached[module.as_str()].contains(other.as_str()) && reached[other.as_str()].contains(module.as_str())
            })
            .cloned()
            .collect();
        if group.len() > 1 {
            groups.push(group);
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
    groups
}

fn reached_from<'a>(imports: &'a Imports, start: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut waiting = vec![start];
    while let Some(module) = waiting.pop() {
        for next in imports.get(module).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(next.as_str()) {
                waiting.push(next);
            }
        }
    }
    reached
}

/// The shortest way from a module of the group back to itself; both ends are named.
fn shortest_circle(imports: &Imports, group: &[String]) -> Vec<String> {
    let mut shortest: Option<Vec<String>> = None;
    for start in group {
        let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
        let mut waiting = VecDeque::from([start.as_str()]);
        while let Some(module) = waiting.pop_front() {
            for next in imports[module].keys().filter(|next| group.contains(next)) {
                if !came_from.contains_key(next.as_str()) {
                    came_from.insert(next, module);
                    waiting.push_back(next);
                }
            }
        }
        let mut circle = vec![start.clone()];
        let mut at = came_from.get(start.as_str()).copied();
        while let Some(module) = at {
            circle.push(module.to_owned());
            at = if module == start { None } else { came_from.get(module).copied() };
        }
        circle.reverse();
        if shortest.as_ref().is_none_or(|known| circle.len() < known.len()) {
            shortest = Some(circle);
        }
    }
    shortest.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate out of files in memory: module path and text.
    fn files(sources: &[(&str, &str)]) -> Vec<ModuleFile> {
        sources
            .iter()
            .map(|(path, text)| ModuleFile {
                file: if path.is_empty() { "lib.rs".to_owned() } else { format!("{}.rs", path.replace("::", "/")) },
                path: path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect(),
                tokens: without_tests(&tokens_of(text)),
            })
            .collect()
    }

    /// `a>b` for each import.
    fn edges(sources: &[(&str, &str)]) -> Vec<String> {
        let (imports, _) = module_imports(&files(sources));
        imports.iter().flat_map(|(from, imported)| imported.keys().map(move |to| format!("{from}>{to}"))).collect()
    }

    fn words(text: &str) -> Vec<String> {
        without_tests(&tokens_of(text)).iter().filter_map(Token::word).map(str::to_owned).collect()
    }

    fn krate(name: &str, dependencies: &[&str]) -> Crate {
        Crate {
            name: name.to_owned(),
            dependencies: dependencies.iter().map(|name| Dependency { name: (*name).to_owned(), line: 7 }).collect(),
            files: Vec::new(),
            imports: Imports::new(),
            root_globs: Vec::new(),
            interface: Interface::default(),
        }
    }

    fn core_of(files: Vec<(&str, usize)>) -> Workspace {
        let mut core = krate(CORE, &[]);
        core.files = files
            .into_iter()
            .map(|(module, lines)| SourceFile { path: format!("{module}.rs"), module: Some(module.to_owned()), lines })
            .collect();
        Workspace { crates: vec![core] }
    }

    #[test]
    fn the_table_itself_points_down() {
        for (at, (name, allowed)) in MAY_IMPORT.iter().enumerate() {
            for import in *allowed {
                assert!(MAY_IMPORT[..at].iter().any(|(below, _)| below == import), "{import} is not above {name}");
            }
        }
    }

    #[test]
    fn comments_strings_characters_and_lifetimes_are_no_code() {
        assert_eq!(words("a // crate::b\n/* crate::c /* nested */ crate::d */ e"), ["a", "e"]);
        assert_eq!(words(r##"a("crate::b \" crate::c", r#"crate::"d"#, b"e\\", c"f") g"##), ["a", "g"]);
        assert_eq!(words(r"match x { '\'' => a, '{' => b, b'}' => c, '\u{7f}' => d } fn f<'e>(x: &'e str)").len(), 10);
        assert_eq!(words("r#type brave crate_name"), ["type", "brave", "crate_name"]);
    }

    #[test]
    fn tests_are_taken_out_and_nothing_else() {
        assert_eq!(words("fn a() {} #[cfg(test)] mod tests { use crate::b; } fn c() {}"), ["fn", "a", "fn", "c"]);
        assert_eq!(words("#[cfg(test)] mod tests; use d;"), ["use", "d"]);
        assert_eq!(words("#[cfg(all(test, not(loom)))] mod tests {} e"), ["e"]);
        assert_eq!(words("#[derive(A)] #[cfg(test)] struct B<C, D> { x: u8 } e"), ["e"]);
        assert_eq!(words("#[cfg(test)] #[allow(x)] pub(crate) use a::{b, c}; e"), ["e"]);
        assert_eq!(words("#[cfg(test)] const fn a() -> u8 { 1 } e"), ["e"]);
        assert_eq!(words("#[cfg(test)] const A: B = B { c: 1 }; e"), ["e"]);
        assert_eq!(words("{ #[cfg(test)] if a { b } else { c } d }"), ["d"]);
        assert_eq!(words("struct S { #[cfg(test)] a: B, c: D }"), ["struct", "S", "c", "D"]);
        assert_eq!(words("struct S { c: D, #[cfg(test)] a: B }"), ["struct", "S", "c", "D"]);
        assert_eq!(words("#[cfg(not(test))] a #[cfg(any(test, loom))] b #[cfg(loom)] c").len(), 12);
        assert_eq!(words("#![cfg(test)] fn a() {}"), Vec::<String>::new());
    }

    #[test]
    fn imports_of_every_shape_are_seen() {
        let root = ("", "mod a; mod b; mod c; pub use b::Thing; use c::{Inner as Outer, deep::*};");
        let imports = |text: &str| edges(&[root, ("a", text), ("b", ""), ("c", ""), ("c::deep", "pub struct Deep;")]);
        assert_eq!(imports("use crate::b::Thing;"), ["a>b"]);
        assert_eq!(imports("use crate::{\n    b::{self, x::{y, z}},\n    c,\n};"), ["a>b", "a>c"]);
        assert_eq!(imports("use crate::Thing;"), ["a>b"]);
        assert_eq!(imports("use crate::{Outer, Thing as Other};"), ["a>b", "a>c"]);
        assert_eq!(imports("use crate::Deep;"), ["a>c"]);
        assert_eq!(imports("use super::b;"), ["a>b"]);
        assert_eq!(imports("fn f() -> crate::b::Thing { crate::c::f() }"), ["a>b", "a>c"]);
        assert_eq!(imports("mod inner { use super::super::b; fn f() { super::own() } }"), ["a>b"]);
        assert_eq!(imports("fn f() { use crate::b; }"), ["a>b"]);
        assert_eq!(imports("macro_rules! m { () => { $crate::b::f() } }"), ["a>b"]);
        assert_eq!(imports("use crate::c::*;"), ["a>c"]);
    }

    #[test]
    fn what_is_no_import_of_a_module_is_not_taken_for_one() {
        let root = ("", "mod a; mod b; fn own() {}");
        let imports = |text: &str| edges(&[root, ("a", text), ("b", "")]);
        let none = Vec::<String>::new();
        assert_eq!(imports("use std::b; use ::b::x; use other::{b, c};"), none);
        assert_eq!(imports("pub(in crate::b) fn f() {} pub(crate) fn g() {}"), none);
        assert_eq!(imports("/// [`crate::b`]\nfn f() { x(\"crate::b\"); self.b(); T::b() }"), none);
        assert_eq!(imports("use crate::a::x; use self::b; mod b;"), none);
        assert_eq!(imports("use crate::own; fn f() -> impl Sized + use<'_> { b }"), none);
        assert_eq!(imports("#[cfg(test)] mod tests { use crate::b; }"), none);
    }

    #[test]
    fn deeper_files_belong_to_their_top_level_module() {
        let sources = [
            ("", "mod a; mod b;"),
            ("a", "mod deep;"),
            ("a::deep", "use super::x; use super::super::b::Y;"),
            ("b", ""),
        ];
        assert_eq!(edges(&sources), ["a>b"]);
    }

    #[test]
    fn modules_in_the_root_file_and_exported_macros_count() {
        let sources = [
            ("", "extern crate self as me; mod a { pub use crate::b::X; } mod b; mod c; mod d;"),
            ("b", "#[macro_export] macro_rules! count { () => {} }"),
            ("c", "fn f() { crate::count!() }"),
            ("d", "use me::a;"),
        ];
        assert_eq!(edges(&sources), ["a>b", "c>b", "d>a"]);
        let with_path = [("", "mod b; mod c;"), sources[1], ("c", "use crate::count;")];
        assert_eq!(edges(&with_path), ["c>b"]);
    }

    #[test]
    fn a_glob_of_the_root_is_a_fault() {
        let (_, globs) = module_imports(&files(&[("", "mod a;"), ("a", "\nuse crate::*;\nuse super::*;")]));
        assert_eq!(globs.iter().map(|place| place.line).collect::<Vec<_>>(), [2, 3]);
        let (_, globs) = module_imports(&files(&[("", "mod a;"), ("a", "mod inner { use super::*; }")]));
        assert!(globs.is_empty());
    }

    #[test]
    fn a_circle_is_found_and_printed_with_its_places() {
        let sources = [
            ("", "mod a; mod b; mod c; mod d; mod e;"),
            ("a", "use crate::b;"),
            ("b", "use crate::c;"),
            ("c", "\n\nuse crate::{a, d};"),
            ("d", "use crate::c;"),
            ("e", "use crate::a;"),
        ];
        let mut krate = krate("x", &[]);
        krate.imports = module_imports(&files(&sources)).0;
        let circles = krate.circles();
        assert_eq!(circles.len(), 1);
        assert!(
            circles[0].starts_with("x: 4 modules import each other: a, b, c, d\n  c -> d -> c\n"),
            "{}",
            circles[0]
        );
        assert!(circles[0].contains("c.rs:3 imports d\n    d.rs:1 imports c"), "{}", circles[0]);
    }

    #[test]
    fn two_knots_are_two_circles_and_a_chain_is_none() {
        let sources = [
            ("", "mod a; mod b; mod c; mod d;"),
            ("a", "use crate::b;"),
            ("b", "use crate::a; use crate::c;"),
            ("c", "use crate::d;"),
            ("d", "use crate::c;"),
        ];
        let groups = knots(&module_imports(&files(&sources)).0);
        assert_eq!(groups, [["a", "b"], ["c", "d"]]);
        assert!(
            knots(&module_imports(&files(&[("", "mod a; mod b;"), ("a", "use crate::b;"), ("b", "")])).0).is_empty()
        );
    }

    #[test]
    fn a_manifest_is_read_without_its_dev_dependencies() {
        let text = "[package]\nname = \"x\" \n[features]\nf = [\"dep:a\"]\n[dependencies]\n# b = 1\na.workspace = true\n\
                    c = { version = \"1\", features = [\n    \"d\", \"e=f\",\n] }\ng = { package = \"h\", path = \"..\" }\n\
                    [target.'cfg(loom)'.dependencies]\ni = \"1\"\n[dependencies.j]\nversion = \"1\"\n\
                    [dev-dependencies]\nk = \"1\"\n[dev-dependencies.l]\npath = \"..\"\n[build-dependencies]\nm = \"1\"\n";
        let (name, dependencies) = parse_manifest(text);
        assert_eq!(name, "x");
        let names: Vec<&str> = dependencies.iter().map(|dependency| dependency.name.as_str()).collect();
        assert_eq!(names, ["a", "c", "h", "i", "j", "m"]);
        assert_eq!(dependencies[0].line, 7);
    }

    #[test]
    fn a_crate_imports_what_the_table_allows_and_nothing_else_of_ours() {
        let table: &[(&str, &[&str])] = &[("low", &[]), ("high", &["low"])];
        let workspace = |crates| Workspace { crates };
        assert!(workspace(vec![krate("low", &["libc"]), krate("high", &["low"])]).crate_faults(table).is_empty());
        let faults = workspace(vec![krate("low", &["high"]), krate("high", &[])]).crate_faults(table);
        assert_eq!(faults.len(), 1);
        assert!(faults[0].starts_with("crates/low/Cargo.toml:7: low imports high. It may import no crate of ours."));
        let faults = workspace(vec![krate("new", &[])]).crate_faults(table);
        assert!(faults[0].starts_with("crate new is not in the table"), "{}", faults[0]);
    }

    #[test]
    fn limits_hold_from_when_there_is_a_core() {
        let path = |lines: usize| STRICT_PATH.iter().map(|module| (*module, lines)).collect::<Vec<_>>();
        assert!(core_of(path(270)).line_faults().is_empty());
        assert!(core_of(path(271)).line_faults()[0].starts_with("the strict path of steerage-core has 2710 lines"));
        let mut all = path(270);
        all.push(("moves", 2_301));
        assert!(core_of(all).line_faults()[0].starts_with("steerage-core has 5001 lines"));
        assert!(core_of(path(1)[1..].to_vec()).line_faults()[0].starts_with("steerage-core has no module rx"));

        let mut facade = krate(FACADE, &[]);
        facade.files = vec![SourceFile { path: "lib.rs".to_owned(), module: None, lines: 501 }];
        let mut workspace = Workspace { crates: vec![facade] };
        assert!(workspace.line_faults().is_empty());
        workspace.crates.extend(core_of(path(1)).crates);
        assert_eq!(workspace.line_faults().len(), 1);
    }

    #[test]
    fn the_strict_path_is_in_the_order_of_a_packet() {
        let workspace = core_of(vec![("gate", 1), ("tx", 1), ("queue", 1), ("rx", 1)]);
        let paths: Vec<&str> = workspace.strict_files().iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["rx.rs", "queue.rs", "tx.rs"]);
    }

    #[test]
    fn lines_are_those_with_code_on_them() {
        let text = "//! About.\n\nfn a() { // why\n    b(\"one\n\n two\");\n}\n\n#[cfg(test)]\nmod tests {\n}\n";
        let tokens = without_tests(&tokens_of(text));
        let lines: BTreeSet<usize> = tokens.iter().flat_map(|token| token.line..=token.last_line).collect();
        assert_eq!(lines.into_iter().collect::<Vec<_>>(), [3, 4, 5, 6, 7]);
    }

    #[test]
    fn the_names_of_a_root_are_those_that_other_crates_can_use() {
        let names = |text: &str| {
            let interface = Interface::of(&files(&[("", text), ("inner", "pub struct Deep;")]));
            (interface.names.into_iter().collect::<Vec<_>>(), interface.globs.len())
        };
        let none = Vec::<String>::new();
        assert_eq!(
            names("pub use a::{b, c::{self, D as E}, F as _}; pub use {g, h as i};").0,
            ["E", "b", "c", "g", "i"]
        );
        assert_eq!(names("pub mod inner { pub use a::b; pub fn c() {} } pub mod inner;").0, ["inner"]);
        assert_eq!(names("pub struct A { pub b: u8 } pub struct C(pub u8); pub enum D { E }").0, ["A", "C", "D"]);
        assert_eq!(names("pub const fn a() {} pub const B: u8 = { 1 }; pub static mut C: u8 = 2;").0, ["B", "C", "a"]);
        assert_eq!(names("pub unsafe extern \"C\" fn a() {} pub async fn b() {}").0, ["a", "b"]);
        assert_eq!(names("use a::b; mod inner; pub(crate) use c::d; pub(in crate::e) fn f() {} fn g() {}").0, none);
        assert_eq!(names("impl A { pub fn b() {} } #[cfg(test)] pub use c::d; /* pub use e; */").0, none);
        assert_eq!(names("pub use a::*; pub use b::{c, d::*}; use e::*;"), (vec!["c".to_owned()], 2));
        assert_eq!(names("pub mod inner { pub use a::*; }").1, 0);
    }

    #[test]
    fn the_root_of_the_facade_has_few_names_and_no_globs() {
        let faults = |count: usize, text: &str| {
            let names: Vec<String> = (0..count).map(|number| format!("n{number}")).collect();
            let mut facade = krate(FACADE, &[]);
            facade.interface = Interface::of(&files(&[("", &format!("pub use a::{{{}}};\n{text}", names.join(", ")))]));
            Workspace { crates: vec![krate("other", &[]), facade] }.interface_faults()
        };
        assert!(faults(40, "").is_empty());
        let many = faults(40, "pub mod one_more {}");
        assert!(many[0].starts_with("the root of steerage has 41 names, and may have 40."), "{}", many[0]);
        assert!(many[0].ends_with(", one_more"), "{}", many[0]);
        assert_eq!(faults(1, "pub use b::*;").len(), 1);
        assert!(faults(1, "pub use b::*;")[0].starts_with("lib.rs:2: a public glob"));
    }
}
