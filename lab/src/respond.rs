//! Replies to packets as a host with its own addresses: ARP, neighbour discovery, ICMP echo, UDP
//! and TCP echo, and TCP requests. The CPU to which steerage steers a packet sends the reply.
//!
//! The page lab/notes/respond.md lists the packets that the host accepts, and the replies to them.
//! This file contains the path of a packet through the host.
//!
//! | file | contents |
//! |---|---|
//! | `packet` | reads a packet, and finds packets that are not for this host |
//! | `in_place` | stateless answers, written into the packet that asked |
//! | `cookie` | the answer to a SYN, without state |
//! | `table` | this CPU's connections by bucket, and the times of their checks |
//! | `connection`, `stack` | a connection: smoltcp's socket, and the service on it |
//! | `neighbour` | checks neighbour solicitations |
//! | `peers` | the number of connections, in all and of each peer, and its limits |
//! | `refusals` | recently refused connections, so that each counts once |
//! | `counts` | counts of packets and connections |

mod config;
mod connection;
mod cookie;
mod counts;
mod in_place;
mod neighbour;
mod packet;
mod peers;
mod refusals;
mod stack;
mod table;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use steerage::flow::wire::protocol;
use steerage::flow::wire::tcp::{self, ACK, FIN, RST, SYN};
use steerage::{Batch, BucketId, Cpu, Handler, NoRoom, Packet, Timestamp, TxId};

use connection::{Connection, Opening};
use cookie::{Cookies, Read};
use counts::Shared;
use in_place::Says;
use packet::{Held, Ip, Key, Tcp};
use peers::Connections;
use refusals::Refusals;
use stack::Stack;
use table::Table;

pub use config::{
    ADDRESSES_MAX, BUFFER_DEFAULT, BUFFER_MAX, BUFFER_MIN, CONNECTIONS_DEFAULT, Config, ConfigError, ECHO_PORT,
    IDLE_DEFAULT, Service,
};
pub use counts::{End, Fate, Responded};

/// The first output of the steerage instance must be the device on which packets arrive.
const OUTPUT: TxId = TxId(0);

/// The longest time between two checks for expired timers of connections. After a connection has
/// moved to this CPU, its timers wait for this check, because a move schedules no tick (timer
/// call).
const LOOK: Duration = Duration::from_millis(500);

/// The maximum number of connections that are checked in one tick (timer call), while packets wait.
const LOOKS_MAX: usize = 64;

/// The responder's state, which all CPUs and the controlling program share.
///
/// ```
/// use steerage_lab::respond::{Config, Responding};
///
/// let (addresses, mac) = (vec!["192.0.2.7".parse()?], [2, 0, 0, 0, 0, 7]);
/// let config = Config::new(addresses, mac, 1500)?.request_response(80, 1, 100)?;
/// let responding = Responding::new(config);
///
/// let handlers = std::sync::Arc::clone(&responding);
/// steerage::testing::run(move |_cpu| handlers.handler(), [[0; 60]]);
/// println!("{:?}", responding.so_far());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Responding {
    config: Config,
    cookies: Cookies,
    connections: Arc<Connections>,
    counts: Mutex<Vec<Arc<Shared>>>,
}

impl Responding {
    /// Creates a responder without connections.
    pub fn new(config: Config) -> Arc<Self> {
        let (cookies, connections) = (Cookies::default(), Arc::default());
        Arc::new(Self { config, cookies, connections, counts: Mutex::default() })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the sum of all CPUs' counts so far.
    pub fn so_far(&self) -> Responded {
        let mut all = Responded::default();
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.iter().for_each(|counts| counts.add_to(&mut all));
        self.connections.add_to(&mut all);
        all
    }

    /// Creates a handler for one CPU. The instance must steer by the flow hash, and must allow some
    /// hundreds of new packets per batch ([`originated_max`](steerage::Builder::originated_max)).
    /// The instance's first output must be the device on which packets arrive.
    pub fn handler(self: &Arc<Self>) -> Respond {
        let counts = Arc::default();
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&counts));
        Respond {
            stack: Stack::new(&self.config),
            cookies: self.cookies.clone(),
            shared: Arc::clone(self),
            table: Table::default(),
            refusals: Refusals::default(),
            counts,
            counted: Responded::default(),
            whole: Vec::new(),
            batch: 0,
        }
    }
}

/// The handler that replies to packets. [`Responding::handler`] creates a `Respond`.
#[derive(Debug)]
pub struct Respond {
    shared: Arc<Responding>,
    stack: Stack,
    cookies: Cookies,
    table: Table,
    refusals: Refusals,
    counts: Arc<Shared>,
    counted: Responded,
    /// A merged packet is copied into this contiguous buffer.
    whole: Vec<u8>,
    batch: u64,
}

/// The connections of one bucket (a group of flows) that moves to another CPU.
#[derive(Debug)]
pub struct Moved(table::Bucket);

impl Handler for Respond {
    type Moved = Moved;
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, cpu: &mut Cpu) {
        self.batch += 1;
        for packet in batch.iter_mut() {
            let fate = self.answer(packet, cpu);
            self.counted.count(fate);
        }
        if let Some(due) = self.table.due() {
            cpu.tick_by(due);
        }
        self.counts.show(&self.counted);
    }

    fn tick(&mut self, cpu: &mut Cpu) -> Option<Timestamp> {
        let idle = self.shared.config.idle;
        for _ in 0..LOOKS_MAX {
            let Some((bucket, key)) = self.table.take_due(cpu.now()) else { break };
            let Some(connection) = self.table.get(bucket, &key) else { continue };
            self.stack.replies.begin(connection.at, cpu.sends_left());
            connection.look(&mut self.stack, cpu.now(), idle, &mut self.counted);
            let _ = send_all(&mut self.stack, connection, &self.shared.config, cpu, 0);
            self.settle(bucket, &key, cpu.now(), false);
        }
        self.counts.show(&self.counted);
        let look = cpu.now() + LOOK;
        Some(self.table.due().map_or(look, |due| due.min(look)))
    }

    fn bucket_leaves(&mut self, bucket: BucketId) -> Option<Moved> {
        self.table.take(bucket).map(Moved)
    }

    fn bucket_arrives(&mut self, bucket: BucketId, state: Moved) {
        self.table.put(bucket, state.0);
    }

    fn finish(mut self, _cpu: &mut Cpu) {
        self.table.drain().for_each(|connection| connection.end(End::Stopped));
    }
}

fn send_all(
    stack: &mut Stack,
    connection: &Connection,
    config: &Config,
    cpu: &mut Cpu,
    nth: usize,
) -> Result<(), NoRoom> {
    let link = if connection.at > 0 { steerage::LinkType::ETHERNET } else { steerage::LinkType::RAW };
    for nth in nth..stack.replies.len() {
        let frame = stack.replies.frame(nth);
        in_place::finish_frame(frame, connection.at, connection.peer, config, connection.shift());
        cpu.send(OUTPUT, link, frame)?;
    }
    Ok(())
}

enum Then {
    Transmit,
    Discard,
    Leave,
}

impl Respond {
    fn answer(&mut self, mut packet: Packet<'_>, cpu: &mut Cpu) -> Fate {
        let (fate, then) = match self.answer_to(&mut packet, cpu) {
            Ok(done) => done,
            Err(Fate::NotOurs) => (Fate::NotOurs, Then::Leave),
            Err(fate) => (fate, Then::Discard),
        };
        match then {
            Then::Transmit => packet.transmit(OUTPUT),
            Then::Discard => packet.discard(),
            Then::Leave => {}
        }
        fate
    }

    /// Handles merged TCP segments as one long segment, as the kernel does.
    fn answer_to(&mut self, packet: &mut Packet<'_>, cpu: &mut Cpu) -> Result<(Fate, Then), Fate> {
        if !packet.offload().is_some_and(|offload| offload.is_super_frame()) {
            return self.answer_whole(packet, None, cpu);
        }
        self.counted.merged += packet.parts().map_or(0, Iterator::count).saturating_sub(1) as u64;
        let mut whole = std::mem::take(&mut self.whole);
        whole.clear();
        packet.segments().for_each(|part| whole.extend_from_slice(part));
        let answered = self.answer_whole(packet, Some(&whole), cpu);
        self.whole = whole;
        answered
    }

    /// `whole` is the contiguous copy of a merged packet, whose checksums were verified before.
    fn answer_whole(
        &mut self,
        packet: &mut Packet<'_>,
        whole: Option<&[u8]>,
        cpu: &mut Cpu,
    ) -> Result<(Fate, Then), Fate> {
        let config = &self.shared.config;
        let received = packet.received();
        let (frame, wire_len) = whole.map_or((received.data, received.wire_len), |whole| (whole, whole.len()));
        let ip = match packet::read(frame, received.link, wire_len, config)? {
            Held::Arp => return in_place::arp(packet, config).map(|fate| (fate, Then::Transmit)),
            Held::Ip(ip) => ip,
        };
        let answered = match (ip.protocol, ip.is_v4, ip.local) {
            (protocol::TCP, _, Some(local)) => return self.tcp((packet, whole), &ip, local, cpu),
            (protocol::UDP, _, _) => in_place::udp(packet, whole, &ip, config),
            (protocol::ICMP, true, _) | (protocol::ICMP6, false, _) => in_place::icmp(packet, &ip, config),
            (_, _, None) => Err(Fate::NotOurs),
            _ => Err(Fate::Unserved),
        };
        answered.map(|fate| (fate, Then::Transmit))
    }

    fn tcp(
        &mut self,
        (packet, whole): (&mut Packet<'_>, Option<&[u8]>),
        ip: &Ip,
        local: u8,
        cpu: &mut Cpu,
    ) -> Result<(Fate, Then), Fate> {
        // `Packet::bucket` may hash the packet's headers, so the packet must not be changed before.
        let bucket = packet.bucket();
        let frame = whole.unwrap_or_else(|| packet.data());
        let tcp = Tcp::read(&frame[ip.payload..ip.end])?;
        if self.shared.config.verifies && whole.is_none() && !ip.checksum_is_valid(frame, true) {
            return Err(Fate::BadChecksum);
        }
        let key = ip.key(frame, local);
        if let Some(connection) = self.table.get(bucket, &key) {
            // A SYN replaces a connection that is closed or in TIME-WAIT: RFC 9293, 3.6.1.
            if !(tcp.has(SYN) && tcp.has_none_of(ACK) && connection.lingers()) {
                return self.receive((packet, whole), ip, &tcp, (bucket, &key), cpu);
            }
            self.table.remove(bucket, &key).into_iter().for_each(|connection| connection.end(End::Closed));
        }
        if tcp.has(RST) {
            return Err(Fate::Stray);
        }
        let service = self.shared.config.service(key.local_port);
        let connections = &self.shared.connections;
        let is_full = || connections.are_full(&self.shared.config, connections.peer(&key));
        let now_seconds = cpu.now().as_nanos() / 1_000_000_000;
        match service {
            Some(_) if tcp.has(SYN) && tcp.has_none_of(ACK | FIN) => {
                if is_full() {
                    self.counted.refused += u64::from(self.refusals.note(&key, tcp.sequence));
                    return self.say(packet, ip, &tcp, &Says::Reset, Fate::Reset);
                }
                let says = self.welcome(frame, ip, &tcp, &key, now_seconds);
                self.say(packet, ip, &tcp, &says, Fate::Syn)
            }
            Some(service) if tcp.has(ACK) && tcp.has_none_of(SYN) => {
                let (sequence, cookie) = (tcp.sequence.wrapping_sub(1), tcp.acknowledged.wrapping_sub(1));
                match self.cookies.read(&key, sequence, cookie, now_seconds) {
                    Read::First { mss } => {
                        let opening = Opening { sequence, cookie, mss, window: tcp.window, service };
                        let opened = Connection::open(
                            &self.shared.config,
                            &self.shared.connections,
                            &mut self.stack,
                            &key,
                            &opening,
                            cpu.now(),
                        );
                        let Some(connection) = opened else {
                            self.counted.refused += u64::from(self.refusals.note(&key, sequence));
                            return self.say(packet, ip, &tcp, &Says::Reset, Fate::Reset);
                        };
                        self.table.insert(bucket, key, connection);
                        self.receive((packet, whole), ip, &tcp, (bucket, &key), cpu)
                    }
                    Read::Later => Err(Fate::Early),
                    Read::Not => self.say(packet, ip, &tcp, &Says::Reset, Fate::Reset),
                }
            }
            // A listening port ignores a segment that has neither ACK nor RST and cannot begin a
            // connection: RFC 9293, 3.10.7.2. Linux also ignores a SYN with a FIN.
            Some(_) if tcp.has_none_of(ACK) => Err(Fate::Stray),
            _ => self.say(packet, ip, &tcp, &Says::Reset, Fate::Reset),
        }
    }

    fn welcome(&self, frame: &[u8], ip: &Ip, tcp: &Tcp, key: &Key, now_seconds: u64) -> Says {
        let config = &self.shared.config;
        let options = &frame[ip.payload + tcp::BYTES..ip.payload + tcp.bytes];
        // The default MSS of a peer without an MSS option: RFC 9293, 3.7.1.
        let theirs = packet::mss_of(options).unwrap_or(if ip.is_v4 { 536 } else { 1220 });
        let mss = (config.mtu - stack::headers(ip.is_v4)) as u16;
        let cookie = self.cookies.make(key, tcp.sequence, theirs, now_seconds);
        Says::Welcome { cookie, mss, window: config.buffer as u16 }
    }

    fn say(&self, packet: &mut Packet<'_>, ip: &Ip, tcp: &Tcp, says: &Says, fate: Fate) -> Result<(Fate, Then), Fate> {
        in_place::tcp(packet, ip, tcp, says, &self.shared.config).map_err(|_| Fate::NoRoom)?;
        Ok((fate, Then::Transmit))
    }

    fn receive(
        &mut self,
        (packet, whole): (&mut Packet<'_>, Option<&[u8]>),
        ip: &Ip,
        tcp: &Tcp,
        (bucket, key): (BucketId, &Key),
        cpu: &mut Cpu,
    ) -> Result<(Fate, Then), Fate> {
        let config = &self.shared.config;
        let Some(connection) = self.table.get(bucket, key) else { return Err(Fate::Stray) };
        let frame = whole.unwrap_or_else(|| packet.data());
        connection.at = ip.at;
        if ip.at > 0 {
            connection.peer.copy_from_slice(&frame[6..12]);
        }
        let is_behind = connection.behind == self.batch;
        let in_place = usize::from(!is_behind);
        let room = cpu.sends_left() + in_place;
        if room == 0 {
            return Err(Fate::NoRoom);
        }
        self.stack.replies.begin(ip.at, room);
        let payload = ip.payload - ip.at;
        if connection.is_challenged(tcp) {
            connection.challenge(&mut self.stack, key, config.addresses[usize::from(key.local)], cpu.now());
        } else {
            connection.receive(&mut self.stack, &frame[ip.at..ip.end], payload, cpu.now(), &mut self.counted);
        }
        let replies = self.stack.replies.len();
        let mut then = Then::Discard;
        let mut next = 0;
        if replies > 0 && !is_behind {
            let frame = self.stack.replies.frame(0);
            in_place::finish_frame(frame, ip.at, connection.peer, config, connection.shift());
            if in_place::replace(packet, frame).is_ok() {
                (then, next) = (Then::Transmit, 1);
            }
        }
        if next < replies {
            // Later replies in the batch must not overtake the packets that `send_all` sends.
            connection.behind = self.batch;
            // A packet for which the output has no space is lost, and TCP sends the data again.
            let _ = send_all(&mut self.stack, connection, config, cpu, next);
        }
        self.settle(bucket, key, cpu.now(), tcp.has(RST));
        Ok((Fate::Tcp, then))
    }

    fn settle(&mut self, bucket: BucketId, key: &Key, now: Timestamp, was_reset: bool) {
        let Some(connection) = self.table.get(bucket, key) else { return };
        if connection.is_over() {
            let end = if was_reset { End::Aborted } else { End::Closed };
            self.table.remove(bucket, key).into_iter().for_each(|connection| connection.end(end));
            return;
        }
        let due = connection.next_look(&mut self.stack, now, self.shared.config.idle);
        self.table.look_by(bucket, key, due);
    }
}
