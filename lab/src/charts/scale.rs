//! Positions of values on an axis, and round ticks.

/// An axis. Positions go from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scale {
    /// Linear.
    Linear { low: f64, high: f64 },
    /// Logarithmic; both ends are above 0.
    Log { low: f64, high: f64 },
    /// 0, a gap, and a logarithmic part that begins at `low`.
    ZeroThenLog { low: f64, high: f64 },
}

/// If the highest value is at least this many times the lowest, the axis is logarithmic. This is
/// about one and a half decades.
const DECADES: f64 = 32.0;

/// The part of the axis between 0 and the lowest value above 0.
const GAP: f64 = 0.14;

impl Scale {
    /// A linear axis from 0 to a round number at or above all values. If there are negative values,
    /// the axis begins below them.
    pub(crate) fn from_zero(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = ends(values).unwrap_or((0.0, 1.0));
        let (low, high) = (low.min(0.0), high.max(0.0));
        let step = step(if high > low { high - low } else { 1.0 });
        let high = if high > low { (high / step).ceil() * step } else { low + 1.0 };
        Self::Linear { low: (low / step).floor() * step, high }
    }

    /// The axis for points: logarithmic if they span decades.
    pub(crate) fn along(values: impl Iterator<Item = f64> + Clone) -> Self {
        let (low, high) = ends(values.clone()).unwrap_or((0.0, 1.0));
        let above = ends(values.filter(|value| *value > 0.0)).map_or(high, |(least, _)| least);
        if low >= 0.0 && above > 0.0 && high / above >= DECADES {
            return if low == 0.0 { Self::ZeroThenLog { low: above, high } } else { Self::Log { low, high } };
        }
        if low == high { Self::Linear { low: low - 1.0, high: high + 1.0 } } else { Self::Linear { low, high } }
    }

    /// The axis for measured values: logarithmic in whole decades if they span decades, otherwise
    /// linear from 0.
    pub(crate) fn across(values: impl Iterator<Item = f64> + Clone) -> Self {
        match ends(values.clone()) {
            Some((low, high)) if low > 0.0 && high / low >= DECADES => Self::decades(low, high),
            _ => Self::from_zero(values),
        }
    }

    /// A logarithmic axis whose ends are 1, 2 or 5 times a power of ten.
    pub(crate) fn decades(low: f64, high: f64) -> Self {
        let ticks = one_two_five(low / 10.0, high * 10.0);
        let low = ticks.iter().copied().rfind(|tick| *tick <= low * 1.000_001).unwrap_or(low);
        let high = ticks.iter().copied().find(|tick| *tick >= high * 0.999_999).unwrap_or(high);
        Self::Log { low, high: if high > low { high } else { low * 10.0 } }
    }

    /// The position of a value. A value outside of the axis is placed at the nearer end.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let place = match *self {
            Self::Linear { low, high } => (value - low) / (high - low),
            Self::Log { low, high } => (value / low).ln() / (high / low).ln(),
            Self::ZeroThenLog { low, .. } if value < low => GAP * value / low,
            Self::ZeroThenLog { low, high } => GAP + (1.0 - GAP) * (value / low).ln() / (high / low).ln(),
        };
        // NaN has no position, so it is drawn at the beginning.
        if place.is_nan() { 0.0 } else { place.clamp(0.0, 1.0) }
    }

    /// The value at a position.
    pub(crate) fn value(&self, place: f64) -> f64 {
        match *self {
            Self::Linear { low, high } => low + place * (high - low),
            Self::Log { low, high } => low * (high / low).powf(place),
            Self::ZeroThenLog { low, .. } if place < GAP => low * place / GAP,
            Self::ZeroThenLog { low, high } => low * (high / low).powf((place - GAP) / (1.0 - GAP)),
        }
    }

    /// Round values on the axis.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        match *self {
            Self::Linear { low, high } => multiples(low, high),
            // Less than a decade has the ticks of a linear axis, since its powers of ten would be
            // too few.
            Self::Log { low, high } | Self::ZeroThenLog { low, high } if high / low < 5.0 => multiples(low, high),
            Self::Log { low, high } | Self::ZeroThenLog { low, high } => {
                let all = one_two_five(low, high);
                let decades = (high / low).log10();
                let power = |tick: &f64| (tick.log10() - tick.log10().round()).abs() < 1e-6;
                if decades <= 3.05 { all } else { all.into_iter().filter(power).collect() }
            }
        }
    }
}

fn ends(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite()).fold(None, |ends, value| {
        let (low, high) = ends.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

/// A step of 1, 2 or 5 times a power of ten. Four to nine steps fit into the span.
fn step(span: f64) -> f64 {
    let power = 10_f64.powf((span / 5.0).log10().floor());
    let part = span / 5.0 / power;
    let round = if part <= 1.2 {
        1.0
    } else if part <= 2.5 {
        2.0
    } else if part <= 6.0 {
        5.0
    } else {
        10.0
    };
    round * power
}

fn multiples(low: f64, high: f64) -> Vec<f64> {
    let step = step(high - low);
    let first = (low / step - 1e-9).ceil();
    (0..20).map(|at| (first + f64::from(at)) * step).take_while(|tick| *tick <= high + step * 1e-9).collect()
}

fn one_two_five(low: f64, high: f64) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let decade = |power: i32| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power));
    let within = |tick: &f64| *tick >= low * 0.999_999 && *tick <= high * 1.000_001;
    (first..=last).flat_map(decade).filter(within).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn ticks_are_round() {
        let ticks = |values: &[f64]| Scale::from_zero(values.iter().copied()).ticks();
        assert_eq!(ticks(&[71.5]), [0.0, 20.0, 40.0, 60.0, 80.0]);
        assert_eq!(ticks(&[9.1, 3.0]), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(&[]), Scale::from_zero([1.0].into_iter()).ticks());
        assert_eq!(Scale::decades(30.0, 1500.0), Scale::Log { low: 20.0, high: 2000.0 });
        assert_eq!(Scale::decades(20.0, 2000.0).ticks(), [20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0]);
        assert_eq!(Scale::decades(1.0, 1e4).ticks(), [1.0, 10.0, 100.0, 1e3, 1e4]);
    }

    #[test]
    fn decades_are_drawn_by_logarithm() {
        let along = |values: &[f64]| Scale::along(values.iter().copied());
        assert_eq!(along(&[1.0, 8.0]), Scale::Linear { low: 1.0, high: 8.0 });
        assert_eq!(along(&[1.0, 64.0]), Scale::Log { low: 1.0, high: 64.0 });
        assert_eq!(along(&[0.0, 20.0, 2000.0]), Scale::ZeroThenLog { low: 20.0, high: 2000.0 });
        assert_eq!(along(&[5.0]), Scale::Linear { low: 4.0, high: 6.0 });
    }

    #[test]
    fn places_and_values_are_inverse() {
        for scale in [
            Scale::Linear { low: -1.0, high: 3.0 },
            Scale::Log { low: 0.5, high: 50.0 },
            Scale::ZeroThenLog { low: 20.0, high: 2000.0 },
        ] {
            for place in [0.0, 0.1, 0.5, 1.0] {
                assert!(near(scale.at(scale.value(place)), place), "{scale:?} {place}");
            }
        }
        assert!(near(Scale::ZeroThenLog { low: 20.0, high: 2000.0 }.at(200.0), 0.57));
        assert_eq!(Scale::Linear { low: 0.0, high: 1.0 }.at(f64::NAN), 0.0);
        assert_eq!(Scale::Linear { low: 0.0, high: 1.0 }.at(f64::INFINITY), 1.0);
    }
}
