#[expect(dead_code, reason = "an example's `main`")]
#[path = "../../examples/limiter.rs"]
mod limiter;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use steerage_control::metrics::Listener;
use steerage_fixtures::namespaces::Namespaces;
use steerage_fixtures::until;

fn on_page(at: SocketAddr, counter: &str) -> u64 {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    let samples = page.lines().filter(|line| !line.starts_with('#') && line.contains(counter));
    samples.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_limiter_passes_the_rate_of_each_flow_both_ways() {
    let Some(net) = Namespaces::new(2) else { return };
    let ports = [("one", "10.209.1.1", "10.209.1.9"), ("two", "10.209.2.1", "10.209.2.9")];
    for (port, address, nobody) in ports {
        let (ours, other) = (format!("{port}0"), format!("{port}1"));
        net.veth((0, &ours), (1, &other));
        net.must(1, &format!("addr add {address}/24 dev {other}"));
        net.must(1, &format!("neigh replace {nobody} lladdr 02:00:00:00:00:09 dev {other} nud permanent"));
    }
    let opened = net.within(0, || ["one0", "two0"].map(|port| limiter::open(port).unwrap()));
    let listener = Listener::bind("metrics", "127.0.0.1:0".parse().unwrap()).unwrap();
    let (at, stop) = (listener.address(), AtomicBool::new(false));
    thread::scope(|scope| {
        let at_end = StopAtEnd(&stop);
        let running = scope.spawn(|| limiter::run(opened, 1.0, listener, &stop).map_err(|error| error.to_string()));
        let senders = ports.map(|(_, address, nobody)| {
            let socket = net.within(1, || UdpSocket::bind((address, 0)).unwrap());
            socket.connect((nobody, 9)).unwrap();
            socket
        });
        // The limiter passes one packet per second for each flow, even on a slow machine.
        until("packets above the rate", || {
            senders.iter().for_each(|socket| _ = socket.send(b"x").unwrap());
            on_page(at, "above_rate_packets_total") >= 100
        });
        until("each passed packet arrives at the other port", || {
            let arrived = net.received_by(1, "one1") + net.received_by(1, "two1");
            arrived == on_page(at, "within_rate_packets_total") && arrived >= 2
        });
        assert!(ports.iter().all(|(port, ..)| net.received_by(1, &format!("{port}1")) > 0));
        drop(at_end);
        running.join().unwrap().unwrap();
    });
}
