//! IPFIX messages: a header, and sets of templates and records.

use std::time::{SystemTime, UNIX_EPOCH};

use super::super::record::FlowRecord;
use super::elements::*;
use super::shape::{Fields, OPTIONS_FROM, Shape, View, fields};

const VERSION: u16 = 10;
const SET_HEADER_LEN: usize = 4;
const TEMPLATE_SET: u16 = 2;
const OPTIONS_TEMPLATE_SET: u16 = 3;
const STATISTICS: u16 = OPTIONS_FROM;
const LOSSES: u16 = OPTIONS_FROM + 1;
const SELECTOR: u16 = OPTIONS_FROM + 2;
/// The meter's flow selector, and its algorithm: hash-based selection (RFC 7014, section 6.2.2).
const SELECTOR_ID: u64 = 1;
const BY_HASH: u16 = 6;
const SCOPES: u16 = 1;
/// The length field of a message has 16 bits.
pub(in super::super) const MESSAGE_MAX: usize = 65_535;
/// In a template, the length 65,535 means a variable length. In a record, the byte 255 means that
/// the length follows in two bytes.
const ANY_LENGTH: u16 = 65_535;
const LONG_TEXT: u8 = 255;
const OF_ENTERPRISE: u16 = 0x8000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Statistics {
    pub(in super::super) messages: u64,
    pub(in super::super) records: u64,
    pub(in super::super) bytes: u64,
    /// The number of records that were lost. The next fields have the packets and bytes of these
    /// records.
    pub(in super::super) lost: u64,
    pub(in super::super) lost_packets: u64,
    pub(in super::super) lost_bytes: u64,
    pub(in super::super) ignored: u64,
    pub(in super::super) sample: u32,
}

/// The caller must send or drop each message before it builds the next message.
#[derive(Debug)]
pub(in super::super) struct Encoder {
    domain: u32,
    biflows: bool,
    limit: usize,
    sequence: u32,
    known: Box<[bool; Shape::ALL]>,
    knows_options: bool,
    /// The current message. The fields after this one become valid when the message is sent.
    message: Vec<u8>,
    data_records: u32,
    fresh: Vec<Shape>,
    has_options: bool,
    set: Option<(u16, usize)>,
}

impl Encoder {
    pub(in super::super) fn new(domain: u32, biflows: bool, limit: usize) -> Self {
        Self {
            domain,
            biflows,
            limit: limit.min(MESSAGE_MAX),
            sequence: 0,
            known: Box::new([false; Shape::ALL]),
            knows_options: false,
            message: Vec::with_capacity(limit.min(MESSAGE_MAX)),
            data_records: 0,
            fresh: Vec::new(),
            has_options: false,
            set: None,
        }
    }

    pub(in super::super) fn limit_to(&mut self, limit: usize) {
        self.limit = limit.min(MESSAGE_MAX);
    }

    pub(in super::super) fn limit(&self) -> usize {
        self.limit
    }

    pub(in super::super) fn sequence(&self) -> u32 {
        self.sequence
    }

    /// The messages after this sequence number, which must not contain templates, were not sent.
    pub(in super::super) fn back_to_sequence(&mut self, sequence: u32) {
        self.sequence = sequence;
    }

    pub(in super::super) fn has_templates(&self) -> bool {
        !self.fresh.is_empty() || (self.has_options && !self.knows_options)
    }

    pub(in super::super) fn forget_templates(&mut self) {
        self.known.fill(false);
        self.knows_options = false;
    }

    pub(in super::super) fn begin_session(&mut self) {
        self.forget_templates();
        self.sequence = 0;
    }

    /// Builds a message from the first records that fit, and returns their number.
    pub(in super::super) fn encode(&mut self, records: &[FlowRecord], now: SystemTime) -> usize {
        self.begin(now);
        let mut encoded = 0;
        for record in records {
            let before = self.mark();
            if self.biflows {
                self.record(&View::both(record));
            } else {
                View::each(record).for_each(|view| self.record(&view));
            }
            // A single record may exceed the limit. Sending a message that exceeds the limit fails.
            if self.message.len() > self.limit && encoded > 0 {
                self.back_to(&before);
                break;
            }
            encoded += 1;
        }
        self.finish();
        encoded
    }

    pub(in super::super) fn encode_statistics(&mut self, statistics: &Statistics, now: SystemTime) {
        self.begin(now);
        self.options(
            STATISTICS,
            &[
                (EXPORTING_PROCESS_ID, &std::process::id().to_be_bytes()),
                (EXPORTED_MESSAGE_TOTAL_COUNT, &statistics.messages.to_be_bytes()),
                (EXPORTED_FLOW_RECORD_TOTAL_COUNT, &statistics.records.to_be_bytes()),
                (EXPORTED_OCTET_TOTAL_COUNT, &statistics.bytes.to_be_bytes()),
                (NOT_SENT_FLOW_TOTAL_COUNT, &statistics.lost.to_be_bytes()),
                (NOT_SENT_PACKET_TOTAL_COUNT, &statistics.lost_packets.to_be_bytes()),
                (NOT_SENT_OCTET_TOTAL_COUNT, &statistics.lost_bytes.to_be_bytes()),
            ],
        );
        let domain = self.domain.to_be_bytes();
        let ignored = statistics.ignored.to_be_bytes();
        self.options(LOSSES, &[(OBSERVATION_DOMAIN_ID, &domain), (IGNORED_PACKET_TOTAL_COUNT, &ignored)]);
        if statistics.sample > 1 {
            self.options(
                SELECTOR,
                &[
                    (SELECTOR_ID_ELEMENT, &SELECTOR_ID.to_be_bytes()),
                    (FLOW_SELECTOR_ALGORITHM, &BY_HASH.to_be_bytes()),
                    (SAMPLING_SIZE, &1_u32.to_be_bytes()),
                    (SAMPLING_POPULATION, &statistics.sample.to_be_bytes()),
                ],
            );
        }
        self.has_options = true;
        self.finish();
    }

    pub(in super::super) fn data_records(&self) -> u32 {
        self.data_records
    }

    pub(in super::super) fn message(&self) -> &[u8] {
        &self.message
    }

    /// To be called when a message was sent: only then do its records count as sent, and its
    /// templates as known to the collector.
    pub(in super::super) fn sent(&mut self) {
        self.sequence = self.sequence.wrapping_add(self.data_records);
        for shape in self.fresh.drain(..) {
            self.known[shape.number()] = true;
        }
        self.knows_options |= self.has_options;
    }

    fn begin(&mut self, now: SystemTime) {
        // The time field of a message has 32 bits of seconds, and wraps around in 2106.
        let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as u32;
        self.message.clear();
        self.message.extend_from_slice(&VERSION.to_be_bytes());
        self.message.extend_from_slice(&[0; 2]);
        self.message.extend_from_slice(&seconds.to_be_bytes());
        self.message.extend_from_slice(&self.sequence.to_be_bytes());
        self.message.extend_from_slice(&self.domain.to_be_bytes());
        (self.data_records, self.has_options, self.set) = (0, false, None);
        self.fresh.clear();
    }

    fn record(&mut self, view: &View<'_>) {
        let shape = view.shape();
        if !self.known[shape.number()] && !self.fresh.contains(&shape) {
            self.open(TEMPLATE_SET);
            template(&mut self.message, shape.template(), None, |to| fields(shape, view, to));
            self.fresh.push(shape);
        }
        self.open(shape.template());
        fields(shape, view, &mut Values(&mut self.message));
        self.data_records += 1;
    }

    /// Adds an options record with these elements and values. The first element is its scope.
    fn options(&mut self, id: u16, elements: &[(Element, &[u8])]) {
        if !self.knows_options {
            self.open(OPTIONS_TEMPLATE_SET);
            template(&mut self.message, id, Some(SCOPES), |to| {
                elements.iter().for_each(|(element, value)| to.specify(*element, value.len() as u16));
            });
        }
        self.open(id);
        elements.iter().for_each(|(_, value)| self.message.extend_from_slice(value));
        self.data_records += 1;
    }

    fn open(&mut self, id: u16) {
        if self.set.is_some_and(|(open, _)| open == id) {
            return;
        }
        self.close();
        self.set = Some((id, self.message.len()));
        self.message.extend_from_slice(&id.to_be_bytes());
        self.message.extend_from_slice(&[0; SET_HEADER_LEN - 2]);
    }

    fn close(&mut self) {
        if let Some((_, start)) = self.set.take() {
            let length = (self.message.len() - start) as u16;
            self.message[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
        }
    }

    fn finish(&mut self) {
        self.close();
        let length = self.message.len() as u16;
        self.message[2..4].copy_from_slice(&length.to_be_bytes());
    }

    fn mark(&self) -> Mark {
        Mark { len: self.message.len(), set: self.set, data_records: self.data_records, fresh: self.fresh.len() }
    }

    /// If a set of the message was already closed at `mark`, `close` writes the length of this set
    /// again.
    fn back_to(&mut self, mark: &Mark) {
        self.message.truncate(mark.len);
        self.fresh.truncate(mark.fresh);
        (self.set, self.data_records) = (mark.set, mark.data_records);
    }
}

struct Mark {
    len: usize,
    set: Option<(u16, usize)>,
    data_records: u32,
    fresh: usize,
}

struct Values<'a>(&'a mut Vec<u8>);

impl Fields for Values<'_> {
    #[inline(always)]
    fn put<const N: usize>(&mut self, _: Element, value: [u8; N]) {
        self.0.extend_from_slice(&value);
    }

    /// The length of a text precedes the text (RFC 7011, section 7).
    fn put_text(&mut self, _: Element, value: &str) {
        match u8::try_from(value.len()) {
            Ok(length) if length < LONG_TEXT => self.0.push(length),
            _ => {
                self.0.push(LONG_TEXT);
                self.0.extend_from_slice(&(value.len() as u16).to_be_bytes());
            }
        }
        self.0.extend_from_slice(value.as_bytes());
    }
}

struct Template<'a> {
    to: &'a mut Vec<u8>,
    count: u16,
}

impl Fields for Template<'_> {
    fn put<const N: usize>(&mut self, element: Element, _: [u8; N]) {
        self.specify(element, N as u16);
    }

    fn put_text(&mut self, element: Element, _: &str) {
        self.specify(element, ANY_LENGTH);
    }
}

impl Template<'_> {
    fn specify(&mut self, element: Element, length: u16) {
        self.count += 1;
        let of_enterprise = if element.enterprise == 0 { 0 } else { OF_ENTERPRISE };
        self.to.extend_from_slice(&(element.id | of_enterprise).to_be_bytes());
        self.to.extend_from_slice(&length.to_be_bytes());
        if element.enterprise != 0 {
            self.to.extend_from_slice(&element.enterprise.to_be_bytes());
        }
    }
}

fn template(message: &mut Vec<u8>, id: u16, scopes: Option<u16>, elements: impl FnOnce(&mut Template<'_>)) {
    message.extend_from_slice(&id.to_be_bytes());
    let count_at = message.len();
    message.extend_from_slice(&[0; 2]);
    if let Some(scopes) = scopes {
        message.extend_from_slice(&scopes.to_be_bytes());
    }
    let mut template = Template { to: message, count: 0 };
    elements(&mut template);
    let count = template.count;
    message[count_at..count_at + 2].copy_from_slice(&count.to_be_bytes());
}
