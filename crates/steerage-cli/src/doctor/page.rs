//! Prints the results: as text with a line for each finding, or as one line of JSON.

use super::{Diagnosis, Finding, State};
use crate::error::{EndingError, Error};
use crate::stdout;

pub(super) fn print(diagnosis: &Diagnosis, json: bool) -> Result<(), Error> {
    let text = if json {
        serde_json::to_string(diagnosis).map(|line| line + "\n").map_err(|error| EndingError::Report(error.into()))?
    } else {
        page(&diagnosis.findings)
    };
    stdout::print(text.as_bytes())
}

fn page(findings: &[Finding]) -> String {
    findings.iter().map(|finding| line(finding) + "\n").collect()
}

fn line(Finding { about, state, found, fix }: &Finding) -> String {
    let state = match state {
        State::Ok => "ok",
        State::Missing => "missing",
        State::Info => "-",
    };
    match fix {
        Some(fix) => format!("{state:<7} {about:<13} {found}: {fix}"),
        None => format!("{state:<7} {about:<13} {found}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_line() {
        let findings = [Finding::ok("kernel", "6.18"), Finding::missing("FUSE", "no /dev/fuse", "sudo modprobe fuse")];
        assert_eq!(
            page(&findings),
            "ok      kernel        6.18\nmissing FUSE          no /dev/fuse: sudo modprobe fuse\n"
        );
    }
}
