use super::lines::is_obeyed;

/// Quotes `word` for a shell, unless quotes are unnecessary. Escape codes replace characters that a
/// terminal would obey.
pub fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    if word.contains(is_obeyed) {
        let mut quoted = "$'".to_owned();
        for c in word.chars() {
            match c {
                '\'' | '\\' => quoted.extend(['\\', c]),
                // An escape code always has three octal digits, so that a digit after the code is
                // not read as a part of it.
                c if is_obeyed(c) => {
                    c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| quoted.push_str(&format!("\\{byte:03o}")));
                }
                c => quoted.push(c),
            }
        }
        return quoted + "'";
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_can_be_given_again() {
        assert_eq!(shell_word("--cpus=0-1,3"), "--cpus=0-1,3");
        assert_eq!(shell_word("a b"), "'a b'");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_word("it's\na\x1b1\u{9b}\\µ"), r"$'it\'s\012a\0331\302\233\\µ'");
        assert_eq!(shell_word("\u{202e}x"), r"$'\342\200\256x'");
    }

    #[test]
    fn words_are_quoted_where_a_shell_needs_it() {
        assert_eq!(shell_word("synthetic:flows=10,mix=udp4+tcp6"), "synthetic:flows=10,mix=udp4+tcp6");
        assert_eq!([shell_word("it's; rm"), shell_word(""), shell_word("a b")], [r"'it'\''s; rm'", "''", "'a b'"]);
    }
}
