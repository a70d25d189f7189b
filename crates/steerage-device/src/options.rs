use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

const SHOWN_CHARS_MAX: usize = 64;

/// A mistake in a device's options: one line with the option, its value and the allowed values.
///
/// ```
/// use steerage_device::synthetic::SyntheticOptions;
///
/// let error = SyntheticOptions::parse("synthetic:packets=many").unwrap_err();
/// assert!(error.to_string().contains("packets=many"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{device}: option `{option}{}{value}` {wrong}", if .value.is_empty() { "" } else { "=" })]
pub struct SpecError {
    device: &'static str,
    option: String,
    value: String,
    wrong: String,
}

impl SpecError {
    pub(crate) fn of(device: &'static str, option: &str, value: impl Display, wrong: impl Into<String>) -> Self {
        Self { device, option: shown(option), value: shown(&value.to_string()), wrong: wrong.into() }
    }

    /// The option's name, as the user wrote it.
    pub fn option(&self) -> &str {
        &self.option
    }
}

/// Defines a setter by value for each field. `=> Some` marks a field whose type is an `Option`.
macro_rules! setters {
    ($($(#[$attribute:meta])* $field:ident: $value:ty $(=> $wrap:ident)?;)*) => {$(
        $(#[$attribute])*
        #[must_use]
        pub fn $field(mut self, $field: $value) -> Self {
            self.$field = setters!(@value $field $($wrap)?);
            self
        }
    )*};
    (@value $field:ident) => { $field };
    (@value $field:ident $wrap:ident) => { $wrap($field) };
}

pub(crate) use setters;

pub(crate) fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_CHARS_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}

pub(crate) fn read<'a>(device: &'static str, list: &'a str) -> Result<Vec<(&'a str, &'a str)>, SpecError> {
    let mut read: Vec<(&str, &str)> = Vec::new();
    for item in list.split(',').filter(|item| !item.is_empty()) {
        let (option, value) = item.split_once('=').unwrap_or((item, ""));
        if read.iter().any(|(other, _)| *other == option) {
            return Err(SpecError::of(device, option, value, "is named twice: name it once"));
        }
        read.push((option, value));
    }
    Ok(read)
}

pub(crate) fn within<T: FromStr + PartialOrd + Display>(
    device: &'static str,
    option: &str,
    value: &str,
    least: T,
    most: T,
) -> Result<T, SpecError> {
    let wrong = format!("is not a number from {least} to {most}");
    let number = value.parse().ok().filter(|number| *number >= least && *number <= most);
    number.ok_or_else(|| SpecError::of(device, option, value, wrong))
}

/// Parses a whole number of microseconds (`us`) or milliseconds (`ms`).
#[cfg_attr(not(feature = "af_xdp"), allow(dead_code, reason = "for af_xdp alone"))]
pub(crate) fn time(text: &str) -> Option<Duration> {
    let (number, nanos) = match text.strip_suffix("us") {
        Some(number) => (number, 1_000),
        None => (text.strip_suffix("ms")?, 1_000_000),
    };
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = number.parse().ok().filter(|_| digits)?;
    Some(Duration::from_nanos(number.checked_mul(nanos)?))
}

pub(crate) fn one_of<T: Copy>(
    device: &'static str,
    option: &str,
    value: &str,
    names: &[(&str, T)],
) -> Result<T, SpecError> {
    match names.iter().find(|(name, _)| *name == value) {
        Some((_, one)) => Ok(*one),
        None => {
            let names: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
            Err(SpecError::of(device, option, value, format!("is none of {}", names.join(", "))))
        }
    }
}

pub(crate) fn unknown(device: &'static str, option: &str, value: &str, known: &[&str]) -> SpecError {
    SpecError::of(device, option, value, format!("does not exist: there are {}", known.join(", ")))
}
