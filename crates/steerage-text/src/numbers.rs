use std::time::Duration;

/// Formats a number with separators, such as `12,345,678`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.char_indices() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with its noun: `1 flow`, `1,234 flows`. The plural appends `s`.
pub fn counted(number: u64, noun: &str) -> String {
    format!("{} {}", grouped(number), plural(number, noun))
}

/// Returns the noun, with `s` unless `number` is 1.
pub fn plural(number: u64, noun: &str) -> String {
    if number == 1 { noun.to_owned() } else { format!("{noun}s") }
}

/// Formats a number of bytes, such as `12.3 MiB`.
pub fn size(bytes: u64) -> String {
    match bytes as f64 {
        bytes if bytes >= 1024.0 * 1024.0 * 1023.95 => format!("{:.1} GiB", bytes / (1u64 << 30) as f64),
        bytes => format!("{:.1} MiB", bytes / (1u64 << 20) as f64),
    }
}

/// Formats `packets` per `time`, such as `12.3 Mpps`.
pub fn rate(packets: u64, time: Duration) -> String {
    packets_a_second(if time.is_zero() { 0.0 } else { packets as f64 / time.as_secs_f64() })
}

/// Formats a rate in packets per second, such as `12.3 Mpps`.
pub fn packets_a_second(rate: f64) -> String {
    match rate {
        // From 999.5 pps, the unit is kpps, because the number of pps would round to 1000.
        rate if rate >= 999_950.0 => format!("{:.1} Mpps", rate / 1e6),
        rate if rate >= 999.5 => format!("{:.1} kpps", rate / 1e3),
        // A rate of less than a packet per second must not look like no packets.
        rate if rate > 0.0 && rate < 0.05 => "<0.1 pps".to_owned(),
        rate if rate > 0.0 && rate < 9.95 => format!("{rate:.1} pps"),
        rate => format!("{rate:.0} pps"),
    }
}

/// Formats `bytes` per `time`, such as `12.3 Mbit/s`.
pub fn bit_rate(bytes: u64, time: Duration) -> String {
    bits_a_second(if time.is_zero() { 0.0 } else { 8.0 * bytes as f64 / time.as_secs_f64() })
}

/// Formats a rate in bits per second, such as `12.3 Mbit/s`.
pub fn bits_a_second(rate: f64) -> String {
    match rate {
        rate if rate >= 999_950_000.0 => format!("{:.1} Gbit/s", rate / 1e9),
        rate if rate >= 999_950.0 => format!("{:.1} Mbit/s", rate / 1e6),
        rate => format!("{:.1} kbit/s", rate / 1e3),
    }
}

/// Formats a duration, such as `0.4 ms`, `10.0 s`, `1:02:03 h`.
pub fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        1..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3600 => format!("{}:{:02} min", seconds / 60, seconds % 60),
        _ => format!("{}:{:02}:{:02} h", seconds / 3600, seconds / 60 % 60, seconds % 60),
    }
}

/// Like [`time`], but in seconds up to 1,000 s (`129.4 s`), to compare with packet times.
pub fn recorded(duration: Duration) -> String {
    match duration.as_secs() {
        60..1000 => format!("{:.1} s", duration.as_secs_f64()),
        _ => time(duration),
    }
}

/// Formats a number in at most five characters, as `sort -h` reads: `9999`, `12.3K`, `4.5M`.
pub fn short(number: u64) -> String {
    let units = [(1_000_000_000_000, 'T'), (1_000_000_000, 'G'), (1_000_000, 'M'), (1_000, 'K')];
    match units.into_iter().find(|(unit, _)| number >= *unit).filter(|_| number >= 10_000) {
        Some((unit, letter)) if number / unit >= 100 => format!("{}{letter}", number / unit),
        Some((unit, letter)) => format!("{}.{}{letter}", number / unit, number % unit * 10 / unit),
        None => number.to_string(),
    }
}

/// Returns `part` in percent of `whole`, or 0 if `whole` is 0.
pub fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_go_by_threes() {
        let texts = [0, 7, 999, 1000, 123_456, 1_234_567].map(grouped);
        assert_eq!(texts, ["0", "7", "999", "1,000", "123,456", "1,234,567"]);
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn one_of_a_thing_is_singular() {
        let texts = [0, 1, 2, 1001].map(|number| counted(number, "flow"));
        assert_eq!(texts, ["0 flows", "1 flow", "2 flows", "1,001 flows"]);
    }

    #[test]
    fn sizes_change_unit_where_they_round_to_it() {
        assert_eq!(size(12 << 20), "12.0 MiB");
        assert_eq!(size(1023 << 20), "1023.0 MiB");
        assert_eq!(size((1 << 30) - 1), "1.0 GiB");
        assert_eq!(size(3 << 30), "3.0 GiB");
    }

    #[test]
    fn short_numbers_are_short() {
        let numbers = [0, 9_999, 10_000, 12_345, 123_456, 999_999, 1_000_000, 45_678_901, 3_200_000_000_000];
        let texts = ["0", "9999", "10.0K", "12.3K", "123K", "999K", "1.0M", "45.6M", "3.2T"];
        assert_eq!(numbers.map(short), texts);
    }

    #[test]
    fn rates_change_unit_where_they_round_to_it() {
        let second = Duration::from_secs(1);
        let texts = [0, 999, 1000, 999_949, 999_950, 12_345_678].map(|packets| rate(packets, second));
        assert_eq!(texts, ["0 pps", "999 pps", "1.0 kpps", "999.9 kpps", "1.0 Mpps", "12.3 Mpps"]);
        assert_eq!(rate(601, Duration::from_micros(400)), "1.5 Mpps");
        assert_eq!(rate(1, Duration::ZERO), "0 pps");
        let slow = [1, 6, 9_940, 9_950].map(|packets| rate(packets, 1000 * second));
        assert_eq!(slow, ["<0.1 pps", "<0.1 pps", "9.9 pps", "10 pps"]);
        assert_eq!(rate(600, 1000 * second), "0.6 pps");
    }

    #[test]
    fn bit_rates_change_unit_likewise() {
        let texts = [0, 100, 124_993, 124_994, 124_993_749, 124_993_750, 12_500_000_000]
            .map(|bytes| bit_rate(bytes, Duration::from_secs(1)));
        let expected =
            ["0.0 kbit/s", "0.8 kbit/s", "999.9 kbit/s", "1.0 Mbit/s", "999.9 Mbit/s", "1.0 Gbit/s", "100.0 Gbit/s"];
        assert_eq!(texts, expected);
        assert_eq!(bit_rate(1, Duration::ZERO), "0.0 kbit/s");
    }

    #[test]
    fn times_are_as_fine_as_they_are_short() {
        let texts = [400, 10_000_000, 62_000_000, 3_723_000_000].map(|micros| time(Duration::from_micros(micros)));
        assert_eq!(texts, ["0.4 ms", "10.0 s", "1:02 min", "1:02:03 h"]);
    }

    #[test]
    fn recorded_times_are_in_seconds_for_longer() {
        let texts = [0, 12, 129_436, 999_940, 1_000_000].map(|millis| recorded(Duration::from_millis(millis)));
        assert_eq!(texts, ["0.0 ms", "12.0 ms", "129.4 s", "999.9 s", "16:40 min"]);
    }

    #[test]
    fn shares() {
        assert_eq!(percent(352.0, 601.0).round(), 59.0);
        assert_eq!(percent(0.0, 0.0), 0.0);
    }
}
