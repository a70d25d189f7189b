//! A reader of Prometheus' text format 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>), for machines without promtool.
//! The reader is stricter than the format: each metric must be described before its samples, and
//! its samples must be consecutive.

use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::process::{Command, Stdio};

use crate::skip;

/// A parsed page of metrics. A series is the name and labels of a sample, as the exposition text
/// writes them.
#[derive(Debug)]
pub struct Page {
    /// The value of each series.
    pub samples: BTreeMap<String, f64>,
    /// The names of all metrics, in the order in which the text lists them.
    pub families: Vec<String>,
}

impl Page {
    /// The value of one time series, such as `up{job="x"}`.
    pub fn get(&self, series: &str) -> f64 {
        *self.samples.get(series).unwrap_or_else(|| panic!("no {series} in {self:#?}"))
    }

    /// The sum of the values of all time series of a metric.
    pub fn sum(&self, name: &str) -> f64 {
        let of = |series: &&String| series.split('{').next() == Some(name);
        self.samples.iter().filter(|(series, _)| of(series)).map(|(_, value)| value).sum()
    }
}

/// Parses a page of metrics. Panics if the page is invalid.
pub fn read(text: &str) -> Page {
    assert!(text.ends_with('\n'), "the last line has no end");
    let mut page = Page { samples: BTreeMap::new(), families: Vec::new() };
    let (mut helped, mut kind) = (None, None);
    let mut seen = HashSet::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or_else(|| panic!("no text: {line}"));
            assert!(is_name(name) && !help.is_empty() && !help.contains('\\'), "{line}");
            assert!(seen.insert(name.to_owned()), "described twice: {line}");
            (helped, kind) = (Some(name.to_owned()), None);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, of) = rest.split_once(' ').unwrap_or_else(|| panic!("no type: {line}"));
            assert_eq!(helped.as_deref(), Some(name), "its HELP must come before it: {line}");
            assert!(["counter", "gauge"].contains(&of), "{line}");
            assert_eq!(of == "counter", name.ends_with("_total"), "counters and no others end in _total: {line}");
            kind = Some(of.to_owned());
            page.families.push(name.to_owned());
        } else {
            let (series, value) = sample(line);
            let name = series.split('{').next().unwrap();
            assert_eq!(helped.as_deref(), Some(name), "it is under the head of another family: {line}");
            assert!(value >= 0.0 || kind.as_deref() == Some("gauge"), "a counter below 0: {line}");
            assert!(kind.is_some(), "its TYPE must come before it: {line}");
            assert!(page.samples.insert(series, value).is_none(), "a series that is there twice: {line}");
        }
    }
    for family in &page.families {
        assert!(page.samples.keys().any(|series| series.split('{').next() == Some(family)), "{family} is empty");
    }
    page
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn sample(line: &str) -> (String, f64) {
    let name_end = line.find(['{', ' ']).unwrap_or_else(|| panic!("no value: {line}"));
    let (name, mut rest) = line.split_at(name_end);
    assert!(is_name(name), "{line}");
    let mut labels = HashSet::new();
    let mut length = name_end;
    if let Some(mut pairs) = rest.strip_prefix('{') {
        loop {
            let (label, value) = pairs.split_once("=\"").unwrap_or_else(|| panic!("a label without a value: {line}"));
            assert!(is_name(label) && !label.starts_with("__") && labels.insert(label), "{line}");
            let end = closing_quote(value).unwrap_or_else(|| panic!("a value without an end: {line}"));
            pairs = &value[end + 1..];
            match pairs.strip_prefix(',') {
                Some(more) => pairs = more,
                None => break,
            }
        }
        rest = pairs.strip_prefix('}').unwrap_or_else(|| panic!("labels without an end: {line}"));
        length = line.len() - rest.len();
    }
    let value = rest.strip_prefix(' ').unwrap_or_else(|| panic!("no space before the value: {line}"));
    let value: f64 = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
    assert!(value.is_finite(), "{line}");
    (line[..length].to_owned(), value)
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let ends = c == '"' && !is_escaped;
        assert!(!is_escaped || ['\\', '"', 'n'].contains(&c), "an escape that there is not: {text}");
        is_escaped = c == '\\' && !is_escaped;
        ends.then_some(at)
    })
}

/// Runs `promtool check metrics`. If promtool is not installed, skips the check, or fails in CI.
pub fn check_with_promtool(text: &str) {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return skip(&format!("promtool: {error} (Debian: prometheus)")),
    };
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "promtool: {said}");
}
