//! Charts of an experiment as SVG. They are written without a plotting library, since those that
//! exist put fixed colours into the picture, which then cannot follow the page's light and dark
//! style, and have no hints at marks: see CONTRIBUTING.md.

mod axes;
mod bars;
mod data;
mod distribution;
mod lines;
mod ratio;
mod scale;
mod svg;

#[cfg(test)]
pub(crate) use svg::SERIES_COLOURS;
pub(crate) use svg::escape;

use std::fmt::Write;

use crate::report::{Chart, ChartKind, Experiment};
use crate::stats::groups;
use data::Data;
use ratio::Pairs;

/// The `<figure>` of a chart: its heading, its legend and a panel for each placement. Empty if the
/// chart has no samples.
pub(crate) fn figure(experiment: &Experiment, chart: &Chart) -> String {
    let (names, panels) = match chart.kind {
        ChartKind::Ratio => {
            let pairs = Pairs::new(experiment, chart);
            // Rows have their names beside them, so they need no legend.
            (if pairs.has_axis() { pairs.names() } else { Vec::new() }, pairs.draw())
        }
        ChartKind::Distribution => (distribution::names(experiment, chart), distribution::draw(experiment, chart)),
        ChartKind::Lines if data::has_axis(&groups(experiment)) => {
            let data = Data::new(experiment, chart);
            (owned(data.names()), lines::draw(&data))
        }
        ChartKind::Bars | ChartKind::Lines => (Vec::new(), bars::draw(&Data::new(experiment, chart))),
    };
    if panels.is_empty() {
        return String::new();
    }
    let hollow = panels.iter().any(|panel| panel.contains("mark hollow"));
    let note = if hollow { "<span>hollow marks: no difference can be shown</span>" } else { "" };
    let mut text = format!("<figure>\n<figcaption>{}{note}</figcaption>\n", escape(&chart.title));
    if !names.is_empty() {
        text.push_str("<ul class=\"legend\">\n");
        for (index, name) in names {
            let _ = writeln!(text, "<li>{}<span>{}</span></li>", svg::swatch(index), escape(&name));
        }
        text.push_str("</ul>\n");
    }
    let _ = write!(text, "<div class=\"panels\">\n{}</div>\n</figure>\n", panels.concat());
    text
}

fn owned(names: Vec<(usize, &str)>) -> Vec<(usize, String)> {
    names.into_iter().map(|(index, name)| (index, name.to_owned())).collect()
}
