use steerage_capture::CaptureMerge;

use super::lines::LINE_BYTES_MAX;

/// The number of bytes at the start of an output that are checked to detect whether the output is
/// text.
const PROBE_BYTES: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Lines,
    Capture,
    JsonArray,
    /// The output has the named format, which steerage cannot merge.
    Unknown(&'static str),
}

impl Kind {
    /// Detects the kind of an output. Returns `None` if more bytes are needed. `ended` is true if
    /// the output has no more bytes.
    pub(super) fn of(start: &[u8], ended: bool) -> Option<Self> {
        match CaptureMerge::is_capture(start) {
            Some(true) => return Some(Self::Capture),
            None if !ended => return None,
            _ => {}
        }
        if is_binary(start) {
            return Some(Self::Unknown("binary data"));
        }
        let text = start.trim_ascii_start();
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        // A line that is too long for memory is processed in pieces, and counts as a complete line
        // here.
        let is_whole = ended || line.len() < text.len() || text.len() > LINE_BYTES_MAX;
        let line = line.trim_ascii_end();
        if line.starts_with(b"<?xml") {
            return Some(Self::Unknown("an XML document"));
        }
        match line.first() {
            None if !ended && start.len() <= LINE_BYTES_MAX => None,
            Some(b'[' | b'{') if !is_whole => None,
            Some(b'{') if line.len() == 1 => Some(Self::Unknown("JSON over several lines")),
            // tshark begins an array with a line `[`. A JSON array on one line counts as lines of
            // JSON.
            Some(b'[') if is_whole && text.len() <= LINE_BYTES_MAX => {
                let rest = line[1..].trim_ascii_start();
                let is_open = rest.is_empty() || rest.starts_with(b"{") && !rest.ends_with(b"]");
                Some(if is_open { Self::JsonArray } else { Self::Lines })
            }
            _ => Some(Self::Lines),
        }
    }
}

/// Returns false for text. Text in any character set contains no NUL, and only control characters
/// that move the cursor, ring the bell or change the color.
fn is_binary(start: &[u8]) -> bool {
    start.iter().take(PROBE_BYTES).any(|byte| matches!(byte, 0..=6 | 0x0e..=0x1a | 0x1c..=0x1f))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_say_the_kind() {
        let of = |start: &str| Kind::of(start.as_bytes(), false);
        assert_eq!((of(""), of("\n"), of("  "), of("[{\"a\":")), (None, None, None, None));
        assert_eq!(
            (of("text"), of("[2026-01-01] x\n"), of("[{\"a\":1}]\n")),
            (Some(Kind::Lines), Some(Kind::Lines), Some(Kind::Lines))
        );
        assert_eq!((of("[\n"), of(" [{\"a\":1},\n")), (Some(Kind::JsonArray), Some(Kind::JsonArray)));
        assert_eq!(of("{\n"), Some(Kind::Unknown("JSON over several lines")));
        assert_eq!(of("<?xml version=\"1.0\"?>"), Some(Kind::Unknown("an XML document")));
        assert_eq!(of("\u{1}x"), Some(Kind::Unknown("binary data")));
        assert_eq!(of("Mehl\n"), Some(Kind::Lines));
        let pcapng = *b"\x0a\x0d\x0d\x0a\x1c\x00\x00\x00\x4d\x3c\x2b\x1a";
        for magic in [&b"\xd4\xc3\xb2\xa1"[..], b"\xa1\xb2\xc3\xd4", b"\x4d\x3c\xb2\xa1", b"\xa1\xb2\x3c\x4d", &pcapng]
        {
            let cut = &magic[..magic.len() - 1];
            assert_eq!((Kind::of(cut, false), Kind::of(magic, false)), (None, Some(Kind::Capture)));
        }
        assert_eq!(Kind::of(b"\n\r\r\n\n\n\n\nline\n", false), Some(Kind::Lines));
        assert_eq!(
            (Kind::of(b"", true), Kind::of(b"[", true), Kind::of(b"\n\n", true)),
            (Some(Kind::Lines), Some(Kind::JsonArray), Some(Kind::Lines))
        );
        // Even if a program writes only empty lines, the memory for its output is limited.
        assert_eq!(Kind::of(&vec![b'\n'; LINE_BYTES_MAX + 1], false), Some(Kind::Lines));
    }
}
