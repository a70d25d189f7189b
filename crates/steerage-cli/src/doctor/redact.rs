//! Removes names of machines and people, and addresses, from texts.

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

/// The text that replaces an address.
const ADDRESS: &str = "[address]";

/// Removes addresses, the name of this machine, and names of users from all texts of `value`,
/// including keys.
pub(super) fn redact(value: Value, host_name: Option<&str>) -> Value {
    match value {
        Value::String(text) => Value::String(redact_text(&text, host_name)),
        Value::Array(values) => values.into_iter().map(|value| redact(value, host_name)).collect(),
        Value::Object(map) => {
            map.into_iter().map(|(key, value)| (redact_text(&key, host_name), redact(value, host_name))).collect()
        }
        other => other,
    }
}

fn redact_text(text: &str, host_name: Option<&str>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let word = rest.find(|c: char| !is_of_word(c)).unwrap_or(rest.len());
        if word == 0 {
            let between = rest.find(is_of_word).unwrap_or(rest.len());
            out.push_str(&rest[..between]);
            rest = &rest[between..];
        } else {
            push_word(&mut out, &rest[..word], host_name);
            rest = &rest[word..];
        }
    }
    out
}

/// Whether a character can be part of an address or a name.
fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || ":.-_%".contains(c)
}

fn push_word(out: &mut String, word: &str, host_name: Option<&str>) {
    // A full stop or a colon at the end belongs to the sentence.
    let trimmed = word.trim_end_matches(['.', ':']);
    let (is, what) = if is_address(trimmed) {
        (trimmed, ADDRESS)
    } else if is_address(word) {
        (word, ADDRESS)
    } else if out.ends_with("/home/") {
        (word, "[user]")
    } else if host_name.is_some_and(|name| name.len() > 2 && name == trimmed) {
        (trimmed, "[host]")
    } else {
        ("", "")
    };
    out.push_str(what);
    out.push_str(&word[is.len()..]);
}

fn is_address(word: &str) -> bool {
    // Removes a zone, as in `fe80::1%eth0`.
    let unscoped = word.split('%').next().unwrap_or_default();
    // `::` is part of Rust paths, and identifies no machine.
    word != "::" && (unscoped.parse::<IpAddr>().is_ok() || word.parse::<SocketAddr>().is_ok()) || is_hardware(word)
}

/// Whether the word is the address of a card, with 6 to 20 bytes: `52:54:00:12:34:56`.
fn is_hardware(word: &str) -> bool {
    let bytes: Vec<&str> = word.split([':', '-']).collect();
    let is_byte = |byte: &&str| byte.len() == 2 && byte.bytes().all(|digit| digit.is_ascii_hexdigit());
    (6..=20).contains(&bytes.len()) && bytes.iter().all(is_byte)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_address_and_no_name_is_left() {
        let texts = [
            ("to 192.0.2.1:4739, 192.0.2.2.", "to [address], [address]."),
            ("[2001:db8::1]:80 and fe80::1%eth0: gone", "[[address]]:80 and [address]: gone"),
            ("10.0.0.0/8 via 52:54:00:12:34:56", "[address]/8 via [address]"),
            ("::1 ::ffff:192.0.2.1 2001:db8::", "[address] [address] [address]"),
            ("/home/alice/bin/tcpdump on mira.", "/home/[user]/bin/tcpdump on [host]."),
            ("Linux 6.18.44, steerage::sandbox, 12:34:56, 0-3,8", "Linux 6.18.44, steerage::sandbox, 12:34:56, 0-3,8"),
            ("00000000,00000003 admiral", "00000000,00000003 admiral"),
        ];
        for (text, expected) in texts {
            assert_eq!(redact_text(text, Some("mira")), expected);
        }
        let value = json!({"192.0.2.1": ["a 192.0.2.9 b", 7, null, {"x": "::1"}]});
        assert_eq!(redact(value, None), json!({"[address]": ["a [address] b", 7, null, {"x": "[address]"}]}));
    }
}
