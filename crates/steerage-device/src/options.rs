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

/// Defines, for each field, a setter that takes and returns `self`. `=> Some` marks a field whose
/// type is an `Option`.
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

/// An option that a user has named: `option=value`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item<'a> {
    device: &'static str,
    pub(crate) option: &'a str,
    pub(crate) value: &'a str,
}

/// Parses the list of options in the text of `device`.
pub(crate) fn read<'a>(device: &'static str, list: &'a str) -> Result<Vec<Item<'a>>, SpecError> {
    let mut read: Vec<Item<'_>> = Vec::new();
    for item in list.split(',').filter(|item| !item.is_empty()) {
        let (option, value) = item.split_once('=').unwrap_or((item, ""));
        let item = Item { device, option, value };
        if read.iter().any(|other| other.option == option) {
            return Err(item.wrong("is named twice: name it once"));
        }
        read.push(item);
    }
    Ok(read)
}

impl Item<'_> {
    pub(crate) fn wrong(self, wrong: impl Into<String>) -> SpecError {
        SpecError::of(self.device, self.option, self.value, wrong)
    }

    pub(crate) fn unknown(self, known: &[&str]) -> SpecError {
        self.wrong(format!("does not exist: there are {}", known.join(", ")))
    }

    pub(crate) fn within<T: FromStr + PartialOrd + Display>(self, least: T, most: T) -> Result<T, SpecError> {
        let number = self.value.parse().ok().filter(|number| *number >= least && *number <= most);
        number.ok_or_else(|| self.wrong(format!("is not a number from {least} to {most}")))
    }

    pub(crate) fn one_of<T: Copy>(self, names: &[(&str, T)]) -> Result<T, SpecError> {
        let found = names.iter().find(|(name, _)| *name == self.value);
        found.map(|(_, one)| *one).ok_or_else(|| {
            let names: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
            self.wrong(format!("is none of {}", names.join(", ")))
        })
    }

    pub(crate) fn is_on(self) -> Result<bool, SpecError> {
        self.one_of(&[("on", true), ("off", false)])
    }
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
