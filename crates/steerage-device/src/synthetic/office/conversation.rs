//! A conversation. It looks up a name, and then opens a connection or makes a call.

use std::cmp::Ordering;

use super::super::sample::Chance;
use super::data::{self, Data, Question};
use super::frame::{ACK, FIN, Frame, Host, Line, PSH, SYN, Transport};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;

/// The most data in a segment over IPv4 and over IPv6, with an MTU of 1500.
const MSS_V4: u16 = 1460;
const MSS_V6: u16 = 1440;

/// The ports of the servers. The backup goes to discard (RFC 863).
const PORT_DNS: u16 = 53;
const PORT_HTTP: u16 = 80;
const PORT_DISCARD: u16 = 9;
const PORT_RTP: u16 = 5004;

/// Name lookups use a port below those of connections.
const PORTS_BELOW: u16 = 16_384;

/// The time between two voice packets of the same direction.
const VOICE_EVERY: u64 = 20 * MILLISECOND;

/// Receivers acknowledge every second segment (RFC 9293, 3.8.6.3).
const SEGMENTS_PER_ACK: u32 = 2;

/// The shortest pause between two bursts of the backup. With it, the backup has a little more than half of all bytes.
const UPLOAD_PAUSE: u64 = 24 * MILLISECOND;

/// The purpose of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The client fetches a page.
    Web,
    /// The client looks up a name that does not exist.
    Missing,
    /// A call: voice in both directions.
    Call,
    /// A backup that never ends: the elephant.
    Upload,
}

/// The frame that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Query,
    Reply,
    Syn,
    SynAck,
    Established,
    Request,
    Segment,
    Acknowledge,
    Close,
    CloseToo,
    LastAck,
    Voice,
    Over,
}

/// The end of a conversation that sends a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Client,
    Server,
}
use Side::{Client, Server};

#[derive(Clone, Debug)]
pub(super) struct Conversation {
    /// The time of the next frame.
    pub(super) due: u64,
    number: u64,
    kind: Kind,
    stage: Stage,
    line: Line,
    client: Host,
    server: Host,
    port: u16,
    question: Question,
    /// The time from a frame to a server until the answer.
    round_trip: u64,
    /// The next sequence number of the client and of the server.
    sequence: [u32; 2],
    /// The number of data bytes, including the head of the response. The next field says how many
    /// of them were sent.
    total: u64,
    sent: u64,
    /// The number of segments since the last acknowledgement.
    unacknowledged: u32,
    /// The number of voice packets. The next field says how many of them were sent.
    voice_total: u32,
    voice_sent: u32,
}

impl Conversation {
    pub(super) fn new(number: u64, kind: Kind, due: u64, client: u8, port: u16, chance: &mut Chance) -> Self {
        let v6 = chance.below(3) == 0;
        let site = match kind {
            Kind::Web => chance.below(data::SITES as u64).min(chance.below(data::SITES as u64)) as u8,
            Kind::Upload => data::BACKUP,
            Kind::Call => data::VOICE,
            Kind::Missing => data::MISSING,
        };
        // Three quarters of the pages are small.
        let pages = if chance.below(4) == 0 { 16_000 } else { 3_000 };
        let body = 200 + chance.below(pages);
        Self {
            due,
            number,
            kind,
            stage: Stage::Query,
            line: Line { v6, vlan: vlan_of(client) },
            client: Host::Client(client),
            server: Host::Site(site),
            port,
            question: Question { id: chance.next() as u16, site, v6 },
            round_trip: 4 * MILLISECOND + chance.below(40 * MILLISECOND),
            sequence: [chance.next() as u32, chance.next() as u32],
            total: if kind == Kind::Upload { u64::MAX } else { data::RESPONSE_HEAD as u64 + body },
            sent: 0,
            unacknowledged: 0,
            voice_total: 40 + 2 * chance.below(20) as u32,
            voice_sent: 0,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Returns the frame that is due. After that, the conversation has a new due time, or is over.
    pub(super) fn next(&mut self, chance: &mut Chance) -> Frame {
        let stage = self.stage;
        let frame = match stage {
            Stage::Query => self.lookup(Client, Data::Query(self.question)),
            Stage::Reply => self.lookup(Server, Data::Reply(self.question)),
            Stage::Syn => self.tcp(Client, SYN, Data::None),
            Stage::SynAck => self.tcp(Server, SYN | ACK, Data::None),
            Stage::Request => self.tcp(Client, PSH | ACK, Data::Request(self.question.site)),
            Stage::Segment => self.segment(),
            Stage::Established | Stage::LastAck => self.tcp(Client, ACK, Data::None),
            Stage::Acknowledge => self.acknowledge(),
            Stage::Close => self.tcp(Client, FIN | ACK, Data::None),
            Stage::CloseToo => self.tcp(Server, FIN | ACK, Data::None),
            Stage::Voice => self.voice(),
            Stage::Over => unreachable!("a conversation that is over has left the heap"),
        };
        self.stage = self.stage_after(stage);
        self.due += self.pause_between(stage, self.stage, chance);
        frame
    }

    fn stage_after(&self, stage: Stage) -> Stage {
        let is_whole = self.sent == self.total;
        match stage {
            Stage::Query => Stage::Reply,
            Stage::Reply => match self.kind {
                Kind::Missing => Stage::Over,
                Kind::Call => Stage::Voice,
                Kind::Web | Kind::Upload => Stage::Syn,
            },
            Stage::Syn => Stage::SynAck,
            Stage::SynAck => Stage::Established,
            Stage::Established if self.kind == Kind::Web => Stage::Request,
            Stage::Established | Stage::Request => Stage::Segment,
            Stage::Segment if is_whole || self.unacknowledged == SEGMENTS_PER_ACK => Stage::Acknowledge,
            Stage::Segment => Stage::Segment,
            Stage::Acknowledge if is_whole => Stage::Close,
            Stage::Acknowledge => Stage::Segment,
            Stage::Close => Stage::CloseToo,
            Stage::CloseToo => Stage::LastAck,
            Stage::Voice if self.voice_sent < self.voice_total => Stage::Voice,
            Stage::Voice | Stage::LastAck | Stage::Over => Stage::Over,
        }
    }

    /// The time between the frame of `stage` and that of `next`. The capture point is near the
    /// clients, so clients answer at once, and servers after a round trip.
    fn pause_between(&self, stage: Stage, next: Stage, chance: &mut Chance) -> u64 {
        let far = self.round_trip + chance.below(MILLISECOND);
        match (stage, next) {
            (Stage::Segment, Stage::Segment) => 12 * MICROSECOND + chance.below(8 * MICROSECOND),
            (Stage::Segment, Stage::Acknowledge) if self.kind == Kind::Upload => far,
            (Stage::Acknowledge, Stage::Segment) if self.kind == Kind::Upload => {
                UPLOAD_PAUSE + chance.below(MILLISECOND)
            }
            (_, Stage::Reply | Stage::SynAck | Stage::CloseToo) | (Stage::Request, _) => far,
            (Stage::Acknowledge, Stage::Segment) => 300 * MICROSECOND + chance.below(MILLISECOND),
            (_, Stage::Voice) => VOICE_EVERY / 2 + chance.below(MILLISECOND) - MILLISECOND / 2,
            _ => 100 * MICROSECOND + chance.below(300 * MICROSECOND),
        }
    }

    fn lookup(&self, side: Side, data: Data) -> Frame {
        let (client, port) = (self.client, self.port - PORTS_BELOW);
        self.between(side, (client, port), (Host::Resolver, PORT_DNS), Transport::Udp, data)
    }

    /// The next voice packet. Client and server take turns.
    fn voice(&mut self) -> Frame {
        let side = if self.voice_sent % 2 == 0 { Client } else { Server };
        let data = Data::Voice { source: self.sequence[side as usize], number: self.voice_sent / 2 };
        self.voice_sent += 1;
        self.between(side, (self.client, self.port), (self.server, PORT_RTP), Transport::Udp, data)
    }

    /// The side that sends the data of a connection.
    fn sender(&self) -> Side {
        if self.kind == Kind::Upload { Client } else { Server }
    }

    fn segment(&mut self) -> Frame {
        let (from, len) = (self.sent, (self.total - self.sent).min(u64::from(self.mss())));
        self.sent += len;
        self.unacknowledged += 1;
        let data = match self.kind {
            Kind::Upload => Data::Text { from, len: len as u16 },
            _ => Data::Response { from, len: len as u16, total: self.total },
        };
        let push = if self.unacknowledged == SEGMENTS_PER_ACK || self.sent == self.total { PSH } else { 0 };
        self.tcp(self.sender(), push | ACK, data)
    }

    fn acknowledge(&mut self) -> Frame {
        self.unacknowledged = 0;
        let receiver = if self.sender() == Client { Server } else { Client };
        self.tcp(receiver, ACK, Data::None)
    }

    fn tcp(&mut self, side: Side, flags: u8, data: Data) -> Frame {
        let [sequence, acknowledged] = match side {
            Client => self.sequence,
            Server => [self.sequence[1], self.sequence[0]],
        };
        let acknowledged = if flags & ACK == 0 { 0 } else { acknowledged };
        // SYN and FIN count as a byte each.
        let counted = u32::from(flags & (SYN | FIN) != 0) + data.len() as u32;
        self.sequence[side as usize] = sequence.wrapping_add(counted);
        let transport = Transport::Tcp { sequence, acknowledged, flags, mss: self.mss() };
        let port = if self.kind == Kind::Upload { PORT_DISCARD } else { PORT_HTTP };
        self.between(side, (self.client, self.port), (self.server, port), transport, data)
    }

    fn mss(&self) -> u16 {
        if self.line.v6 { MSS_V6 } else { MSS_V4 }
    }

    fn between(&self, side: Side, client: (Host, u16), server: (Host, u16), transport: Transport, data: Data) -> Frame {
        let (from, to) = if side == Client { (client, server) } else { (server, client) };
        Frame { line: self.line, from, to, transport, data }
    }
}

/// Every fourth client is in VLAN 10, and every fourth in VLAN 20.
fn vlan_of(client: u8) -> Option<u16> {
    match client % 4 {
        0 => Some(10),
        1 => Some(20),
        _ => None,
    }
}

/// Conversations are ordered by the time of their next frame, then by age.
impl Ord for Conversation {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

impl PartialOrd for Conversation {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Conversation {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Conversation {}
