//! The few SVG elements that charts need. Elements have only classes: the page defines the colours.

use std::fmt::{Display, Write};

use crate::format::printable;

/// A picture that grows and shrinks with the page.
#[derive(Debug)]
pub(crate) struct Svg {
    body: String,
    width: f64,
    height: f64,
}

/// The position of a text relative to its point.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// The number of colours for series. The page's style has a class for each: `s0`, `s1`, ...
pub(crate) const SERIES_COLOURS: usize = 8;

/// The number of different marks.
const SHAPES: usize = 6;

impl Svg {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        Self { body: String::new(), width, height }
    }

    pub(crate) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.add(format_args!(r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#));
    }

    pub(crate) fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (x, y) = at;
        let text = escape(text);
        self.add(format_args!(r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#));
    }

    pub(crate) fn rect(&mut self, class: &str, at: (f64, f64), size: (f64, f64), title: &str) {
        let ((x, y), (width, height)) = (at, size);
        self.add(format_args!(
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}">{}</rect>"#,
            hint(title)
        ));
    }

    pub(crate) fn path(&mut self, class: &str, through: &[(f64, f64)], closed: bool, title: &str) {
        let mut d = String::new();
        for (at, (x, y)) in through.iter().enumerate() {
            let _ = write!(d, "{}{x:.1} {y:.1}", if at == 0 { 'M' } else { 'L' });
        }
        let close = if closed { "Z" } else { "" };
        self.add(format_args!(r#"<path class="{class}" d="{d}{close}">{}</path>"#, hint(title)));
    }

    /// Draws a mark in the shape of the series. The mark is hollow if the comparison shows no
    /// difference there.
    pub(crate) fn mark(&mut self, index: usize, hollow: bool, at: (f64, f64), title: &str) {
        let (d, class) = (shape(index, at), class_of(index));
        let kind = if hollow { "mark hollow" } else { "mark" };
        self.add(format_args!(r#"<path class="{kind} {class}" d="{d}">{}</path>"#, hint(title)));
    }

    pub(crate) fn ring(&mut self, class: &str, at: (f64, f64), title: &str) {
        let (x, y) = at;
        self.add(format_args!(r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="6">{}</circle>"#, hint(title)));
    }

    pub(crate) fn finish(self, label: &str) -> String {
        let Self { body, width, height } = self;
        let label = escape(label);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" \
             aria-label=\"{label}\">\n{body}</svg>\n"
        )
    }

    fn add(&mut self, element: impl Display) {
        // Writing to a string does not fail.
        let _ = writeln!(self.body, "{element}");
    }
}

/// The sample of a series for a legend.
pub(crate) fn swatch(index: usize) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"swatch\" viewBox=\"0 0 34 14\" aria-hidden=\"true\">\
         <line class=\"line {class}\" x1=\"1\" y1=\"7\" x2=\"33\" y2=\"7\"/><path class=\"dot {class}\" d=\"{d}\"/></svg>",
        class = class_of(index),
        d = shape(index, (17.0, 7.0))
    )
}

/// The class that gives a series its colour and its dashes.
pub(crate) fn class_of(index: usize) -> String {
    format!("s{}", index % SERIES_COLOURS)
}

fn shape(index: usize, at: (f64, f64)) -> String {
    let (x, y) = at;
    let around = |points: &[(f64, f64)]| {
        let place = |(dx, dy): &(f64, f64)| format!("{:.1} {:.1}", x + dx, y + dy);
        format!("M{}Z", points.iter().map(place).collect::<Vec<_>>().join("L"))
    };
    match index % SHAPES {
        0 => format!("M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z", x - 4.0),
        1 => around(&[(-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)]),
        2 => around(&[(0.0, -4.8), (4.6, 3.6), (-4.6, 3.6)]),
        3 => around(&[(0.0, -5.2), (5.2, 0.0), (0.0, 5.2), (-5.2, 0.0)]),
        4 => around(&[(0.0, 4.8), (4.6, -3.6), (-4.6, -3.6)]),
        _ => around(&[(-5.0, -2.0), (5.0, -2.0), (5.0, 2.0), (-5.0, 2.0)]),
    }
}

fn hint(title: &str) -> String {
    if title.is_empty() { String::new() } else { format!("<title>{}</title>", escape(title)) }
}

/// Text for a page, between tags or in quotes.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // XML does not allow these characters, so a page cannot contain them.
            '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
