use super::lines::LINE_BYTES_MAX;

/// The bytes before each element of the merged JSON array, as in tshark's output.
pub(super) const BEFORE: &[u8] = b",\n  ";

/// The parser of a job's JSON array, with the bytes of an incomplete last element.
#[derive(Debug, Default)]
pub(super) struct Elements {
    /// The number of open brackets, including the bracket of the array itself.
    depth: usize,
    in_string: bool,
    escaped: bool,
    element: Vec<u8>,
    /// True if the beginning of the current element was already written.
    within: bool,
    is_wrong: bool,
}

impl Elements {
    /// Appends all complete elements to `out`, each after [`BEFORE`]. Returns true if the output
    /// ends within an element that is too long for memory. After an incomplete element, the
    /// next output must come from the same job.
    pub(super) fn take(&mut self, written: &[u8], out: &mut Vec<u8>) -> bool {
        for byte in written {
            self.byte(*byte, out);
        }
        if self.element.len() > LINE_BYTES_MAX {
            self.pass_on(out);
            self.within = true;
        }
        self.within
    }

    pub(super) fn is_complete(&self) -> bool {
        self.depth == 0 && !self.is_wrong
    }

    fn byte(&mut self, byte: u8, out: &mut Vec<u8>) {
        if self.in_string {
            self.element.push(byte);
            self.in_string = byte != b'"' || self.escaped;
            self.escaped = byte == b'\\' && !self.escaped;
            return;
        }
        match (byte, self.depth) {
            // A job can write several arrays, one after the other.
            (b'[', 0) => self.depth = 1,
            (_, 0) => self.is_wrong |= !byte.is_ascii_whitespace(),
            (b',', 1) => self.end_element(out),
            (b']', 1) => {
                self.end_element(out);
                self.depth = 0;
            }
            _ => {
                match byte {
                    b'[' | b'{' => self.depth += 1,
                    b']' | b'}' => self.depth = self.depth.saturating_sub(1),
                    b'"' => self.in_string = true,
                    _ => {}
                }
                if self.within || !self.element.is_empty() || !byte.is_ascii_whitespace() {
                    self.element.push(byte);
                }
            }
        }
    }

    fn end_element(&mut self, out: &mut Vec<u8>) {
        let len = self.element.trim_ascii_end().len();
        self.element.truncate(len);
        self.pass_on(out);
        self.within = false;
    }

    fn pass_on(&mut self, out: &mut Vec<u8>) {
        if !self.within && !self.element.is_empty() {
            out.extend_from_slice(BEFORE);
        }
        out.append(&mut self.element);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_come_out_whole_however_they_arrive() {
        let text = br#"[
  { "a": "x\",]}\\", "b": [1, {"c": []}] },
  "s,]" , 17
]
[ ] [true]
"#;
        let expected = "#,\n  { \"a\": \"x\\\",]}\\\\\", \"b\": [1, {\"c\": []}] },\n  \"s,]\",\n  17,\n  true";
        for piece in [1, 7, text.len()] {
            let (mut elements, mut out) = (Elements::default(), b"#".to_vec());
            for part in text.chunks(piece) {
                assert!(!elements.take(part, &mut out));
            }
            assert!(elements.is_complete());
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn an_array_that_is_cut_loses_its_last_element() {
        let (mut elements, mut out) = (Elements::default(), Vec::new());
        elements.take(b"[1, 2, {\"a\": ", &mut out);
        assert!(!elements.is_complete());
        assert_eq!(out, b",\n  1,\n  2");
        let mut elements = Elements::default();
        elements.take(b"[1] and text", &mut out);
        assert!(!elements.is_complete());
    }

    #[test]
    fn a_long_element_takes_bounded_memory() {
        let (mut elements, mut out) = (Elements::default(), Vec::new());
        let long = [&b"[\""[..], &vec![b'x'; 3 * LINE_BYTES_MAX]].concat();
        for part in long.chunks(1000) {
            elements.take(part, &mut out);
            assert!(elements.element.len() <= LINE_BYTES_MAX + 1000);
        }
        assert!(elements.within);
        assert!(!elements.take(b"\", 1]", &mut out));
        assert_eq!(out.len(), 2 * BEFORE.len() + 2 + 3 * LINE_BYTES_MAX + 1);
    }
}
