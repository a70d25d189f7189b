//! What a chart is drawn of.

use crate::placement::Placement;
use crate::report::{Chart, Experiment};
use crate::stats::{Group, Spread, groups, placements, series};

/// A chart with the groups that are in it, by placement: near and far are never in one panel.
pub(super) struct Data<'a> {
    pub(super) experiment: &'a Experiment,
    pub(super) chart: &'a Chart,
    pub(super) panels: Vec<(Placement, Vec<Line<'a>>)>,
}

/// A series in a panel.
#[derive(Clone, Debug)]
pub(super) struct Line<'a> {
    /// Its place among all series of the experiment: it has one colour in all charts.
    pub(super) index: usize,
    pub(super) name: &'a str,
    pub(super) points: Vec<Point>,
}

/// A group in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    /// 0 without one.
    pub(super) x: f64,
    pub(super) spread: Spread,
}

impl<'a> Data<'a> {
    pub(super) fn new(experiment: &'a Experiment, chart: &'a Chart) -> Self {
        let groups = groups(experiment);
        let names = drawn(experiment, chart);
        let panel = |placement: Placement| {
            let line = |(index, name): &(usize, &'a str)| Line {
                index: *index,
                name,
                points: groups
                    .iter()
                    .filter(|group| group.placement == placement && group.series == *name)
                    .filter_map(|group| Some(Point { x: group.x.unwrap_or(0.0), spread: group.spread(&chart.metric)? }))
                    .collect(),
            };
            let lines: Vec<Line<'a>> = names.iter().map(line).filter(|line| !line.points.is_empty()).collect();
            (placement, lines)
        };
        let panels = placements(experiment).into_iter().map(panel).filter(|(_, lines)| !lines.is_empty()).collect();
        Self { experiment, chart, panels }
    }

    /// Every point that is drawn, once, rising.
    pub(super) fn xs(&self) -> Vec<f64> {
        let mut xs: Vec<f64> = self.points().map(|point| point.x).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        xs
    }

    /// All that has to fit on the axis.
    pub(super) fn values(&self) -> impl Iterator<Item = f64> + Clone {
        self.points().flat_map(|point| [point.spread.least, point.spread.most])
    }

    /// Name and unit of what is measured.
    pub(super) fn unit(&self) -> String {
        let metric = self.experiment.metrics.iter().find(|metric| metric.name == self.chart.metric);
        metric.map_or(self.chart.metric.clone(), |metric| format!("{}, {}", metric.title, metric.unit))
    }

    pub(super) fn heading(&self, placement: Placement) -> String {
        heading(placement).to_owned()
    }

    /// Series in it, for the legend.
    pub(super) fn names(&self) -> Vec<(usize, &'a str)> {
        let mut names = drawn(self.experiment, self.chart);
        names.retain(|(index, _)| self.panels.iter().flat_map(|(_, lines)| lines).any(|line| line.index == *index));
        names
    }

    fn points(&self) -> impl Iterator<Item = &Point> + Clone {
        self.panels.iter().flat_map(|(_, lines)| lines).flat_map(|line| &line.points)
    }
}

/// What a placement is called over a panel.
pub(super) fn heading(placement: Placement) -> &'static str {
    match placement {
        Placement::Near => "near: the CPUs share a cache",
        Placement::Far => "far: they share none",
        Placement::Alone => "one CPU",
        // It is drawn nowhere.
        Placement::Moved => "moved",
    }
}

/// The chart's series, each with its place among all.
pub(super) fn drawn<'a>(experiment: &'a Experiment, chart: &'a Chart) -> Vec<(usize, &'a str)> {
    let all: Vec<(usize, &str)> = series(experiment).into_iter().enumerate().collect();
    if chart.series.is_empty() {
        return all;
    }
    chart.series.iter().filter_map(|name| all.iter().copied().find(|(_, one)| one == name)).collect()
}

/// Whether there are points along an axis, or one at most.
pub(super) fn has_axis(groups: &[Group<'_>]) -> bool {
    let mut xs = groups.iter().filter_map(|group| group.x);
    let first = xs.next();
    xs.any(|x| Some(x) != first)
}
