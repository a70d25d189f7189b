//! The parsers of this crate as functions that take bytes. The fuzz targets call them.

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

/// Returns the reply to the head of an HTTP request. Returns `None` if the head is incomplete.
#[cfg(feature = "http")]
pub fn http(received: &[u8]) -> Option<Vec<u8>> {
    http::answer(received)
}
