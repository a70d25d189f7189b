//! A line for each series over `x`, with its spread.

use super::axes::{Plot, Words, measured, room, tick};
use super::data::{Data, Line};
use super::scale::Scale;
use super::svg::class_of;
use crate::format::{axis_value, quantity, spread};

/// The height of a plot.
const HEIGHT: f64 = 220.0;

/// A panel for each placement, all on the same axes.
pub(super) fn draw(data: &Data<'_>) -> Vec<String> {
    let xs = data.xs();
    let x = Scale::along(xs.iter().copied());
    let y = Scale::across(data.values());
    let ticks = y.ticks();
    let left = room(ticks.iter().map(|value| tick(*value)));
    let panel = |(placement, lines): &(_, Vec<Line<'_>>)| {
        let heading = data.heading(*placement);
        let words = Words { heading: &heading, x: &data.experiment.x, y: &data.unit() };
        let mut plot = Plot::new(&words, x, y, left, HEIGHT);
        plot.y_ticks(&ticks, tick);
        plot.x_ticks(&measured(&xs, &x), false, tick);
        lines.iter().for_each(|line| band(&mut plot, line));
        lines.iter().for_each(|line| through(&mut plot, line));
        plot.svg.finish(&format!("{}, {heading}", data.chart.title))
    };
    data.panels.iter().map(panel).collect()
}

/// Draws the area from the lowest to the highest values. A single point has a vertical line
/// instead.
fn band(plot: &mut Plot, line: &Line<'_>) {
    let ends =
        |most: bool| line.points.iter().map(move |one| (one.x, if most { one.spread.most } else { one.spread.least }));
    let around: Vec<(f64, f64)> = ends(true).chain(ends(false).rev()).map(|(x, y)| plot.at(x, y)).collect();
    let class = class_of(line.index);
    if let [top, bottom] = around[..] {
        plot.svg.line(&format!("whisker {class}"), top, bottom);
    } else {
        plot.svg.path(&format!("band {class}"), &around, true, "");
    }
}

fn through(plot: &mut Plot, line: &Line<'_>) {
    let medians: Vec<(f64, f64)> = line.points.iter().map(|one| plot.at(one.x, one.spread.median)).collect();
    plot.svg.path(&format!("line {}", class_of(line.index)), &medians, false, "");
    for (one, at) in line.points.iter().zip(medians) {
        let title = format!(
            "{} at {}: {}, {}",
            line.name,
            axis_value(one.x),
            spread(&one.spread),
            quantity(one.spread.runs, "run")
        );
        plot.svg.mark(line.index, false, at, &title);
    }
}
