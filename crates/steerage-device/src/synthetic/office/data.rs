//! The data of the frames: DNS, HTTP, voice, and text.

use std::io::Write;

/// The number of web sites. Every domain has every name.
pub(super) const SITES: u8 = (NAMES.len() * DOMAINS.len()) as u8;

/// Other sites: for backups, for calls, and one that does not exist.
pub(super) const BACKUP: u8 = SITES;
pub(super) const VOICE: u8 = SITES + 1;
pub(super) const MISSING: u8 = SITES + 2;

const NAMES: [&str; 8] = ["www", "mail", "cdn", "api", "news", "static", "wiki", "shop"];

/// Domains for examples (RFC 2606).
const DOMAINS: [&str; 3] = ["example.com", "example.org", "example.net"];

/// The networks of the sites, for documentation (RFC 5737 and RFC 3849). The last byte of an
/// address is the site's number.
const SITES_V4: [u8; 3] = [198, 51, 100];
const SITES_V6: [u8; 15] = [0x20, 0x01, 0x0d, 0xb8, 0, 0x64, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const FIRST_SITE: u8 = 10;

/// The length of the head of a response.
pub(super) const RESPONSE_HEAD: usize = 88;

/// The length of a voice packet in bytes: the RTP header, and 20 ms of G.711.
const RTP_HEAD: usize = 12;
const VOICE_BYTES: usize = RTP_HEAD + 160;

/// The lengths of DNS parts: the head of a message, the fields after a name, and an answer without
/// its address.
const DNS_HEAD: usize = 12;
const DNS_TAIL: usize = 4;
const DNS_ANSWER: usize = 12;
const DNS_TTL: u32 = 300;

/// The address of a site, by IPv4 and by IPv6.
pub(super) fn site_v4(site: u8) -> [u8; 4] {
    let [a, b, c] = SITES_V4;
    [a, b, c, FIRST_SITE + site]
}

pub(super) fn site_v6(site: u8) -> [u8; 16] {
    let mut address = [0; 16];
    address[..15].copy_from_slice(&SITES_V6);
    address[15] = FIRST_SITE + site;
    address
}

/// The name of a site, and its domain.
fn name_of(site: u8) -> (&'static str, &'static str) {
    match site {
        BACKUP => ("backup", "example.net"),
        VOICE => ("voice", "example.net"),
        MISSING => ("printer", "invalid"),
        _ => (NAMES[usize::from(site) % NAMES.len()], DOMAINS[usize::from(site) / NAMES.len()]),
    }
}

/// A question for the resolver: the address of a site.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) id: u16,
    pub(super) site: u8,
    pub(super) v6: bool,
}

/// The data of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) enum Data {
    None,
    Query(Question),
    Reply(Question),
    /// A request for the page of a site.
    Request(u8),
    /// `len` bytes of an HTTP response of `total`, from byte `from` on.
    Response {
        from: u64,
        len: u16,
        total: u64,
    },
    /// `len` bytes of an endless text, from byte `from` on.
    Text {
        from: u64,
        len: u16,
    },
    /// Voice packet `number` of a source.
    Voice {
        source: u32,
        number: u32,
    },
}

impl Data {
    /// The length in bytes.
    pub(super) fn len(self) -> usize {
        let name = |site| {
            let (name, domain) = name_of(site);
            name.len() + 1 + domain.len()
        };
        match self {
            Self::None => 0,
            Self::Query(question) => DNS_HEAD + name(question.site) + 2 + DNS_TAIL,
            Self::Reply(Question { site: MISSING, .. }) => DNS_HEAD + name(MISSING) + 2 + DNS_TAIL,
            Self::Reply(question) => {
                let address = if question.v6 { 16 } else { 4 };
                DNS_HEAD + name(question.site) + 2 + DNS_TAIL + DNS_ANSWER + address
            }
            Self::Request(site) => "GET / HTTP/1.1\r\nHost: \r\nAccept: */*\r\n\r\n".len() + name(site),
            Self::Response { len, .. } | Self::Text { len, .. } => usize::from(len),
            Self::Voice { .. } => VOICE_BYTES,
        }
    }

    /// Writes the data to `to`, which has exactly the data's length.
    pub(super) fn write(self, to: &mut [u8]) {
        match self {
            Self::None => {}
            Self::Query(question) => write_dns(to, question, false),
            Self::Reply(question) => write_dns(to, question, true),
            Self::Request(site) => {
                let (name, domain) = name_of(site);
                print(to, format_args!("GET / HTTP/1.1\r\nHost: {name}.{domain}\r\nAccept: */*\r\n\r\n"));
            }
            Self::Response { from, total, .. } => {
                let body = if from == 0 { write_response_head(to, total) } else { 0 };
                write_text(&mut to[body..], from + body as u64);
            }
            Self::Text { from, .. } => write_text(to, from),
            Self::Voice { source, number } => write_voice(to, source, number),
        }
    }
}

fn print(mut to: &mut [u8], text: std::fmt::Arguments<'_>) {
    to.write_fmt(text).expect("the data's length is that of its text");
}

/// Writes the head of a response. `total` is the length of the response including its head. The
/// first segment contains the whole head.
fn write_response_head(to: &mut [u8], total: u64) -> usize {
    let body = total - RESPONSE_HEAD as u64;
    print(
        &mut to[..RESPONSE_HEAD],
        format_args!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {body:>8}\r\nServer: example\r\n\r\n"
        ),
    );
    RESPONSE_HEAD
}

/// Writes the lower case letters over and over, in lines of 64 characters.
fn write_text(to: &mut [u8], from: u64) {
    for (at, byte) in (from..).zip(to) {
        *byte = if at % 64 == 63 { b'\n' } else { b'a' + (at % 26) as u8 };
    }
}

/// Writes an RTP packet (RFC 3550, version 2) with silence in G.711 (µ-law).
fn write_voice(to: &mut [u8], source: u32, number: u32) {
    to.fill(0xff);
    to[..2].copy_from_slice(&[0x80, 0]);
    to[2..4].copy_from_slice(&(number as u16).to_be_bytes());
    to[4..8].copy_from_slice(&(number * 160).to_be_bytes());
    to[8..12].copy_from_slice(&source.to_be_bytes());
}

/// Writes a DNS message (RFC 1035). A reply repeats the question, and has an answer unless the name
/// does not exist.
fn write_dns(to: &mut [u8], question: Question, is_reply: bool) {
    let is_missing = question.site == MISSING;
    // The flags: recursion desired, response with recursion available, and no such name.
    let flags: u16 = 0x0100 | if is_reply { 0x8080 } else { 0 } | if is_reply && is_missing { 3 } else { 0 };
    let answers = u16::from(is_reply && !is_missing);
    let record: u16 = if question.v6 { 28 } else { 1 };
    let mut rest = to;
    let mut add = |bytes: &[u8]| rest.write_all(bytes).expect("the data's length is that of its parts");
    for number in [question.id, flags, 1, answers, 0, 0] {
        add(&number.to_be_bytes());
    }
    let (name, domain) = name_of(question.site);
    for label in std::iter::once(name).chain(domain.split('.')) {
        add(&[label.len() as u8]);
        add(label.as_bytes());
    }
    add(&[0]);
    add(&record.to_be_bytes());
    add(&1_u16.to_be_bytes());
    if answers == 0 {
        return;
    }
    // The name is a pointer to that of the question, at byte 12 of the message.
    add(&[0xc0, DNS_HEAD as u8]);
    add(&record.to_be_bytes());
    add(&1_u16.to_be_bytes());
    add(&DNS_TTL.to_be_bytes());
    if question.v6 {
        add(&16_u16.to_be_bytes());
        add(&site_v6(question.site));
    } else {
        add(&4_u16.to_be_bytes());
        add(&site_v4(question.site));
    }
}
