//! Compiles an expression to BPF instructions, for the XDP program (`program.rs`) and for the
//! filter of a listening socket (`listen.rs`). The program and the filter select the same frames.

use super::take::{Kind, Prefix, Take, Test, Way};

pub(super) const IPV4: u32 = 1;
pub(super) const IPV6: u32 = 2;
pub(super) const ARP: u32 = 4;
pub(super) const NEIGHBOUR_DISCOVERY: u32 = 8;
pub(super) const HAS_PORTS: u32 = 16;

/// An assembler for a BPF program that has already read the headers of a frame. Each `require_`
/// function emits instructions that jump to `otherwise` unless the frame passes the test.
pub(super) trait FrameTests {
    type Label: Copy;

    fn label(&mut self) -> Self::Label;
    fn bind(&mut self, label: Self::Label);
    fn jump(&mut self, to: Self::Label);

    fn jump_if_any(&mut self, properties: u32, to: Self::Label);

    fn require_any(&mut self, properties: u32, otherwise: Self::Label);

    fn require_protocol(&mut self, protocol: u8, otherwise: Self::Label);

    fn require_port(&mut self, way: Way, ports: (u16, u16), otherwise: Self::Label);

    fn require_prefix(&mut self, way: Way, prefix: &Prefix, otherwise: Self::Label);

    fn require_nothing(&mut self, otherwise: Self::Label);
}

/// Emits the instructions of the expression, which jump to `taken` if the expression matches the
/// frame, and otherwise to `passed`.
pub(super) fn choose<A: FrameTests>(asm: &mut A, take: &Take, taken: A::Label, passed: A::Label) {
    // ARP and neighbour discovery are left to the kernel unless the expression names them.
    let to = |is_named| if is_named { taken } else { passed };
    asm.jump_if_any(ARP, to(take.names(Kind::Arp)));
    asm.jump_if_any(NEIGHBOUR_DISCOVERY, to(take.names(Kind::NeighbourDiscovery)));
    for clause in take.clauses() {
        let otherwise = asm.label();
        for (wanted, test) in clause {
            if *wanted {
                require(asm, test, otherwise);
            } else {
                let not = asm.label();
                require(asm, test, not);
                asm.jump(otherwise);
                asm.bind(not);
            }
        }
        asm.jump(taken);
        asm.bind(otherwise);
    }
    asm.jump(passed);
}

fn require<A: FrameTests>(asm: &mut A, test: &Test, otherwise: A::Label) {
    match test {
        Test::All => asm.require_nothing(otherwise),
        Test::Kind(kind) => asm.require_any(property(*kind), otherwise),
        Test::Protocol(kind, protocol) => {
            asm.require_any(kind.map_or(IPV4 | IPV6, property), otherwise);
            asm.require_protocol(*protocol, otherwise);
        }
        Test::Port(way, first, last) => {
            asm.require_any(HAS_PORTS, otherwise);
            either(asm, *way, otherwise, |asm, way, no| asm.require_port(way, (*first, *last), no));
        }
        Test::Net(way, prefix) => {
            asm.require_any(if prefix.is_ipv6() { IPV6 } else { IPV4 }, otherwise);
            either(asm, *way, otherwise, |asm, way, no| asm.require_prefix(way, prefix, no));
        }
    }
}

/// Emits a test of the source or the destination. If `way` is `None`, the source or the destination
/// must pass.
fn either<A: FrameTests>(asm: &mut A, way: Option<Way>, otherwise: A::Label, test: impl Fn(&mut A, Way, A::Label)) {
    if let Some(way) = way {
        return test(asm, way, otherwise);
    }
    let (other, yes) = (asm.label(), asm.label());
    test(asm, Way::Source, other);
    asm.jump(yes);
    asm.bind(other);
    test(asm, Way::Destination, otherwise);
    asm.bind(yes);
}

fn property(kind: Kind) -> u32 {
    match kind {
        Kind::Ipv4 => IPV4,
        Kind::Ipv6 => IPV6,
        Kind::Arp => ARP,
        Kind::NeighbourDiscovery => NEIGHBOUR_DISCOVERY,
    }
}
