use std::fmt::Write;

use super::TEXT_MAX;

#[derive(Debug, Default)]
pub(super) struct Text(String);

impl Text {
    /// In a name, spaces, backslashes, commas, unprintable bytes and the bytes in `also` are
    /// written as `\DDD`, as in DNS zone files.
    pub(super) fn name(&mut self, bytes: &[u8], also: &[u8]) -> &mut Self {
        for byte in bytes {
            if byte.is_ascii_graphic() && !matches!(byte, b'\\' | b',') && !also.contains(byte) {
                self.put(format_args!("{}", char::from(*byte)));
            } else {
                self.put(format_args!("\\{byte:03}"));
            }
        }
        self
    }

    pub(super) fn separate(&mut self, by: char) -> &mut Self {
        if !self.0.is_empty() {
            self.put(format_args!("{by}"));
        }
        self
    }

    /// Adds a text, or nothing if the text does not fit completely.
    pub(super) fn put(&mut self, part: std::fmt::Arguments<'_>) -> &mut Self {
        let before = self.0.len();
        let _ = self.0.write_fmt(part);
        if self.0.len() > TEXT_MAX {
            self.0.truncate(before);
        }
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn take(&mut self) -> Option<Box<str>> {
        if self.0.is_empty() { None } else { Some(std::mem::take(&mut self.0).into_boxed_str()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_printable_is_escaped() {
        let mut text = Text::default();
        text.name(b"a b,c\\d\n\xff\"", &[]).separate(' ').name(b"x.y", b".");
        assert_eq!(text.take().as_deref(), Some("a\\032b\\044c\\092d\\010\\255\" x\\046y"));
        assert_eq!(text.take(), None);
    }

    #[test]
    fn it_ends() {
        let mut text = Text::default();
        text.name(&[0; 100], &[]).name(&[b'a'; 1000], &[]).name(&[0], &[]);
        assert_eq!(text.take().map(|text| text.len()), Some(TEXT_MAX));
    }
}
