//! A filter in classic BPF, with which a listening socket gets only the packets that an expression
//! selects.
//!
//! The filter reads the headers like the XDP program (`program.rs`), so that both select the same
//! packets. The filter need not skip a VLAN tag that the kernel has already removed.

use steerage::LinkType;
use steerage::flow::wire::{ethernet, ethertype, icmp6, ipv4, ipv6, protocol, vlan};
use steerage_capture::filter::{Filter, FilterError, Instruction};

use super::compile::{ARP, FrameTests, HAS_PORTS, IPV4, IPV6, NEIGHBOUR_DISCOVERY, choose};
use super::take::{Prefix, Take, Way};

// Classic BPF instructions (linux/bpf_common.h). A is the accumulator, and X the index register.
const LOAD_NUMBER: u16 = 0x00;
const STORE: u16 = 0x02;
const ADD: u16 = 0x04;
const JUMP: u16 = 0x05;
const RETURN: u16 = 0x06;
const A_TO_X: u16 = 0x07;
const ADD_X: u16 = 0x0c;
const IS_EQUAL: u16 = 0x15;
const IS_ABOVE: u16 = 0x25;
const IS_AT_LEAST: u16 = 0x35;
const IS_AT_LEAST_X: u16 = 0x3d;
const LOAD_WORD: u16 = 0x40;
const OR: u16 = 0x44;
const HAS_ANY: u16 = 0x45;
const LOAD_HALF: u16 = 0x48;
const LOAD_BYTE: u16 = 0x50;
const AND: u16 = 0x54;
const LOAD: u16 = 0x60;
const LOAD_X: u16 = 0x61;
const SHIFT_LEFT: u16 = 0x64;
const SHIFT_RIGHT: u16 = 0x74;
const LOAD_LENGTH: u16 = 0x80;

const KIND: u32 = 0;
const PROTOCOL: u32 = 1;
const PORTS: [u32; 2] = [2, 3];
const TYPE: u32 = 4;
/// The scratch memory slots that contain the offsets of the IP header and of the current header.
const IP: u32 = 5;
const HERE: u32 = 6;
const PLACES: u32 = 7;

#[derive(Clone, Copy)]
struct Label(usize);

#[derive(Default)]
struct Assembler {
    code: Vec<Instruction>,
    labels: Vec<usize>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    fn put(&mut self, code: u16, operand: u32) {
        self.code.push(Instruction { code, jump_true: 0, jump_false: 0, operand });
    }

    /// Adds a conditional jump over an unconditional jump, because a conditional jump reaches only
    /// 255 instructions.
    fn jump_if(&mut self, wanted: bool, comparison: u16, operand: u32, to: Label) {
        let (jump_true, jump_false) = if wanted { (0, 1) } else { (1, 0) };
        self.code.push(Instruction { code: comparison, jump_true, jump_false, operand });
        self.jump(to);
    }

    fn set(&mut self, place: u32, number: u32) {
        self.put(LOAD_NUMBER, number);
        self.put(STORE, place);
    }

    /// Loads from the frame, `offset` bytes after the position in the scratch memory slot `place`.
    fn read(&mut self, code: u16, place: u32, offset: u32) {
        self.put(LOAD_X, place);
        self.put(code, offset);
    }

    fn go_on(&mut self, bytes: u32) {
        self.put(LOAD, HERE);
        self.put(ADD, bytes);
        self.put(STORE, HERE);
    }

    fn require(&mut self, bytes: u32, otherwise: Label) {
        self.put(LOAD, HERE);
        self.put(ADD, bytes);
        self.put(A_TO_X, 0);
        self.put(LOAD_LENGTH, 0);
        self.jump_if(false, IS_AT_LEAST_X, 0, otherwise);
    }

    fn finish(mut self) -> Vec<Instruction> {
        for (at, to) in self.jumps {
            self.code[at].operand = (self.labels[to.0] - at - 1) as u32;
        }
        self.code
    }
}

impl FrameTests for Assembler {
    type Label = Label;

    fn label(&mut self) -> Label {
        self.labels.push(0);
        Label(self.labels.len() - 1)
    }

    fn bind(&mut self, label: Label) {
        self.labels[label.0] = self.code.len();
    }

    fn jump(&mut self, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.put(JUMP, 0);
    }

    fn jump_if_any(&mut self, properties: u32, to: Label) {
        self.put(LOAD, KIND);
        self.jump_if(true, HAS_ANY, properties, to);
    }

    fn require_any(&mut self, properties: u32, otherwise: Label) {
        self.put(LOAD, KIND);
        self.jump_if(false, HAS_ANY, properties, otherwise);
    }

    fn require_protocol(&mut self, protocol: u8, otherwise: Label) {
        self.put(LOAD, PROTOCOL);
        self.jump_if(false, IS_EQUAL, protocol.into(), otherwise);
    }

    fn require_port(&mut self, way: Way, (first, last): (u16, u16), otherwise: Label) {
        self.put(LOAD, PORTS[way as usize]);
        self.jump_if(false, IS_AT_LEAST, first.into(), otherwise);
        self.jump_if(true, IS_ABOVE, last.into(), otherwise);
    }

    fn require_prefix(&mut self, way: Way, prefix: &Prefix, otherwise: Label) {
        let at: [u32; 2] = if prefix.is_ipv6() { [8, 24] } else { [12, 16] };
        for (word, (value, mask)) in (0..).zip(prefix.words()).filter(|(_, (_, mask))| *mask != 0) {
            self.read(LOAD_WORD, IP, at[way as usize] + 4 * word);
            // Classic BPF loads numbers in network order, and XDP programs load numbers in the
            // machine's order.
            self.put(AND, u32::from_be(mask));
            self.jump_if(false, IS_EQUAL, u32::from_be(value), otherwise);
        }
    }

    fn require_nothing(&mut self, _: Label) {}
}

impl Take {
    /// Returns a filter for a socket that only listens, which selects the same packets as `self`.
    /// The frames begin with a header of the type `link`: an IP header ([`LinkType::RAW`]), or an
    /// Ethernet header for each other type. ARP and neighbour discovery are selected only if the
    /// expression names them.
    ///
    /// # Errors
    /// [`FilterError::Program`] if the filter is longer than the kernel allows.
    ///
    /// ```
    /// use steerage::LinkType;
    /// use steerage_device::af_packet::AfPacketOptions;
    /// use steerage_device::af_xdp::Take;
    ///
    /// let dns: Take = "udp port 53".parse()?;
    /// let options = AfPacketOptions::new("eth0").filter(dns.filter(LinkType::ETHERNET)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn filter(&self, link: LinkType) -> Result<Filter, FilterError> {
        let mut asm = Assembler::default();
        let (decide, taken, passed) = (asm.label(), asm.label(), asm.label());
        parse(&mut asm, link, decide);
        asm.bind(decide);
        choose(&mut asm, self, taken, passed);
        asm.bind(taken);
        asm.put(RETURN, u32::MAX);
        asm.bind(passed);
        asm.put(RETURN, 0);
        Filter::from_instructions(asm.finish())
    }
}

fn parse(asm: &mut Assembler, link: LinkType, decide: Label) {
    (0..PLACES).for_each(|place| asm.set(place, 0));
    let (is_ipv4, is_ipv6, transport) = (asm.label(), asm.label(), asm.label());
    if link == LinkType::RAW {
        asm.require(1, decide);
        asm.read(LOAD_BYTE, HERE, 0);
        asm.put(SHIFT_RIGHT, 4);
        asm.jump_if(true, IS_EQUAL, 4, is_ipv4);
        asm.jump_if(true, IS_EQUAL, 6, is_ipv6);
        asm.jump(decide);
    } else {
        parse_ethernet(asm, is_ipv4, is_ipv6, decide);
    }
    asm.bind(is_ipv4);
    parse_ipv4(asm, transport, decide);
    asm.bind(is_ipv6);
    parse_ipv6(asm, transport, decide);
    asm.bind(transport);
    parse_transport(asm, decide);
}

fn parse_ethernet(asm: &mut Assembler, is_ipv4: Label, is_ipv6: Label, decide: Label) {
    asm.require(ethernet::BYTES as u32, decide);
    asm.read(LOAD_HALF, HERE, ethernet::TYPE_AT as u32);
    asm.put(STORE, TYPE);
    asm.go_on(ethernet::BYTES as u32);
    let is_untagged = asm.label();
    for _ in 0..super::program::TAGS_MAX {
        let is_tagged = asm.label();
        asm.put(LOAD, TYPE);
        asm.jump_if(true, IS_EQUAL, ethertype::VLAN.into(), is_tagged);
        asm.jump_if(false, IS_EQUAL, ethertype::VLAN_SERVICE.into(), is_untagged);
        asm.bind(is_tagged);
        asm.require(vlan::BYTES as u32, decide);
        asm.read(LOAD_HALF, HERE, 2);
        asm.put(STORE, TYPE);
        asm.go_on(vlan::BYTES as u32);
    }
    asm.bind(is_untagged);
    asm.put(LOAD, HERE);
    asm.put(STORE, IP);
    asm.put(LOAD, TYPE);
    asm.jump_if(true, IS_EQUAL, ethertype::IPV4.into(), is_ipv4);
    asm.jump_if(true, IS_EQUAL, ethertype::IPV6.into(), is_ipv6);
    asm.jump_if(false, IS_EQUAL, ethertype::ARP.into(), decide);
    asm.set(KIND, ARP);
    asm.jump(decide);
}

fn parse_ipv4(asm: &mut Assembler, transport: Label, decide: Label) {
    asm.require(ipv4::BYTES as u32, decide);
    asm.set(KIND, IPV4);
    asm.read(LOAD_BYTE, IP, 9);
    asm.put(STORE, PROTOCOL);
    asm.put(LOAD_HALF, 6);
    asm.jump_if(true, HAS_ANY, ipv4::FRAGMENT.into(), decide);
    asm.put(LOAD_BYTE, 0);
    asm.put(AND, 0xf);
    asm.put(SHIFT_LEFT, 2);
    asm.jump_if(false, IS_AT_LEAST, ipv4::BYTES as u32, decide);
    asm.put(ADD_X, 0);
    asm.put(STORE, HERE);
    asm.jump(transport);
}

fn parse_ipv6(asm: &mut Assembler, transport: Label, decide: Label) {
    asm.require(ipv6::BYTES as u32, decide);
    asm.set(KIND, IPV6);
    asm.read(LOAD_BYTE, IP, 6);
    asm.put(STORE, PROTOCOL);
    asm.go_on(ipv6::BYTES as u32);
    for _ in 0..super::program::EXTENSIONS_MAX {
        let (options, next) = (asm.label(), asm.label());
        asm.put(LOAD, PROTOCOL);
        for kind in super::program::IPV6_OPTIONS {
            asm.jump_if(true, IS_EQUAL, kind.into(), options);
        }
        asm.jump_if(false, IS_EQUAL, protocol::FRAGMENT.into(), transport);
        asm.require(8, decide);
        asm.read(LOAD_BYTE, HERE, 0);
        asm.put(STORE, PROTOCOL);
        asm.put(LOAD_HALF, 2);
        asm.jump_if(true, HAS_ANY, (ipv6::OFFSET | ipv6::MORE_FRAGMENTS).into(), decide);
        asm.go_on(8);
        asm.jump(next);
        asm.bind(options);
        asm.require(8, decide);
        asm.read(LOAD_BYTE, HERE, 0);
        asm.put(STORE, PROTOCOL);
        asm.put(LOAD_BYTE, 1);
        asm.put(ADD, 1);
        asm.put(SHIFT_LEFT, 3);
        asm.put(ADD_X, 0);
        asm.put(STORE, HERE);
        asm.bind(next);
    }
}

fn parse_transport(asm: &mut Assembler, decide: Label) {
    let has_ports = asm.label();
    asm.put(LOAD, PROTOCOL);
    for protocol in super::program::WITH_PORTS {
        asm.jump_if(true, IS_EQUAL, protocol.into(), has_ports);
    }
    asm.jump_if(false, IS_EQUAL, protocol::ICMP6.into(), decide);
    asm.put(LOAD, KIND);
    asm.jump_if(true, HAS_ANY, IPV4, decide);
    asm.require(1, decide);
    asm.read(LOAD_BYTE, HERE, 0);
    asm.jump_if(false, IS_AT_LEAST, icmp6::ROUTER_SOLICITATION.into(), decide);
    asm.jump_if(true, IS_ABOVE, icmp6::REDIRECT.into(), decide);
    asm.set(KIND, IPV6 | NEIGHBOUR_DISCOVERY);
    asm.jump(decide);
    asm.bind(has_ports);
    asm.require(4, decide);
    for (to, from) in PORTS.into_iter().zip([0, 2]) {
        asm.read(LOAD_HALF, HERE, from);
        asm.put(STORE, to);
    }
    asm.put(LOAD, KIND);
    asm.put(OR, HAS_PORTS);
    asm.put(STORE, KIND);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::af_xdp::TESTS_MAX;

    #[test]
    fn an_expression_that_is_too_long_for_a_filter_is_an_error() {
        let long = vec!["udp"; TESTS_MAX].join(" or ").parse::<Take>().unwrap();
        assert!(long.filter(LinkType::ETHERNET).is_ok());
        let longer = vec!["net 2001:db8::1"; TESTS_MAX].join(" or ").parse::<Take>().unwrap();
        assert!(longer.filter(LinkType::ETHERNET).is_err());
    }
}
