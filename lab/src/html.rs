//! A report as a single HTML page without scripts or external resources. The page is also
//! well-formed XML.

mod tables;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use crate::charts::{self, escape};
use crate::format::{duration, quantity};
use crate::report::{Experiment, Machine, Report};
use crate::stats::moved;

/// The light and the dark style. The reader's settings choose between them.
const STYLE: &str = include_str!("html/style.css");

/// The whole page.
pub fn page(report: &Report) -> String {
    let title = match &report.experiments[..] {
        [one] => format!("steerage bench: {}", one.title),
        _ => "steerage bench".to_owned(),
    };
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<header>\n<h1>{title}</h1>\n",
        title = escape(&title)
    );
    machine(&mut page, &report.machine);
    page.push_str(HOW_TO_READ);
    page.push_str("</header>\n<main>\n");
    if report.experiments.len() > 1 {
        tables::at_a_glance(&mut page, report);
    }
    report.experiments.iter().for_each(|one| experiment(&mut page, one));
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

const HOW_TO_READ: &str = "<p class=\"quiet\">Runs are made in turn, round by round. Figures are medians, with the least and the \
most as whiskers, bands or in brackets. Where the CPUs share a cache (near) and where they share none (far) are two machines: they \
are never pooled. One series is said in terms of another by the ratios within each round; a difference that is smaller than their \
spread is not called one.</p>\n";

fn machine(page: &mut String, machine: &Machine) {
    let below = if machine.virtual_machine { ", in a virtual machine" } else { "" };
    let cpus = format!("{}, {}{below}", machine.cpu, quantity(machine.cpus, "CPU"));
    let mut rows = vec![
        ("machine", escape(&cpus)),
        ("kernel", format!("Linux {}", escape(&machine.kernel))),
        ("steerage", escape(&machine.version)),
    ];
    if !machine.beside.is_empty() {
        let beside: Vec<String> = machine.beside.iter().map(|one| escape(one)).collect();
        rows.push(("beside it", beside.join("<br/>")));
    }
    rows.push(("begun", format!("{}, took {}", escape(&machine.started), duration(machine.seconds))));
    let commands: Vec<String> = machine.command.lines().map(escape).collect();
    rows.push(("command", format!("<pre>{}</pre>", commands.join("\n"))));
    page.push_str("<dl class=\"machine\">\n");
    for (what, value) in rows {
        let _ = writeln!(page, "<dt>{what}</dt><dd>{value}</dd>");
    }
    page.push_str("</dl>\n");
}

fn experiment(page: &mut String, one: &Experiment) {
    let (name, title) = (escape(&one.name), escape(&one.title));
    let _ = writeln!(page, "<section id=\"{}\">\n<h2>{title} <code>{name}</code></h2>", tables::anchor(one));
    let _ = writeln!(page, "<p>{}</p>", escape(&one.question));
    if !one.published.is_empty() {
        let _ = writeln!(page, "<p class=\"published\">Published: {}</p>", escape(&one.published));
    }
    for chart in &one.charts {
        page.push_str(&charts::figure(one, chart));
    }
    tables::verdicts(page, one);
    left_out(page, one);
    tables::figures(page, one);
    page.push_str("</section>\n");
}

fn left_out(page: &mut String, one: &Experiment) {
    let moved = moved(one);
    let moved = (moved > 0).then(|| format!("left out: {} in which the CPUs moved", quantity(moved, "run")));
    let lines: Vec<String> =
        moved.into_iter().chain(one.skipped.iter().map(|line| format!("skipped: {line}"))).collect();
    if lines.is_empty() {
        return;
    }
    page.push_str("<ul class=\"left-out\">\n");
    for line in lines {
        let _ = writeln!(page, "<li>{}</li>", escape(&line));
    }
    page.push_str("</ul>\n");
}
