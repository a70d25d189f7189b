//! A flow dissector for the kernel (a BPF program) that returns the inner flow of VXLAN and GTP-U
//! packets. The kernel's own dissector reads only the outer headers of UDP tunnels, so RPS leaves
//! all packets of a tunnel with fixed ports on one CPU.
//!
//! Only one flow dissector can be attached to a network namespace. The attached program replaces
//! the kernel's dissector in RPS, RFS, flower and bonding. Packets outside of VXLAN and GTP-U
//! tunnels are left to the kernel's dissector, by the return value `BPF_FLOW_DISSECTOR_CONTINUE` of
//! Linux 6.1. The dissector does not change packets (Documentation/bpf/prog_flow_dissector.rst of
//! the kernel).

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use steerage::flow::wire::{ethernet, ethertype, ipv4, ipv6, port, protocol, udp};

use super::assembler::{Assembler, Instruction, Label, R0, R1, R2, R3, R6, R7, R8, R9, Register, Size, When};
use super::sys::{ProgramInfo, load_dissector, program_of, set_dissector};

pub use super::sys::attached_dissector as attached;

/// The name by which steerage recognizes its flow dissector.
pub(super) const NAME: &str = "steerage_flow";

// Offsets in `struct __sk_buff`.
const DATA: i16 = 76;
const DATA_END: i16 = 80;
const FLOW_KEYS: i16 = 144;

// Offsets in `struct bpf_flow_keys`.
const NETWORK_AT: i16 = 0;
const TRANSPORT_AT: i16 = 2;
const ADDRESS_KIND: i16 = 4;
const IS_FRAGMENT: i16 = 6;
const IS_ENCAPSULATED: i16 = 8;
const PROTOCOL: i16 = 9;
const ETHERTYPE: i16 = 10;
const PORTS: i16 = 12;
const ADDRESSES: i16 = 16;

const OK: i32 = 0;
/// `BPF_FLOW_DISSECTOR_CONTINUE`: leaves the packet to the kernel's own dissector.
const CONTINUE: i32 = 129;

/// At most two VLAN tags precede the IP header. The kernel's BPF verifier requires a limit on the
/// offset of the IP header.
const NETWORK_AT_MAX: u32 = 256;

const VXLAN_BYTES: i32 = 8;
const GTP_BYTES: i32 = 8;
/// The bits of a GTP header for version 1 and for the protocol type GTP, not GTP' (3GPP TS 29.281,
/// 5.1).
const GTP_VERSION: u32 = 0x30;
const GTP_PDU: u32 = 255;
const GTP_OPTIONS: u32 = 7;
const GTP_EXTENSION: u32 = 4;

/// The loaded program. Once attached to a network namespace, the program stays attached, even after
/// the end of this process, until it is detached or the namespace ends.
#[derive(Debug)]
pub struct FlowDissector {
    program: OwnedFd,
    id: u32,
}

impl FlowDissector {
    /// Loads the BPF program of the flow dissector.
    ///
    /// # Errors
    /// Returns an error if the process lacks CAP_NET_ADMIN, CAP_BPF or CAP_PERFMON.
    pub fn load() -> io::Result<Self> {
        let program = load_dissector(NAME, &program().ok_or(io::ErrorKind::InvalidInput)?)?;
        Ok(Self { id: ProgramInfo::of(program.as_fd())?.id, program })
    }

    /// Returns steerage's flow dissector that is attached to the network namespace of this thread,
    /// if there is one.
    ///
    /// # Errors
    /// Returns an error without CAP_SYS_ADMIN, which is required to open a program of another
    /// process.
    pub fn find() -> io::Result<Option<Self>> {
        let Some(id) = attached()? else { return Ok(None) };
        let program = program_of(id)?;
        Ok((ProgramInfo::of(program.as_fd())?.name == NAME).then_some(Self { program, id }))
    }

    /// The number by which the kernel identifies the BPF program.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Attaches the flow dissector to the network namespace of this thread.
    ///
    /// # Errors
    /// `AlreadyExists` if another flow dissector is attached to this network namespace or to the
    /// machine's initial network namespace. Attaching requires CAP_NET_ADMIN.
    pub fn attach(&self) -> io::Result<()> {
        match attached()? {
            Some(id) if id == self.id => Ok(()),
            Some(_) => Err(io::ErrorKind::AlreadyExists.into()),
            None => set_dissector(self.program.as_fd(), true),
        }
    }

    /// If this flow dissector is attached to the network namespace of this thread, detaches it.
    ///
    /// # Errors
    /// Detaching requires CAP_NET_ADMIN.
    pub fn detach(&self) -> io::Result<()> {
        match attached()? {
            Some(id) if id == self.id => set_dissector(self.program.as_fd(), false),
            _ => Ok(()),
        }
    }
}

/// In the BPF program, `R6` points to the flow keys, `R7` to the current header, and `R8` to the
/// packet's end. `R9` is the offset of `R7` in the packet.
fn program() -> Option<Vec<Instruction>> {
    let mut asm = Assembler::default();
    let outer = asm.label();
    asm.load(Size::Double, R6, R1, FLOW_KEYS);
    asm.load(Size::Word, R7, R1, DATA);
    asm.load(Size::Word, R8, R1, DATA_END);
    asm.load(Size::Half, R9, R6, NETWORK_AT);
    asm.jump_if(R9, When::Above, NETWORK_AT_MAX, outer);
    asm.add_register(R7, R9);
    let mut code = Writer { asm, outer };
    code.outer_headers();
    code.tunnels();
    code.asm.bind(code.outer);
    code.asm.set(R0, CONTINUE);
    code.asm.exit();
    code.asm.finish()
}

struct Writer {
    asm: Assembler,
    outer: Label,
}

impl Writer {
    /// Requires that the packet has at least `bytes` bytes from `R7` on.
    fn has(&mut self, bytes: i32) {
        self.asm.copy(R3, R7);
        self.asm.add(R3, bytes);
        self.asm.jump_if_above(R3, R8, self.outer);
    }

    fn skip(&mut self, bytes: i32) {
        self.asm.add(R7, bytes);
        self.asm.add(R9, bytes);
    }

    fn skip_register(&mut self, bytes: Register) {
        self.asm.add_register(R7, bytes);
        self.asm.add_register(R9, bytes);
    }

    /// Loads two bytes into `R3`, in host order.
    fn half(&mut self, at: usize) {
        self.asm.load(Size::Half, R3, R7, at as i16);
        self.asm.half_to_host(R3);
    }

    fn byte(&mut self, at: usize) {
        self.asm.load(Size::Byte, R3, R7, at as i16);
    }

    fn must_be(&mut self, number: u32) {
        self.asm.jump_if(R3, When::NotEqual, number, self.outer);
    }

    /// Reads an outer IP header without options or extension headers, in a packet that is no
    /// fragment. After the emitted code, `R7` points to the UDP header.
    fn outer_headers(&mut self) {
        let (v6, udp) = (self.asm.label(), self.asm.label());
        self.asm.load(Size::Half, R3, R6, ETHERTYPE);
        self.asm.half_to_host(R3);
        self.asm.jump_if(R3, When::Equal, ethertype::IPV6.into(), v6);
        self.must_be(ethertype::IPV4.into());
        self.has((ipv4::BYTES + udp::BYTES) as i32);
        self.byte(0);
        self.must_be(ipv4::PLAIN.into());
        self.byte(ipv4::PROTOCOL_AT);
        self.must_be(protocol::UDP.into());
        self.half(6);
        self.asm.jump_if(R3, When::AnyOf, ipv4::FRAGMENT.into(), self.outer);
        self.skip(ipv4::BYTES as i32);
        self.asm.jump(udp);
        self.asm.bind(v6);
        self.has((ipv6::BYTES + udp::BYTES) as i32);
        self.byte(ipv6::PROTOCOL_AT);
        self.must_be(protocol::UDP.into());
        self.skip(ipv6::BYTES as i32);
        self.asm.bind(udp);
    }

    fn tunnels(&mut self) {
        let [vxlan, v4, v6, inner] = [(); 4].map(|()| self.asm.label());
        self.has(udp::BYTES as i32 + GTP_BYTES);
        self.half(2);
        for vxlan_port in [port::VXLAN, port::VXLAN_LINUX] {
            self.asm.jump_if(R3, When::Equal, vxlan_port.into(), vxlan);
        }
        self.must_be(port::GTP_U.into());
        self.skip(udp::BYTES as i32);
        self.gtp(inner);
        self.asm.bind(inner);
        self.has(ipv4::BYTES as i32 + 4);
        self.byte(0);
        self.asm.jump_if(R3, When::Equal, ipv4::PLAIN.into(), v4);
        self.asm.and(R3, 0xf0);
        self.asm.jump_if(R3, When::Equal, ipv6::PLAIN.into(), v6);
        self.asm.jump(self.outer);

        self.asm.bind(vxlan);
        self.has(udp::BYTES as i32 + VXLAN_BYTES + ethernet::BYTES as i32);
        self.half(udp::BYTES + VXLAN_BYTES as usize + ethernet::TYPE_AT);
        self.skip(udp::BYTES as i32 + VXLAN_BYTES + ethernet::BYTES as i32);
        self.asm.jump_if(R3, When::Equal, ethertype::IPV4.into(), inner);
        self.asm.jump_if(R3, When::Equal, ethertype::IPV6.into(), inner);
        self.asm.jump(self.outer);

        self.asm.bind(v4);
        self.flow_v4();
        self.asm.bind(v6);
        self.flow_v6();
    }

    /// Reads a GTP-U header with at most one extension header, as in 5G.
    fn gtp(&mut self, inner: Label) {
        let (options, extension) = (self.asm.label(), self.asm.label());
        self.byte(1);
        self.must_be(GTP_PDU);
        self.byte(0);
        self.asm.copy(R2, R3);
        self.asm.and(R3, 0xf0);
        self.must_be(GTP_VERSION);
        self.asm.jump_if(R2, When::AnyOf, GTP_OPTIONS, options);
        self.skip(GTP_BYTES);
        self.asm.jump(inner);

        self.asm.bind(options);
        self.has(GTP_BYTES + 5);
        self.asm.jump_if(R2, When::AnyOf, GTP_EXTENSION, extension);
        self.skip(GTP_BYTES + 4);
        self.asm.jump(inner);

        self.asm.bind(extension);
        self.byte(GTP_BYTES as usize + 4);
        self.asm.jump_if(R3, When::Equal, 0, self.outer);
        self.asm.shift_left(R3, 2);
        self.asm.copy(R2, R3);
        // The last byte of an extension header is the type of the next extension header.
        self.skip(GTP_BYTES + 3);
        self.skip_register(R2);
        self.has(1);
        self.byte(0);
        self.must_be(0);
        self.skip(1);
    }

    fn flow_v4(&mut self) {
        let part = self.asm.label();
        self.copy(ipv4::ADDRESSES.start, 2);
        self.asm.store_number(Size::Half, R6, ADDRESS_KIND, ethertype::IPV4.into());
        self.half(6);
        self.asm.jump_if(R3, When::AnyOf, ipv4::FRAGMENT.into(), part);
        self.byte(ipv4::PROTOCOL_AT);
        self.finish(ipv4::BYTES, false);
        self.asm.bind(part);
        self.byte(ipv4::PROTOCOL_AT);
        self.finish(ipv4::BYTES, true);
    }

    fn flow_v6(&mut self) {
        self.has(ipv6::BYTES as i32 + 4);
        self.copy(ipv6::ADDRESSES.start, 8);
        self.asm.store_number(Size::Half, R6, ADDRESS_KIND, ethertype::IPV6.into());
        self.byte(ipv6::PROTOCOL_AT);
        self.finish(ipv6::BYTES, false);
    }

    fn copy(&mut self, at: usize, words: i16) {
        for word in 0..words {
            self.asm.load(Size::Word, R2, R7, at as i16 + 4 * word);
            self.asm.store(Size::Word, R6, ADDRESSES + 4 * word, R2);
        }
    }

    /// Stores the protocol (`R3`) and the ports, and ends the program.
    fn finish(&mut self, ip_bytes: usize, is_fragment: bool) {
        let (ports, done) = (self.asm.label(), self.asm.label());
        self.asm.store(Size::Byte, R6, PROTOCOL, R3);
        self.asm.store_number(Size::Byte, R6, IS_ENCAPSULATED, 1);
        self.asm.store(Size::Half, R6, NETWORK_AT, R9);
        self.asm.add(R9, ip_bytes as i32);
        self.asm.store(Size::Half, R6, TRANSPORT_AT, R9);
        if is_fragment {
            self.asm.store_number(Size::Byte, R6, IS_FRAGMENT, 1);
        } else {
            for with_ports in [protocol::TCP, protocol::UDP, protocol::SCTP] {
                self.asm.jump_if(R3, When::Equal, with_ports.into(), ports);
            }
            self.asm.jump(done);
            self.asm.bind(ports);
            self.asm.load(Size::Half, R2, R7, ip_bytes as i16);
            self.asm.store(Size::Half, R6, PORTS, R2);
            self.asm.load(Size::Half, R2, R7, ip_bytes as i16 + 2);
            self.asm.store(Size::Half, R6, PORTS + 2, R2);
            self.asm.bind(done);
        }
        self.asm.set(R0, OK);
        self.asm.exit();
    }
}

#[cfg(test)]
mod tests {
    use steerage_fixtures::namespaces::Namespaces;

    use super::*;

    fn foreign() -> OwnedFd {
        let mut asm = Assembler::default();
        asm.set(R0, CONTINUE);
        asm.exit();
        load_dissector("somebodys", &asm.finish().unwrap()).unwrap()
    }

    #[test]
    fn it_is_attached_once_and_replaces_no_other_program() {
        let Some(namespaces) = Namespaces::new(1) else { return };
        namespaces.within(0, || {
            assert!(attached().unwrap().is_none() && FlowDissector::find().unwrap().is_none());
            let ours = FlowDissector::load().unwrap();
            ours.detach().unwrap();
            ours.attach().unwrap();
            ours.attach().unwrap();
            let id = ours.id();
            drop(ours);
            let found = FlowDissector::find().unwrap().unwrap();
            assert_eq!((attached().unwrap(), found.id()), (Some(id), id));
            found.detach().unwrap();
            assert_eq!(attached().unwrap(), None);

            set_dissector(foreign().as_fd(), true).unwrap();
            let there = attached().unwrap();
            assert!(there.is_some() && FlowDissector::find().unwrap().is_none());
            assert_eq!(found.attach().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            found.detach().unwrap();
            assert_eq!(attached().unwrap(), there);
        });
    }
}
