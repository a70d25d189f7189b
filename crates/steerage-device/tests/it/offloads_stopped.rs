//! While one CPU is stopped, another CPU receives all super-frames of its own flows.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use steerage::{Batch, Builder, Cpu, CpuId, Handler, Hash, Input, limits::BACKLOG_DEFAULT, stats::DropReason};
use steerage_device::af_packet::{AfPacketOptions, Direction};
use steerage_device::open;
use steerage_device::udp::UdpOptions;
use steerage_fixtures::handlers::end;
use steerage_fixtures::namespaces::{Namespaces, address, any, cutting_socket};
use steerage_fixtures::{HANG, until};

const MESSAGE_BYTES: usize = 60_000;
const DATAGRAM_BYTES: usize = 1000;
/// The number of messages in each flow: too many for the packet ring's blocks, but below the
/// backlog limit.
const MESSAGES: u32 = 900;

const _: () = assert!(MESSAGES as usize * MESSAGE_BYTES > 32 << 20 && (MESSAGES as usize) < BACKLOG_DEFAULT);

type Signals = (Sender<()>, Receiver<()>);

/// For each port of the sender: the CPU, the last message's number, and the number of messages.
type Seen = Arc<Mutex<BTreeMap<u16, (CpuId, u32, u32)>>>;

struct Stops {
    cpu: CpuId,
    seen: Seen,
    signals: Arc<Mutex<Option<Signals>>>,
}

impl Handler for Stops {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
        for packet in batch.iter_mut() {
            let Some(offload) = packet.offload().filter(|offload| offload.is_super_frame()) else { continue };
            let (headers, payload) = packet.data().split_at(offload.header_bytes());
            let port = u16::from_be_bytes(headers[headers.len() - 8..][..2].try_into().unwrap());
            let number = u32::from_be_bytes(payload[..4].try_into().unwrap());
            if number == 0 {
                let (stops, go_on) = self.signals.lock().unwrap().take().expect("a CPU stops once");
                stops.send(()).unwrap();
                // If the test fails, the channel closes and `recv` returns. There is no timeout,
                // because the test's messages to the running CPU can take long on a busy machine.
                let _ = go_on.recv();
                continue;
            }
            assert!(payload.chunks(4).all(|word| word == &payload[..4]), "a message is not what it was");
            let mut seen = self.seen.lock().unwrap();
            let (_, last, count) = seen.entry(port).or_insert((self.cpu, 0, 0));
            assert!(number > *last, "message {number} after {last}");
            (*last, *count) = (number, *count + 1);
        }
    }

    fn finish(self, _: &mut Cpu) {}
}

fn send(socket: &UdpSocket, to: SocketAddr, number: u32) {
    let message = number.to_be_bytes().repeat(MESSAGE_BYTES / 4);
    socket.send_to(&message, to).unwrap();
}

fn others_go_on(input: Input, from: impl Fn() -> UdpSocket, to: SocketAddr) {
    let seen = Seen::default();
    let ((stops, stopped), (to_go_on, go_on)) = (mpsc::channel(), mpsc::channel());
    let signals = Arc::new(Mutex::new(Some((stops, go_on))));
    let make = {
        let seen = Arc::clone(&seen);
        move |cpu| Stops { cpu, seen: Arc::clone(&seen), signals: Arc::clone(&signals) }
    };
    let builder = Builder::new().virtual_cpus(2).policy(Hash).check_order(true).input(input);
    let running = builder.build(make).unwrap().start().unwrap();
    // Dropping `running` waits until the stopped CPU continues, so `to_go_on` must be dropped
    // before `running`.
    let to_go_on = to_go_on;
    let handle = running.handle();
    let owner = handle.snapshot().queues[0].cpu;

    // Finds a flow for each CPU. The CPU that does not poll the queue is stopped.
    let count = |socket: &UdpSocket| {
        let port = socket.local_addr().unwrap().port();
        seen.lock().unwrap().get(&port).copied()
    };
    let (mut goes_on, mut is_stopped) = (None, None);
    while goes_on.is_none() || is_stopped.is_none() {
        let socket = from();
        send(&socket, to, 1);
        until("a message comes", || count(&socket).is_some());
        let (cpu, ..) = count(&socket).unwrap();
        *(if cpu == owner { &mut goes_on } else { &mut is_stopped }) = Some(socket);
    }
    let (goes_on, is_stopped) = (goes_on.unwrap(), is_stopped.unwrap());
    send(&is_stopped, to, 0);
    stopped.recv_timeout(HANG).unwrap();

    let mut lost = 0;
    for number in 2..MESSAGES + 2 {
        send(&is_stopped, to, number);
        send(&goes_on, to, number);
        // On a busy machine, the kernel may drop a message before the queue is polled.
        let before = lost;
        until("the other CPU's message comes", || {
            lost = handle.snapshot().dropped().get(DropReason::Device);
            count(&goes_on).unwrap().1 == number || lost > before
        });
    }
    let ledger = handle.snapshot();
    let refused = ledger.dropped().get(DropReason::BacklogFull);
    assert_eq!(ledger.dropped().total(), refused + lost, "{:?}", ledger.dropped());
    let of_cpu = |cpu: CpuId| ledger.cpus.iter().find(|each| each.cpu == cpu).unwrap().dropped.total();
    assert_eq!((of_cpu(owner), refused > 0), (0, true), "the stopped CPU lost some of its own");

    to_go_on.send(()).unwrap();
    until("all is handled", || handle.snapshot().in_flight() == 0);
    let came = [&is_stopped, &goes_on].map(|socket| u64::from(count(socket).unwrap().2));
    assert_eq!(came[0] + came[1] + refused + lost, 2 * (u64::from(MESSAGES) + 1));
    assert!(came[1] + lost > u64::from(MESSAGES), "the other CPU lost some, and not to the kernel");
    for number in MESSAGES + 2..MESSAGES + 100 {
        send(&is_stopped, to, number);
        until("a message comes", || count(&is_stopped).unwrap().1 == number);
    }
    assert_eq!(end(running).dropped().total(), refused + lost);
}

#[test]
fn a_stopped_cpu_leaves_a_tun_to_the_others() {
    let Some(namespaces) = Namespaces::new(1) else { return };
    let input = namespaces.within(0, || open("tun:left,offload=on").unwrap());
    namespaces.address(0, 1, "left");
    let from = || namespaces.within(0, || cutting_socket(any(address("10.210.0.2")), DATAGRAM_BYTES));
    others_go_on(input, from, "10.210.0.2:7000".parse().unwrap());
}

#[test]
fn a_stopped_cpu_leaves_a_udp_socket_to_the_others() {
    let udp = UdpOptions::new("127.0.0.1:0".parse().unwrap()).open().unwrap();
    let from = || cutting_socket(address("127.0.0.1"), DATAGRAM_BYTES);
    others_go_on(udp.input().unwrap(), from, udp.local_addr());
}

/// The kernel fills blocks in turn, so it often reaches blocks with frames of the stopped CPU.
#[test]
fn a_stopped_cpu_leaves_an_interface_to_the_others() {
    let Some(namespaces) = Namespaces::new(2) else { return };
    namespaces.veth((1, "near"), (0, "left"));
    namespaces.address(0, 1, "left");
    namespaces.address(1, 2, "near");
    // No code reads from this socket. The socket only prevents the kernel from replying.
    let unread = namespaces.within(1, || UdpSocket::bind("10.210.0.2:0").unwrap());
    let input = namespaces.within(1, || {
        let options = AfPacketOptions::new("near").direction(Direction::In).offloads(true);
        options.block_timeout(Duration::from_millis(1)).open().unwrap().input
    });
    let from = || namespaces.within(0, || cutting_socket(any(address("10.210.0.2")), DATAGRAM_BYTES));
    others_go_on(input, from, unread.local_addr().unwrap());
}
