use std::time::SystemTime;

/// A file name with placeholders for a time in UTC.
///
/// The placeholders `%Y`, `%m`, `%d`, `%H`, `%M` and `%S` have the same meaning as in strftime(3).
/// `%F` means `%Y-%m-%d`, `%T` means `%H:%M:%S`, `%s` is the number of seconds since 1970, and `%%`
/// is a percent sign.
///
/// ```
/// use std::time::SystemTime;
///
/// use steerage_guard::file::FilePattern;
///
/// let name = FilePattern::parse("flows-%F-%H.csv")?;
/// assert_eq!(name.at(SystemTime::UNIX_EPOCH), "flows-1970-01-01-00.csv");
/// assert!(FilePattern::parse("flows-%q.csv").is_err());
/// # Ok::<(), steerage_guard::file::ParsePatternError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePattern(String);

/// The error for a file name with an unknown placeholder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no part of a time: use %Y %m %d %H %M %S, %F, %T or %s, and %% for a percent sign")]
pub struct ParsePatternError(String);

impl FilePattern {
    /// Parses a file name with placeholders.
    ///
    /// # Errors
    /// Returns an error for an unknown placeholder.
    pub fn parse(text: &str) -> Result<Self, ParsePatternError> {
        Self::fill(text, SystemTime::UNIX_EPOCH).map(|_| Self(text.to_owned()))
    }

    /// Returns true if the pattern contains a placeholder for the time.
    pub fn has_time(&self) -> bool {
        self.0.replace("%%", "").contains('%')
    }

    /// Returns the pattern as the user wrote it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the file name for the time `time`: the pattern with all placeholders replaced.
    pub fn at(&self, time: impl Into<SystemTime>) -> String {
        Self::fill(&self.0, time.into()).unwrap_or_default()
    }

    /// Returns true if there is a time for which [`at`](Self::at) could return the name `name`.
    pub fn matches(&self, name: &str) -> bool {
        Self::is_filled(&self.0, name).is_some()
    }

    /// Matches a name with a pattern. A placeholder such as `%H` matches any digits in the format
    /// of the placeholder.
    fn is_filled(pattern: &str, name: &str) -> Option<()> {
        let Some((literal, rest)) = pattern.split_once('%') else { return (pattern == name).then_some(()) };
        let name = name.strip_prefix(literal)?;
        let letter = rest.chars().next()?;
        let rest = &rest[letter.len_utf8()..];
        let form = match letter {
            'Y' => "0000",
            'F' => "0000-00-00",
            'T' => "00:00:00",
            '%' => return Self::is_filled(rest, name.strip_prefix('%')?),
            's' => {
                // A digit may follow `%s` in the pattern, so each possible length of the number is
                // tried.
                let digits = name.bytes().take_while(u8::is_ascii_digit).count();
                return (1..=digits).find_map(|length| Self::is_filled(rest, &name[length..]));
            }
            _ => "00",
        };
        let (filled, name) = name.split_at_checked(form.len())?;
        let fits = |(form, byte): (u8, u8)| if form == b'0' { byte.is_ascii_digit() } else { byte == form };
        form.bytes().zip(filled.bytes()).all(fits).then_some(())?;
        Self::is_filled(rest, name)
    }

    fn fill(text: &str, time: SystemTime) -> Result<String, ParsePatternError> {
        // A date has the form 2026-11-21T04:15:35.284060000Z
        let date = humantime::format_rfc3339_nanos(time).to_string();
        let (mut name, mut rest) = (String::new(), text);
        while let Some(at) = rest.find('%') {
            name.push_str(&rest[..at]);
            let letter = rest[at + 1..].chars().next();
            match letter {
                Some('Y') => name.push_str(&date[..4]),
                Some('m') => name.push_str(&date[5..7]),
                Some('d') => name.push_str(&date[8..10]),
                Some('H') => name.push_str(&date[11..13]),
                Some('M') => name.push_str(&date[14..16]),
                Some('S') => name.push_str(&date[17..19]),
                Some('F') => name.push_str(&date[..10]),
                Some('T') => name.push_str(&date[11..19]),
                Some('s') => {
                    let since_1970 = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                    name.push_str(&since_1970.as_secs().to_string());
                }
                Some('%') => name.push('%'),
                other => return Err(ParsePatternError(other.map_or("%".to_owned(), |letter| format!("%{letter}")))),
            }
            rest = &rest[at + 1 + letter.map_or(0, char::len_utf8)..];
        }
        name.push_str(rest);
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn parts_of_a_time() {
        // The expected values were printed by `date -u -d @1700000000.5 +...`.
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_500);
        let name = |text: &str| FilePattern::parse(text).unwrap().at(time);
        assert_eq!(name("flows-%Y%m%d-%H%M%S.csv"), "flows-20231114-221320.csv");
        assert_eq!(name("%F/%T-%s-100%%.csv"), "2023-11-14/22:13:20-1700000000-100%.csv");
        assert_eq!(name("plain.csv"), "plain.csv");
        assert!(FilePattern::parse("%s").unwrap().has_time() && !FilePattern::parse("100%%").unwrap().has_time());
    }

    #[test]
    fn what_is_not_known_is_told() {
        for (text, wrong) in [("%Q.csv", "%Q "), ("a%", "% "), ("%é", "%é ")] {
            let error = FilePattern::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(wrong), "{error}");
        }
    }

    #[test]
    fn names_of_a_pattern() {
        let matches = |pattern: &str, name: &str| FilePattern::parse(pattern).unwrap().matches(name);
        for pattern in ["a-%Y%m%d-%H%M%S.pcapng", "%F %T", "%s.pcap", "%s7%%", "plain"] {
            let name = FilePattern::parse(pattern).unwrap().at(SystemTime::now());
            assert!(matches(pattern, &name), "{pattern} {name}");
            assert!(
                !matches(pattern, &format!("{name}x")) && !matches(pattern, &format!("x{name}")),
                "{pattern} {name}"
            );
        }
        for (pattern, name) in [("%H.pcap", "1a.pcap"), ("%H.pcap", "é.pcap"), ("%s", ""), ("%F", "2026_01_01")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
