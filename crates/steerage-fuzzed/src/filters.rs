//! Filters as `tcpdump -ddd` prints them.

use steerage_device::filter::Filter;

/// Any text. A wrong one is refused with one line.
pub(crate) fn numbers(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Err(error) = text.parse::<Filter>() {
        assert!(error.is_mistake() && !error.to_string().contains('\n'), "{error}");
    }
}
