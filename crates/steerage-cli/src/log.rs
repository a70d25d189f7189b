//! `-v`: shows the library's traces on standard error.

use tracing_subscriber::filter::LevelFilter;

/// Shows traces up to the level that the number of `-v` sets. Without `-v`, nothing is shown.
///
/// Without `-v`, errors are not shown either: a run that fails reports the failure in its one line.
pub(crate) fn start(verbose: u8) {
    let level = match verbose {
        0 => return,
        1 => LevelFilter::INFO,
        2 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let subscriber =
        tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_ansi(false).finish();
    // `set_global_default` cannot fail, because no other code sets a subscriber.
    let _ = tracing::subscriber::set_global_default(subscriber);
}
