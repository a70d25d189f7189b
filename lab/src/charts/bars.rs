//! A horizontal bar for each series, in groups by `x`. Horizontal bars leave room for names and fit
//! a narrow phone.

use super::axes::{Plot, WIDTH, Words, tick};
use super::data::{Data, Line, has_axis};
use super::scale::Scale;
use super::svg::{Anchor, class_of};
use crate::format::{axis_value, number, quantity, spread, truncated};
use crate::stats::groups;

/// The height of a bar with the space around it.
const ROW: f64 = 22.0;
/// The height of a bar.
const BAR: f64 = 13.0;
/// The height of a group's heading.
const HEADING: f64 = 24.0;
/// Longer names are cut.
const NAME_MAX: usize = 25;
/// The width of a letter of a name.
const LETTER: f64 = 6.9;
/// Room for a value after the longest bar: the axis is this many times as long as the highest
/// value.
const BEHIND: f64 = 1.18;

/// A panel for each placement, all on the same axis.
pub(super) fn draw(data: &Data<'_>) -> Vec<String> {
    let with_x = has_axis(&groups(data.experiment));
    let scale = Scale::from_zero(data.values().map(|value| value * BEHIND));
    let longest = data.names().iter().map(|(_, name)| name.chars().count().min(NAME_MAX)).max().unwrap_or(0);
    let left = 12.0 + longest as f64 * LETTER;
    let xs = data.xs();
    let panel = |(placement, lines): &(_, Vec<Line<'_>>)| {
        let heading = data.heading(*placement);
        let rows = if with_x { rows(lines, &xs) } else { rows_at(lines, None) };
        let height: f64 = rows.iter().map(Row::height).sum::<f64>() + 4.0;
        let words = Words { heading: &heading, x: &data.unit(), y: if with_x { &data.experiment.x } else { "" } };
        // The vertical axis goes downwards, in units of the picture.
        let mut plot = Plot::new(&words, scale, Scale::Linear { low: -height, high: 0.0 }, left, height);
        plot.x_ticks(&scale.ticks(), true, tick);
        let mut top = 0.0;
        for row in rows {
            row.draw(&mut plot, top);
            top += row.height();
        }
        plot.svg.finish(&format!("{}, {heading}", data.chart.title))
    };
    data.panels.iter().map(panel).collect()
}

enum Row<'a> {
    Heading(f64),
    Bar { line: &'a Line<'a>, at: usize },
}

fn rows<'a>(lines: &'a [Line<'a>], xs: &[f64]) -> Vec<Row<'a>> {
    let group = |x: &f64| {
        let bars = rows_at(lines, Some(*x));
        // A placement may have no samples at a point.
        let heading = (!bars.is_empty()).then_some(Row::Heading(*x));
        heading.into_iter().chain(bars)
    };
    xs.iter().flat_map(group).collect()
}

fn rows_at<'a>(lines: &'a [Line<'a>], x: Option<f64>) -> Vec<Row<'a>> {
    let bars = |line: &'a Line<'a>| {
        let here = line.points.iter().enumerate().filter(move |(_, point)| x.is_none_or(|x| point.x == x));
        here.map(move |(at, _)| Row::Bar { line, at })
    };
    lines.iter().flat_map(bars).collect()
}

impl Row<'_> {
    fn height(&self) -> f64 {
        if matches!(self, Self::Heading(_)) { HEADING } else { ROW }
    }

    fn draw(&self, plot: &mut Plot, top: f64) {
        let (left, right) = plot.ends();
        let middle = plot.py(-top - self.height() / 2.0);
        let Self::Bar { line, at } = self else {
            let Self::Heading(x) = self else { return };
            plot.svg.text("group", (0.0, middle + 8.0), Anchor::Start, &axis_value(*x));
            return;
        };
        let of = &line.points[*at].spread;
        plot.svg.text("name", (left - 8.0, middle + 4.5), Anchor::End, &truncated(line.name, NAME_MAX));
        let (from, to) = (plot.px(0.0), plot.px(of.median));
        let class = class_of(line.index);
        let title = format!("{}: {}, {}", line.name, spread(of), quantity(of.runs, "run"));
        let (start, length) = (from.min(to), (to - from).abs().max(0.5));
        plot.svg.rect(&format!("mark bar {class}"), (start, middle - BAR / 2.0), (length, BAR), &title);
        let (least, most) = (plot.px(of.least), plot.px(of.most));
        plot.svg.line("whisker", (least, middle), (most, middle));
        for end in [least, most] {
            plot.svg.line("whisker", (end, middle - 3.5), (end, middle + 3.5));
        }
        let behind = (most.max(to) + 7.0).min(WIDTH).min(right - 10.0);
        plot.svg.text("value", (behind, middle + 4.5), Anchor::Start, &number(of.median));
    }
}
