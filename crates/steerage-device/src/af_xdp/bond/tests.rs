//! Tests new ports of a bond. In some tests, a bridge replaces the bond, because the kernel may not
//! support bonds (`.ci/other-kernel` starts a kernel with bonds). The kernel does not run a
//! bridge's XDP program in its ports, so the test attaches the program to each port.

use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use steerage::testing::QueueTester;
use steerage::{Timestamp, device::RxQueue, limits::POLL_BUDGET};
use steerage_fixtures::HANG;
use steerage_fixtures::namespaces::Namespaces;

use super::*;
use crate::af_xdp::attach::Attached;
use crate::af_xdp::attachment::{Attachment, ByLink};
use crate::af_xdp::device::Device;
use crate::af_xdp::metadata::Functions;
use crate::af_xdp::program::{Maps, program};
use crate::af_xdp::queue::Queue;
use crate::af_xdp::sys::{Map, Mode, NAME, Program, Socket};

struct Taking {
    started: Instant,
    queues: [QueueTester; 2],
    /// The program that the test attaches to new ports. `None` if the bond attaches the program.
    program: Option<Program>,
}

impl Taking {
    /// Must run in the network namespace of the interfaces.
    fn from_bond() -> Self {
        let mut queues = AfXdpOptions::new("bond0").take("udp".parse().unwrap()).open().unwrap().input.queues;
        assert_eq!(queues.len(), 2, "there is room for one more port");
        let free = queues.pop().unwrap();
        Self::of([queues.pop().unwrap(), free], None)
    }

    fn of(queues: [Box<dyn RxQueue>; 2], program: Option<Program>) -> Self {
        let queues = queues.map(|queue| QueueTester::new(queue).unwrap());
        assert_eq!(queues.each_ref().map(QueueTester::mode), [Some("native, copy"), Some("native, for a new port")]);
        Self { started: Instant::now(), queues, program }
    }

    fn from_bridge() -> Self {
        let options = AfXdpOptions::new("br0").take("udp".parse().unwrap());
        let [bridge, port] = ["br0", "near0"].map(|name| interface::look(name).unwrap());
        let ports = Ports { interfaces: vec![port.index], places: 2, queues: 1 };
        let (sockets, counters) = (Map::of_sockets(2).unwrap(), Map::of_counters(4).unwrap());
        let new_ports = Map::of_numbers(2).unwrap();
        let number = |map: &Map| map.as_fd().as_raw_fd();
        let maps = Maps {
            sockets: number(&sockets),
            counters: number(&counters),
            new_ports: Some(number(&new_ports)),
            ports: &ports,
            functions: Functions::default(),
        };
        let instructions = program(options.take.as_ref().unwrap(), maps).unwrap();
        let loaded = Program::load(NAME, &instructions, None, true, &mut []).unwrap();
        let link = loaded.attach(port.index, Mode::Native).unwrap();
        let attached = Attached {
            sockets,
            counters,
            functions: Functions::default(),
            mode: Mode::Native,
            new_ports: Some(new_ports),
            attachment: Attachment::Link(ByLink::new(link, None)),
        };
        let keys = (0, Some(bridge.index));
        let device = Device::new(&options, &port, keys, Arc::new(attached), 0, vec![Socket::new().unwrap()]);
        let device = Arc::new(device.unwrap());
        let places = Places::new(&options, &bridge, &[(&port, Arc::clone(&device))], 2, (1, &(0..=0))).unwrap();
        let queues = [0, 1].map(|place| -> Box<dyn RxQueue> {
            let view = View::new(&places, place, 0);
            Box::new(Queue::new(Arc::clone(&device), 0, None, true, Some(view)).unwrap())
        });
        Self::of(queues, Some(loaded))
    }

    fn takes(&mut self, sender: &UdpSocket, nth: usize, text: &str) {
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < HANG, "no datagram `{text}` came");
            sender.send(text.as_bytes()).unwrap();
            if self.poll(nth).iter().any(|frame| frame.ends_with(text.as_bytes())) {
                return;
            }
            thread::yield_now();
        }
    }

    fn poll(&mut self, nth: usize) -> Vec<Vec<u8>> {
        self.queues[nth].poll(Timestamp::ZERO + self.started.elapsed(), POLL_BUDGET).unwrap().1
    }
}

/// Two new ports use one place (table entry) in turn. The socket of a deleted port returns all its
/// pages.
fn a_place_has_one_port_after_another(ends: &Namespaces, controller: &str, take: fn() -> Taking) {
    let add = |nth: usize| {
        ends.veth((0, &format!("near{nth}")), (1, &format!("far{nth}")));
        ends.must(1, &format!("addr add 10.77.{nth}.2/24 brd + dev far{nth}"));
        let socket = ends.within(1, || UdpSocket::bind((format!("10.77.{nth}.2").as_str(), 0)).unwrap());
        socket.set_broadcast(true).unwrap();
        socket.connect((format!("10.77.{nth}.255").as_str(), 9)).unwrap();
        socket
    };
    let join = |nth: usize| {
        for change in ["down", &format!("master {controller}"), "up"] {
            ends.must(0, &format!("link set near{nth} {change}"));
        }
    };
    let first = add(0);
    join(0);
    let mut taking = ends.within(0, take);
    taking.takes(&first, 0, "first");
    for nth in [1, 2] {
        let next = add(nth);
        let near = format!("near{nth}");
        let attach = |program: &Program| program.attach(interface::look(&near).unwrap().index, Mode::Native).unwrap();
        let _link = taking.program.as_ref().map(|program| ends.within(0, || attach(program)));
        join(nth);
        taking.takes(&next, 1, &near);
        taking.takes(&first, 0, "first");
        ends.must(0, &format!("link del {near}"));
        let begin = Instant::now();
        while taking.queues[1].pages_out() > 0 {
            assert!(begin.elapsed() < HANG, "pages are missing");
            taking.poll(1);
            thread::yield_now();
        }
    }
    assert_eq!(taking.queues.map(|queue| queue.lost()), [0, 0]);
}

#[test]
fn ports_of_a_bridge_follow_each_other() {
    let Some(ends) = Namespaces::new(2) else { return };
    ends.must(0, "link add br0 type bridge");
    ends.must(0, "link set br0 up");
    a_place_has_one_port_after_another(&ends, "br0", Taking::from_bridge);
}

#[test]
fn ports_of_a_bond_follow_each_other() {
    let Some(ends) = Namespaces::new(2) else { return };
    if ends.bond(0, "mode balance-xor miimon 10 downdelay 20").is_none() {
        return;
    }
    ends.must(0, "link set bond0 up");
    a_place_has_one_port_after_another(&ends, "bond0", Taking::from_bond);
}
