//! Prints the help texts that clap creates, and one line about each mistake in the command line.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;

use crate::habits;
use crate::terminal::warn;

pub(crate) const WRONG_COMMAND_LINE: u8 = 2;

pub(crate) fn answer(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // An error is ignored, because the reader may close the pipe early, as in `steerage
            // --help | head -1`.
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(WRONG_COMMAND_LINE)
        }
        _ => {
            warn(&habits::advice(arguments, error).unwrap_or_else(|| message(error)));
            ExitCode::from(WRONG_COMMAND_LINE)
        }
    }
}

/// Returns the known name that is most similar to `wrong`, if one is similar.
pub(crate) fn nearest<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const NEAR: f64 = 0.7;
    let near = known.map(|name| (strsim::jaro(wrong, name), name)).filter(|(nearness, _)| *nearness > NEAR);
    near.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}

pub(crate) fn message(error: &clap::Error) -> String {
    one_line(&error.render().to_string())
}

fn one_line(rendered: &str) -> String {
    let mut line = String::new();
    for paragraph in rendered.split("\n\n") {
        let paragraph = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
        if paragraph.is_empty() || paragraph.starts_with("Usage:") || paragraph.starts_with("For more information") {
            continue;
        }
        match paragraph.strip_prefix("tip: ") {
            Some(tip) => line.push_str(&format!("; {tip}")),
            None if line.is_empty() => line.push_str(paragraph.strip_prefix("error: ").unwrap_or(&paragraph)),
            None => line.push_str(&format!(" {paragraph}")),
        }
    }
    line + "; see --help"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    fn line_for(args: &[&str]) -> String {
        let error = args::parse(["steerage"].iter().chain(args).map(OsString::from)).unwrap_err();
        one_line(&error.render().to_string())
    }

    #[test]
    fn an_error_is_one_line() {
        assert_eq!(
            line_for(&["count", "--cpu", "1"]),
            "unexpected argument '--cpu' found; a similar argument exists: '--cpus'; see --help"
        );
        assert_eq!(
            line_for(&["count", "--backlog", "0"]),
            "invalid value '0' for '--backlog <N>': write a number from 1 to 1048576; see --help"
        );
        let hash = line_for(&["count", "--hash", "md5"]);
        assert!(
            hash.starts_with("invalid value 'md5' for '--hash <HASH>' [possible values: auto, device, aes,"),
            "{hash}"
        );
        assert!(!hash.contains('\n'), "{hash}");
        let pace = line_for(&["count", "--pace", "a\nb"]);
        assert!(!pace.contains('\n'), "{pace}");
    }
}
