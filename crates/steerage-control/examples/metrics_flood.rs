//! Measures whether a client still gets metrics while another client floods the server. Start this
//! program by hand:
//!
//! ```text
//! metrics_flood                                        on loopback: every kind of flood, by the client's own host
//! metrics_flood serve ADDR:PORT                        serves metrics until it is interrupted
//! metrics_flood flood ADDR:PORT FROM RATE SECONDS KIND connects RATE times a second (0: without a limit)
//! metrics_flood ask ADDR:PORT FROM SECONDS PATH_MS     asks ten times a second, and prints how often that worked
//! ```
//!
//! All loopback addresses count as one host. To measure with two hosts, use two network namespaces.
//!
//! FROM is the client's source address. PATH_MS is the delay between the connection and the
//! request, as on a long network path. KIND is what the flood sends: nothing (`silent`), half a
//! request (`half`), a request (`whole`), or a request without reading the reply (`deaf`).
#![allow(clippy::print_stdout, reason = "the result of a measurement")]

use std::collections::VecDeque;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use steerage::Builder;
use steerage_control::metrics::{Listener, Server, Source};

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

const HELD: usize = 200;

/// The time for which the client waits: the default timeout of Prometheus.
const PATIENCE: Duration = Duration::from_secs(10);

const PAUSE: Duration = Duration::from_millis(100);

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        [] => on_loopback(),
        ["serve", at] => {
            let (_instance, _server, address) = serve(at.parse()?)?;
            println!("{address}");
            loop {
                thread::park();
            }
        }
        ["flood", at, from, rate, seconds, kind] => {
            let time = Duration::from_secs(seconds.parse()?);
            let made = flood(at.parse()?, from.parse()?, rate.parse()?, time, kind, &AtomicBool::new(false));
            println!("{made} connections in {} s", time.as_secs());
            Ok(())
        }
        ["ask", at, from, seconds, path] => {
            let (time, path) = (Duration::from_secs(seconds.parse()?), Duration::from_millis(path.parse()?));
            println!("{}", ask(at.parse()?, from.parse()?, time, path));
            Ok(())
        }
        _ => Err("see the top of examples/metrics_flood.rs for the arguments".into()),
    }
}

type Instance = steerage::Running<steerage_apps::Counted>;

fn serve(at: SocketAddr) -> Outcome<(Instance, Server, SocketAddr)> {
    let input = steerage_device::open("synthetic:rate=1000")?;
    let built = Builder::new().virtual_cpus(2).input(input).build(|_cpu| steerage_apps::Count::default())?;
    let running = built.start()?;
    let listener = Listener::bind("metrics", at)?;
    let address = listener.address();
    let server = listener.serve(Source::new(running.handle()))?;
    Ok((running, server, address))
}

fn on_loopback() -> Outcome<()> {
    const TIME: Duration = Duration::from_secs(5);
    let (running, server, at) = serve("127.0.0.1:0".parse()?)?;
    let client: IpAddr = "127.0.0.1".parse()?;
    for (kind, rate) in ["silent", "half", "whole", "deaf"].into_iter().flat_map(|kind| [(kind, 440), (kind, 0)]) {
        for path in [Duration::ZERO, Duration::from_millis(50)] {
            let over = AtomicBool::new(false);
            let made = AtomicU64::new(0);
            let served = thread::scope(|scope| {
                scope.spawn(|| made.store(flood(at, client, rate, TIME * 10, kind, &over), Ordering::Relaxed));
                let served = ask(at, client, TIME, path);
                over.store(true, Ordering::Relaxed);
                served
            });
            let limit = if rate == 0 { "no limit".to_owned() } else { format!("{rate}/s") };
            let (made, path) = (made.load(Ordering::Relaxed), path.as_millis());
            println!("{kind:<6} {limit:<8} ({made:>6} connections), path of {path} ms: {served}");
        }
    }
    drop(server);
    running.handle().stop();
    running.join();
    Ok(())
}

fn connect(at: SocketAddr, from: IpAddr) -> std::io::Result<TcpStream> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // With this option, many connections from one address can reuse their source ports at once.
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddr::new(from, 0))?;
    rustix::net::connect(&socket, &at)?;
    Ok(socket.into())
}

fn flood(at: SocketAddr, from: IpAddr, rate: u32, time: Duration, kind: &str, over: &AtomicBool) -> u64 {
    let start = Instant::now();
    let mut held = VecDeque::new();
    let mut made = 0u64;
    while start.elapsed() < time && !over.load(Ordering::Relaxed) {
        if rate > 0 {
            let due = Duration::from_secs_f64(made as f64 / f64::from(rate));
            thread::sleep(due.saturating_sub(start.elapsed()));
        }
        let Ok(mut stream) = connect(at, from) else {
            made += 1;
            continue;
        };
        made += 1;
        let sent = match kind {
            "half" => stream.write_all(&REQUEST[..20]),
            "whole" | "deaf" => stream.write_all(REQUEST),
            _ => Ok(()),
        };
        if sent.is_ok() && kind != "whole" {
            held.push_back(stream);
        }
        if held.len() > HELD {
            held.pop_front();
        }
    }
    made
}

fn ask(at: SocketAddr, from: IpAddr, time: Duration, path: Duration) -> String {
    let start = Instant::now();
    let (mut asked, mut served, mut slowest) = (0, 0, Duration::ZERO);
    while start.elapsed() < time {
        let before = Instant::now();
        asked += 1;
        let page = connect(at, from).and_then(|mut stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            thread::sleep(path);
            stream.write_all(REQUEST)?;
            let mut page = String::new();
            stream.read_to_string(&mut page)?;
            Ok(page)
        });
        served += u32::from(page.is_ok_and(|page| is_whole(&page)));
        slowest = slowest.max(before.elapsed());
        thread::sleep(PAUSE.saturating_sub(before.elapsed()));
    }
    format!("{served} of {asked} served, the slowest in {} ms", slowest.as_millis())
}

fn is_whole(answer: &str) -> bool {
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return false };
    head.starts_with("HTTP/1.1 200 ") && head.contains(&format!("Content-Length: {}\r\n", body.len()))
}
