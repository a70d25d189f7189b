//! A TCP connection: smoltcp's socket, and the service that uses it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use smoltcp::iface::{SocketHandle, SocketSet, SocketStorage};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer, State};
use smoltcp::wire::IpListenEndpoint;
use steerage::Timestamp;
use steerage::flow::wire::tcp::{RST, SYN};
use steerage::flow::wire::{be32, ipv4, ipv6};

use super::config::{CONNECTION_OVERHEAD_BYTES, Config, Service};
use super::counts::{End, Responded};
use super::packet::{ACKNOWLEDGED_AT, Key, Tcp};
use super::peers::{Connections, Peer};
use super::stack::Stack;
use steerage_router::addresses::Mac;

/// The bytes 0 to 250 repeated, so that a peer can detect missing bytes.
const PATTERN: [u8; PATTERN_BYTES] = {
    let (mut pattern, mut at) = ([0; PATTERN_BYTES], 0);
    while at < PATTERN_BYTES {
        pattern[at] = (at % PERIOD) as u8;
        at += 1;
    }
    pattern
};
const PERIOD: usize = 251;
/// The longest piece of a response that is copied at a time: a multiple of [`PERIOD`], after which
/// the bytes of a response repeat.
const PATTERN_BYTES: usize = 16 * PERIOD;

/// The delay of an ACK: the minimum of the Linux kernel. RFC 9293, 3.8.6.3, allows a delay of at
/// most half a second.
const ACK_DELAY: Duration = Duration::from_millis(40);

/// On the wire, a connection's sequence numbers continue the SYN cookie: they are smoltcp's own
/// numbers plus `shift`.
#[derive(Debug)]
pub(super) struct Connection {
    sockets: SocketSet<'static>,
    socket: SocketHandle,
    shift: u32,
    pub(super) peer: Mac,
    pub(super) at: usize,
    service: Service,
    lacks: usize,
    owes: usize,
    /// The sequence number after the last byte that the service has read. `written_to`: smoltcp's
    /// sequence number after the last byte that the service has written.
    read_to: u32,
    written_to: u32,
    pub(super) heard: Timestamp,
    pub(super) due: Timestamp,
    /// The latest batch in which the connection has sent new packets, which leave after the batch.
    pub(super) behind: u64,
    counted: Counted,
}

/// When dropped, counts the end of the connection. The reason is `Lost`, unless another reason was
/// set.
#[derive(Debug)]
struct Counted {
    connections: Arc<Connections>,
    peer: Peer,
    end: End,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.connections.end(self.peer, self.end);
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Opening {
    /// The SYN's sequence number, computed from the first segment after the SYN.
    pub(super) sequence: u32,
    pub(super) cookie: u32,
    pub(super) mss: u16,
    pub(super) window: u16,
    pub(super) service: Service,
}

impl Connection {
    /// Creates a connection after the peer has acknowledged the responder's SYN. Returns `None` if
    /// there are too many connections, in total or from this peer.
    pub(super) fn open(
        config: &Config,
        connections: &Arc<Connections>,
        stack: &mut Stack,
        key: &Key,
        opening: &Opening,
        now: Timestamp,
    ) -> Option<Box<Self>> {
        let peer = connections.peer(key);
        if !connections.open(config, peer) {
            return None;
        }
        let counted = Counted { connections: Arc::clone(connections), peer, end: End::Lost };
        let buffer = || SocketBuffer::new(vec![0; config.buffer]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(Some(smoltcp::time::Duration::from_micros(ACK_DELAY.as_micros() as u64)));
        socket.set_congestion_control(CongestionControl::Reno);
        let ours = config.addresses[usize::from(key.local)];
        let end = IpListenEndpoint { addr: Some(ours.into()), port: key.local_port };
        // Cannot fail: the socket is new, and the port is not zero.
        socket.listen(end).ok()?;
        let mut sockets = SocketSet::new(vec![SocketStorage::EMPTY]);
        let socket = sockets.add(socket);
        // Repeats the peer's handshake with smoltcp, so that the smoltcp socket is connected.
        stack.take_up_syn(key, ours, opening.sequence, opening.mss, opening.window);
        stack.replies.begin(0, 1);
        stack.put_in(&mut sockets, now);
        stack.take_out(&mut sockets, now);
        let answer = if stack.replies.len() == 1 { stack.replies.frame(0) } else { return None };
        let tcp = if ours.is_ipv4() { ipv4::BYTES } else { ipv6::BYTES };
        let initial = be32(answer, tcp + 4);
        let shift = opening.cookie.wrapping_sub(initial);
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
            read_to: opening.sequence.wrapping_add(1),
            written_to: initial.wrapping_add(1),
            heard: now,
            due: Timestamp::from_nanos(u64::MAX),
            behind: 0,
            counted,
        }))
    }

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
            let acknowledged = be32(packet, at).wrapping_sub(shift);
            packet[at..at + 4].copy_from_slice(&acknowledged.to_be_bytes());
        });
        stack.put_in(&mut self.sockets, now);
        self.serve(counts);
        stack.take_out(&mut self.sockets, now);
    }

    /// Returns true for a segment that gets only a challenge ACK (RFC 9293, 3.10.7.4): a SYN, or a
    /// reset in the window without exactly the expected sequence number. With challenge ACKs, a
    /// stranger cannot end the connection. A peer that lost its state answers a challenge ACK with
    /// a reset that has the expected number.
    pub(super) fn is_challenged(&mut self, tcp: &Tcp) -> bool {
        let read_to = self.read_to;
        let socket = self.socket();
        let has_fin = matches!(socket.state(), State::CloseWait | State::Closing | State::LastAck | State::TimeWait);
        let next = read_to.wrapping_add(socket.recv_queue() as u32 + u32::from(has_fin));
        let window = (socket.recv_capacity() - socket.recv_queue()) as u32;
        tcp.has(SYN) || tcp.has(RST) && (1..window).contains(&tcp.sequence.wrapping_sub(next))
    }

    pub(super) fn challenge(&mut self, stack: &mut Stack, key: &Key, ours: IpAddr, now: Timestamp) {
        // The responder's FIN may already use the sequence number after the written bytes.
        stack.take_up_unacceptable(key, ours, self.written_to.wrapping_add(2));
        stack.put_in(&mut self.sockets, now);
        stack.take_out(&mut self.sockets, now);
    }

    /// Sends retransmissions, and resets the connection if the peer was silent for too long.
    pub(super) fn look(&mut self, stack: &mut Stack, now: Timestamp, idle: Duration, counts: &mut Responded) {
        if now.since(self.heard) >= idle {
            self.counted.end = End::Idle;
            self.socket().abort();
        } else {
            self.serve(counts);
        }
        stack.take_out(&mut self.sockets, now);
    }

    pub(super) fn next_look(&self, stack: &mut Stack, now: Timestamp, idle: Duration) -> Timestamp {
        let idle = self.heard + idle;
        stack.due(&self.sockets, now).map_or(idle, |due| due.min(idle))
    }

    pub(super) fn shift(&self) -> u32 {
        self.shift
    }

    /// Returns true if the connection is closed, so that a SYN begins a new connection.
    pub(super) fn is_over(&mut self) -> bool {
        self.socket().state() == State::Closed
    }

    pub(super) fn lingers(&mut self) -> bool {
        matches!(self.socket().state(), State::TimeWait | State::Closed)
    }

    /// Sets the reason for the end of the connection, unless a reason was set before.
    pub(super) fn end(mut self, end: End) {
        if self.counted.end == End::Lost {
            self.counted.end = end;
        }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.socket)
    }

    fn serve(&mut self, counts: &mut Responded) {
        let Self { sockets, socket, lacks, owes, .. } = self;
        let socket: &mut Socket<'static> = sockets.get_mut(*socket);
        let before = (counts.tcp_bytes_in, counts.tcp_bytes_out);
        match self.service {
            Service::Echo => echo(socket, counts),
            Service::RequestResponse { request, response } => {
                respond(socket, (request, response), (lacks, owes), counts)
            }
        }
        self.read_to = self.read_to.wrapping_add((counts.tcp_bytes_in - before.0) as u32);
        self.written_to = self.written_to.wrapping_add((counts.tcp_bytes_out - before.1) as u32);
        if socket.state() == State::CloseWait && *owes == 0 && socket.recv_queue() == 0 {
            socket.close();
        }
    }
}

/// Bytes that do not fit into the send buffer stay in the socket's receive buffer, so that the peer
/// has to wait.
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

// `CONNECTION_OVERHEAD_BYTES` also includes entries in tables and timers.
const _: () =
    assert!(size_of::<Connection>() + size_of::<SocketStorage<'static>>() <= CONNECTION_OVERHEAD_BYTES * 3 / 4);
