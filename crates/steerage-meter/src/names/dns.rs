//! Reads DNS messages (RFC 1035).

use std::net::{Ipv4Addr, Ipv6Addr};

use super::text::Text;

const HEADER_LEN: usize = 12;
const RECORDS_MAX: u16 = 32;
/// The maximum number of labels in a name: 127 labels of one byte each take 255 bytes.
const LABELS_MAX: usize = 127;
const RESPONSE: u16 = 0x8000;
const OPCODE: u16 = 0x7800;
const RCODE: u16 = 0x000f;
const A: u16 = 1;
const CNAME: u16 = 5;
const PTR: u16 = 12;
const AAAA: u16 = 28;
const INTERNET: u16 = 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) id: u16,
    pub(super) question: Option<(Box<str>, u16)>,
    pub(super) response: Option<(u8, Option<Box<str>>)>,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn read(message: &[u8]) -> Option<Message> {
    let header: &[u8; HEADER_LEN] = message.first_chunk()?;
    let word = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let (id, flags, questions, answers) = (word(0), word(2), word(4), word(6));
    if flags & OPCODE != 0 || questions > 1 {
        return None;
    }
    let is_response = flags & RESPONSE != 0;
    let (mut at, mut question) = (HEADER_LEN, None);
    if questions == 1 {
        let (name, behind) = name(message, at)?;
        question = Some((name, be16(message, behind)?));
        at = behind + 4;
        message.get(..at)?;
    } else if !is_response {
        return None;
    }
    let response = is_response.then(|| ((flags & RCODE) as u8, read_answers(message, at, answers)));
    Some(Message { id, question, response })
}

fn read_answers(message: &[u8], mut at: usize, records: u16) -> Option<Box<str>> {
    let mut text = Text::default();
    for _ in 0..records.min(RECORDS_MAX) {
        let Some(next) = read_record(message, at, &mut text) else { break };
        at = next;
    }
    text.take()
}

fn read_record(message: &[u8], at: usize, text: &mut Text) -> Option<usize> {
    let at = skip_name(message, at)?;
    let (kind, class, length) = (be16(message, at)?, be16(message, at + 2)?, be16(message, at + 8)?);
    let start = at + 10;
    let end = start + usize::from(length);
    let data = message.get(start..end)?;
    if class == INTERNET {
        match kind {
            A => {
                if let Ok(octets) = <[u8; 4]>::try_from(data) {
                    put(text, format_args!("{}", Ipv4Addr::from(octets)));
                }
            }
            AAAA => {
                if let Ok(octets) = <[u8; 16]>::try_from(data) {
                    put(text, format_args!("{}", Ipv6Addr::from(octets)));
                }
            }
            CNAME | PTR => {
                if let Some((name, _)) = name(message, start) {
                    put(text, format_args!("{name}"));
                }
            }
            _ => {}
        }
    }
    Some(end)
}

/// Adds a value to the text, with a space between values. The text has no part of a value: it ends
/// before the first value that does not fit completely.
fn put(text: &mut Text, value: std::fmt::Arguments<'_>) {
    if text.is_empty() {
        text.put(value)
    } else {
        text.put(format_args!(" {value}"))
    };
}

/// In a compressed name, each part must lie before the part that refers to it, so the loop ends.
/// The returned offset is that after the part at `start`.
fn name(message: &[u8], start: usize) -> Option<(Box<str>, usize)> {
    let mut text = Text::default();
    let (mut at, mut part, mut behind) = (start, start, None);
    for _ in 0..=LABELS_MAX {
        let length = *message.get(at)?;
        match length >> 6 {
            0 if length == 0 => {
                let behind = behind.unwrap_or(at + 1);
                return Some((text.take().unwrap_or_else(|| ".".into()), behind));
            }
            0 => {
                let label = message.get(at + 1..)?.get(..usize::from(length))?;
                if !text.is_empty() {
                    text.put(format_args!("."));
                }
                text.name(label, b".");
                at += 1 + usize::from(length);
            }
            3 => {
                let target = usize::from(be16(message, at)? & 0x3fff);
                behind.get_or_insert(at + 2);
                if target >= part {
                    return None;
                }
                (at, part) = (target, target);
            }
            _ => return None,
        }
    }
    None
}

fn skip_name(message: &[u8], mut at: usize) -> Option<usize> {
    for _ in 0..=LABELS_MAX {
        let length = *message.get(at)?;
        match length >> 6 {
            0 if length == 0 => return Some(at + 1),
            0 => at += 1 + usize::from(length),
            3 => return Some(at + 2),
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(flags: u16, questions: u16, answers: u16, rest: &[u8]) -> Vec<u8> {
        let header = [7, flags, questions, answers, 0, 0].map(u16::to_be_bytes).concat();
        [&header, rest].concat()
    }

    const QUESTION: &[u8] = b"\x03www\x07example\x03org\x00\x00\x01\x00\x01";

    #[test]
    fn a_query_and_its_response() {
        let query = read(&message(0x0100, 1, 0, QUESTION)).unwrap();
        assert_eq!(query, Message { id: 7, question: Some(("www.example.org".into(), 1)), response: None });
        // A name that refers to `example.org`, a text record (skipped), and two addresses.
        let records = [
            &b"\xc0\x0c\x00\x05\x00\x01\x00\x00\x00\x09\x00\x04\x01a\xc0\x10"[..],
            b"\xc0\x0c\x00\x10\x00\x01\x00\x00\x00\x09\x00\x02\x01x",
            b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x09\x00\x04\x0a\x00\x00\x01",
            b"\xc0\x0c\x00\x1c\x00\x01\x00\x00\x00\x09\x00\x10\xfd\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x02",
        ];
        let response = message(0x8180, 1, 4, &[QUESTION, &records.concat()].concat());
        let expected = "a.example.org 10.0.0.1 fd00::2";
        assert_eq!(read(&response).unwrap().response, Some((0, Some(expected.into()))));
        assert_eq!(read(&response[..response.len() - 1]).unwrap().response, Some((0, Some(expected[..22].into()))));
        assert_eq!(read(&message(0x8183, 1, 0, QUESTION)).unwrap().response, Some((3, None)));
    }

    #[test]
    fn an_answer_ends_before_the_first_value_that_does_not_fit() {
        let record = |address: [u8; 4]| [&b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x09\x00\x04"[..], &address].concat();
        // 18 addresses of 13 bytes take 251 bytes with the spaces between them, and no other
        // address fits into the rest.
        let mut addresses = vec![[203, 0, 113, 100]; 18];
        let whole = vec!["203.0.113.100"; 18].join(" ");
        let answer = |addresses: &[[u8; 4]]| {
            let records: Vec<u8> = addresses.iter().copied().flat_map(record).collect();
            read(&message(0x8180, 1, addresses.len() as u16, &[QUESTION, &records].concat())).unwrap().response
        };
        addresses.extend([[1, 1, 1, 1], [8, 8, 8, 8]]);
        assert_eq!(answer(&addresses), Some((0, Some(whole.as_str().into()))));
        // With 17 addresses, 18 bytes are free: the long address in the middle takes no place.
        addresses.splice(17.., [[1, 1, 1, 1], [203, 0, 113, 250], [8, 8, 8, 8]]);
        assert_eq!(answer(&addresses), Some((0, Some(format!("{} 1.1.1.1", &whole[..17 * 14 - 1]).into()))));
    }

    #[test]
    fn names_that_do_not_end() {
        // Three invalid names: they refer to themselves, to a later offset, and to their own
        // beginning.
        for rest in [&b"\xc0\x0c\0\x01\0\x01"[..], b"\xc0\x0e\xc0\x0c\0\x01\0\x01", b"\x01a\xc0\x0c\0\x01\0\x01"] {
            assert_eq!(read(&message(0, 1, 0, rest)), None, "{rest:?}");
        }
        assert_eq!(read(&message(0, 1, 0, &b"\x01a".repeat(200))), None);
        assert_eq!(read(&message(0, 1, 0, b"\0\0\x02\0\x01")).unwrap().question, Some((".".into(), 2)));
        // A DNS query has exactly one question. Messages with an opcode other than QUERY have other
        // types of records.
        assert!(read(&message(0, 2, 0, QUESTION)).is_none() && read(&message(0x2800, 1, 0, QUESTION)).is_none());
    }
}
