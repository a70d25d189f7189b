//! The ratio of one series to another. Above 1 the first series is better.

use super::axes::{Plot, Words, measured, room, tick};
use super::data::heading;
use super::scale::Scale;
use super::svg::{Anchor, class_of};
use crate::compare::{Comparison, Verdict, compare, times};
use crate::format::{axis_value, number};
use crate::placement::Placement;
use crate::report::{Chart, Experiment, Pair, PublishedRatio};
use crate::stats::{placements, series};

/// The height of a plot.
const HEIGHT: f64 = 220.0;
/// The height of a row: a pair's name, with its mark below. Rows are used if there is no axis of
/// points.
const ROW: f64 = 40.0;
/// Ratios are drawn between this and its inverse.
const RATIO_DRAWN_MAX: f64 = 100.0;
/// The axis covers at least the range from the inverse of this to this.
const RATIO_AROUND: f64 = 1.1;

/// The colour of a pair, the pair, and its comparisons.
type Told<'a> = (usize, &'a Pair, Vec<Comparison>);

/// The pairs of a chart, each with its colour and its comparisons.
pub(super) struct Pairs<'a> {
    experiment: &'a Experiment,
    chart: &'a Chart,
    found: Vec<Told<'a>>,
}

impl<'a> Pairs<'a> {
    pub(super) fn new(experiment: &'a Experiment, chart: &'a Chart) -> Self {
        let drawn =
            |pair: &Pair| pair.metric == chart.metric && (chart.series.is_empty() || chart.series.contains(&pair.of));
        // A comparison without rounds has no ratio.
        let told = |pair: &Pair| compare(experiment, pair).into_iter().filter(|one| one.rounds > 0).collect::<Vec<_>>();
        let pairs = experiment.compared.iter().filter(|pair| drawn(pair));
        let found: Vec<_> = pairs.map(|pair| (pair, told(pair))).filter(|(_, found)| !found.is_empty()).collect();
        let indices = indices(&series(experiment), found.iter().map(|(pair, _)| *pair));
        let found = indices.into_iter().zip(found).map(|(index, (pair, found))| (index, pair, found)).collect();
        Self { experiment, chart, found }
    }

    pub(super) fn names(&self) -> Vec<(usize, String)> {
        self.found.iter().map(|(index, pair, _)| (*index, name(pair))).collect()
    }

    /// Whether there is a line to draw.
    pub(super) fn has_axis(&self) -> bool {
        self.xs().len() > 1
    }

    fn xs(&self) -> Vec<f64> {
        let published = self.published().map(|(_, x, _)| x);
        let mut xs: Vec<f64> = self.all().filter_map(|one| one.x).chain(published).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        xs
    }

    /// Published ratios with a point on the axis, each with the colour of its pair.
    fn published(&self) -> impl Iterator<Item = (usize, f64, &PublishedRatio)> {
        let all = self.found.iter().flat_map(|(index, pair, _)| pair.published.iter().map(move |one| (*index, one)));
        all.filter_map(|(index, one)| Some((index, one.x?, one)))
    }

    fn all(&self) -> impl Iterator<Item = &Comparison> {
        self.found.iter().flat_map(|(.., found)| found)
    }

    /// A logarithmic axis that includes 1.
    fn scale(&self) -> Scale {
        let ends = |(low, high): (f64, f64), one: &Comparison| (low.min(one.low), high.max(one.high));
        let (low, high) = self.all().fold((1.0 / RATIO_AROUND, RATIO_AROUND), ends);
        let (low, high) =
            self.published().fold((low, high), |(low, high), (.., one)| (low.min(one.ratio), high.max(one.ratio)));
        let (low, high) = (low.max(1.0 / RATIO_DRAWN_MAX), high.min(RATIO_DRAWN_MAX));
        // A small margin.
        Scale::Log { low: low / 1.04, high: high * 1.04 }
    }

    fn panels(&self) -> Vec<(Placement, Vec<Told<'a>>)> {
        let of = |placement: Placement| {
            let here = |(index, pair, found): &Told<'a>| {
                (*index, *pair, found.iter().copied().filter(|one| one.placement == placement).collect::<Vec<_>>())
            };
            let pairs: Vec<_> = self.found.iter().map(here).filter(|(.., found)| !found.is_empty()).collect();
            (placement, pairs)
        };
        placements(self.experiment).into_iter().map(of).filter(|(_, pairs)| !pairs.is_empty()).collect()
    }

    fn axis(&self) -> String {
        let metric = self.experiment.metrics.iter().find(|metric| metric.name == self.chart.metric);
        format!("{}, times better", metric.map_or("", |metric| &metric.title))
    }

    /// A panel for each placement, all on the same axes.
    pub(super) fn draw(&self) -> Vec<String> {
        let panels = self.panels();
        panels.iter().map(|(placement, pairs)| self.panel(*placement, pairs)).collect()
    }

    fn panel(&self, placement: Placement, pairs: &[Told<'_>]) -> String {
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
        for (index, x, one) in self.published() {
            published(&mut plot, index, x, one);
        }
        plot.svg.finish(&label)
    }
}

/// The colours of pairs. A pair has the colour of the series whose gain it is, so that a colour
/// means the same in all charts. If that colour is taken, the pair has the colour of the other
/// series.
fn indices<'a>(series: &[&str], pairs: impl Iterator<Item = &'a Pair>) -> Vec<usize> {
    let mut taken: Vec<usize> = Vec::new();
    for pair in pairs {
        let of = |name: &str| series.iter().position(|one| *one == name);
        let mut wanted = [of(&pair.of), of(&pair.over)].into_iter().flatten().chain(0..);
        // Numbers never run out, so this always finds one.
        let free = wanted.find(|index| !taken.contains(index)).unwrap_or(0);
        taken.push(free);
    }
    taken
}

fn name(pair: &Pair) -> String {
    format!("{} over {}", pair.of, pair.over)
}

/// Draws a published ratio as a ring with a label.
fn published(plot: &mut Plot, index: usize, x: f64, one: &PublishedRatio) {
    let at = plot.at(x, one.ratio.clamp(1.0 / RATIO_DRAWN_MAX, RATIO_DRAWN_MAX));
    let title = format!("published: {} times at {} ({})", times(one.ratio), axis_value(x), one.set_up);
    plot.svg.ring(&format!("published {}", class_of(index)), at, &title);
    plot.svg.text("published", (at.0 - 10.0, at.1 + 4.0), Anchor::End, &format!("published {}", times(one.ratio)));
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
        plot.svg.mark(
            index,
            !is_told(one),
            at,
            &format!("{} at {}: {one}", name(pair), one.x.map_or(String::new(), axis_value)),
        );
    }
}

/// Whether one series is better than the other.
fn is_told(one: &Comparison) -> bool {
    matches!(one.verdict, Verdict::Better | Verdict::Worse)
}

/// Marks the points at which a line crosses 1 between a point where the series is better and one
/// where it is worse. A line that only wavers around 1 has no such points.
fn crossings(plot: &mut Plot, index: usize, pair: &Pair, found: &[Comparison], labels: &mut usize) {
    let told: Vec<usize> = (0..found.len()).filter(|at| is_told(&found[*at])).collect();
    for ends in told.windows(2) {
        let between = &found[ends[0]..=ends[1]];
        let pays = found[ends[1]].verdict == Verdict::Better;
        if found[ends[0]].verdict == found[ends[1]].verdict {
            continue;
        }
        // The points between them have no clear verdict, but at least one of their medians is the
        // first on the other side of 1.
        let Some([a, b]) = between.windows(2).find(|two| (two[1].ratio >= 1.0) == pays) else { continue };
        let (Some(from), Some(to)) = (a.x, b.x) else { continue };
        let (before, after) = (a.ratio.ln(), b.ratio.ln());
        let part = if (before - after).is_normal() { (before / (before - after)).clamp(0.0, 1.0) } else { 1.0 };
        let place = plot.x.at(from) + part * (plot.x.at(to) - plot.x.at(from));
        // The axis has no scale between 0 and the first point.
        let value = if from == 0.0 { axis_value(to) } else { rounded(plot.x.value(place)) };
        let words = match (pays, from == 0.0) {
            (true, true) => "pays before",
            (true, false) => "pays from about",
            (false, true) => "no longer pays before",
            (false, false) => "pays up to about",
        };
        crossing(plot, index, place, &name(pair), &format!("{words} {value}"), *labels);
        *labels += 1;
    }
}

/// Draws a ring on the line at 1, with its text below. The texts are placed one below the other.
fn crossing(plot: &mut Plot, index: usize, place: f64, name: &str, text: &str, labels: usize) {
    /// The width of a letter of the text, and the height of a line.
    const LETTER: (f64, f64) = (7.6, 15.0);
    let (left, right) = plot.ends();
    let (x, y) = (left + place * (right - left), plot.py(1.0));
    let class = class_of(index);
    plot.svg.ring(&format!("crossing {class}"), (x, y), &format!("{name}: {text}"));
    let fits = x + 9.0 + text.chars().count() as f64 * LETTER.0 < right;
    let (anchor, beside) = if fits { (Anchor::Start, 9.0) } else { (Anchor::End, -9.0) };
    let down = 17.0 + LETTER.1 * labels as f64;
    plot.svg.text(&format!("crossed {class}"), (x + beside, y + down), anchor, text);
}

/// The value rounded to two significant digits.
fn rounded(value: f64) -> String {
    let power = 10_f64.powf(value.abs().log10().floor() - 1.0);
    if power.is_normal() { tick((value / power).round() * power) } else { number(value) }
}

/// Draws a row for each pair, with a mark and its spread. Used if there is no axis of points.
fn rows(pairs: &[Told<'_>], scale: Scale, words: &Words<'_>) -> Plot {
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
        let at = one.x.map_or(String::new(), |x| format!(", at {}", axis_value(x)));
        plot.svg.text("name over", (12.0, middle - 12.0), Anchor::Start, &format!("{}{at}", name(pair)));
        let class = class_of(index);
        let (low, high, ratio) = (plot.px(one.low), plot.px(one.high), plot.px(one.ratio));
        plot.svg.line(&format!("whisker {class}"), (low, middle), (high, middle));
        plot.svg.mark(index, !is_told(one), (ratio, middle), &format!("{}{at}: {one}", name(pair)));
    }
    plot
}
