//! The attributes of netlink messages (netlink(7)), whose values may be lists of attributes.

use netlink_packet_core::{DefaultNla, Emitable, NLA_F_NESTED, NLA_HEADER_SIZE, NlasIterator, parse_u32};

pub(crate) fn attribute(kind: u16, value: impl Into<Vec<u8>>) -> DefaultNla {
    DefaultNla::new(kind, value.into())
}

pub(crate) fn text_attribute(kind: u16, text: &str) -> DefaultNla {
    attribute(kind, [text.as_bytes(), &[0]].concat())
}

pub(crate) fn nested(kind: u16, inner: &[DefaultNla]) -> DefaultNla {
    attribute(kind | NLA_F_NESTED, serialized(inner))
}

pub(crate) fn serialized(attributes: &[DefaultNla]) -> Vec<u8> {
    let mut bytes = vec![0; attributes.buffer_len()];
    attributes.emit(&mut bytes);
    bytes
}

/// The iterator ends at the first attribute that is cut off.
pub(crate) fn each(list: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    NlasIterator::new(list).map_while(|attribute| {
        let attribute = attribute.ok()?;
        let (kind, length) = (attribute.kind(), usize::from(attribute.length()));
        Some((kind, &attribute.into_inner()[NLA_HEADER_SIZE..length]))
    })
}

pub(crate) fn find(list: &[u8], kind: u16) -> Option<&[u8]> {
    each(list).find(|(other, _)| *other == kind).map(|(_, value)| value)
}

/// Returns 0 if the list has no such attribute.
pub(crate) fn number(list: &[u8], kind: u16) -> u32 {
    find(list, kind).and_then(|number| parse_u32(number).ok()).unwrap_or(0)
}

pub(crate) fn numbers(given: &[(u16, Option<u32>)]) -> Vec<DefaultNla> {
    given.iter().filter_map(|(kind, number)| Some(attribute(*kind, (*number)?.to_ne_bytes()))).collect()
}

/// Removes the zero byte at the end of the text.
pub(crate) fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_back() {
        let list = serialized(&[text_attribute(1, "ab"), nested(2, &[attribute(3, 70_000_u32.to_ne_bytes())])]);
        assert_eq!(find(&list, 1).map(text).as_deref(), Some("ab"));
        assert_eq!(find(&list, 2).and_then(|inner| find(inner, 3)), Some(&70_000_u32.to_ne_bytes()[..]));
        assert_eq!(find(&list, 4), None);
    }

    #[test]
    fn one_that_is_cut_off_ends_the_list() {
        let list = serialized(&[attribute(1, *b"abcd"), attribute(2, *b"efgh")]);
        for cut in 0..list.len() {
            assert_eq!(each(&list[..cut]).count(), cut / 8, "{cut}");
        }
        assert_eq!(each(&[2, 0, 1, 0, 9, 9, 9, 9]).count(), 0);
        assert_eq!(each(&[0; 8]).count(), 0);
    }
}
