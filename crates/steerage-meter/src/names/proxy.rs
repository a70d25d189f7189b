//! A load balancer sends a PROXY header before its client's bytes
//! (<https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>).

const TEXT: &[u8] = b"PROXY ";
const TEXT_MAX: usize = 107;
/// The fixed part of a PROXY header of version 2 ends with the length of the rest in two bytes.
const BINARY: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
const BINARY_MIN: usize = 16;

/// Returns the bytes after a PROXY header, if any. `None` if the header is incomplete.
pub(super) fn skip(stream: &[u8]) -> Option<&[u8]> {
    if begins(stream, TEXT) {
        let line = &stream[..stream.len().min(TEXT_MAX)];
        return match line.iter().position(|byte| *byte == b'\n') {
            Some(end) => Some(&stream[end + 1..]),
            None if line.len() < TEXT_MAX => None,
            None => Some(stream),
        };
    }
    if begins(stream, BINARY) {
        let header = stream.first_chunk::<BINARY_MIN>()?;
        let length = usize::from(u16::from_be_bytes([header[14], header[15]]));
        return stream.get(BINARY_MIN + length..);
    }
    Some(stream)
}

fn begins(stream: &[u8], bytes: &[u8]) -> bool {
    let length = stream.len().min(bytes.len());
    length > 0 && stream[..length] == bytes[..length]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_both_versions() {
        let text = b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n";
        let binary = [BINARY, &[0x21, 0x11, 0, 12], &[7; 12]].concat();
        for header in [&text[..], &binary] {
            assert_eq!(skip(&[header, b"GET /"].concat()), Some(&b"GET /"[..]));
            for length in 1..header.len() {
                assert_eq!(skip(&header[..length]), None, "{length}");
            }
        }
        for other in [&b"PRI * HTTP/2.0"[..], b"\x16\x03\x01", b"", &[b"PROXY ", &[b'a'; 200][..]].concat()] {
            assert_eq!(skip(other), Some(other));
        }
    }
}
