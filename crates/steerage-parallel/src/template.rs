use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    Stdin,
    Fifo,
    File,
    Tap,
}

impl Via {
    fn placeholder(self) -> Option<&'static str> {
        match self {
            Self::Stdin => None,
            Self::Fifo => Some("{fifo}"),
            Self::File => Some("{file}"),
            Self::Tap => Some("{tap}"),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Template {
    words: Vec<OsString>,
    pub(super) via: Via,
}

impl Template {
    /// Parses a command. Returns `None` if the command contains more than one kind of placeholder
    /// for the packets.
    pub(super) fn new(words: &[OsString]) -> Option<Self> {
        let mut vias = [Via::Fifo, Via::File, Via::Tap].into_iter().filter(|via| {
            let wanted = via.placeholder().unwrap_or_default().as_bytes();
            words.iter().any(|word| word.as_bytes().windows(wanted.len()).any(|part| part == wanted))
        });
        let via = vias.next().unwrap_or(Via::Stdin);
        vias.next().is_none().then(|| Self { words: words.to_vec(), via })
    }

    /// `place` is the path of the job's file or pipe, or the name of its interface.
    pub(super) fn words(&self, number: usize, jobs: usize, place: &OsStr) -> Vec<OsString> {
        let (number, jobs) = (number.to_string(), jobs.to_string());
        let place = (self.via.placeholder().unwrap_or("{fifo}").as_bytes(), place.as_bytes());
        let values = [(&b"{n}"[..], number.as_bytes()), (b"{jobs}", jobs.as_bytes()), place];
        self.words.iter().map(|word| filled(word.as_bytes(), &values)).collect()
    }
}

/// Text in the value of a placeholder is not replaced, even if it looks like a placeholder.
fn filled(mut word: &[u8], values: &[(&[u8], &[u8])]) -> OsString {
    let mut out = Vec::with_capacity(word.len());
    while let Some((first, rest)) = word.split_first() {
        if let Some((name, value)) = values.iter().find(|(name, _)| word.starts_with(name)) {
            out.extend_from_slice(value);
            word = &word[name.len()..];
        } else {
            out.push(*first);
            word = rest;
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn placeholders_stand_anywhere_in_a_word() {
        let template = Template::new(&words("tool -r {fifo} -w out{n}of{jobs}.pcap {}")).unwrap();
        assert_eq!(template.via, Via::Fifo);
        let filled = template.words(3, 8, OsStr::new("/tmp/{n}"));
        assert_eq!(filled, words("tool -r /tmp/{n} -w out3of8.pcap {}"));
        assert_eq!(Template::new(&words("tool -r -")).unwrap().via, Via::Stdin);
    }

    #[test]
    fn there_is_one_way_in() {
        assert!(Template::new(&words("tool {fifo} {file}")).is_none());
        assert_eq!(Template::new(&words("tool {tap} {tap}")).unwrap().via, Via::Tap);
    }
}
