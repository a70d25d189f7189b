//! A report as text, for a terminal or a pipe.

use std::fmt::Write;

use crate::compare::{Comparison, compare, times};
use crate::format::{axis_value, duration, printable, quantity, spread, truncated};
use crate::report::{Experiment, Machine, Metric, Report};
use crate::stats::{Group, groups, moved};

/// The maximum length of a line.
const WIDTH: usize = 100;

/// Longer names of series are cut, so that figures of six digits with their spread fit beside them.
const SERIES_WIDTH_MAX: usize = 30;

/// Longer names of `x` are cut.
const X_WIDTH_MAX: usize = 18;

/// The indent of text.
const INDENT: &str = "  ";

/// The indent of tables.
const TABLE_INDENT: &str = "    ";

/// The whole report as text. It ends with a line feed.
pub fn render(report: &Report) -> String {
    let mut text = machine(&report.machine);
    for experiment in &report.experiments {
        text.push('\n');
        one(&mut text, experiment);
    }
    text
}

fn machine(machine: &Machine) -> String {
    let below = if machine.virtual_machine { ", in a virtual machine" } else { "" };
    let mut text = String::new();
    for line in [
        format!("steerage {}, {}, {}", machine.version, machine.started, duration(machine.seconds)),
        format!("{}, {}{below}, Linux {}", machine.cpu, quantity(machine.cpus, "CPU"), machine.kernel),
    ] {
        wrapped(&mut text, "", &line);
    }
    for beside in &machine.beside {
        wrapped(&mut text, "", &format!("beside {beside}"));
    }
    for command in machine.command.lines() {
        wrapped(&mut text, "", &format!("$ {command}"));
    }
    text
}

fn one(text: &mut String, experiment: &Experiment) {
    wrapped(text, "", &format!("{}: {}", experiment.name, experiment.title));
    wrapped(text, INDENT, &experiment.question);
    if !experiment.published.is_empty() {
        wrapped(text, INDENT, &format!("Published: {}", experiment.published));
    }
    let groups = groups(experiment);
    if !groups.is_empty() {
        figures(text, experiment, &groups);
        verdicts(text, experiment);
    }
    let moved = moved(experiment);
    if moved > 0 {
        text.push('\n');
        wrapped(text, INDENT, &format!("left out: {} in which the CPUs moved", quantity(moved, "run")));
    } else if !experiment.skipped.is_empty() {
        text.push('\n');
    }
    for line in &experiment.skipped {
        wrapped(text, INDENT, &format!("skipped: {line}"));
    }
}

/// A column of a table. The first cell is its heading.
struct Column {
    cells: Vec<String>,
    right: bool,
}

impl Column {
    fn width(&self) -> usize {
        self.cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0)
    }
}

/// Adds the figures of each group: as many metrics side by side as fit, and the others below them.
fn figures(text: &mut String, experiment: &Experiment, groups: &[Group<'_>]) {
    let column = |heading: &str, right: bool, cell: &dyn Fn(&Group<'_>) -> String| {
        let cells = std::iter::once(heading.to_owned()).chain(groups.iter().map(cell)).collect();
        Column { cells, right }
    };
    let mut fixed = vec![column("where", false, &|group| group.placement.to_string())];
    if groups.iter().any(|group| group.x.is_some()) {
        let heading = truncated(&printable(&experiment.x), X_WIDTH_MAX);
        fixed.push(column(&heading, true, &|group| group.x.map_or(String::new(), axis_value)));
    }
    fixed.push(column("series", false, &|group| truncated(&printable(group.series), SERIES_WIDTH_MAX)));
    fixed.push(column("runs", true, &|group| group.samples.len().to_string()));
    let has = |metric: &&Metric| groups.iter().any(|group| group.spread(&metric.name).is_some());
    let metrics: Vec<Column> = experiment
        .metrics
        .iter()
        .filter(has)
        .map(|metric| {
            let heading = printable(&format!("{}, {}", metric.title, metric.unit));
            column(&heading, false, &|group| group.spread(&metric.name).map_or(String::new(), |of| spread(&of)))
        })
        .collect();
    text.push('\n');
    wrapped(text, INDENT, "Median [least..most] of the runs.");
    let taken: usize = TABLE_INDENT.len() + fixed.iter().map(|column| column.width() + 2).sum::<usize>();
    let mut rest = metrics.as_slice();
    while !rest.is_empty() {
        let mut room = WIDTH.saturating_sub(taken);
        let fits = |column: &&Column| {
            let fits = column.width() <= room;
            room = room.saturating_sub(column.width() + 2);
            fits
        };
        // At least one column, even if it is too wide.
        let count = rest.iter().take_while(fits).count().max(1);
        let (these, others) = rest.split_at(count);
        table(text, &fixed.iter().chain(these).collect::<Vec<_>>());
        rest = others;
    }
}

fn table(text: &mut String, columns: &[&Column]) {
    let rows = columns.first().map_or(0, |column| column.cells.len());
    let widths: Vec<usize> = columns.iter().map(|column| column.width()).collect();
    text.push('\n');
    for row in 0..rows {
        let mut line = TABLE_INDENT.to_owned();
        for (column, &width) in columns.iter().zip(&widths) {
            let cell = &column.cells[row];
            let _ = if column.right { write!(line, "{cell:>width$}  ") } else { write!(line, "{cell:<width$}  ") };
        }
        text.push_str(&truncated(line.trim_end(), WIDTH));
        text.push('\n');
    }
}

fn verdicts(text: &mut String, experiment: &Experiment) {
    for pair in &experiment.compared {
        let found = compare(experiment, pair);
        let Some(metric) = experiment.metrics.iter().find(|metric| metric.name == pair.metric) else { continue };
        if found.is_empty() {
            continue;
        }
        let better = if metric.more_is_better { "more" } else { "less" };
        text.push('\n');
        wrapped(text, INDENT, &format!("{} over {}, {} ({better} is better):", pair.of, pair.over, metric.title));
        let cells = |heading: &str, right: bool, cell: &dyn Fn(&Comparison) -> String| {
            let heading = (!heading.is_empty()).then(|| heading.to_owned());
            Column { cells: heading.into_iter().chain(found.iter().map(cell)).collect(), right }
        };
        let mut place = cells("", false, &|one| one.placement.to_string());
        let mut x = cells("", true, &|one| one.x.map_or(String::new(), axis_value));
        let mut verdict = cells("", false, &|one| one.to_string());
        for one in &pair.published {
            place.cells.push("published".to_owned());
            x.cells.push(one.x.map_or(String::new(), axis_value));
            verdict.cells.push(printable(&format!("{} times ({})", times(one.ratio), one.set_up)));
        }
        // Leave out the empty line between the table and its heading.
        let mut lines = String::new();
        table(&mut lines, &[&place, &x, &verdict]);
        text.push_str(&lines[1..]);
    }
}

/// Words of `line` in lines of at most [`WIDTH`], the later ones as far in as the first. A word
/// that is too long is cut.
fn wrapped(text: &mut String, indent: &str, line: &str) {
    let line = printable(line);
    let room = WIDTH - indent.len();
    let mut written = 0;
    for word in line.split_whitespace().map(|word| truncated(word, room)) {
        let length = word.chars().count();
        if written > 0 && written + 1 + length > room {
            text.push('\n');
            written = 0;
        }
        text.push_str(if written == 0 { indent } else { " " });
        text.push_str(&word);
        written += length + usize::from(written > 0);
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_report::{EVIL, POINTS, report};

    #[test]
    fn a_table_says_what_was_measured_and_what_may_be_said() {
        let text = render(&report(&POINTS, &[]));
        let expected = "\
e: an experiment
  why?
  Published: elsewhere

  Median [least..most] of the runs.

    where  work, ns  series  runs  value, Mpps
    near          0  plain      3  10.20 [10.00..10.40]
    near          0  ours       3  5.10 [5.00..5.20]
    near         20  plain      3  10.20 [10.00..10.40]
    near         20  ours       3  10.20 [10.00..10.40]
    near      2,000  plain      3  10.20 [10.00..10.40]
    near      2,000  ours       3  15.30 [15.00..15.60]
    far           0  plain      3  10.30 [10.10..10.50]
    far           0  ours       3  5.15 [5.05..5.25]
    far          20  plain      3  10.30 [10.10..10.50]
    far          20  ours       3  10.30 [10.10..10.50]
    far       2,000  plain      3  10.30 [10.10..10.50]
    far       2,000  ours       3  15.45 [15.15..15.75]

  ours over plain, value (more is better):
    near           0  0.50 times [0.50..0.50], worse
    near          20  no difference (1.00..1.00)
    near       2,000  1.50 times [1.50..1.50]
    far            0  0.50 times [0.50..0.50], worse
    far           20  no difference (1.00..1.00)
    far        2,000  1.50 times [1.50..1.50]
    published    200  1.27 times (a card, 8 CPUs)

  left out: 1 run in which the CPUs moved
  skipped: what could not be
";
        let (head, rest) = text.split_once("\n\n").unwrap();
        assert_eq!(rest, expected);
        assert_eq!(head.lines().last(), Some("$ bench f"));
    }

    #[test]
    fn lines_are_short_and_plain_whatever_comes() {
        let mut wide = report(&POINTS, &[]);
        let one = &mut wide.experiments[0];
        for number in 0..4 {
            let metric = Metric { name: format!("v{number}"), title: EVIL.to_owned(), ..one.metrics[0].clone() };
            for sample in &mut one.samples {
                sample.values.insert(metric.name.clone(), 1e5);
            }
            one.metrics.push(metric);
        }
        (one.x, one.question) = ("x".repeat(200), format!("{EVIL} {}", "word ".repeat(100)));
        one.samples.iter_mut().for_each(|sample| sample.series += &"y".repeat(200));
        let text = render(&wide);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
        // These metrics are one below the other.
        assert_eq!(text.matches("100,000 [100,000..100,000]").count(), 4 * 12, "{text}");
    }
}
