//! Functions that pass bytes to the parsers of this crate. The fuzz targets call these functions.

#[cfg(feature = "http")]
use crate::http;
#[cfg(feature = "socket")]
use crate::{socket, tree::Tree};

/// Returns the reply to one line that a client sends to the control socket. `uid` is the user of
/// the client.
#[cfg(feature = "socket")]
pub fn answer(line: &[u8], uid: u32, tree: &Tree) -> String {
    socket::answer(line, uid, tree)
}

/// Returns the server's reply to an HTTP request line with its headers. Returns `None` if the
/// headers are incomplete.
#[cfg(feature = "http")]
pub fn http(received: &[u8]) -> Option<Vec<u8>> {
    http::answer(received)
}
