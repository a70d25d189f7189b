//! Tests with programs of other software on the interface, and with steerage's program detached by
//! other software.

use std::time::Instant;

use steerage::testing::QueueTester;
use steerage::{Timestamp, device::Polled, limits::POLL_BUDGET};
use steerage_fixtures::HANG;
use steerage_fixtures::namespaces::Namespaces;
use steerage_netlink::XdpPlace;

use super::super::assembler::{Assembler, R0};
use super::*;

/// A program that passes everything to the kernel, and has another name than steerage's.
fn other() -> Program {
    let mut asm = Assembler::default();
    asm.set(R0, 2);
    asm.exit();
    Program::load_as("somebodys", &asm.finish().unwrap(), None, true, &mut []).unwrap()
}

fn options(replace: bool) -> AfXdpOptions {
    AfXdpOptions::new("near0").take("udp".parse().unwrap()).replace(replace)
}

/// The kernel's description of the interface.
fn link() -> netlink::Link {
    interface::look("near0").unwrap()
}

fn cable() -> Option<Namespaces> {
    let namespaces = Namespaces::new(2)?;
    namespaces.veth((0, "near0"), (1, "far0"));
    Some(namespaces)
}

/// The other program is in the driver or after it, attached with or without a link. steerage's mode
/// varies too.
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
                    kernel.set_xdp_program(index, place, Some(program.as_fd())).unwrap();
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
            let taking = options(true).open().unwrap();
            let ours = link().programs[0].id;
            assert!(ProgramInfo::of(ours).unwrap().is_ours() && ours != there);
            drop(taking);
            // A child that another test forks holds all file descriptors, including this program's,
            // until it runs another executable.
            let start = Instant::now();
            while !link().programs.is_empty() {
                assert!(start.elapsed() < HANG, "the program stays");
                thread::yield_now();
            }
        });
    }
}

#[test]
fn one_that_is_taken_away_is_missed() {
    let Some(namespaces) = cable() else { return };
    namespaces.within(0, || {
        let mut tester = QueueTester::new(options(false).open().unwrap().input.queues.remove(0)).unwrap();
        let link = link();
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
