//! This test needs its own process, because the chosen VXLAN ports apply to the whole process.

use steerage_flow::dissect::{Layers, dissect, is_tunnel, set_vxlan_ports};
use steerage_flow::wire::FrameBuilder;
use steerage_flow::wire::port::{CAPWAP, L2TP, TEREDO};
use steerage_flow::{
    BothDirections, FlowHash, FlowHasher, FragmentTable, FrameAccess, FrameHasher, HashKey, LinkType, Timestamp,
};

const CHOSEN: u16 = 9999;

struct Access;

impl FrameAccess<(Vec<u8>, FlowHash)> for Access {
    fn bytes<'f>(&'f self, frame: &'f (Vec<u8>, FlowHash)) -> &'f [u8] {
        &frame.0
    }

    fn set_hash(&self, frame: &mut (Vec<u8>, FlowHash), hash: FlowHash) {
        frame.1 = hash;
    }
}

fn frame(from: u16, inner: u16) -> Vec<u8> {
    let inner = FrameBuilder::udp(([10, 1, 1, 1], inner), ([10, 1, 1, 2], 2222)).frame(b"data");
    let outer = FrameBuilder::udp(([192, 0, 2, 1], from), ([192, 0, 2, 2], CHOSEN));
    outer.frame(&[&[8, 0, 0, 0, 0, 0, 42, 0], &inner[..]].concat())
}

fn flow(from: u16) -> String {
    dissect(&frame(from, 1111), LinkType::ETHERNET, Layers::Inner).key.to_string()
}

#[track_caller]
fn assert_batches_agree() {
    let hasher = FrameHasher::new(FlowHasher::keyed(&HashKey::MICROSOFT), Layers::Inner, BothDirections);
    let mut batch: Vec<_> = (0..64).map(|nth| (frame(50_000, nth), FlowHash(0))).collect();
    hasher.hash_batch(&mut batch, Access, (LinkType::ETHERNET, Timestamp::ZERO), &mut FragmentTable::new());
    for (frame, hash) in &batch {
        let key = dissect(frame, LinkType::ETHERNET, Layers::Inner).key;
        assert_eq!(*hash, hasher.hasher().hash(&key.both_directions()), "{key}");
    }
}

#[test]
fn chosen_ports() {
    let (inner, outer) = ("udp 10.1.1.1:1111 > 10.1.1.2:2222", "udp 192.0.2.1:50000 > 192.0.2.2:9999");
    assert_eq!(flow(50_000), outer);
    assert_batches_agree();
    for ports in [&[CHOSEN][..], &[0, CHOSEN], &[1, 2, 0, 3, CHOSEN]] {
        set_vxlan_ports(ports);
        assert_eq!(flow(50_000), inner, "{ports:?}");
        assert_batches_agree();
        for from in [L2TP, TEREDO, CAPWAP] {
            assert!(flow(from) == inner && is_tunnel(from, CHOSEN), "{from}");
        }
    }
    for ports in [&[1][..], &[0], &[]] {
        set_vxlan_ports(&[2, CHOSEN]);
        set_vxlan_ports(ports);
        assert_eq!(flow(50_000), outer, "{ports:?}");
        assert_batches_agree();
    }
}
