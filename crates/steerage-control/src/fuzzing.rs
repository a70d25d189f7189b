//! The parsers of this crate as functions of bytes, for the fuzz targets.

#[cfg(feature = "http")]
use crate::http;
#[cfg(feature = "socket")]
use crate::{socket, tree::Tree};

/// Returns the reply to one line from a client of the control socket. `uid` is the client's user.
#[cfg(feature = "socket")]
pub fn answer(line: &[u8], uid: u32, tree: &Tree) -> String {
    socket::answer(line, uid, tree)
}

/// Returns the reply to the head of an HTTP request. `None` if the head is incomplete.
#[cfg(feature = "http")]
pub fn http(received: &[u8]) -> Option<Vec<u8>> {
    http::answer(received)
}
