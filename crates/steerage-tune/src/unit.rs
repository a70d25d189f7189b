use std::fmt::Write;

/// Returns the name of the systemd unit that keeps an interface's setting. systemd escapes
/// characters such as `-`, which separates directories in the names of device units
/// (systemd-escape(1)).
pub(crate) fn unit(interface: &str) -> String {
    let mut name = "steerage-tune@".to_owned();
    for (nth, byte) in interface.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b':' | b'_' => name.push(char::from(byte)),
            b'.' if nth > 0 => name.push('.'),
            byte => write!(name, "\\x{byte:02x}").expect("a String takes any text"),
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected names are those of `systemd-escape`.
    #[test]
    fn a_unit_is_named_as_by_systemd_escape() {
        for (interface, escaped) in
            [("eth0", "eth0"), ("br-lan", r"br\x2dlan"), ("eth0.5", "eth0.5"), (".a", r"\x2ea"), ("a@b", r"a\x40b")]
        {
            assert_eq!(unit(interface), format!("steerage-tune@{escaped}"));
        }
    }
}
