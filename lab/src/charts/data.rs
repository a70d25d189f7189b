//! The data of a chart.

use crate::placement::Placement;
use crate::report::{Chart, Experiment};
use crate::stats::{Group, Spread, groups, placements, series};

/// A chart with its groups, by placement. A panel never contains both near and far runs.
pub(super) struct Data<'a> {
    pub(super) experiment: &'a Experiment,
    pub(super) chart: &'a Chart,
    pub(super) panels: Vec<(Placement, Vec<Line<'a>>)>,
}

/// A series in a panel.
#[derive(Clone, Debug)]
pub(super) struct Line<'a> {
    /// The position of the series among all series of the experiment, which gives it the same
    /// colour in all charts.
    pub(super) index: usize,
    pub(super) name: &'a str,
    pub(super) points: Vec<Point>,
}

/// A group of a series.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    /// 0 if the group has no point on an axis.
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

    /// All points that are drawn, sorted and without duplicates.
    pub(super) fn xs(&self) -> Vec<f64> {
        let mut xs: Vec<f64> = self.points().map(|point| point.x).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        xs
    }

    /// All values that must fit on the axis.
    pub(super) fn values(&self) -> impl Iterator<Item = f64> + Clone {
        self.points().flat_map(|point| [point.spread.least, point.spread.most])
    }

    /// The title and unit of the chart's metric.
    pub(super) fn unit(&self) -> String {
        let metric = self.experiment.metrics.iter().find(|metric| metric.name == self.chart.metric);
        metric.map_or(self.chart.metric.clone(), |metric| format!("{}, {}", metric.title, metric.unit))
    }

    pub(super) fn heading(&self, placement: Placement) -> String {
        heading(placement).to_owned()
    }

    /// The series in the chart, for the legend.
    pub(super) fn names(&self) -> Vec<(usize, &'a str)> {
        let mut names = drawn(self.experiment, self.chart);
        names.retain(|(index, _)| self.panels.iter().flat_map(|(_, lines)| lines).any(|line| line.index == *index));
        names
    }

    fn points(&self) -> impl Iterator<Item = &Point> + Clone {
        self.panels.iter().flat_map(|(_, lines)| lines).flat_map(|line| &line.points)
    }
}

/// The heading of a panel for a placement.
pub(super) fn heading(placement: Placement) -> &'static str {
    match placement {
        Placement::Near => "near: the CPUs share a cache",
        Placement::Far => "far: they share none",
        Placement::Alone => "one CPU",
        // No chart draws these runs.
        Placement::Moved => "moved",
    }
}

/// The chart's series, each with its position among all series.
pub(super) fn drawn<'a>(experiment: &'a Experiment, chart: &'a Chart) -> Vec<(usize, &'a str)> {
    let all: Vec<(usize, &str)> = series(experiment).into_iter().enumerate().collect();
    if chart.series.is_empty() {
        return all;
    }
    chart.series.iter().filter_map(|name| all.iter().copied().find(|(_, one)| one == name)).collect()
}

/// Whether the groups have more than one point on an axis.
pub(super) fn has_axis(groups: &[Group<'_>]) -> bool {
    let mut xs = groups.iter().filter_map(|group| group.x);
    let first = xs.next();
    xs.any(|x| Some(x) != first)
}
