use std::fmt::Write;

use super::TEXT_MAX;

/// A text of at most [`TEXT_MAX`] bytes.
#[derive(Debug, Default)]
pub(super) struct Text {
    text: String,
    /// True if a part did not fit. All later parts are left out, even those that would fit, so that
    /// the text has no holes.
    is_full: bool,
}

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
        if !self.is_empty() {
            self.put(format_args!("{by}"));
        }
        self
    }

    /// Adds a part, or nothing if the part does not fit completely.
    pub(super) fn put(&mut self, part: std::fmt::Arguments<'_>) -> &mut Self {
        if self.is_full {
            return self;
        }
        let before = self.text.len();
        let _ = self.text.write_fmt(part);
        if self.text.len() > TEXT_MAX {
            self.text.truncate(before);
            self.is_full = true;
        }
        self
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    pub(super) fn take(&mut self) -> Option<Box<str>> {
        let Self { text, .. } = std::mem::take(self);
        if text.is_empty() { None } else { Some(text.into_boxed_str()) }
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
    fn after_a_part_that_does_not_fit_the_text_ends() {
        let mut text = Text::default();
        text.name(&[0; 100], &[]).name(&[b'a'; 1000], &[]);
        assert_eq!(text.take().map(|text| text.len()), Some(63 * 4));
        let long = "a".repeat(TEXT_MAX - 2);
        text.name(long.as_bytes(), &[]).name(b"\xff", &[]).separate(',').name(b"b", &[]);
        assert_eq!(text.take().as_deref(), Some(&*long));
        text.name(b"c", &[]);
        assert_eq!(text.take().as_deref(), Some("c"));
    }
}
