use std::net::UdpSocket;
use std::thread;
use std::time::Instant;

use steerage::flow::wire::ethertype;
use steerage::testing::QueueTester;
use steerage::{Timestamp, device::Polled, limits::POLL_BUDGET};
use steerage_fixtures::HANG;
use steerage_fixtures::namespaces::Namespaces;
use steerage_netlink::XdpPlace;

use super::super::assembler::{Assembler, R0};
use super::super::device::Device;
use super::*;

fn other() -> Program {
    let mut asm = Assembler::default();
    asm.set(R0, 2);
    asm.exit();
    Program::load("somebodys", &asm.finish().unwrap(), None, true, &mut []).unwrap()
}

fn options(replace: bool) -> AfXdpOptions {
    AfXdpOptions::new("near0").take("udp".parse().unwrap()).replace(replace)
}

fn link() -> netlink::Link {
    interface::look("near0").unwrap()
}

fn cable() -> Option<Namespaces> {
    let namespaces = Namespaces::new(2)?;
    namespaces.veth((0, "near0"), (1, "far0"));
    Some(namespaces)
}

#[test]
fn another_program_stays_unless_it_is_to_be_replaced() {
    let wheres = [(sys::Mode::Native, XdpPlace::Driver), (sys::Mode::Skb, XdpPlace::Generic)];
    let ways = wheres.into_iter().flat_map(|place| [true, false].map(|by_link| (place, by_link)));
    for (((theirs, place), by_link), mode) in ways.flat_map(|way| [Mode::Auto, Mode::Skb].map(|mode| (way, mode))) {
        let Some(namespaces) = cable() else { return };
        let options = |replace| options(replace).mode(mode);
        namespaces.within(0, || {
            let (program, index) = (other(), link().index);
            let _link = match by_link {
                true => Some(program.attach(index, theirs).unwrap()),
                false => {
                    let mut kernel = Rtnetlink::open().unwrap();
                    kernel.exchange_xdp_program(index, place, None, Some(program.as_fd())).unwrap();
                    None
                }
            };
            let occupant = link().programs[0];
            assert_eq!(occupant.place, place);
            let there = occupant.id;
            let error = options(false).open().map(drop).unwrap_err().to_string();
            let whose = format!("`somebodys` has near0 already (XDP program {there})");
            assert!(error.contains(&whose) && error.contains("--replace") && !error.contains('\n'), "{error}");
            assert_eq!(link().programs, [occupant]);
            let listening = options(false).open_or_listen().unwrap();
            assert_eq!((listening.is_listening, listening.input.kind), (true, "af_packet"));
            let note = &listening.notes[0];
            assert!(note.contains(&whose) && note.contains("It listens instead"), "{note}");
            let taking = options(true).open().unwrap();
            let ours = link().programs[0].id;
            assert!(ProgramInfo::of_id(ours).unwrap().is_ours() && ours != there);
            drop(taking);
            // Until `execve`, a forked child of another test has copies of all file descriptors.
            let start = Instant::now();
            while !link().programs.is_empty() {
                assert!(start.elapsed() < HANG, "the program stays");
                thread::yield_now();
            }
        });
    }
}

/// The kernel does not let `ip` detach a program of a BPF link, but the link can be detached.
#[test]
fn one_that_is_taken_away_is_missed() {
    let Some(namespaces) = cable() else { return };
    namespaces.within(0, || {
        let mut tester = QueueTester::new(options(false).open().unwrap().input.queues.remove(0)).unwrap();
        let link = link();
        let off = namespaces.command(0, &["ip", "link", "set", "near0", "xdp", "off"]).output().unwrap();
        assert!(!off.status.success() && interface::look("near0").unwrap().programs == link.programs, "{off:?}");
        sys::link_of(link.programs[0].id, link.index).unwrap().unwrap().detach().unwrap();
        let start = Instant::now();
        let error = loop {
            assert!(start.elapsed() < HANG, "nobody misses it");
            match tester.poll(Timestamp::ZERO + start.elapsed(), POLL_BUDGET) {
                Ok((polled, _)) => assert!(polled != Polled::Ended),
                Err(error) => break error.to_string(),
            }
            thread::yield_now();
        };
        assert_eq!(error, "near0: cannot go on receiving: another program took the XDP program away; start it again");
        assert_eq!((tester.lost(), tester.pages_out()), (0, 0));
    });
}

#[test]
fn the_program_is_attached_again() {
    let Some(namespaces) = cable() else { return };
    namespaces.must(1, "addr add 10.77.0.2/24 brd + dev far0");
    let mut tester = namespaces.within(0, || {
        let queue = options(false).open().unwrap().input.queues.remove(0);
        QueueTester::new(queue).unwrap()
    });
    let socket = namespaces.within(1, || UdpSocket::bind("10.77.0.2:0").unwrap());
    socket.set_broadcast(true).unwrap();
    let device = namespaces.within(0, || Device::find(link().index).unwrap());
    assert!(device.can_be_forgotten());
    let id = || namespaces.within(0, || link().programs[0].id);
    let ids: Vec<u32> = (0..3)
        .map(|round: u8| {
            let start = Instant::now();
            loop {
                assert!(start.elapsed() < HANG, "no datagram of round {round} came");
                socket.send_to(&[b'0' + round; 30], "10.77.0.255:9").unwrap();
                let frames = tester.poll(Timestamp::ZERO + start.elapsed(), POLL_BUDGET).unwrap().1;
                if frames.iter().any(|frame| frame.ends_with(&[b'0' + round; 30])) {
                    break;
                }
            }
            let id = id();
            device.program.attachment.attach_again().unwrap();
            id
        })
        .collect();
    assert!(ids[0] != ids[1] && ids[0] == ids[2], "{ids:?}");
    assert!(device.runs(&mut sys::ByCpu::new()).unwrap() >= 3);
}

/// The sender stores its VLAN tag in the frame's metadata, like a card that has removed the tag.
#[test]
fn a_tag_that_is_beside_the_frame_returns_to_it() {
    use super::super::assembler::{R2, R3};
    const PUSH_TAG: i32 = 18;
    const CONTENTS: i32 = 0x2064;
    let Some(namespaces) = cable() else { return };
    namespaces.must(1, "addr add 10.77.0.2/24 brd + dev far0");
    let mut asm = Assembler::default();
    asm.set(R2, i32::from(ethertype::VLAN.to_be()));
    asm.set(R3, CONTENTS);
    asm.call(PUSH_TAG);
    asm.set(R0, 0);
    asm.exit();
    let program = asm.finish().unwrap();
    let tagging = namespaces.within(1, || sys::tag_what_is_sent(interface::look("far0").unwrap().index, &program));
    if let Err(error) = &tagging {
        return steerage_fixtures::skip(&format!("this kernel has no programs at the end of sending: {error}"));
    }
    let reported = namespaces.within(0, || netdev::xdp_support(link().index).unwrap_or_default().vlan_tag);
    if reported != Some(true) {
        return steerage_fixtures::skip("this kernel does not report VLAN tags to XDP programs");
    }
    for device_hash in [DeviceHash::Never, DeviceHash::Always] {
        let options = AfXdpOptions::new("near0").take("all".parse().unwrap()).device_hash(device_hash);
        let mut tester = namespaces.within(0, || {
            let queue = options.open().unwrap().input.queues.remove(0);
            assert_eq!(queue.capabilities().hash.is_some(), device_hash == DeviceHash::Always);
            QueueTester::new(queue).unwrap()
        });
        assert_eq!(tester.mode(), Some("native, copy, card time, VLAN tags"));
        let socket = namespaces.within(1, || {
            let socket = UdpSocket::bind("10.77.0.2:0").unwrap();
            socket.set_broadcast(true).unwrap();
            socket
        });
        let (start, mut found) = (Instant::now(), false);
        while !found {
            assert!(start.elapsed() < HANG, "no datagram came");
            socket.send_to(b"a datagram with a tag", "10.77.0.255:9").unwrap();
            let now = Timestamp::ZERO + start.elapsed();
            for (header, frame) in tester.poll_with_headers(now, POLL_BUDGET).unwrap().1 {
                assert_eq!(frame[12..16], [0x81, 0x00, 0x20, 0x64], "{frame:02x?}");
                assert_eq!(header, None);
                found |= frame[16..18] == [0x08, 0x00] && frame.ends_with(b"a datagram with a tag");
            }
        }
        assert_eq!(tester.lost(), 0);
    }
}
