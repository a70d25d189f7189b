//! A fuzz target for BPF filters in the format of `tcpdump -ddd`.

use steerage_capture::filter::Filter;

/// Input: a filter, a NUL byte and a frame. An error message must have one line, and a valid filter
/// must run on any frame.
pub(crate) fn numbers(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let (text, frame) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let Ok(text) = std::str::from_utf8(text) else { return };
    let filter = match text.parse::<Filter>() {
        Ok(filter) => filter,
        Err(error) => return assert!(error.is_mistake() && !error.to_string().contains('\n'), "{error}"),
    };
    match filter.for_frames() {
        Ok(program) => {
            let wire_len = frame.len() as u32;
            assert_eq!(program.run(frame, wire_len), program.run(frame, wire_len));
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}
