//! Reads the host in HTTP/1 requests (RFC 9112).

use super::outcome::Read;
use super::text::Text;

/// The length of the longest known HTTP method, UPDATEREDIRECTREF (RFC 4437).
const METHOD_MAX: usize = 17;
const VERSION: &[u8] = b" HTTP/1.";

/// After an HTTP CONNECT request, another message follows in the tunnel.
const TUNNEL: &[u8] = b"CONNECT ";

/// Returns true if an HTTP request may begin like this, with a method (capital letters, `_` and
/// `-`) and a space.
pub(super) fn may_begin(stream: &[u8]) -> bool {
    let is_of_method = |byte: &&u8| byte.is_ascii_uppercase() || matches!(byte, b'_' | b'-');
    let method = stream.iter().take(METHOD_MAX).take_while(is_of_method).count();
    stream.first().is_some_and(u8::is_ascii_uppercase) && stream.get(method).is_none_or(|byte| *byte == b' ')
}

pub(super) fn asks_for_tunnel(stream: &[u8]) -> bool {
    stream.starts_with(TUNNEL)
}

pub(super) fn after_headers(stream: &[u8]) -> Option<&[u8]> {
    let mut rest = stream;
    loop {
        let (header, behind) = line(rest)?;
        if header.is_empty() {
            return Some(behind);
        }
        rest = behind;
    }
}

pub(super) fn read(stream: &[u8]) -> Read<Option<Box<str>>> {
    if !may_begin(stream) {
        return Read::Other;
    }
    let Some((first, mut rest)) = line(stream) else { return Read::Part };
    if !first.strip_suffix(b"0").or(first.strip_suffix(b"1")).is_some_and(|line| line.ends_with(VERSION)) {
        return Read::Other;
    }
    while let Some((header, behind)) = line(rest) {
        if header.is_empty() {
            return Read::Whole(None);
        }
        let colon = header.iter().position(|byte| *byte == b':');
        if let Some((name, value)) = colon.map(|at| (&header[..at], &header[at + 1..])) {
            if name.eq_ignore_ascii_case(b"host") {
                return Read::Whole(Text::default().name(value.trim_ascii(), &[]).take());
            }
        }
        rest = behind;
    }
    Read::Part
}

fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let line = &bytes[..end];
    Some((line.strip_suffix(b"\r").unwrap_or(line), &bytes[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_whole_and_in_parts() {
        let request = b"GET /index.html?q=a HTTP/1.1\r\nAccept: */*\r\nhOsT:  www.example.org:8080 \r\n\r\nHost: x\r\n";
        assert_eq!(read(request), Read::Whole(Some("www.example.org:8080".into())));
        let line_end = request.iter().rposition(|byte| *byte == b'\r').unwrap() - 11;
        for length in 1..line_end {
            assert_eq!(read(&request[..length]), Read::Part, "{length}");
        }
    }

    #[test]
    fn what_is_no_request_or_names_no_host() {
        for other in
            [&b"HTTP/1.1 200 OK\r\n"[..], b"SSH-2.0-x\r\n", b"PRI * HTTP/2.0\r\n\r\n", b"EHLO a\r\n", b"", b"\x16\x03"]
        {
            assert_eq!(read(other), Read::Other, "{other:?}");
        }
        for method in ["RPC_IN_DATA", "VERSION-CONTROL", "M-SEARCH", "GET"] {
            let request = format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(read(request.as_bytes()), Read::Whole(Some("a".into())), "{method}");
        }
        assert_eq!(read(b"-A / HTTP/1.1\r\nHost: a\r\n\r\n"), Read::Other);
        assert_eq!(read(b"OPTIONS * HTTP/1.0\n\nHost: a\n"), Read::Whole(None));
        assert_eq!(read(b"GET / HTTP/1.1\r\nHost:\r\n"), Read::Whole(None));
    }
}
