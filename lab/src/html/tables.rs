//! The tables of the page: an overview, the verdicts of each pair, and all figures.

use std::fmt::Write;

use crate::charts::escape;
use crate::compare::{Comparison, Verdict, compare, times};
use crate::format::{axis_value, spread};
use crate::placement::Placement;
use crate::report::{Experiment, Metric, Pair, Report};
use crate::stats::{by_x, groups};

/// The overview: for each experiment its first pair, which the experiment is about.
pub(super) fn at_a_glance(page: &mut String, report: &Report) {
    page.push_str("<div class=\"wide\">\n<table>\n<caption>At a glance</caption>\n");
    page.push_str("<tr><th>experiment</th><th>what is compared</th><th>where</th><th>verdict</th></tr>\n");
    for one in &report.experiments {
        let link = format!("<a href=\"#{}\">{}</a>", anchor(one), escape(&one.title));
        let told = one.compared.first().map(|pair| (pair, compare(one, pair)));
        let Some((pair, found)) = told.filter(|(_, found)| !found.is_empty()) else {
            let _ =
                writeln!(page, "<tr><td>{link}</td><td></td><td></td><td class=\"unsure\">nothing compared</td></tr>");
            continue;
        };
        for (at, here) in found.chunk_by(|a, b| a.placement == b.placement).enumerate() {
            let first = at == 0;
            let what = format!("{} over {}, {}", pair.of, pair.over, title(one, pair));
            let cells = if first { (link.as_str(), escape(&what)) } else { ("", String::new()) };
            let (class, verdict) = summary(one, here);
            let _ = writeln!(
                page,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"{class}\">{}</td></tr>",
                cells.0,
                cells.1,
                here[0].placement,
                escape(&verdict)
            );
        }
    }
    page.push_str("</table>\n</div>\n");
}

/// The id of an experiment's section in the page.
pub(super) fn anchor(one: &Experiment) -> String {
    one.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

/// Summarizes several points in one line: the best and the worst difference, and the number of
/// points per verdict.
fn summary(one: &Experiment, found: &[Comparison]) -> (&'static str, String) {
    if let [only] = found {
        return (class(only.verdict), only.to_string());
    }
    let with = |verdict: Verdict| found.iter().filter(move |one| one.verdict == verdict);
    let by_ratio = |a: &&Comparison, b: &&Comparison| a.ratio.total_cmp(&b.ratio);
    let at = |told: &Comparison| format!("{told} at {} {}", told.x.map_or(String::new(), axis_value), unit(&one.x));
    let extremes = [with(Verdict::Better).max_by(by_ratio), with(Verdict::Worse).min_by(by_ratio)];
    let mut parts: Vec<String> = extremes.into_iter().flatten().map(at).collect();
    let all = [
        (Verdict::Better, "better"),
        (Verdict::Worse, "worse"),
        (Verdict::NoDifference, "no difference"),
        (Verdict::Unclear, "unclear"),
        (Verdict::TooFew, "too few runs"),
    ];
    let counts = all.map(|(verdict, word)| (with(verdict).count(), word));
    let told: Vec<String> =
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{word} at {count}")).collect();
    parts.push(format!("{} of {} points", told.join(", "), found.len()));
    let class = match counts {
        [(better, _), (worse, _), ..] if better > worse => "better",
        [(better, _), (worse, _), ..] if better < worse => "worse",
        _ => "unsure",
    };
    (class, parts.join("; "))
}

/// The unit after the comma of an axis name, such as `ns` in `time, ns`.
fn unit(x: &str) -> &str {
    x.split_once(", ").map_or(x, |(_, unit)| unit)
}

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::NoDifference | Verdict::Unclear | Verdict::TooFew => "unsure",
    }
}

fn title<'a>(one: &'a Experiment, pair: &'a Pair) -> &'a str {
    one.metrics.iter().find(|metric| metric.name == pair.metric).map_or(&pair.metric, |metric| &metric.title)
}

/// Adds a table for each pair, with points as rows and placements as columns.
pub(super) fn verdicts(page: &mut String, one: &Experiment) {
    let told = one.compared.iter().map(|pair| (pair, compare(one, pair))).filter(|(_, found)| !found.is_empty());
    let mut told = told.peekable();
    if told.peek().is_none() {
        return;
    }
    page.push_str("<h3>Findings</h3>\n<div class=\"verdicts\">\n");
    for (pair, found) in told {
        let mut placements: Vec<Placement> = found.iter().map(|one| one.placement).collect();
        placements.dedup();
        let mut xs: Vec<Option<f64>> = found.iter().map(|one| one.x).collect();
        xs.sort_by(|a, b| by_x(*a, *b));
        xs.dedup();
        let caption = format!("{} over {}, {}", pair.of, pair.over, title(one, pair));
        let _ = write!(page, "<div class=\"wide\"><table>\n<caption>{}</caption>\n<tr>", escape(&caption));
        let with_x = xs.iter().any(Option::is_some);
        if with_x {
            let _ = write!(page, "<th>{}</th>", escape(&one.x));
        }
        for placement in &placements {
            let _ = write!(page, "<th>{placement}</th>");
        }
        page.push_str("</tr>\n");
        for x in xs {
            page.push_str("<tr>");
            if with_x {
                let _ = write!(page, "<td class=\"number\">{}</td>", x.map_or(String::new(), axis_value));
            }
            for placement in &placements {
                let here = found.iter().find(|one| one.x == x && one.placement == *placement);
                let (class, text) = here.map_or(("", String::new()), |one| (class(one.verdict), one.to_string()));
                let _ = write!(page, "<td class=\"{class}\">{text}</td>");
            }
            page.push_str("</tr>\n");
        }
        for one in &pair.published {
            page.push_str("<tr>");
            if with_x {
                let _ = write!(page, "<td class=\"number\">{}</td>", one.x.map_or(String::new(), axis_value));
            }
            let text = format!("published: {} times ({})", times(one.ratio), one.set_up);
            let _ = writeln!(page, "<td colspan=\"{}\">{}</td></tr>", placements.len(), escape(&text));
        }
        page.push_str("</table></div>\n");
    }
    page.push_str("</div>\n");
}

/// Adds a collapsed table of all figures.
pub(super) fn figures(page: &mut String, one: &Experiment) {
    let groups = groups(one);
    if groups.is_empty() {
        return;
    }
    let with_x = groups.iter().any(|group| group.x.is_some());
    let has = |metric: &&Metric| groups.iter().any(|group| group.spread(&metric.name).is_some());
    let metrics: Vec<&Metric> = one.metrics.iter().filter(has).collect();
    page.push_str("<details>\n<summary>All figures, median [least..most]</summary>\n<div class=\"wide\"><table>\n<tr><th>where</th>");
    if with_x {
        let _ = write!(page, "<th>{}</th>", escape(&one.x));
    }
    page.push_str("<th>series</th><th>runs</th>");
    for metric in &metrics {
        let better = if metric.more_is_better { "more" } else { "less" };
        let heading = format!("{}, {} ({better} is better)", metric.title, metric.unit);
        let _ = write!(page, "<th>{}</th>", escape(&heading));
    }
    page.push_str("</tr>\n");
    for group in &groups {
        let _ = write!(page, "<tr><td>{}</td>", group.placement);
        if with_x {
            let _ = write!(page, "<td class=\"number\">{}</td>", group.x.map_or(String::new(), axis_value));
        }
        let (series, runs) = (escape(group.series), group.samples.len());
        let _ = write!(page, "<td>{series}</td><td class=\"number\">{runs}</td>");
        for metric in &metrics {
            let text = group.spread(&metric.name).map_or(String::new(), |of| spread(&of));
            let _ = write!(page, "<td class=\"figure\">{text}</td>");
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n</details>\n");
}
