//! Distributions of latencies: the latency against the part of the packets that took longer, both
//! axes logarithmic. The slowest of a thousand packets get as much space as half of all packets.

use super::axes::{Plot, Words, room};
use super::data::{drawn, has_axis, heading};
use super::scale::Scale;
use super::svg::class_of;
use crate::format::{axis_value, number, quantity};
use crate::report::{Chart, Experiment};
use crate::stats::{Group, by_x, groups};

/// The height of a plot.
const HEIGHT: f64 = 220.0;
/// The smallest part of the packets that is drawn.
const RAREST: f64 = 1e-6;

/// A series' histogram, with the position of the series among all series.
type Drawn<'a> = (usize, Group<'a>, Vec<(u64, u64)>);

/// A panel for each placement and point, all on the same axes.
pub(super) fn draw(experiment: &Experiment, chart: &Chart) -> Vec<String> {
    let names = drawn(experiment, chart);
    let all = groups(experiment);
    let with_x = has_axis(&all);
    let of = |group: Group<'_>| {
        let index = names.iter().find(|(_, name)| *name == group.series)?.0;
        let latencies = group.latencies();
        (!latencies.is_empty()).then_some((index, latencies))
    };
    let mut found: Vec<Drawn<'_>> = all
        .iter()
        .filter_map(|group| of(group.clone()).map(|(index, latencies)| (index, group.clone(), latencies)))
        .collect();
    let Some((x, y)) = scales(&found) else { return Vec::new() };
    found.sort_by(|(a, one, _), (b, other, _)| {
        by_x(one.x, other.x).then(one.placement.cmp(&other.placement)).then(a.cmp(b))
    });
    let same = |(_, a, _): &Drawn<'_>, (_, b, _): &Drawn<'_>| (a.placement, a.x) == (b.placement, b.x);
    let panel = |these: &[Drawn<'_>]| {
        let (_, first, _) = &these[0];
        let at = first.x.filter(|_| with_x).map_or(String::new(), |x| format!("{}: {}; ", experiment.x, axis_value(x)));
        let heading = format!("{at}{}", heading(first.placement));
        let words = Words { heading: &heading, x: "latency", y: "percentile" };
        let mut plot = Plot::new(&words, x, y, room(y.ticks().into_iter().map(percentile)), HEIGHT);
        plot.y_ticks(&y.ticks(), percentile);
        plot.x_ticks(&x.ticks(), true, time);
        these.iter().for_each(|drawn| curve(&mut plot, drawn));
        plot.svg.finish(&format!("{}, {heading}", chart.title))
    };
    found.chunk_by(same).map(panel).collect()
}

/// The series in the chart, for the legend.
pub(super) fn names(experiment: &Experiment, chart: &Chart) -> Vec<(usize, String)> {
    let looked = |name: &str| experiment.samples.iter().any(|one| one.series == name && !one.latencies.is_empty());
    let all = drawn(experiment, chart).into_iter().filter(|(_, name)| looked(name));
    all.map(|(index, name)| (index, name.to_owned())).collect()
}

fn scales(of: &[Drawn<'_>]) -> Option<(Scale, Scale)> {
    let nanos = of.iter().flat_map(|(.., steps)| steps).map(|(nanos, _)| (*nanos).max(1) as f64);
    let (low, high) = nanos.fold((f64::INFINITY, 0.0_f64), |(low, high), nanos| (low.min(nanos), high.max(nanos)));
    let most = of.iter().map(|(.., steps)| total(steps)).fold(0.0, f64::max);
    // The smallest part that a run can show, rounded down to a power of ten.
    let rarest = 10_f64.powf((1.0 / most.max(10.0)).log10().floor()).max(RAREST);
    (low <= high).then(|| (Scale::decades(low, high), Scale::Log { low: rarest, high: 1.0 }))
}

fn total(steps: &[(u64, u64)]) -> f64 {
    steps.iter().map(|(_, packets)| *packets as f64).sum()
}

/// Draws a curve of descending steps: at each step the curve falls by the packets that took exactly
/// this long. Each run also has a thin curve.
fn curve(plot: &mut Plot, (index, group, steps): &Drawn<'_>) {
    let class = class_of(*index);
    if group.samples.len() > 1 {
        for sample in group.samples.iter().filter(|sample| !sample.latencies.is_empty()) {
            let through = stairs(plot, &sample.latencies);
            plot.svg.path(&format!("run {class}"), &through, false, "");
        }
    }
    let told = [50.0, 99.0, 99.9].map(|percent| format!("p{percent} {}", time(at_percent(steps, percent))));
    let title = format!(
        "{}: {}, most {}, {}",
        group.series,
        told.join(", "),
        time(steps.last().map_or(0.0, |(nanos, _)| *nanos as f64)),
        quantity(group.samples.len(), "run")
    );
    let through = stairs(plot, steps);
    plot.svg.path(&format!("mark line {class}"), &through, false, &title);
}

fn stairs(plot: &Plot, steps: &[(u64, u64)]) -> Vec<(f64, f64)> {
    let all = total(steps);
    let mut above = all;
    let mut through = Vec::with_capacity(2 * steps.len());
    for (nanos, packets) in steps {
        let x = (*nanos).max(1) as f64;
        through.push(plot.at(x, above / all));
        above -= *packets as f64;
        through.push(plot.at(x, above.max(0.0) / all));
    }
    through
}

/// The time that `percent` of the packets did not exceed.
fn at_percent(steps: &[(u64, u64)], percent: f64) -> f64 {
    let wanted = total(steps) * percent / 100.0;
    let mut below = 0.0;
    let reached = |(_, packets): &&(u64, u64)| {
        below += *packets as f64;
        below >= wanted
    };
    steps.iter().find(reached).or(steps.last()).map_or(0.0, |(nanos, _)| *nanos as f64)
}

/// The name of a percentile, such as `p99.9` if one packet in a thousand took longer.
fn percentile(above: f64) -> String {
    if above >= 0.999 {
        return "p0".to_owned();
    }
    let digits = (-above.log10()).round() as usize;
    format!("p{:.*}", digits.saturating_sub(2), 100.0 - 100.0 * above)
}

/// A time with its unit, such as `20 us`.
fn time(nanos: f64) -> String {
    let (value, unit) = match nanos {
        _ if nanos < 999.5 => (nanos, "ns"),
        _ if nanos < 999.5e3 => (nanos / 1e3, "us"),
        _ if nanos < 999.5e6 => (nanos / 1e6, "ms"),
        _ => (nanos / 1e9, "s"),
    };
    let text = if value.fract() == 0.0 { axis_value(value) } else { number(value) };
    format!("{text} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_told() {
        assert_eq!([1.0, 0.1, 0.01, 0.001, 0.0001].map(percentile), ["p0", "p90", "p99", "p99.9", "p99.99"]);
        assert_eq!([20.0, 1500.0, 2e4, 3e6, 4e9].map(time), ["20 ns", "1.50 us", "20 us", "3 ms", "4 s"]);
        let steps = [(10, 98), (20, 1), (500, 1)];
        assert_eq!([50.0, 98.0, 99.0, 99.9].map(|percent| at_percent(&steps, percent)), [10.0, 10.0, 20.0, 500.0]);
    }
}
