//! File names that contain a time.

use steerage::WallTime;

/// A file name with placeholders for a time in UTC.
///
/// `%Y`, `%m`, `%d`, `%H`, `%M` and `%S` are the parts of the time, as in strftime(3). `%F` is
/// `%Y-%m-%d`, `%T` is `%H:%M:%S`, `%s` is the number of seconds since 1970, and `%%` is a percent
/// sign.
///
/// ```
/// use steerage::WallTime;
/// use steerage_meter::FilePattern;
///
/// let name = FilePattern::parse("flows-%F-%H.csv")?;
/// assert_eq!(name.at(WallTime::from_nanos(0)), "flows-1970-01-01-00.csv");
/// assert!(FilePattern::parse("flows-%q.csv").is_err());
/// # Ok::<(), steerage_meter::ParsePatternError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePattern(String);

/// The error for an unknown placeholder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no part of a time: use %Y %m %d %H %M %S, %F, %T or %s, and %% for a percent sign")]
pub struct ParsePatternError(String);

impl FilePattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// If a `%` is followed by a character that is not one of these placeholders.
    pub fn parse(text: &str) -> Result<Self, ParsePatternError> {
        Self::fill(text, WallTime::from_nanos(0)).map(|_| Self(text.to_owned()))
    }

    /// Whether the pattern contains a time.
    pub fn has_time(&self) -> bool {
        self.0.replace("%%", "").contains('%')
    }

    /// The pattern as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The file name for a time.
    pub fn at(&self, time: WallTime) -> String {
        Self::fill(&self.0, time).unwrap_or_default()
    }

    fn fill(text: &str, time: WallTime) -> Result<String, ParsePatternError> {
        // 2026-11-21T04:15:35.284060000Z
        let date = humantime::format_rfc3339_nanos(time.into()).to_string();
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
                Some('s') => name.push_str(&(time.as_nanos() / 1_000_000_000).to_string()),
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
    use super::*;

    #[test]
    fn parts_of_a_time() {
        // The expected values are from `date -u -d @1700000000.5 +...`.
        let time = WallTime::from_nanos(1_700_000_000_500_000_000);
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
}
