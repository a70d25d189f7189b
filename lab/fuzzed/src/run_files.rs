//! A fuzz target for run files in TOML.

/// The input is any text. A run file is either converted to a command line, or refused with an
/// error message of one line that names the file.
pub(crate) fn text(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match steerage_cli::fuzzing::run_file(text) {
        Ok(arguments) => assert!(!arguments.is_empty()),
        Err(error) => assert!(!error.is_empty() && !error.contains('\n'), "{error}"),
    }
}
