//! A connection: its socket, and what is served by it.

use std::sync::Arc;
use std::time::Duration;

use smoltcp::iface::{SocketHandle, SocketSet, SocketStorage};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer, State};
use smoltcp::wire::IpListenEndpoint;
use steerage::Timestamp;

use super::config::{CONNECTION_OVERHEAD_BYTES, Config, Service};
use super::counts::{Connections, End, Responded};
use super::packet::{ACKNOWLEDGED_AT, IPV4_BYTES, IPV6_BYTES, Key, long};
use super::stack::Stack;
use crate::addresses::Mac;

/// What responses are made of: the bytes 0 to 250 again and again, so that a peer can tell whether any is missing.
const PATTERN: [u8; PATTERN_BYTES] = {
    let (mut pattern, mut at) = ([0; PATTERN_BYTES], 0);
    while at < PATTERN_BYTES {
        pattern[at] = (at % PERIOD) as u8;
        at += 1;
    }
    pattern
};
const PERIOD: usize = 251;
/// Whole periods, as many as a response's part is copied from at a time.
const PATTERN_BYTES: usize = 16 * PERIOD;

/// How long a peer that has been heard of is left alone while it is asked for nothing: delayed acknowledgements wait so long at
/// most (RFC 9293, 3.8.6.3, half a second), and this is the kernel's least.
const ACK_DELAY: Duration = Duration::from_millis(40);

/// One connection. Its sequence numbers, as smoltcp has them, are those of the cookie less `shift`: smoltcp draws its own.
#[derive(Debug)]
pub(super) struct Connection {
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    shift: u32,
    /// The peer's link address, as it was last heard of.
    pub(super) peer: Mac,
    /// Bytes of link header.
    pub(super) at: usize,
    service: Service,
    /// Bytes that a request still lacks.
    lacks: usize,
    /// Bytes of responses that are still to be written.
    owes: usize,
    pub(super) heard: Timestamp,
    /// When it is to be looked at; what the timers know.
    pub(super) due: Timestamp,
    /// The batch in which it said something that leaves behind the batch.
    pub(super) behind: u64,
    counted: Counted,
}

/// Counts a connection as ended when it is dropped: lost, unless it is said how.
#[derive(Debug)]
struct Counted {
    connections: Arc<Connections>,
    end: End,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.connections.end(self.end);
    }
}

/// What the first segment of a connection told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    /// The sequence number of the SYN that it does not have any more.
    pub(super) sequence: u32,
    /// Ours, of the answer.
    pub(super) cookie: u32,
    pub(super) mss: u16,
    pub(super) window: u16,
    pub(super) service: Service,
}

impl Connection {
    /// Makes a connection of which the peer has acknowledged the answer to its SYN. `None` if there are too many.
    pub(super) fn open(
        config: &Config,
        connections: &Arc<Connections>,
        stack: &mut Stack,
        key: &Key,
        opening: &Opening,
        now: Timestamp,
    ) -> Option<Box<Self>> {
        if !connections.open(config.connections_max as u64) {
            return None;
        }
        // From here on it counts as open.
        let counted = Counted { connections: Arc::clone(connections), end: End::Lost };
        let buffer = || SocketBuffer::new(vec![0; config.buffer]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(Some(smoltcp::time::Duration::from_micros(ACK_DELAY.as_micros() as u64)));
        socket.set_congestion_control(CongestionControl::Reno);
        let ours = config.addresses[usize::from(key.local)];
        let end = IpListenEndpoint { addr: Some(ours.into()), port: key.local_port };
        // A new socket and a port that is not zero: it listens.
        socket.listen(end).ok()?;
        let mut sockets = SocketSet::new(vec![SocketStorage::EMPTY]);
        let socket = sockets.add(socket);
        // What has been said between the peer and us is said again, between smoltcp and us.
        stack.take_up_syn(key, ours, opening.sequence, opening.mss, opening.window);
        stack.replies.begin(0, 1);
        stack.put_in(&mut sockets, now);
        stack.take_out(&mut sockets, now);
        let answer = if stack.replies.len() == 1 { stack.replies.frame(0) } else { return None };
        let tcp = if ours.is_ipv4() { IPV4_BYTES } else { IPV6_BYTES };
        let shift = opening.cookie.wrapping_sub(long(answer, tcp + 4));
        let lacks = match opening.service {
            Service::Echo => 0,
            Service::RequestResponse { request, .. } => request,
        };
        Some(Box::new(Self {
            sockets,
            socket,
            shift,
            peer: Mac::default(),
            at: 0,
            service: opening.service,
            lacks,
            owes: 0,
            heard: now,
            due: Timestamp::from_nanos(u64::MAX),
            behind: 0,
            counted,
        }))
    }

    /// Has it receive a TCP packet, and says in `stack.replies` what there is to say.
    pub(super) fn receive(
        &mut self,
        stack: &mut Stack,
        packet: &[u8],
        tcp_at: usize,
        now: Timestamp,
        counts: &mut Responded,
    ) {
        self.heard = now;
        let shift = self.shift;
        stack.take_up(packet, |packet| {
            let at = tcp_at + ACKNOWLEDGED_AT;
            let acknowledged = long(packet, at).wrapping_sub(shift);
            packet[at..at + 4].copy_from_slice(&acknowledged.to_be_bytes());
        });
        stack.put_in(&mut self.sockets, now);
        self.serve(counts);
        stack.take_out(&mut self.sockets, now);
    }

    /// Has it do what its time has come for.
    pub(super) fn look(&mut self, stack: &mut Stack, now: Timestamp, idle: Duration, counts: &mut Responded) {
        if now.since(self.heard) >= idle {
            self.counted.end = End::Idle;
            self.socket().abort();
        } else {
            self.serve(counts);
        }
        stack.take_out(&mut self.sockets, now);
    }

    /// When it has to be looked at next.
    pub(super) fn next_look(&self, stack: &mut Stack, now: Timestamp, idle: Duration) -> Timestamp {
        let idle = self.heard + idle;
        stack.due(&self.sockets, now).map_or(idle, |due| due.min(idle))
    }

    /// What is to be added to smoltcp's sequence numbers.
    pub(super) fn shift(&self) -> u32 {
        self.shift
    }

    /// Whether it is over, or as good as that: a SYN then begins another.
    pub(super) fn is_over(&mut self) -> bool {
        self.socket().state() == State::Closed
    }

    /// Whether it only waits for what may still be on its way.
    pub(super) fn lingers(&mut self) -> bool {
        matches!(self.socket().state(), State::TimeWait | State::Closed)
    }

    /// Ends it, for that reason unless another was said before.
    pub(super) fn end(mut self, end: End) {
        if self.counted.end == End::Lost {
            self.counted.end = end;
        }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.socket)
    }

    /// Reads and writes as its service does.
    fn serve(&mut self, counts: &mut Responded) {
        let Self { sockets, socket, lacks, owes, .. } = self;
        let socket: &mut Socket<'static> = sockets.get_mut(*socket);
        match self.service {
            Service::Echo => echo(socket, counts),
            Service::RequestResponse { request, response } => {
                respond(socket, (request, response), (lacks, owes), counts)
            }
        }
        // The peer has said all, and so have we.
        if socket.state() == State::CloseWait && *owes == 0 && socket.recv_queue() == 0 {
            socket.close();
        }
    }
}

/// As much as there is room for goes back; the rest waits, and with it the peer.
fn echo(socket: &mut Socket<'_>, counts: &mut Responded) {
    let mut piece = [0; PATTERN_BYTES];
    while socket.can_recv() && socket.can_send() {
        let room = (socket.send_capacity() - socket.send_queue()).min(piece.len());
        let Ok(read) = socket.recv_slice(&mut piece[..room]) else { break };
        let written = socket.send_slice(&piece[..read]).unwrap_or(0);
        counts.tcp_bytes_in += read as u64;
        counts.tcp_bytes_out += written as u64;
        if read == 0 {
            break;
        }
    }
}

/// A response for each whole request, one after the other.
fn respond(
    socket: &mut Socket<'_>,
    (request, response): (usize, usize),
    (lacks, owes): (&mut usize, &mut usize),
    counts: &mut Responded,
) {
    loop {
        while *owes > 0 && socket.can_send() {
            let at = (response - *owes) % PERIOD;
            let piece = &PATTERN[at..PATTERN_BYTES.min(at + *owes)];
            let written = socket.send_slice(piece).unwrap_or(0);
            counts.tcp_bytes_out += written as u64;
            *owes -= written;
            if written == 0 {
                return;
            }
        }
        if *owes > 0 || !socket.can_recv() {
            return;
        }
        let wanted = *lacks;
        let read = socket.recv(|bytes| (bytes.len().min(wanted), bytes.len().min(wanted))).unwrap_or(0);
        counts.tcp_bytes_in += read as u64;
        *lacks -= read;
        if *lacks == 0 {
            (*lacks, *owes) = (request, response);
            counts.transactions += 1;
        }
        if read == 0 {
            return;
        }
    }
}

// The rest is for entries in tables and timers.
const _: () =
    assert!(size_of::<Connection>() + size_of::<SocketStorage<'static>>() <= CONNECTION_OVERHEAD_BYTES * 3 / 4);
