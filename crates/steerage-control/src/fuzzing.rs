//! Passes bytes to the parsers of this crate, for the fuzz targets.

#[cfg(feature = "http")]
use crate::http;
#[cfg(feature = "socket")]
use crate::{socket, tree::Tree};

/// Returns the reply to one line on the control socket from user `uid`.
#[cfg(feature = "socket")]
pub fn answer(line: &[u8], uid: u32, tree: &Tree) -> String {
    socket::answer(line, uid, tree)
}

/// Returns the reply to a request line with its headers, or `None` if the request is incomplete.
#[cfg(feature = "http")]
pub fn http(received: &[u8]) -> Option<Vec<u8>> {
    http::answer(received)
}
