//! `-v` shows the library's traces on standard error.

use tracing_subscriber::filter::LevelFilter;

/// Starts the traces. Without `-v`, errors in the traces are not shown either, because a run that
/// fails prints its own error line.
pub(crate) fn start(verbose: u8) {
    let level = match verbose {
        0 => return,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let subscriber =
        tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_ansi(false).finish();
    // An error is impossible, because no other code sets a subscriber.
    let _ = tracing::subscriber::set_global_default(subscriber);
}
