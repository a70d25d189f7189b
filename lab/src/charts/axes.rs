//! The frame of a chart: a heading, axes with ticks, and the positions of values.

use super::scale::Scale;
use super::svg::{Anchor, Svg};
use crate::format::axis_value;

/// The width of every panel in its own units; the page scales it. Text of 13 units is then still 11
/// pixels on a phone.
pub(super) const WIDTH: f64 = 420.0;
/// The margin to the right of the plot.
const RIGHT: f64 = 20.0;
/// The height of the heading and the name of the vertical axis.
const TOP: f64 = 52.0;
/// The height of the ticks and the name of the horizontal axis.
const BOTTOM: f64 = 46.0;
/// The width of one letter of a tick label. At least one letter's width stays free between two
/// labels.
const LETTER: f64 = 7.4;

/// A plot with two axes.
#[derive(Debug)]
pub(super) struct Plot {
    pub(super) svg: Svg,
    pub(super) x: Scale,
    pub(super) y: Scale,
    left: f64,
    height: f64,
}

/// The texts around a plot.
pub(super) struct Words<'a> {
    pub(super) heading: &'a str,
    pub(super) x: &'a str,
    pub(super) y: &'a str,
}

impl Plot {
    /// A plot of this height, with this much room to its left.
    pub(super) fn new(words: &Words<'_>, x: Scale, y: Scale, left: f64, height: f64) -> Self {
        let mut svg = Svg::new(WIDTH, TOP + height + BOTTOM);
        svg.text("heading", (0.0, 14.0), Anchor::Start, words.heading);
        svg.text("axis", (0.0, 33.0), Anchor::Start, words.y);
        svg.text("axis", (WIDTH - RIGHT, TOP + height + 38.0), Anchor::End, words.x);
        Self { svg, x, y, left, height }
    }

    pub(super) fn px(&self, x: f64) -> f64 {
        self.left + self.x.at(x) * (WIDTH - RIGHT - self.left)
    }

    pub(super) fn py(&self, y: f64) -> f64 {
        TOP + (1.0 - self.y.at(y)) * self.height
    }

    pub(super) fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (self.px(x), self.py(y))
    }

    pub(super) fn ends(&self) -> (f64, f64) {
        (self.left, WIDTH - RIGHT)
    }

    /// Draws horizontal lines with their values.
    pub(super) fn y_ticks(&mut self, ticks: &[f64], label: impl Fn(f64) -> String) {
        let (left, right) = self.ends();
        for tick in ticks {
            let y = self.py(*tick);
            self.svg.line("grid", (left, y), (right, y));
            self.svg.text("tick", (left - 7.0, y + 4.5), Anchor::End, &label(*tick));
        }
    }

    /// Draws the values below the plot. If the labels of regular ticks would touch, only every
    /// second, third or later tick has a label. Measured points have no regular distance, so a
    /// label that would touch the previous label is left out.
    pub(super) fn x_ticks(&mut self, ticks: &[f64], regular: bool, label: impl Fn(f64) -> String) {
        let bottom = TOP + self.height;
        let places: Vec<(f64, String, f64)> = ticks
            .iter()
            .map(|tick| {
                let text = label(*tick);
                let half = (text.chars().count() + 1) as f64 * LETTER / 2.0;
                (self.px(*tick), text, half)
            })
            .collect();
        let apart = |a: &(f64, String, f64), b: &(f64, String, f64)| a.0 + a.2 <= b.0 - b.2;
        let fits = |every: &usize| {
            places.iter().step_by(*every).zip(places.iter().step_by(*every).skip(1)).all(|(a, b)| apart(a, b))
        };
        let every = if regular { (1..ticks.len()).find(fits).unwrap_or(1) } else { 1 };
        let mut last: Option<&(f64, String, f64)> = None;
        for (at, place) in places.iter().enumerate() {
            let top = if regular { TOP } else { bottom };
            self.svg.line(if regular { "grid" } else { "base" }, (place.0, top), (place.0, bottom + 5.0));
            if at % every == 0 && last.is_none_or(|last| apart(last, place)) {
                self.svg.text("tick", (place.0, bottom + 19.0), Anchor::Middle, &place.1);
                last = Some(place);
            }
        }
        let (left, right) = self.ends();
        self.svg.line("base", (left, bottom), (right, bottom));
    }
}

/// The ticks of measured points: the points themselves if there are few of them, or else regular
/// ticks.
pub(super) fn measured(points: &[f64], scale: &Scale) -> Vec<f64> {
    /// A reader could not distinguish more points.
    const POINTS_MAX: usize = 12;
    if points.len() <= POINTS_MAX { points.to_vec() } else { scale.ticks() }
}

/// The room that tick labels need to the left of a plot.
pub(super) fn room(labels: impl Iterator<Item = String>) -> f64 {
    12.0 + labels.map(|label| label.chars().count()).max().unwrap_or(0) as f64 * LETTER
}

/// The text of a tick.
pub(super) fn tick(value: f64) -> String {
    // 0.30000000000000004 is 0.3.
    axis_value((value * 1e9).round() / 1e9)
}
