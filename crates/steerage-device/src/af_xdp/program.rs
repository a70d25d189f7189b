//! The XDP program, which sends wanted frames to the AF_XDP socket of their queue, and counts
//! wanted and other frames. The program changes nothing except for metadata in front of the frame,
//! and drops no frames.

use steerage::flow::wire::{ethernet, ethertype, icmp6, ipv4, ipv6, protocol, vlan};

use super::assembler::{Assembler, FRAME, Instruction, Label, R0, R1, R2, R3, R6, R7, R8, R9, Register, Size, When};
use super::compile::{ARP, FrameTests, HAS_PORTS, IPV4, IPV6, NEIGHBOUR_DISCOVERY, choose};
use super::metadata::{Functions, HAS_HASH, HAS_TAG, HAS_TIME, HASH_AT, MARK, MARK_AT, META_BYTES, TAG_AT, TIME_AT};
use super::take::{Prefix, Take, Way};

/// The maximum number of IPv6 extension headers that the program skips to find the ports. RFC 8200,
/// 4.1, lists a use for up to seven extension headers, but packets with more than two extension
/// headers do not occur in practice.
pub(super) const EXTENSIONS_MAX: usize = 4;
/// The maximum number of VLAN tags: an outer and an inner VLAN tag (IEEE 802.1ad).
pub(super) const TAGS_MAX: usize = 2;

// Offsets on the BPF stack, from the frame pointer.
const KIND: i16 = -4;
const PROTOCOL: i16 = -8;
const PORTS: [i16; 2] = [-12, -16];
const ADDRESSES: [i16; 2] = [-32, -48];
const KEY: i16 = -52;
const HASH: i16 = -56;
const HASH_TYPE: i16 = -60;
const QUEUE: i16 = -64;
const TAG: i16 = -68;
const TIME: i16 = -80;

// Offsets in `struct xdp_md`.
const CTX_DATA: i16 = 0;
const CTX_DATA_END: i16 = 4;
const CTX_DATA_META: i16 = 8;
const CTX_INTERFACE: i16 = 12;
const CTX_QUEUE: i16 = 16;

// `enum xdp_action` and `enum bpf_func_id`.
const XDP_PASS: i32 = 2;
const XDP_REDIRECT: u32 = 4;
const MAP_LOOKUP: i32 = 1;
const REDIRECT_MAP: i32 = 51;
const ADJUST_META: i32 = 54;

/// The frame is a fragment, or may be a fragment because it has more extension headers than the
/// program reads. A card may give the fragments of a datagram different hashes.
const FRAGMENT: u32 = 32;
/// The frame belongs to a "slow protocol" of a link, such as LACP.
const SLOW_PROTOCOL: u32 = 64;

/// The IPv6 extension headers that encode their length in the same way.
pub(super) const IPV6_OPTIONS: [u8; 3] = [protocol::HOP_BY_HOP, protocol::ROUTING, protocol::DESTINATION];
pub(super) const WITH_PORTS: [u8; 5] =
    [protocol::TCP, protocol::UDP, protocol::DCCP, protocol::SCTP, protocol::UDP_LITE];

#[derive(Clone, Copy, Debug)]
pub(super) struct Maps<'a> {
    pub(super) sockets: i32,
    /// The ports of the bond. Empty if the interface is not a bond. A queue's key in the maps is
    /// the key of the first queue of its port, plus the queue's number on the port.
    pub(super) ports: &'a Ports,
    /// The file descriptor of the map that has, for each port that joins the bond later, the key of
    /// the port's first queue.
    pub(super) new_ports: Option<i32>,
    /// The file descriptor of the map of counters. For queue q, counter 2q counts the frames that
    /// the program takes, and counter 2q + 1 the frames that the program leaves to the kernel.
    pub(super) counters: i32,
    pub(super) functions: Functions,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Ports {
    pub(super) interfaces: Vec<u32>,
    /// The number of ports for which the maps have room.
    pub(super) places: u32,
    pub(super) queues: u32,
}

pub(super) fn program(take: &Take, maps: Maps<'_>) -> Option<Vec<Instruction>> {
    let mut asm = Assembler::default();
    let decide = asm.label();
    asm.copy(R6, R1);
    parse(&mut asm, decide);
    asm.bind(decide);
    let (taken, passed, count) = (asm.label(), asm.label(), asm.label());
    number_queue(&mut asm, maps, passed);
    if !maps.ports.interfaces.is_empty() {
        // The kernel's bond itself needs the frames of LACP.
        asm.load(Size::Word, R1, FRAME, KIND);
        asm.jump_if(R1, When::AnyOf, SLOW_PROTOCOL, passed);
    }
    asm.load(Size::Word, R9, FRAME, KIND);
    choose(&mut asm, take, taken, passed);
    asm.bind(taken);
    if maps.functions.any() {
        note_metadata(&mut asm, maps.functions);
    }
    redirect(&mut asm, maps.sockets);
    asm.jump(count);
    asm.bind(passed);
    asm.set(R9, XDP_PASS);
    asm.bind(count);
    count_action(&mut asm, maps.counters);
    asm.copy(R0, R9);
    asm.exit();
    asm.finish()
}

/// Stores the key of the frame's queue on the stack. A frame from an interface that is not a port
/// of the bond goes to `passed`, and counts as a frame of the first queue.
fn number_queue(asm: &mut Assembler, maps: Maps<'_>, passed: Label) {
    let ports = maps.ports;
    asm.load(Size::Word, R2, R6, CTX_QUEUE);
    if !ports.interfaces.is_empty() {
        let (known, unknown) = (asm.label(), asm.label());
        asm.jump_if(R2, When::Above, ports.queues - 1, unknown);
        asm.load(Size::Word, R1, R6, CTX_INTERFACE);
        for port in &ports.interfaces {
            asm.jump_if(R1, When::Equal, *port, known);
            asm.add(R2, ports.queues as i32);
        }
        if let Some(new_ports) = maps.new_ports {
            asm.store(Size::Word, FRAME, KEY, R1);
            asm.load_map(R1, new_ports);
            place(asm, R2, KEY);
            asm.call(MAP_LOOKUP);
            asm.jump_if_null(R0, unknown);
            asm.load(Size::Word, R2, R0, 0);
            asm.load(Size::Word, R1, R6, CTX_QUEUE);
            asm.add_register(R2, R1);
            asm.jump(known);
        }
        asm.bind(unknown);
        asm.store_number(Size::Word, FRAME, QUEUE, 0);
        asm.jump(passed);
        asm.bind(known);
    }
    asm.store(Size::Word, FRAME, QUEUE, R2);
}

const fn half(network: u16) -> u32 {
    u16::from_ne_bytes(network.to_be_bytes()) as u32
}

fn require(asm: &mut Assembler, bytes: i32, otherwise: Label) {
    asm.copy(R1, R7);
    asm.add(R1, bytes);
    asm.jump_if_above(R1, R8, otherwise);
}

/// R6 points to the context, R7 to the current position in the frame, and R8 to the end of the
/// frame. Jumps to `decide` when all headers are read.
fn parse(asm: &mut Assembler, decide: Label) {
    asm.load(Size::Word, R7, R6, CTX_DATA);
    asm.load(Size::Word, R8, R6, CTX_DATA_END);
    asm.set(R1, 0);
    for at in (-48..0).step_by(8) {
        asm.store(Size::Double, FRAME, at, R1);
    }
    require(asm, ethernet::BYTES as i32, decide);
    asm.load(Size::Half, R9, R7, 12);
    asm.add(R7, ethernet::BYTES as i32);
    let tagged_no_more = asm.label();
    for _ in 0..TAGS_MAX {
        let tagged = asm.label();
        asm.jump_if(R9, When::Equal, half(ethertype::VLAN), tagged);
        asm.jump_if(R9, When::NotEqual, half(ethertype::VLAN_SERVICE), tagged_no_more);
        asm.bind(tagged);
        require(asm, vlan::BYTES as i32, decide);
        asm.load(Size::Half, R9, R7, 2);
        asm.add(R7, vlan::BYTES as i32);
    }
    asm.bind(tagged_no_more);
    let (ipv4, ipv6, transport) = (asm.label(), asm.label(), asm.label());
    asm.jump_if(R9, When::Equal, half(ethertype::IPV4), ipv4);
    asm.jump_if(R9, When::Equal, half(ethertype::IPV6), ipv6);
    let arp = asm.label();
    asm.jump_if(R9, When::Equal, half(ethertype::ARP), arp);
    asm.jump_if(R9, When::NotEqual, half(ethertype::SLOW_PROTOCOLS), decide);
    asm.store_number(Size::Word, FRAME, KIND, SLOW_PROTOCOL);
    asm.jump(decide);
    asm.bind(arp);
    asm.store_number(Size::Word, FRAME, KIND, ARP);
    asm.jump(decide);
    asm.bind(ipv4);
    parse_ipv4(asm, transport, decide);
    asm.bind(ipv6);
    parse_ipv6(asm, transport, decide);
    asm.bind(transport);
    parse_transport(asm, decide);
}

fn parse_ipv4(asm: &mut Assembler, transport: Label, decide: Label) {
    require(asm, ipv4::BYTES as i32, decide);
    asm.store_number(Size::Word, FRAME, KIND, IPV4);
    asm.load(Size::Byte, R9, R7, 9);
    asm.store(Size::Word, FRAME, PROTOCOL, R9);
    for (to, from) in ADDRESSES.into_iter().zip([12, 16]) {
        asm.load(Size::Word, R1, R7, from);
        asm.store(Size::Word, FRAME, to, R1);
    }
    // Ports of fragments are ignored, so that all fragments of a datagram stay together.
    asm.load(Size::Half, R1, R7, 6);
    let (fragment, whole) = (asm.label(), asm.label());
    asm.jump_if(R1, When::AnyOf, half(ipv4::FRAGMENT), fragment);
    asm.jump(whole);
    asm.bind(fragment);
    asm.store_number(Size::Word, FRAME, KIND, IPV4 | FRAGMENT);
    asm.jump(decide);
    asm.bind(whole);
    asm.load(Size::Byte, R1, R7, 0);
    asm.and(R1, 0xf);
    asm.shift_left(R1, 2);
    asm.jump_if(R1, When::Below, ipv4::BYTES as u32, decide);
    asm.add_register(R7, R1);
    asm.jump(transport);
}

fn parse_ipv6(asm: &mut Assembler, transport: Label, decide: Label) {
    require(asm, ipv6::BYTES as i32, decide);
    asm.store_number(Size::Word, FRAME, KIND, IPV6);
    asm.load(Size::Byte, R9, R7, 6);
    asm.store(Size::Word, FRAME, PROTOCOL, R9);
    for (to, from) in ADDRESSES.into_iter().zip([8, 24]) {
        for word in (0..16).step_by(4) {
            asm.load(Size::Word, R1, R7, from + word);
            asm.store(Size::Word, FRAME, to + word, R1);
        }
    }
    asm.add(R7, ipv6::BYTES as i32);
    for _ in 0..EXTENSIONS_MAX {
        let (options, next) = (asm.label(), asm.label());
        for kind in IPV6_OPTIONS {
            asm.jump_if(R9, When::Equal, kind.into(), options);
        }
        asm.jump_if(R9, When::NotEqual, protocol::FRAGMENT.into(), transport);
        asm.store_number(Size::Word, FRAME, KIND, IPV6 | FRAGMENT);
        require(asm, 8, decide);
        asm.load(Size::Byte, R9, R7, 0);
        asm.store(Size::Word, FRAME, PROTOCOL, R9);
        asm.load(Size::Half, R1, R7, 2);
        asm.jump_if(R1, When::AnyOf, half(ipv6::OFFSET | ipv6::MORE_FRAGMENTS), decide);
        asm.add(R7, 8);
        asm.jump(next);
        asm.bind(options);
        require(asm, 8, decide);
        asm.load(Size::Byte, R9, R7, 0);
        asm.store(Size::Word, FRAME, PROTOCOL, R9);
        asm.load(Size::Byte, R1, R7, 1);
        asm.add(R1, 1);
        asm.shift_left(R1, 3);
        asm.add_register(R7, R1);
        asm.bind(next);
    }
    asm.store_number(Size::Word, FRAME, KIND, IPV6 | FRAGMENT);
    // If there are more extension headers than the program skips, R7 does not point to ports.
}

fn parse_transport(asm: &mut Assembler, decide: Label) {
    let ports = asm.label();
    for protocol in WITH_PORTS {
        asm.jump_if(R9, When::Equal, protocol.into(), ports);
    }
    asm.jump_if(R9, When::NotEqual, protocol::ICMP6.into(), decide);
    asm.load(Size::Word, R2, FRAME, KIND);
    asm.jump_if(R2, When::AnyOf, IPV4, decide);
    require(asm, 1, decide);
    asm.load(Size::Byte, R1, R7, 0);
    asm.jump_if(R1, When::Below, icmp6::ROUTER_SOLICITATION.into(), decide);
    asm.jump_if(R1, When::Above, icmp6::REDIRECT.into(), decide);
    asm.store_number(Size::Word, FRAME, KIND, IPV6 | NEIGHBOUR_DISCOVERY);
    asm.jump(decide);
    asm.bind(ports);
    require(asm, 4, decide);
    for (to, from) in PORTS.into_iter().zip([0, 2]) {
        asm.load(Size::Half, R1, R7, from);
        asm.half_to_host(R1);
        asm.store(Size::Word, FRAME, to, R1);
    }
    asm.load(Size::Word, R1, FRAME, KIND);
    asm.add(R1, HAS_PORTS as i32);
    asm.store(Size::Word, FRAME, KIND, R1);
}

/// R9 contains the frame's properties.
impl FrameTests for Assembler {
    type Label = Label;

    fn label(&mut self) -> Label {
        Self::label(self)
    }

    fn bind(&mut self, label: Label) {
        Self::bind(self, label);
    }

    fn jump(&mut self, to: Label) {
        Self::jump(self, to);
    }

    fn jump_if_any(&mut self, properties: u32, to: Label) {
        self.jump_if(R9, When::AnyOf, properties, to);
    }

    fn require_any(&mut self, properties: u32, otherwise: Label) {
        let yes = self.label();
        self.jump_if(R9, When::AnyOf, properties, yes);
        self.jump(otherwise);
        self.bind(yes);
    }

    fn require_protocol(&mut self, protocol: u8, otherwise: Label) {
        self.load(Size::Word, R1, FRAME, PROTOCOL);
        self.jump_if(R1, When::NotEqual, protocol.into(), otherwise);
    }

    fn require_port(&mut self, way: Way, (first, last): (u16, u16), otherwise: Label) {
        self.load(Size::Word, R1, FRAME, PORTS[way as usize]);
        self.jump_if(R1, When::Below, first.into(), otherwise);
        self.jump_if(R1, When::Above, last.into(), otherwise);
    }

    fn require_prefix(&mut self, way: Way, prefix: &Prefix, otherwise: Label) {
        for (word, (value, mask)) in (0..).zip(prefix.words()).filter(|(_, (_, mask))| *mask != 0) {
            self.load(Size::Word, R1, FRAME, ADDRESSES[way as usize] + 4 * word);
            self.and(R1, mask);
            self.jump_if(R1, When::NotEqual, value, otherwise);
        }
    }

    /// A jump that is never taken: the kernel requires that each instruction of a program is
    /// reachable.
    fn require_nothing(&mut self, otherwise: Label) {
        self.jump_if(R9, When::Below, 0, otherwise);
    }
}

/// Writes the card's metadata in front of the frame (see [`metadata`](super::metadata)), if the
/// kernel has left enough room. Fragments and packets other than IP get no hash: steerage computes
/// their hash later. R9 contains the frame's properties, and R8 the mark.
fn note_metadata(asm: &mut Assembler, functions: Functions) {
    let none = asm.label();
    asm.load(Size::Word, R9, FRAME, KIND);
    asm.copy(R1, R6);
    asm.set(R2, -(META_BYTES as i32));
    asm.call(ADJUST_META);
    asm.jump_if(R0, When::NotEqual, 0, none);
    asm.load(Size::Word, R7, R6, CTX_DATA_META);
    asm.load(Size::Word, R8, R6, CTX_DATA);
    require(asm, META_BYTES as i32, none);
    for at in (0..META_BYTES as i16).step_by(4) {
        asm.store_number(Size::Word, R7, at, 0);
    }
    asm.set(R8, MARK as i32);
    if let Some(function) = functions.time {
        let unknown = asm.label();
        asm.store_number(Size::Double, FRAME, TIME, 0);
        asm.copy(R1, R6);
        place(asm, R2, TIME);
        asm.call_kernel(function);
        asm.jump_if(R0, When::NotEqual, 0, unknown);
        asm.load(Size::Double, R1, FRAME, TIME);
        // The time is 0 if the card has not stamped the frame.
        asm.jump_if_null(R1, unknown);
        asm.store(Size::Double, R7, TIME_AT, R1);
        asm.add(R8, HAS_TIME as i32);
        asm.bind(unknown);
    }
    if let Some(function) = functions.tag {
        let untagged = asm.label();
        asm.store_number(Size::Word, FRAME, TAG, 0);
        asm.copy(R1, R6);
        place(asm, R2, TAG);
        place(asm, R3, TAG + 2);
        asm.call_kernel(function);
        asm.jump_if(R0, When::NotEqual, 0, untagged);
        asm.load(Size::Word, R1, FRAME, TAG);
        asm.store(Size::Word, R7, TAG_AT, R1);
        asm.add(R8, HAS_TAG as i32);
        asm.bind(untagged);
    }
    if let Some(function) = functions.hash {
        let (whole, unhashed) = (asm.label(), asm.label());
        asm.jump_if(R9, When::AnyOf, FRAGMENT, unhashed);
        asm.jump_if(R9, When::AnyOf, IPV4 | IPV6, whole);
        asm.jump(unhashed);
        asm.bind(whole);
        asm.store_number(Size::Word, FRAME, HASH, 0);
        asm.store_number(Size::Word, FRAME, HASH_TYPE, 0);
        asm.copy(R1, R6);
        place(asm, R2, HASH);
        place(asm, R3, HASH_TYPE);
        asm.call_kernel(function);
        asm.jump_if(R0, When::NotEqual, 0, unhashed);
        asm.load(Size::Word, R1, FRAME, HASH);
        asm.store(Size::Word, R7, HASH_AT, R1);
        asm.add(R8, HAS_HASH as i32);
        asm.bind(unhashed);
    }
    asm.store(Size::Word, R7, MARK_AT, R8);
    asm.bind(none);
}

fn place(asm: &mut Assembler, to: Register, at: i16) {
    asm.copy(to, FRAME);
    asm.add(to, at.into());
}

/// Leaves the frames of a queue without a socket to the kernel. R9 contains the resulting action.
fn redirect(asm: &mut Assembler, sockets: i32) {
    asm.load_map(R1, sockets);
    asm.load(Size::Word, R2, FRAME, QUEUE);
    asm.set(R3, XDP_PASS);
    asm.call(REDIRECT_MAP);
    asm.copy(R9, R0);
}

fn count_action(asm: &mut Assembler, counters: i32) {
    let (is_taken, out) = (asm.label(), asm.label());
    asm.load(Size::Word, R1, FRAME, QUEUE);
    asm.shift_left(R1, 1);
    asm.jump_if(R9, When::Equal, XDP_REDIRECT, is_taken);
    asm.add(R1, 1);
    asm.bind(is_taken);
    asm.store(Size::Word, FRAME, KEY, R1);
    asm.load_map(R1, counters);
    place(asm, R2, KEY);
    asm.call(MAP_LOOKUP);
    // The check for a null pointer must compare all 64 bits.
    asm.jump_if_null(R0, out);
    asm.load(Size::Double, R1, R0, 0);
    asm.add(R1, 1);
    asm.store(Size::Double, R0, 0, R1);
    asm.bind(out);
}
