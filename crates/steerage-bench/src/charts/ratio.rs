//! What one series is in terms of another: above 1 it pays.

use super::axes::{Plot, Words, measured, room, tick};
use super::data::heading;
use super::scale::Scale;
use super::svg::{Anchor, class_of};
use crate::figures::{figure, point};
use crate::placement::Placement;
use crate::report::{Chart, Experiment, Pair};
use crate::stats::{Comparison, Verdict, compare, placements};

/// How high a plot is.
const HEIGHT: f64 = 220.0;
/// A pair without points along an axis: its name, and its mark below.
const ROW: f64 = 40.0;
/// Ratios are drawn between this and its inverse.
const RATIO_DRAWN_MAX: f64 = 100.0;
/// As little as this is drawn around 1.
const RATIO_AROUND: f64 = 1.1;

/// Pairs of a chart, with what came of them and their place among all pairs.
pub(super) struct Pairs<'a> {
    experiment: &'a Experiment,
    chart: &'a Chart,
    found: Vec<(usize, &'a Pair, Vec<Comparison>)>,
}

impl<'a> Pairs<'a> {
    pub(super) fn new(experiment: &'a Experiment, chart: &'a Chart) -> Self {
        let drawn =
            |pair: &Pair| pair.metric == chart.metric && (chart.series.is_empty() || chart.series.contains(&pair.of));
        // What is of no round has no ratio to be drawn.
        let told = |pair: &Pair| compare(experiment, pair).into_iter().filter(|one| one.rounds > 0).collect::<Vec<_>>();
        let pairs = experiment.compared.iter().enumerate().filter(|(_, pair)| drawn(pair));
        let found = pairs.map(|(index, pair)| (index, pair, told(pair))).filter(|(.., found)| !found.is_empty());
        Self { experiment, chart, found: found.collect() }
    }

    pub(super) fn names(&self) -> Vec<(usize, String)> {
        self.found.iter().map(|(index, pair, _)| (*index, name(pair))).collect()
    }

    /// Whether there is a line to draw.
    pub(super) fn has_axis(&self) -> bool {
        self.xs().len() > 1
    }

    fn xs(&self) -> Vec<f64> {
        let mut xs: Vec<f64> = self.all().filter_map(|one| one.x).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        xs
    }

    fn all(&self) -> impl Iterator<Item = &Comparison> {
        self.found.iter().flat_map(|(.., found)| found)
    }

    /// By logarithm, with 1 in it.
    fn scale(&self) -> Scale {
        let ends = |(low, high): (f64, f64), one: &Comparison| (low.min(one.low), high.max(one.high));
        let (low, high) = self.all().fold((1.0 / RATIO_AROUND, RATIO_AROUND), ends);
        let (low, high) = (low.max(1.0 / RATIO_DRAWN_MAX), high.min(RATIO_DRAWN_MAX));
        // A little air.
        Scale::Log { low: low / 1.04, high: high * 1.04 }
    }

    fn panels(&self) -> Vec<(Placement, Vec<(usize, &'a Pair, Vec<Comparison>)>)> {
        let of = |placement: Placement| {
            let here = |(index, pair, found): &(usize, &'a Pair, Vec<Comparison>)| {
                (*index, *pair, found.iter().copied().filter(|one| one.placement == placement).collect::<Vec<_>>())
            };
            let pairs: Vec<_> = self.found.iter().map(here).filter(|(.., found)| !found.is_empty()).collect();
            (placement, pairs)
        };
        placements(self.experiment).into_iter().map(of).filter(|(_, pairs)| !pairs.is_empty()).collect()
    }

    fn axis(&self) -> String {
        let metric = self.experiment.metrics.iter().find(|metric| metric.name == self.chart.metric);
        format!("times better by {}", metric.map_or("", |metric| &metric.title))
    }

    /// A panel for each placement, all on the same axes.
    pub(super) fn draw(&self) -> Vec<String> {
        let panels = self.panels();
        panels.iter().map(|(placement, pairs)| self.panel(*placement, pairs)).collect()
    }

    fn panel(&self, placement: Placement, pairs: &[(usize, &Pair, Vec<Comparison>)]) -> String {
        let (scale, heading) = (self.scale(), heading(placement));
        let ticks = scale.ticks();
        let label = format!("{}, {heading}", self.chart.title);
        if !self.has_axis() {
            return rows(pairs, scale, &Words { heading, x: &self.axis(), y: "" }).svg.finish(&label);
        }
        let (xs, axis) = (self.xs(), self.axis());
        let x = Scale::along(xs.iter().copied());
        let left = room(ticks.iter().map(|value| tick(*value)));
        let words = Words { heading, x: &self.experiment.x, y: &axis };
        let mut plot = Plot::new(&words, x, scale, left, HEIGHT);
        plot.y_ticks(&ticks, tick);
        plot.x_ticks(&measured(&xs, &x), false, tick);
        let (from, to) = plot.ends();
        let one = plot.py(1.0);
        plot.svg.line("one", (from, one), (to, one));
        for (index, _, found) in pairs {
            band(&mut plot, *index, found);
        }
        let mut labels = 0;
        for (index, pair, found) in pairs {
            through(&mut plot, *index, pair, found);
            crossings(&mut plot, *index, pair, found, &mut labels);
        }
        plot.svg.finish(&label)
    }
}

fn name(pair: &Pair) -> String {
    format!("{} over {}", pair.of, pair.over)
}

fn band(plot: &mut Plot, index: usize, found: &[Comparison]) {
    let ends = |high: bool| found.iter().map(move |one| (one.x.unwrap_or(0.0), if high { one.high } else { one.low }));
    let around: Vec<(f64, f64)> = ends(true).chain(ends(false).rev()).map(|(x, y)| plot.at(x, y)).collect();
    plot.svg.path(&format!("band {}", class_of(index)), &around, true, "");
}

fn through(plot: &mut Plot, index: usize, pair: &Pair, found: &[Comparison]) {
    let at: Vec<(f64, f64)> = found.iter().map(|one| plot.at(one.x.unwrap_or(0.0), one.ratio)).collect();
    plot.svg.path(&format!("line {}", class_of(index)), &at, false, "");
    for (one, at) in found.iter().zip(at) {
        plot.svg.mark(index, at, &format!("{} at {}: {one}", name(pair), one.x.map_or(String::new(), point)));
    }
}

/// Where a line goes through 1, as far as the points around it may be told from 1.
fn crossings(plot: &mut Plot, index: usize, pair: &Pair, found: &[Comparison], labels: &mut usize) {
    for two in found.windows(2) {
        let [a, b] = two else { continue };
        let (Some(from), Some(to)) = (a.x, b.x) else { continue };
        let (below, above) = (a.ratio.ln(), b.ratio.ln());
        // Through 1 and not along it.
        if !(below.is_finite() && above.is_finite()) || (below < 0.0) == (above < 0.0) || below == above {
            continue;
        }
        let part = below / (below - above);
        let place = plot.x.at(from) + part * (plot.x.at(to) - plot.x.at(from));
        // From 0 to the first there is no scale.
        let value = if from == 0.0 {
            format!("below {}", point(to))
        } else {
            format!("about {}", rounded(plot.x.value(place)))
        };
        let sure = [a, b].iter().all(|one| matches!(one.verdict, Verdict::Better | Verdict::Worse));
        let doubt = if sure { "" } else { ", within the spread" };
        let text =
            if above > below { format!("pays from {value}{doubt}") } else { format!("pays up to {value}{doubt}") };
        let (left, right) = plot.ends();
        let (x, y) = (left + place * (right - left), plot.py(1.0));
        plot.svg.ring(&format!("crossing {}", class_of(index)), (x, y), &format!("{}: {text}", name(pair)));
        let (anchor, beside) = if x > (left + right) / 2.0 { (Anchor::End, -9.0) } else { (Anchor::Start, 9.0) };
        // Below the line at 1, one under the other.
        let down = 17.0 + 15.0 * *labels as f64;
        plot.svg.text("crossed", (x + beside, y + down), anchor, &text);
        *labels += 1;
    }
}

/// With two digits that tell something.
fn rounded(value: f64) -> String {
    let power = 10_f64.powf(value.abs().log10().floor() - 1.0);
    if power.is_normal() { tick((value / power).round() * power) } else { figure(value) }
}

/// Without an axis: a mark with its spread for each pair.
fn rows(pairs: &[(usize, &Pair, Vec<Comparison>)], scale: Scale, words: &Words<'_>) -> Plot {
    let count: usize = pairs.iter().map(|(.., found)| found.len()).sum();
    let height = count as f64 * ROW;
    let mut plot = Plot::new(words, scale, Scale::Linear { low: -height, high: 0.0 }, 12.0, height);
    plot.x_ticks(&scale.ticks(), true, tick);
    let x = plot.px(1.0);
    let (top, bottom) = (plot.py(0.0), plot.py(-height));
    plot.svg.line("one", (x, top), (x, bottom));
    let each = pairs.iter().flat_map(|(index, pair, found)| found.iter().map(move |one| (*index, *pair, one)));
    for (row, (index, pair, one)) in each.enumerate() {
        let middle = plot.py(-(row as f64 * ROW) - 28.0);
        let at = one.x.map_or(String::new(), |x| format!(", at {}", point(x)));
        plot.svg.text("name over", (12.0, middle - 12.0), Anchor::Start, &format!("{}{at}", name(pair)));
        let class = class_of(index);
        let (low, high, ratio) = (plot.px(one.low), plot.px(one.high), plot.px(one.ratio));
        plot.svg.line(&format!("whisker {class}"), (low, middle), (high, middle));
        plot.svg.mark(index, (ratio, middle), &format!("{}{at}: {one}", name(pair)));
    }
    plot
}
