//! Reads the example commands of documentation pages, with their output.
//!
//! In ```` ```sh ```` blocks, each line is a command. In a transcript, a `$` (or a `#` for root)
//! precedes each command, and the command's output follows. A ```` ```toml ```` block that begins
//! with `# NAME:` contains the text of a file with that name.

/// The command by which some pages start the program. The tests start the program that was built
/// with them instead of `cargo run`.
pub(crate) const CARGO_RUN: &str = "cargo run --release -- ";

/// The beginnings of report lines that differ between machines and runs.
const DIFFERING: [&str; 10] =
    ["cpus ", "steering ", "queues ", "memory ", "            ", "real", "CPU ", "hash ", "bucket ", "sandbox "];

/// The text that precedes the duration in the first line of a report.
const TOOK: &str = "  read in ";

/// A line of a transcript with this text matches any number of output lines.
const ELLIPSIS: &str = "...";

#[derive(Debug)]
pub(crate) struct Example {
    pub(crate) command: String,
    pub(crate) output: Vec<String>,
}

impl Example {
    fn new(command: impl Into<String>) -> Self {
        Self { command: command.into(), output: Vec::new() }
    }

    /// Returns true if the page shows the printed output. Ignores lines that differ between
    /// machines and runs.
    pub(crate) fn is_shown(&self, printed: &str) -> bool {
        let shown = comparable(self.output.iter().map(String::as_str));
        let printed = comparable(printed.lines());
        if !shown.iter().any(|line| line == ELLIPSIS) {
            return shown == printed;
        }
        let mut printed = printed.iter();
        shown.iter().all(|line| line == ELLIPSIS || printed.any(|printed| printed == line))
    }
}

/// Returns the parts of output lines that are equal in every run.
fn comparable<'a>(lines: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let lines = lines.into_iter().filter(|line| !line.is_empty());
    let lines = lines.filter(|line| !DIFFERING.iter().any(|differing| line.starts_with(differing)));
    lines.map(|line| line.split(TOOK).next().unwrap_or_default().to_owned()).collect()
}

/// Returns the fenced code blocks of a page with their languages. The indentation of list items is
/// removed.
fn blocks(page: &str) -> Vec<(&str, Vec<&str>)> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some((indent, language)) = line.split_once("```").filter(|(indent, _)| indent.trim().is_empty()) else {
            continue;
        };
        let block = lines.by_ref().take_while(|line| line.trim() != "```");
        blocks.push((language, block.map(|line| line.strip_prefix(indent).unwrap_or(line)).collect()));
    }
    blocks
}

/// Joins a command with its continuation lines, or with the here-document up to `EOF`.
fn joined(lines: &[&str]) -> Vec<String> {
    let text = lines.join("\n").replace("\\\n", " ");
    let mut joined: Vec<String> = Vec::new();
    let mut is_text = false;
    for line in text.lines() {
        match joined.last_mut().filter(|_| is_text) {
            Some(command) => *command += &format!("\n{line}"),
            None => joined.push(line.to_owned()),
        }
        is_text = if is_text { line != "EOF" } else { line.contains("<<EOF") };
    }
    joined
}

/// Reads the commands and outputs of a transcript. Keeps the `#` before a command of root.
fn transcript(lines: &[&str]) -> Vec<Example> {
    let mut examples: Vec<Example> = Vec::new();
    for line in joined(lines) {
        if let Some(command) = line.strip_prefix("$ ") {
            examples.push(Example::new(command));
        } else if line.starts_with("# ") {
            examples.push(Example::new(line));
        } else if let Some(example) = examples.last_mut() {
            example.output.push(line);
        }
    }
    examples
}

/// If the first line of a block names a file, returns a shell command that writes the block to this
/// file.
fn file(lines: &[&str]) -> Option<Example> {
    let (name, _) = lines.first()?.strip_prefix("# ")?.split_once(": ")?;
    Some(Example::new(format!("cat > {name} <<'EOF'\n{}\nEOF", lines.join("\n"))))
}

pub(crate) fn examples(page: &str) -> Vec<Example> {
    let of_block = |(language, lines): (&str, Vec<&str>)| match language {
        "sh" => {
            let commands = joined(&lines).into_iter().filter(|line| !line.is_empty() && !line.starts_with('#'));
            commands.map(Example::new).collect()
        }
        "" | "text" | "console" => transcript(&lines),
        "toml" => file(&lines).into_iter().collect(),
        _ => Vec::new(),
    };
    blocks(page).into_iter().flat_map(of_block).collect()
}

#[test]
fn all_kinds_of_examples_are_found() {
    let page = "1. A list:\n\n   ```sh\n   one \\\n     more\n   ```\n\n```text\n$ two\nshown\n# three\n```\n\n```rust\n$ four\n```\n\n\
                ```toml\n# f.toml: five\nkey = 1\n```\n\n```sh\n# A comment.\nsix <<EOF\n\ntext\nEOF\nseven\n```\n";
    let found = examples(page);
    let commands: Vec<&str> = found.iter().map(|example| example.command.as_str()).collect();
    let file = "cat > f.toml <<'EOF'\n# f.toml: five\nkey = 1\nEOF";
    assert_eq!(commands, ["one    more", "two", "# three", file, "six <<EOF\n\ntext\nEOF", "seven"]);
    assert_eq!(found[1].output, ["shown"]);
    assert!(found[1].is_shown("shown\n") && !found[1].is_shown("shown\nmore\n"));
}
