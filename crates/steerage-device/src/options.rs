//! `option=value,...` behind a device's name.

use std::fmt::Display;
use std::str::FromStr;

use crate::synthetic::SpecError;

/// The options of a list and their values, none of them twice.
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

/// A number from `least` to `most`.
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

/// What one of these names stands for.
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

/// There is no such option.
pub(crate) fn unknown(device: &'static str, option: &str, value: &str, known: &[&str]) -> SpecError {
    SpecError::of(device, option, value, format!("does not exist: there are {}", known.join(", ")))
}
