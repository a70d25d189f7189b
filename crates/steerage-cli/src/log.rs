//! `-v`: what the library traces, on standard error.

use tracing_subscriber::filter::LevelFilter;

/// Shows traces up to a level by how many `-v` there were; without one, none.
///
/// Errors are not shown either: a run that fails says so in its one line, and twice would be no clearer.
pub(crate) fn start(verbose: u8) {
    let level = match verbose {
        0 => return,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let subscriber =
        tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_ansi(false).finish();
    // It fails only where there is a subscriber already, and nobody else sets one.
    let _ = tracing::subscriber::set_global_default(subscriber);
}
