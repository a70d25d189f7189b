//! Formats numbers for people.

/// A number with separators: `12,345,678`.
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

/// A number with its noun, such as `1 flow` or `1,234 flows`. The noun is given in the singular and
/// gets an `s` in the plural.
pub fn counted(number: u64, noun: &str) -> String {
    format!("{} {}", grouped(number), plural(number, noun))
}

/// The noun for this number.
pub fn plural(number: u64, noun: &str) -> String {
    if number == 1 { noun.to_owned() } else { format!("{noun}s") }
}

/// A number of bytes as text: `12.3 MiB`.
pub fn size(bytes: u64) -> String {
    match bytes as f64 {
        bytes if bytes >= 1024.0 * 1024.0 * 1023.95 => format!("{:.1} GiB", bytes / (1u64 << 30) as f64),
        bytes => format!("{:.1} MiB", bytes / (1u64 << 20) as f64),
    }
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
}
