//! A fuzz target for run files in TOML.

/// A run file becomes a command line, or is refused with one line that names the file.
pub(crate) fn text(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match steerage_cli::fuzzing::run_file(text) {
        Ok(arguments) => assert!(!arguments.is_empty()),
        Err(error) => assert!(!error.is_empty() && !error.contains('\n'), "{error}"),
    }
}
