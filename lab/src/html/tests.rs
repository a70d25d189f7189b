//! Tests of a page's content. Its looks were checked by eye.

use std::collections::BTreeMap;

use roxmltree::{Document, Node, ParsingOptions};

use super::*;
use crate::charts::SERIES_COLOURS;
use crate::report::ChartKind;
use crate::stats::groups;
use crate::test_report::{EVIL, POINTS, report};

/// Parses the page as XML, since it must be well-formed XML too.
fn parsed<T>(page: &str, look: impl FnOnce(&Document<'_>) -> T) -> T {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    let document = Document::parse_with_options(page, options).unwrap_or_else(|error| panic!("{error}"));
    look(&document)
}

fn with_class<'a>(document: &'a Document<'_>, class: &str) -> Vec<Node<'a, 'a>> {
    let has = |node: &Node<'_, '_>| node.attribute("class").is_some_and(|all| all.split(' ').any(|one| one == class));
    document.descendants().filter(has).collect()
}

fn text(node: Node<'_, '_>) -> String {
    node.descendants().filter(Node::is_text).filter_map(|part| part.text()).collect()
}

#[test]
fn there_is_a_mark_for_each_group() {
    for (kind, xs) in [
        (ChartKind::Lines, &POINTS[..]),
        (ChartKind::Bars, &POINTS),
        (ChartKind::Bars, &[None]),
        (ChartKind::Lines, &[None]),
    ] {
        let report = report(xs, &[kind]);
        let groups = groups(&report.experiments[0]);
        parsed(&page(&report), |document| {
            let marks = with_class(document, "mark");
            assert_eq!(marks.len(), groups.len(), "{kind:?} {xs:?}");
            // Each mark shows its figures.
            for group in &groups {
                let told = crate::format::spread(&group.spread("v").unwrap());
                let tells = |mark: &Node<'_, '_>| {
                    let title = text(*mark);
                    title.starts_with(group.series) && title.contains(&told) && title.ends_with("3 runs")
                };
                assert!(marks.iter().any(tells), "{kind:?}: {} {told}", group.series);
            }
            // Near and far runs each have their own panel.
            let panels: Vec<_> = document.descendants().filter(|node| node.attribute("role") == Some("img")).collect();
            assert_eq!(panels.len(), 2, "{kind:?}");
            for (panel, name) in panels.iter().zip(["near", "far"]) {
                assert!(panel.attribute("aria-label").is_some_and(|label| label.contains(name)), "{kind:?}");
            }
        });
    }
}

#[test]
fn a_ratio_crosses_1_where_it_begins_to_pay() {
    // The ratios at the three points are 0.5, 1 and 1.5.
    let of = page(&report(&POINTS, &[ChartKind::Ratio]));
    parsed(&of, |document| {
        assert_eq!(with_class(document, "mark").len(), 6);
        assert_eq!(with_class(document, "crossing").len(), 2);
        for label in with_class(document, "crossed") {
            assert_eq!(text(label), "pays before 20");
        }
    });
    // On a logarithmic axis from 20 on, the ratio rises from 0.5 to 1.5. The crossing is at the part
    // ln 2 / ln 3 of the way.
    let mut later = report(&[Some(20.0), Some(2000.0)], &[ChartKind::Ratio]);
    for sample in later.experiments[0].samples.iter_mut().filter(|one| one.series == "ours" && one.x == Some(2000.0)) {
        sample.values.entry("v".into()).and_modify(|value| *value *= 1.5);
    }
    parsed(&page(&later), |document| {
        let expected = 20.0 * 100_f64.powf(2_f64.ln() / 3_f64.ln());
        assert_eq!((expected / 10.0).round(), 37.0);
        assert!(with_class(document, "crossed").iter().all(|label| text(*label) == "pays from about 370"));
        assert_eq!(with_class(document, "crossed").len(), 2);
    });
    // With too few rounds there is no verdict, so there is no crossing.
    later.experiments[0].samples.retain(|one| one.round < 4);
    parsed(&page(&later), |document| assert_eq!(with_class(document, "crossing").len(), 0));
    // Without points, the chart has a row for each pair.
    parsed(&page(&report(&[None], &[ChartKind::Ratio])), |document| assert_eq!(with_class(document, "mark").len(), 2));
}

#[test]
fn a_published_ratio_is_drawn_and_listed_beside_the_measured_ones() {
    let mut report = report(&POINTS, &[ChartKind::Ratio]);
    parsed(&page(&report), |document| {
        let rings = document.descendants().filter(|node| node.has_tag_name("circle"));
        let rings: Vec<String> = rings
            .filter(|ring| ring.attribute("class").is_some_and(|class| class.starts_with("published")))
            .map(text)
            .collect();
        // Each panel has one ring.
        assert_eq!(rings, ["published: 1.27 times at 200 (a card, 8 CPUs)"; 2]);
        let cells = document.descendants().filter(|node| node.has_tag_name("td")).map(text);
        assert_eq!(cells.filter(|cell| cell == "published: 1.27 times (a card, 8 CPUs)").count(), 1);
    });
    // Reports from before published ratios existed can still be read.
    let before = serde_json::to_string(&report)
        .unwrap()
        .replace(r#""published":[{"x":200.0,"ratio":1.27,"set_up":"a card, 8 CPUs"}]"#, r#""ignored":1"#);
    report = serde_json::from_str(&before).unwrap();
    assert_eq!(report.experiments[0].compared[0].published, []);
    parsed(&page(&report), |document| assert_eq!(with_class(document, "mark").len(), 6));
}

#[test]
fn a_distribution_has_a_curve_for_each_group() {
    let report = report(&POINTS, &[ChartKind::Distribution]);
    parsed(&page(&report), |document| {
        let curves = with_class(document, "mark");
        assert_eq!(curves.len(), groups(&report.experiments[0]).len());
        assert_eq!(text(curves[0]), "plain: p50 100 ns, p99 2 us, p99.9 2 us, most 30 us, 3 runs");
        // Each run also has a thin curve.
        assert_eq!(with_class(document, "run").len(), 36);
    });
}

#[test]
fn a_page_says_what_was_asked_and_on_what() {
    let of = page(&report(&POINTS, &[]));
    for expected in [
        "a CPU, 2 CPUs",
        "Linux 6.1",
        ">0.1<",
        "bench e\nbench f",
        "2026-11-21T10:00:00Z",
        "a peer 1.0",
        "an experiment",
        "why?",
        "Published: elsewhere",
        "skipped: what could not be",
        "left out: 1 run in which the CPUs moved",
        "<details>",
    ] {
        assert!(of.contains(expected), "{expected}");
    }
    // Each point and placement has a verdict.
    parsed(&of, |document| {
        assert_eq!(
            with_class(document, "better").len()
                + with_class(document, "worse").len()
                + with_class(document, "unsure").len(),
            6
        )
    });
}

#[test]
fn what_comes_from_elsewhere_is_escaped() {
    for kind in [ChartKind::Lines, ChartKind::Bars, ChartKind::Ratio, ChartKind::Distribution] {
        for xs in [&POINTS[..], &[None]] {
            let mut evil = report(xs, &[kind]);
            let of = &mut evil.machine;
            for text in [&mut of.cpu, &mut of.kernel, &mut of.version, &mut of.command, &mut of.started] {
                *text = EVIL.to_owned();
            }
            of.beside = vec![EVIL.to_owned()];
            let one = &mut evil.experiments[0];
            for text in [&mut one.name, &mut one.title, &mut one.question, &mut one.published, &mut one.x] {
                *text = EVIL.to_owned();
            }
            for text in [&mut one.metrics[0].title, &mut one.charts[0].title, &mut one.compared[0].of] {
                *text = EVIL.to_owned();
            }
            one.metrics[0].unit = EVIL.to_owned();
            one.compared[0].published[0].set_up = EVIL.to_owned();
            one.skipped = vec![EVIL.to_owned()];
            one.samples
                .iter_mut()
                .filter(|sample| sample.series == "ours")
                .for_each(|sample| sample.series = EVIL.to_owned());
            evil.experiments.push(evil.experiments[0].clone());
            let of = page(&evil);
            assert!(!of.contains("<script"), "{kind:?} {xs:?}");
            parsed(&of, |document| {
                assert!(document.descendants().all(|node| !node.has_tag_name("script")));
                assert!(with_class(document, "mark").len() >= 2, "{kind:?} {xs:?}");
            });
        }
    }
}

#[test]
fn strange_figures_are_drawn_too() {
    for value in [0.0, -1.0, 1e300, f64::INFINITY, f64::NAN, 1e-300] {
        for kind in [ChartKind::Lines, ChartKind::Bars, ChartKind::Ratio] {
            let mut strange = report(&POINTS, &[kind]);
            strange.experiments[0].samples[0].values.insert("v".into(), value);
            strange.experiments[0].samples[1].x = Some(1e300);
            let of = page(&strange);
            parsed(&of, |document| {
                let places = ["d", "x", "y", "x1", "x2", "y1", "y2", "width", "height"];
                let all = document.descendants().flat_map(|node| places.map(|name| node.attribute(name)));
                let all: Vec<&str> = all.flatten().collect();
                assert!(all.len() > 50, "{value} {kind:?}");
                assert!(all.iter().all(|at| !at.contains("NaN") && !at.contains("inf")), "{value} {kind:?}");
            });
        }
    }
    let mut none = report(&POINTS, &[ChartKind::Lines, ChartKind::Distribution, ChartKind::Ratio]);
    none.experiments[0].samples.clear();
    parsed(&page(&none), |document| assert_eq!(with_class(document, "mark").len(), 0));
    none.experiments.clear();
    parsed(&page(&none), |_| ());
}

#[test]
fn nothing_comes_from_elsewhere() {
    let of = page(&report(&POINTS, &[ChartKind::Lines]));
    let names = of.replace("http://www.w3.org/2000/svg", "");
    for outside in ["http:", "https:", "url(", "@import", "<link", "src="] {
        assert!(!names.contains(outside), "{outside}");
    }
}

/// The colours of `:root` in a part of the style.
fn colours(style: &str) -> BTreeMap<&str, [f64; 3]> {
    let channel = |hex: &str, at: usize| f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0;
    let declared = style.split(';').filter_map(|one| one.rsplit_once("--")?.1.split_once(": #"));
    declared.map(|(name, hex)| (name, [channel(hex, 0), channel(hex, 2), channel(hex, 4)])).collect()
}

/// The contrast ratio of WCAG 2.1, 1.4.3.
fn contrast(a: [f64; 3], b: [f64; 3]) -> f64 {
    let linear = |part: f64| if part <= 0.03928 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) };
    let luminance =
        |[red, green, blue]: [f64; 3]| 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

#[test]
fn both_themes_can_be_read() {
    assert!((contrast([0.0; 3], [1.0; 3]) - 21.0).abs() < 1e-9);
    let (light, rest) = STYLE.split_once("@media (prefers-color-scheme: dark) {").unwrap();
    let (dark, _) = rest.split_once("}\n}").unwrap();
    let (light, dark) = (colours(light), colours(dark));
    assert_eq!(light.keys().collect::<Vec<_>>(), dark.keys().collect::<Vec<_>>());
    for (theme, of) in [("light", light), ("dark", dark)] {
        let series: Vec<String> = (0..SERIES_COLOURS).map(|at| format!("s{at}")).collect();
        let text = ["text", "quiet", "link", "better", "worse"];
        for name in series.iter().map(String::as_str).chain(text) {
            for ground in ["page", "card"] {
                let found = contrast(of[name], of[ground]);
                assert!(found >= 4.5, "{theme}: {name} on {ground}: {found:.2}");
            }
        }
        // Lines that carry information: WCAG 2.1, 1.4.11.
        assert!(contrast(of["base"], of["card"]) >= 3.0, "{theme}");
    }
    assert!((0..SERIES_COLOURS).all(|at| STYLE.contains(&format!(".s{at} {{ --c: var(--s{at}); }}"))));
    assert!(!STYLE.contains(&format!("--s{SERIES_COLOURS}")));
}
