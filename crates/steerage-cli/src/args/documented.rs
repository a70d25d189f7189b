//! The program accepts every command line in README.md and docs/.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::parse;

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> = docs.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    pages.push(root.join("README.md"));
    pages.sort();
    pages
}

/// A line that ends in `\` is joined with the next.
fn lines_of_code(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut is_code = false;
    let mut continued = String::new();
    for line in text.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
        } else if is_code {
            continued += line.trim();
            if !continued.ends_with('\\') {
                lines.push(std::mem::take(&mut continued));
            } else {
                continued.pop();
            }
        }
    }
    lines
}

/// Splits a command as a shell would, up to a pipe, a redirection, a comment, or the explanation
/// after two spaces.
fn words(line: &str) -> Option<Vec<String>> {
    let line = line.trim_start_matches("$ ").trim_start_matches("# ").trim_start_matches("sudo ");
    for begin in ["cargo run --release -- ", "\"$(command -v steerage)\" ", "steerage "] {
        if let Some(rest) = line.strip_prefix(begin) {
            // A line of a transcript may begin with the program's name and version.
            let is_command = rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '-');
            return is_command.then(|| split(rest));
        }
    }
    None
}

fn split(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut characters = line.chars().peekable();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '|' | '>' | '<' | '&' | ';' | '#') => break,
            (None, ' ') => {
                words.extend(word.take());
                if characters.peek() == Some(&' ') {
                    return words;
                }
            }
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[test]
fn documented_command_lines_are_understood() {
    let mut count = 0;
    let mut wrong = Vec::new();
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for line in lines_of_code(&text) {
            let Some(words) = words(&line).filter(|words| !words.iter().any(|word| word.contains("..."))) else {
                continue;
            };
            count += 1;
            let arguments = std::iter::once("steerage".to_owned()).chain(words).map(OsString::from);
            if let Err(error) = parse(arguments)
                && error.use_stderr()
            {
                wrong.push(format!(
                    "{}: {line}: {}",
                    page.display(),
                    error.to_string().lines().next().unwrap_or_default()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 80, "only {count} command lines were found");
}

#[test]
fn lines_are_split_as_a_shell_does() {
    assert_eq!(split("count eth0 -f 'port 53' | head"), ["count", "eth0", "-f", "port 53"]);
    assert_eq!(split("count eth0      what comes"), ["count", "eth0"]);
}
