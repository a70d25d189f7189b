//! Tests the live page from the point of view of an HTTP client.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use steerage_control::Audience;
use steerage_control::web::{Listener, PageServer};
use steerage_fixtures::{HANG, until};

const KEY: &str = "0123456789abcdef";

/// A report of this many bytes does not fit into the buffers of a socket.
const LONG: usize = 8 << 20;

/// How long a stopping server waits for clients to read their replies: `FINISH_MAX` of the server.
const FINISH_MAX: Duration = Duration::from_millis(500);

fn report(audience: Audience) -> String {
    match audience {
        Audience::Private => r#"{"snapshot":{},"traffic":{"top":["192.0.2.7"]}}"#,
        Audience::Public => r#"{"snapshot":{}}"#,
    }
    .to_owned()
}

fn serve(report: impl Fn(Audience) -> String + Send + 'static) -> (SocketAddr, PageServer) {
    let listener = Listener::bind("a live page", "127.0.0.1:0".parse().unwrap()).unwrap();
    (listener.address(), listener.serve_page(KEY.to_owned(), report).unwrap())
}

fn send(address: SocketAddr, path: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(HANG)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").unwrap();
    stream
}

fn reply(mut stream: TcpStream) -> (String, String) {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
    (head.to_owned(), body.to_owned())
}

fn get(address: SocketAddr, path: &str, headers: &str) -> (String, String) {
    reply(send(address, path, headers))
}

#[test]
fn the_page_and_its_parts_are_served() {
    let (address, _server) = serve(report);
    let (head, page) = get(address, "/", "");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && page.starts_with("<!doctype html>"), "{head}");
    let policy = head.lines().find_map(|line| line.strip_prefix("Content-Security-Policy: ")).unwrap();
    for directive in ["default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"] {
        assert!(policy.contains(directive), "{policy}");
    }
    let parts = [("/page.js", "text/javascript"), ("/page.css", "text/css"), ("/report", "application/json")];
    for (path, kind) in parts {
        assert!(path == "/report" || page.contains(&format!("\"{}\"", &path[1..])), "{path}");
        let (head, _) = get(address, path, "");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains(&format!("Content-Type: {kind}")), "{head}");
        for header in ["Cache-Control: no-store", "X-Content-Type-Options: nosniff", "Referrer-Policy: no-referrer"] {
            assert!(head.contains(header), "{path}: {head}");
        }
        assert!(!head.contains("Access-Control"), "{head}");
    }
    assert!(get(address, "/metrics", "").0.starts_with("HTTP/1.1 404 "));
}

#[test]
fn only_the_key_shows_the_traffic() {
    let (address, _server) = serve(report);
    let body = |headers: &str| get(address, "/report", headers).1;
    assert_eq!(body(&format!("Authorization: Bearer {KEY}\r\n")), report(Audience::Private));
    for wrong in ["", "Authorization: Bearer 0\r\n", "Authorization: Bearer \r\n", "Cookie: 0123456789abcdef\r\n"] {
        assert_eq!(body(wrong), report(Audience::Public), "{wrong}");
    }
    assert_eq!(get(address, &format!("/report?{KEY}"), "").1, report(Audience::Public));
}

#[test]
fn a_strange_host_gets_no_report() {
    let (address, _server) = serve(report);
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /report HTTP/1.1\r\nHost: rebound.example\r\nAuthorization: Bearer {KEY}\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 421 ") && !text.contains("192.0.2.7"), "{text}");
}

/// If no live page is open, the server ends at once.
#[test]
fn an_open_page_gets_the_last_report() {
    let last = |audience: Audience| if audience == Audience::Public { "last".to_owned() } else { "secret".to_owned() };
    let (_, server) = serve(report);
    server.end(last);

    let (address, server) = serve(report);
    assert_eq!(get(address, "/report", "").1, report(Audience::Public));
    let is_over = Arc::new(AtomicBool::new(false));
    let seen = std::thread::scope(|scope| {
        let over = Arc::clone(&is_over);
        let page = scope.spawn(move || {
            let mut seen = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let Ok(mut stream) = TcpStream::connect(address) else { break };
                let asked = stream.write_all(b"GET /report HTTP/1.1\r\nHost: localhost\r\n\r\n");
                let mut text = String::new();
                if asked.is_err() || stream.read_to_string(&mut text).is_err() || text.is_empty() {
                    break;
                }
                seen.push(text.split_once("\r\n\r\n").unwrap().1.to_owned());
            }
            seen
        });
        server.end(last);
        is_over.store(true, Ordering::Relaxed);
        page.join().unwrap()
    });
    assert!(seen.iter().any(|body| body == "last") && !seen.iter().any(|body| body == "secret"), "{seen:?}");
}

#[test]
fn the_end_cuts_no_reply_and_waits_for_nobody() {
    until("a client reads its whole reply", || {
        let (address, server) = serve(|_| "x".repeat(LONG));
        let mut reading = send(address, "/report", "");
        // After this read, the server has begun to send the reply.
        reading.read_exact(&mut [0; 9]).unwrap();
        let reader = std::thread::spawn(move || {
            let mut rest = Vec::new();
            reading.read_to_end(&mut rest).is_ok_and(|_| rest.len() > LONG)
        });
        let start = Instant::now();
        drop(server);
        let waited = start.elapsed();
        // On a loaded machine, server and reader may need longer than the server waits.
        let is_whole = reader.join().unwrap();
        assert!(is_whole || waited >= FINISH_MAX, "a reply was cut after {waited:?}");
        is_whole
    });

    let (address, server) = serve(|_| "x".repeat(LONG));
    let mut silent = send(address, "/report", "");
    silent.read_exact(&mut [0; 9]).unwrap();
    let start = Instant::now();
    drop(server);
    assert!(start.elapsed() < HANG);
}
