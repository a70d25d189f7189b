//! Numbers in a readable form, and text of unknown origin made safe for one line.

use crate::stats::Spread;

/// The number of decimals that shows three significant digits.
fn decimals(value: f64) -> usize {
    match value.abs() {
        size if size >= 999.5 => 0,
        size if size >= 99.95 => 1,
        size if size >= 0.9995 || size == 0.0 => 2,
        size if size >= 0.099_95 => 3,
        _ => 4,
    }
}

/// `12,345`, `123.4`, `1.27`, `0.0123`.
pub(crate) fn number(value: f64) -> String {
    with_decimals(value, decimals(value))
}

/// `1.27 [1.21..1.30]`: median, least and most, all with the decimals of the median.
pub(crate) fn spread(of: &Spread) -> String {
    let decimals = decimals(of.median);
    let text = |value| with_decimals(value, decimals);
    format!("{} [{}..{}]", text(of.median), text(of.least), text(of.most))
}

/// A value on an axis: `1,000`, `0.5`.
pub(crate) fn axis_value(x: f64) -> String {
    let text = with_decimals(x, if x.fract() == 0.0 { 0 } else { decimals(x).max(2) });
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn with_decimals(value: f64, decimals: usize) -> String {
    /// Numbers from here on are written with an exponent instead of groups of three digits.
    const GROUPED_MAX: f64 = 1e15;
    if value.is_finite() && value.abs() >= GROUPED_MAX {
        return format!("{value:.2e}");
    }
    let text = format!("{value:.decimals$}");
    let (sign, digits) = text.strip_prefix('-').map_or(("", text.as_str()), |digits| ("-", digits));
    let (whole, rest) = digits.split_once('.').map_or((digits, None), |(whole, rest)| (whole, Some(rest)));
    let mut grouped = sign.to_owned();
    for (at, digit) in whole.char_indices() {
        // `inf` has three letters.
        if at > 0 && (whole.len() - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    rest.map_or(grouped.clone(), |rest| format!("{grouped}.{rest}"))
}

/// `412 s` as `6 min 52 s`.
pub(crate) fn duration(seconds: f64) -> String {
    if seconds < 59.95 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    format!("{} min {} s", whole / 60, whole % 60)
}

/// The text without control characters, so that text from a file cannot break a line or control a terminal or a page.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().trim().to_owned()
}

/// The text, cut to at most `width` characters.
pub(crate) fn truncated(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(3)).collect();
    format!("{kept}...")
}

/// `1 run`, `5 runs`.
pub(crate) fn quantity(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_digits_that_tell_something() {
        let told = [0.0, 0.01234, 0.705, 1.274, 12.345, 123.45, 999.7, 12_345.6, 1_234_567.0, -4321.0].map(number);
        assert_eq!(
            told,
            ["0.00", "0.0123", "0.705", "1.27", "12.35", "123.5", "1,000", "12,346", "1,234,567", "-4,321"]
        );
        assert_eq!([f64::INFINITY, 1.5e300].map(number), ["inf", "1.50e300"]);
        let points = [0.0, 0.5, 20.0, 1000.0, 0.125, 2.25].map(axis_value);
        assert_eq!(points, ["0", "0.5", "20", "1,000", "0.125", "2.25"]);
    }

    #[test]
    fn a_spread_has_the_digits_of_its_median() {
        let of = Spread { median: 9.5, least: 0.123, most: 1000.0, runs: 3 };
        assert_eq!(spread(&of), "9.50 [0.12..1,000.00]");
    }

    #[test]
    fn text_stays_on_its_line() {
        assert_eq!(printable("a\nb\u{1b}[2J\t"), "a b [2J");
        assert_eq!(truncated("some long name", 7), "some...");
        assert_eq!(truncated("name", 4), "name");
        assert_eq!((duration(3.21), duration(412.4)), ("3.2 s".to_owned(), "6 min 52 s".to_owned()));
    }
}
