use std::sync::Arc;

use super::log::{Found, Log};
use super::outcome::Read;
use super::{FlowNames, LOOKS_MAX, STREAM_MAX, dns, http, proxy, tls};

#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Payload<'a> {
    pub(in super::super) data: &'a [u8],
    pub(in super::super) sequence: Option<u32>,
    pub(in super::super) is_whole: bool,
}

#[derive(Debug)]
pub(super) struct Watch {
    names: Option<Arc<FlowNames>>,
    query: Option<u16>,
    left: [u8; 2],
    begun: [Option<Box<Begun>>; 2],
    log: Option<Box<Log>>,
}

impl Default for Watch {
    fn default() -> Self {
        Self { names: None, query: None, left: [LOOKS_MAX; 2], begun: [None, None], log: None }
    }
}

#[derive(Debug)]
struct Begun {
    next: u32,
    bytes: Vec<u8>,
}

impl Begun {
    /// Returns false if bytes before the segment are missing.
    fn add(&mut self, sequence: u32, data: &[u8]) -> bool {
        // If bytes before the segment are missing, `known` wraps around to a huge number.
        let known = self.next.wrapping_sub(sequence) as usize;
        if known > STREAM_MAX {
            return false;
        }
        let fresh = data.get(known..).unwrap_or_default();
        let fresh = &fresh[..fresh.len().min(STREAM_MAX - self.bytes.len())];
        self.bytes.extend_from_slice(fresh);
        self.next = self.next.wrapping_add(fresh.len() as u32);
        true
    }
}

impl Watch {
    pub(super) fn with_log() -> Self {
        Self { log: Some(Box::default()), ..Self::default() }
    }

    pub(super) fn into_log(self) -> Option<Box<Log>> {
        self.log
    }

    pub(super) fn wants(&self, side: usize, is_stream: bool) -> bool {
        match &self.log {
            // A datagram may be the response to a DNS query in an earlier part of the recording.
            Some(log) if !is_stream => log.wants(side),
            _ => self.left[side] > 0,
        }
    }

    pub(super) fn waits(&self) -> bool {
        self.begun.iter().any(Option::is_some)
    }

    pub(super) fn names(&self) -> Option<Arc<FlowNames>> {
        self.names.clone()
    }

    pub(super) fn look(&mut self, side: usize, payload: &Payload<'_>, is_dns: bool, may_wait: bool) {
        let Some(mut log) = self.log.take() else { return self.look_once(side, payload, is_dns, may_wait) };
        let found = if payload.sequence.is_none() {
            let message = dns::read(payload.data);
            let found = message.map_or(Found::Nothing, Found::Message);
            self.look_again(side, &found);
            found
        } else {
            let (mut left, names) = (self.left, self.names());
            left[side] -= 1;
            self.look_once(side, payload, is_dns, may_wait);
            let settled = [0, 1].map(|side| self.left[side] < left[side]);
            match self.names().filter(|found| Some(found) != names.as_ref()) {
                None if settled == [false; 2] => Found::Nothing,
                found => Found::Names(found.unwrap_or_default(), settled),
            }
        };
        log.push(side, found);
        self.log = Some(log);
    }

    fn look_again(&mut self, side: usize, found: &Found) {
        if self.left[side] == 0 {
            return;
        }
        self.left[side] -= 1;
        match found {
            Found::Nothing => {}
            Found::Message(message) => self.note_message(side, message.clone()),
            Found::Names(found, settled) => {
                if **found != FlowNames::default() {
                    self.names_mut().complete(found);
                }
                (0..2).filter(|side| settled[*side]).for_each(|side| self.settle(side));
            }
        }
    }

    fn look_once(&mut self, side: usize, payload: &Payload<'_>, is_dns: bool, may_wait: bool) {
        self.left[side] -= 1;
        let Some(sequence) = payload.sequence else {
            if let Some(message) = dns::read(payload.data) {
                self.note_message(side, message);
            }
            return;
        };
        let read = match &mut self.begun[side] {
            Some(begun) => {
                if !begun.add(sequence, payload.data) {
                    // A segment of the stream is missing, so later segments cannot be read.
                    return self.settle(side);
                }
                let bytes = std::mem::take(&mut begun.bytes);
                let read = self.read(side, &bytes, is_dns);
                if let Some(begun) = &mut self.begun[side] {
                    begun.bytes = bytes;
                }
                read
            }
            None => self.read(side, payload.data, is_dns),
        };
        match read {
            Read::Whole(()) => {}
            Read::Other => self.begun[side] = None,
            Read::Part => self.wait(side, sequence, payload, may_wait),
        }
        if self.left[side] == 0 {
            self.begun[side] = None;
        }
    }

    fn wait(&mut self, side: usize, sequence: u32, payload: &Payload<'_>, may_wait: bool) {
        let has_room = match &self.begun[side] {
            Some(begun) => begun.bytes.len() < STREAM_MAX,
            None => may_wait && payload.data.len() < STREAM_MAX,
        };
        if !has_room || !payload.is_whole {
            return self.settle(side);
        }
        self.begun[side].get_or_insert_with(|| {
            let next = sequence.wrapping_add(payload.data.len() as u32);
            Box::new(Begun { next, bytes: payload.data.to_vec() })
        });
    }

    fn settle(&mut self, side: usize) {
        self.left[side] = 0;
        self.begun[side] = None;
    }

    fn settle_both(&mut self) {
        (self.left, self.begun) = ([0; 2], [None, None]);
    }

    fn read(&mut self, side: usize, stream: &[u8], is_dns: bool) -> Read<()> {
        if is_dns {
            let Some(length) = stream.first_chunk() else { return Read::Part };
            let Some(message) = stream[2..].get(..usize::from(u16::from_be_bytes(*length))) else { return Read::Part };
            let Some(message) = dns::read(message) else { return Read::Other };
            self.note_message(side, message);
            self.settle(side);
            return Read::Whole(());
        }
        let Some(message) = proxy::skip(stream) else { return Read::Part };
        let message = if http::asks_for_tunnel(message) {
            match http::read(message) {
                Read::Whole(host) => self.note_host(host),
                Read::Part => return Read::Part,
                Read::Other => return Read::Other,
            }
            let Some(message) = http::after_headers(message) else { return Read::Part };
            message
        } else {
            message
        };
        if message.is_empty() && !stream.is_empty() {
            // The next segment is read as if it were the beginning of the stream.
            self.begun[side] = None;
            return Read::Whole(());
        }
        self.read_message(message)
    }

    fn read_message(&mut self, stream: &[u8]) -> Read<()> {
        match tls::read(stream) {
            Read::Whole(greeting) => {
                self.settle_both();
                if greeting != tls::Greeting::default() {
                    let names = self.names_mut();
                    (names.tls_sni, names.tls_alpn) = (greeting.sni, greeting.alpn);
                }
                return Read::Whole(());
            }
            Read::Part => return Read::Part,
            Read::Other => {}
        }
        match http::read(stream) {
            Read::Whole(host) => {
                self.note_host(host);
                self.settle_both();
                Read::Whole(())
            }
            Read::Part => Read::Part,
            Read::Other => Read::Other,
        }
    }

    fn note_host(&mut self, host: Option<Box<str>>) {
        if host.is_some() && self.names.as_ref().is_none_or(|names| names.http_host.is_none()) {
            self.names_mut().http_host = host;
        }
    }

    /// Stores the first DNS query and its response. Without a query, stores the first response.
    fn note_message(&mut self, side: usize, message: dns::Message) {
        let dns::Message { id, question, response } = message;
        let is_first = self.query.is_none();
        if !is_first && (response.is_none() || self.query != Some(id)) {
            return;
        }
        self.query = Some(id);
        let is_response = response.is_some();
        let names = self.names_mut();
        if is_first {
            (names.dns_query, names.dns_type) = question.unzip();
        }
        if let Some((code, answer)) = response.filter(|_| names.dns_rcode.is_none()) {
            (names.dns_rcode, names.dns_answer) = (Some(code), answer);
        }
        if is_response {
            self.settle_both();
        } else {
            self.settle(side);
        }
    }

    fn names_mut(&mut self) -> &mut FlowNames {
        Arc::make_mut(self.names.get_or_insert_default())
    }
}

pub(in super::super) fn names_of(log: &Log) -> Option<Arc<FlowNames>> {
    let mut watch = Watch::default();
    log.looks().for_each(|(side, found)| watch.look_again(side, found));
    watch.names()
}

pub(in super::super) fn read_stream<'a>(
    packets: impl IntoIterator<Item = (bool, Payload<'a>)>,
    is_dns: bool,
) -> (Option<Arc<FlowNames>>, usize) {
    let (mut watch, mut looks) = (Watch::default(), 0);
    for (turned, payload) in packets {
        let side = usize::from(turned);
        if watch.wants(side, true) {
            watch.look(side, &payload, is_dns, true);
            looks += 1;
        }
        let kept: usize = watch.begun.iter().flatten().map(|begun| begun.bytes.len()).sum();
        assert!(kept <= 2 * STREAM_MAX && (0..2).all(|side| watch.wants(side, true) || watch.begun[side].is_none()));
    }
    (watch.names(), looks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments<'a>(bytes: &'a [u8], lengths: &[usize]) -> Vec<(bool, Payload<'a>)> {
        segments_from(0, bytes, lengths)
    }

    fn segments_from<'a>(begin: usize, bytes: &'a [u8], lengths: &[usize]) -> Vec<(bool, Payload<'a>)> {
        let (mut rest, mut sequence, mut all) = (bytes, (u32::MAX - 100).wrapping_add(begin as u32), Vec::new());
        let mut lengths = lengths.iter().cycle();
        while !rest.is_empty() {
            let (data, behind) = rest.split_at(rest.len().min(*lengths.next().unwrap()));
            all.push((false, Payload { data, sequence: Some(sequence), is_whole: true }));
            (rest, sequence) = (behind, sequence.wrapping_add(data.len() as u32));
        }
        all
    }

    fn sni(packets: Vec<(bool, Payload<'_>)>) -> Option<Box<str>> {
        read_stream(packets, false).0.and_then(|names| names.tls_sni.clone())
    }

    #[test]
    fn a_message_comes_in_segments() {
        let hello = tls::tests::hello("www.example.org", &["h2"], 1 << 14);
        let name = Some("www.example.org".into());
        assert_eq!(sni(segments(&hello, &[2000])), name);
        let mut parts = segments(&hello, &[1, 300, 200]);
        assert_eq!(sni(parts.clone()), name);
        parts.insert(2, parts[1]);
        parts.insert(2, (true, Payload { data: b"\x16\x03\x03\0\x7a\x02", sequence: Some(9), is_whole: true }));
        assert_eq!(sni(parts.clone()), name);
        parts.remove(1);
        assert_eq!(sni(parts[..1].iter().chain(&parts[3..]).copied().collect()), None);
        // Segments that the capture cut off are not joined.
        let mut cut = segments(&hello, &[300]);
        cut[0].1.is_whole = false;
        assert_eq!(sni(cut), None);
    }

    #[test]
    fn a_message_follows_a_proxy() {
        let hello = tls::tests::hello("www.example.org", &["h2"], 1 << 14);
        let name = Some("www.example.org".into());
        let header = b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n";
        assert_eq!(sni(segments(&[header, &hello[..]].concat(), &[50, 2000])), name);
        let alone = segments(header, &[50]).into_iter().chain(segments_from(header.len(), &hello, &[500]));
        assert_eq!(sni(alone.collect()), name);
    }

    #[test]
    fn a_message_follows_a_request_for_a_tunnel() {
        let hello = tls::tests::hello("www.example.org", &["h2"], 1 << 14);
        let request = b"CONNECT www.example.org:443 HTTP/1.1\r\nHost: proxy\r\nUser-Agent: a\r\n\r\n";
        let proxied = [b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n", &request[..]].concat();
        let names = |stream: &[u8], lengths: &[usize]| {
            let names = read_stream(segments(stream, lengths), false).0.unwrap_or_default();
            (names.http_host.clone(), names.tls_sni.clone())
        };
        let expected = (Some("proxy".into()), Some("www.example.org".into()));
        for begin in [&request[..], &proxied] {
            let tunnel = [begin, &hello[..]].concat();
            for cut in 1..=tunnel.len() {
                assert_eq!(names(&tunnel, &[cut, tunnel.len()]), expected, "{cut}");
            }
        }
        let refused = [&b"CONNECT a HTTP/2\r\n\r\n"[..], &hello].concat();
        assert_eq!(names(&refused, &[2000]), (None, None));
    }

    #[test]
    fn work_is_bounded() {
        let hello = tls::tests::hello("www.example.org", &["h2"], 1 << 14);
        let (names, looks) = read_stream(segments(&hello, &[20]), false);
        assert_eq!((names, looks), (None, usize::from(LOOKS_MAX)));
        let long = [b"GET /".as_slice(), &[b'a'; 10_000], b" HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
        let (names, looks) = read_stream(segments(&long, &[1460]), false);
        assert_eq!((names, looks), (None, 3));
    }

    #[test]
    fn dns_by_stream_and_by_datagram() {
        let message = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x01a\0\0\x01\0\x01";
        let stream = [&(message.len() as u16).to_be_bytes(), &message[..]].concat();
        let query = |names: Option<Arc<FlowNames>>| names.and_then(|names| names.dns_query.clone());
        assert_eq!(query(read_stream(segments(&stream, &[1, 5]), true).0), Some("a".into()));
        let datagram = Payload { data: message, sequence: None, is_whole: true };
        assert_eq!(query(read_stream([(false, datagram)], true).0), Some("a".into()));
        let mut response = message.to_vec();
        (response[1], response[2]) = (8, 0x81);
        let other = Payload { data: &response, sequence: None, is_whole: true };
        let names = read_stream([(false, datagram), (true, other)], true).0.unwrap();
        assert_eq!((names.dns_type, names.dns_rcode), (Some(1), None));
    }
}
