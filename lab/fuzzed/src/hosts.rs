//! Fuzz targets that send any bytes as packets to the router `forward` and the host `respond`.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use steerage::TxId;
use steerage::flow::wire::{ethernet, vlan};
use steerage::testing::HandlerTester;
use steerage_lab::respond::{self, Config, Respond, Responding};
use steerage_router::{Fate, Forward, Forwarding, Hop, Interface, Neighbour, Neighbours, Routes, Table, Target};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];
const NEXT: [u8; 6] = [2, 0, 0, 0, 0, 7];
const V4: [u8; 4] = [10, 0, 0, 2];
const V6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2];
const MTU: usize = 1500;
const LINK_BYTES: usize = ethernet::BYTES + vlan::BYTES;

/// The maximum number of frames of an input. More frames would not find more errors, and an input
/// of empty frames would have thousands of frames.
const FRAMES_MAX: usize = 32;

/// Two bytes before each frame state its length, and the time that passes before it arrives.
fn frames(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let ([low, high], rest) = bytes.split_first_chunk::<2>()?;
        let len = usize::from(u16::from_le_bytes([*low, *high & 0x07])).min(rest.len());
        let (frame, rest) = rest.split_at(len);
        bytes = rest;
        Some((high >> 3, frame))
    })
    .take(FRAMES_MAX)
}

struct Router(Arc<Forwarding>, HandlerTester<Forward>);

struct Host(Arc<Responding>, HandlerTester<Respond>);

thread_local! {
    static ROUTER: RefCell<Option<Router>> = const { RefCell::new(None) };
    static HOST: RefCell<Option<(usize, Host)>> = const { RefCell::new(None) };
}

fn table() -> Table {
    let interface = |nth: u8| Interface {
        output: TxId(nth),
        mac: Some(OURS),
        mtu: MTU - 100 * usize::from(nth),
        up: true,
        ipv4: Some([10, 0, nth, 1].into()),
        ipv6: format!("fd00:{nth}::1").parse().ok(),
        broadcasts: vec![[10, 0, nth, 255].into()],
    };
    let mut routes = Routes::default();
    let via = |interface, gateway: &str| Target::Via(vec![Hop { interface, gateway: gateway.parse().ok(), weight: 1 }]);
    for (prefix, target) in [
        ("0.0.0.0/0", via(1, "10.0.1.2")),
        ("10.0.0.0/24", via(0, "none")),
        ("10.0.0.1/32", Target::Local),
        ("10.9.1.0/24", Target::Blackhole),
        ("10.9.2.0/24", Target::Unreachable),
        ("10.9.3.0/24", Target::Prohibit),
        ("::/0", via(1, "fd00:1::2")),
        ("fd00::/64", via(0, "none")),
    ] {
        routes.insert(prefix.parse().expect("a prefix"), target);
    }
    let neighbour = |address: &str| ((1, address.parse().expect("an address")), Arc::new(Neighbour::new(Some(NEXT))));
    let neighbours = Neighbours::from([neighbour("10.0.1.2"), neighbour("fd00:1::2")]);
    let interfaces = vec![interface(0), interface(1)];
    Table { interfaces, routes: Arc::new(routes), neighbours: Arc::new(neighbours) }
}

/// Each frame has exactly one outcome, and no sent frame is longer than the interface allows.
pub(crate) fn forward(bytes: &[u8]) {
    ROUTER.with_borrow_mut(|router| {
        let Router(shared, tester) = router.get_or_insert_with(|| {
            let shared = Forwarding::new(vec![0]).expect("a pair of sockets");
            shared.show(table());
            let handlers = Arc::clone(&shared);
            Router(shared, HandlerTester::new(move |_| handlers.handler()))
        });
        let fates = |shared: &Forwarding| {
            let counts = shared.so_far();
            Fate::ALL.iter().map(|fate| counts.get(*fate)).sum::<u64>()
        };
        let before = fates(shared);
        let given: Vec<&[u8]> = frames(bytes).map(|(_, frame)| frame).collect();
        let count = given.len() as u64;
        tester.handle(given);
        assert_eq!(fates(shared) - before, count);
        let mut sent_in_all = 0;
        for output in [0, 1] {
            let sent = tester.sent_to(TxId(output));
            assert!(sent.iter().all(|frame| frame.bytes.len() <= MTU + LINK_BYTES));
            sent_in_all += sent.len();
        }
        // The router is replaced because the tester keeps all sent frames.
        if sent_in_all > SENT_MAX {
            *router = None;
        }
    });
}

const SENT_MAX: usize = 256;

/// The number of inputs after which the host, with its open connections, is replaced.
const INPUTS_MAX: usize = 64;

/// Each frame has exactly one outcome, and no reply is longer than the link allows.
pub(crate) fn respond(bytes: &[u8]) {
    HOST.with_borrow_mut(|host| {
        let (inputs, Host(shared, tester)) = host.get_or_insert_with(|| {
            let config = Config::new(vec![IpAddr::from(V4), IpAddr::from(V6)], OURS, MTU).expect("a configuration");
            let config = config.networks(&["10.0.0.0/24".parse().expect("a network")]).echo(&[7]);
            let config = config.request_response(8, 1, 1).expect("a service").verifies(false).connections_max(16);
            let shared = Responding::new(config);
            let handlers = Arc::clone(&shared);
            (0, Host(shared, HandlerTester::new(move |_| handlers.handler())))
        });
        let fates = |shared: &Responding| {
            let counts = shared.so_far();
            respond::Fate::ALL.iter().map(|fate| counts.get(*fate)).sum::<u64>()
        };
        let before = fates(shared);
        let mut given = 0;
        for (pause, frame) in frames(bytes) {
            tester.handle([frame]);
            tester.advance(Duration::from_millis(20 * u64::from(pause)));
            given += 1;
        }
        assert_eq!(fates(shared) - before, given);
        assert!(shared.so_far().open <= 16);
        let sent = tester.sent_to(TxId(0));
        assert!(sent.iter().all(|frame| frame.bytes.len() <= MTU + LINK_BYTES));
        *inputs += 1;
        if *inputs >= INPUTS_MAX || sent.len() > SENT_MAX {
            *host = None;
        }
    });
}
