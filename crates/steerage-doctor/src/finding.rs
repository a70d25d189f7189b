use std::fmt;

use serde::Serialize;

/// The state of a checked item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The checked item works.
    Ok,
    /// The checked item is missing, or limits programs that receive packets.
    Missing,
    /// The finding is neither good nor bad, but useful to know.
    Info,
}

/// The result of one check, one line as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The item that was checked.
    pub about: &'static str,
    /// The state of the checked item.
    pub state: State,
    /// The result of the check, in words.
    pub found: String,
    /// How to fix or improve the checked item, usually with a command.
    pub fix: Option<String>,
}

impl Finding {
    pub(crate) fn ok(about: &'static str, found: impl Into<String>) -> Self {
        Self { about, state: State::Ok, found: found.into(), fix: None }
    }

    pub(crate) fn info(about: &'static str, found: impl Into<String>) -> Self {
        Self { about, state: State::Info, found: found.into(), fix: None }
    }

    pub(crate) fn missing(about: &'static str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { about, state: State::Missing, found: found.into(), fix: Some(fix.into()) }
    }

    pub(crate) fn or(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { about, state, found, fix } = self;
        let state = match state {
            State::Ok => "ok",
            State::Missing => "missing",
            State::Info => "-",
        };
        write!(f, "{state:<7} {about:<13} {found}")?;
        fix.as_ref().map_or(Ok(()), |fix| write!(f, ": {fix}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_line() {
        let findings = [Finding::ok("kernel", "6.18"), Finding::missing("FUSE", "no /dev/fuse", "sudo modprobe fuse")];
        assert_eq!(
            findings.map(|finding| finding.to_string()),
            ["ok      kernel        6.18", "missing FUSE          no /dev/fuse: sudo modprobe fuse"]
        );
    }
}
