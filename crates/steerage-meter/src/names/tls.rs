//! Reads the TLS ClientHello (RFC 8446, section 4.1.2): the server name (RFC 6066) and the offered
//! protocols (RFC 7301).

use super::outcome::Read;
use super::text::Text;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
const PROTOCOLS: u16 = 16;
/// The upper version byte of all TLS versions and SSL 3.
const VERSION: u8 = 3;
const RECORD_HEADER: usize = 5;
const MESSAGE_HEADER: usize = 4;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) sni: Option<Box<str>>,
    pub(super) alpn: Option<Box<str>>,
}

pub(super) fn may_begin(stream: &[u8]) -> bool {
    stream.first() == Some(&HANDSHAKE) && stream.get(1).is_none_or(|version| *version == VERSION)
}

pub(super) fn read(stream: &[u8]) -> Read<Greeting> {
    if !may_begin(stream) {
        return Read::Other;
    }
    // A TLS message may be spread over several TLS records.
    let (mut message, mut rest) = (Vec::new(), stream);
    while let Some(header) = rest.first_chunk::<RECORD_HEADER>() {
        let [kind, version, _, high, low] = *header;
        if kind != HANDSHAKE || version != VERSION {
            return Read::Other;
        }
        let body = &rest[RECORD_HEADER..];
        let length = usize::from(u16::from_be_bytes([high, low]));
        let part = &body[..body.len().min(length)];
        message.extend_from_slice(part);
        if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Read::Other;
        }
        if let Some([_, a, b, c]) = message.first_chunk::<MESSAGE_HEADER>() {
            let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            if let Some(hello) = message.get(MESSAGE_HEADER..MESSAGE_HEADER + length) {
                return greeting(hello).map_or(Read::Other, Read::Whole);
            }
        }
        if part.len() < length {
            break;
        }
        rest = &body[length..];
    }
    Read::Part
}

fn take<'a, const N: usize>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = from.first_chunk::<N>()?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    let part = from.get(N..N + length)?;
    *from = &from[N + length..];
    Some(part)
}

fn greeting(hello: &[u8]) -> Option<Greeting> {
    let mut rest = hello.get(2 + 32..)?;
    take::<1>(&mut rest)?; // session
    take::<2>(&mut rest)?; // ciphers
    take::<1>(&mut rest)?; // compression
    let mut greeting = Greeting::default();
    let Some(mut extensions) = take::<2>(&mut rest) else { return Some(greeting) };
    while let Some([high, low]) = extensions.first_chunk() {
        let kind = u16::from_be_bytes([*high, *low]);
        extensions = &extensions[2..];
        let body = take::<2>(&mut extensions)?;
        match kind {
            SERVER_NAME if greeting.sni.is_none() => greeting.sni = server_name(body),
            PROTOCOLS if greeting.alpn.is_none() => greeting.alpn = protocols(body),
            _ => {}
        }
    }
    Some(greeting)
}

fn server_name(mut body: &[u8]) -> Option<Box<str>> {
    let mut names = take::<2>(&mut body)?;
    let (kind, rest) = names.split_first()?;
    names = rest;
    let name = take::<2>(&mut names).filter(|_| *kind == HOST_NAME)?;
    Text::default().name(name, &[]).take()
}

fn protocols(mut body: &[u8]) -> Option<Box<str>> {
    let mut list = take::<2>(&mut body)?;
    let mut text = Text::default();
    while let Some(protocol) = take::<1>(&mut list) {
        text.separate(',').name(protocol, &[]);
    }
    text.take()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn sized<const N: usize>(bytes: &[u8]) -> Vec<u8> {
        let length = (bytes.len() as u32).to_be_bytes();
        [&length[4 - N..], bytes].concat()
    }

    pub(in super::super) fn hello(sni: &str, alpn: &[&str], record: usize) -> Vec<u8> {
        let name = sized::<2>(&sized::<2>(&[&[HOST_NAME], &sized::<2>(sni.as_bytes())[..]].concat()));
        let list: Vec<u8> = alpn.iter().flat_map(|protocol| sized::<1>(protocol.as_bytes())).collect();
        let padding = [&[0, 21][..], &sized::<2>(&[0; 700])].concat();
        let extensions = [&padding[..], &[0, 0], &name, &[0, 16], &sized::<2>(&sized::<2>(&list))].concat();
        let body = [&[3, 3][..], &[9; 32], &sized::<1>(&[1; 32]), &sized::<2>(&[0x13, 1]), &[1, 0]].concat();
        let message = [&[CLIENT_HELLO][..], &sized::<3>(&[body, sized::<2>(&extensions)].concat())].concat();
        message.chunks(record).flat_map(|part| [&[HANDSHAKE, VERSION, 1][..], &sized::<2>(part)].concat()).collect()
    }

    #[test]
    fn a_greeting_whole_and_in_parts() {
        for record in [1 << 14, 300, 3] {
            let bytes = hello("www.example.org", &["h2", "http/1.1"], record);
            let expected = Greeting { sni: Some("www.example.org".into()), alpn: Some("h2,http/1.1".into()) };
            assert_eq!(read(&bytes), Read::Whole(expected), "{record}");
            for length in 1..bytes.len() {
                assert_eq!(read(&bytes[..length]), Read::Part, "{record} {length}");
            }
        }
    }

    #[test]
    fn what_is_no_greeting() {
        let mut server = hello("a", &[], 1 << 14);
        server[RECORD_HEADER] = 2;
        assert_eq!(read(&server), Read::Other);
        assert_eq!(read(b"\x16\x02\x01\0\x05"), Read::Other);
        assert_eq!(read(b"GET / HTTP/1.1\r\n"), Read::Other);
        let plain = [&[22, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3][..], &[0; 32], &[0, 0, 2, 0, 47, 1, 0]].concat();
        assert_eq!(read(&plain), Read::Whole(Greeting::default()));
    }
}
