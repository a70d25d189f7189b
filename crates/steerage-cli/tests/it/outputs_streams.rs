//! Tests outputs to programs, named pipes and connections.

use std::fs::{self, File};
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use serde_json::json;
use steerage_fixtures::namespaces::free_port;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{NOBODY, is_root, skip, until};

use crate::program::{Ran, command, run};

/// Returns the number of packets in a pcap file, whose times must be in nanoseconds.
pub(crate) fn packets(mut capture: &[u8]) -> u64 {
    assert_eq!(capture[..4], 0xa1b2_3c4d_u32.to_ne_bytes());
    capture = &capture[24..];
    let mut packets = 0;
    while !capture.is_empty() {
        let len = u32::from_ne_bytes(capture[8..12].try_into().unwrap()) as usize;
        capture = &capture[16 + len..];
        packets += 1;
    }
    packets
}

#[test]
fn programs_read_captures() {
    let scratch = Scratch::new();
    let to = |name: &str| format!("exec:cat >{}", scratch.join(name).display());
    let ran = run(&["fanout", "synthetic:packets=5000", "--to", &to("a"), "--to", &to("b"), "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let report = ran.report();
    assert_eq!((&report["snapshot"]["received"], &report["snapshot"]["dropped"]), (&5000.into(), &json!({})));
    for (nth, name) in ["a", "b"].iter().enumerate() {
        let read = packets(&fs::read(scratch.join(name)).unwrap());
        assert_eq!(Some(read), report["snapshot"]["outputs"][nth]["packets"].as_u64());
    }
    let ran = run(&["fanout", "synthetic:packets=50", "--to", "exec:cat >/dev/null; exit 3", "-q"]);
    assert_eq!((ran.code, ran.complaint().contains("exit status: 3")), (Some(1), true), "{ran:?}");
}

#[test]
fn a_program_that_has_enough_loses_the_rest() {
    let ran = run(&["fanout", "synthetic:packets=100000", "--to", "exec:head -c 1000 >/dev/null", "--json"]);
    let report = ran.report();
    // The header of a pcap file has 24 bytes, and here the record of each packet has 80 bytes.
    assert_eq!((ran.code, &report["snapshot"]["outputs"][0]["packets"]), (Some(1), &12.into()), "{ran:?}");
}

#[test]
fn a_fifo_is_made_and_waited_for() {
    let scratch = Scratch::new();
    let path = scratch.join("pipe");
    let run = command(&["fanout", "synthetic:packets=1000", "--to", &format!("fifo:{}", path.display()), "--json"]);
    let child = { run }.spawn().unwrap();
    until("there is a FIFO", || path.exists());
    let mut capture = Vec::new();
    File::open(&path).unwrap().read_to_end(&mut capture).unwrap();
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert_eq!((ran.code, packets(&capture)), (Some(0), 1000), "{ran:?}");
    assert!(ran.err.contains("waiting for a reader of") || ran.err.is_empty(), "{ran:?}");
    fs::write(scratch.join("file"), "").unwrap();
    let ran = crate::program::run(&[
        "fanout",
        "synthetic:packets=1",
        "--to",
        &format!("fifo:{}", scratch.join("file").display()),
    ]);
    assert!(ran.code == Some(1) && ran.complaint().contains("no FIFO"), "{ran:?}");
}

/// A TCP client gets packets only if it belongs to the user of the run.
#[test]
fn another_user_reads_no_capture() {
    if !is_root() {
        return;
    }
    for at in ["127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
        let Ok(bound) = TcpListener::bind(at) else {
            skip(&format!("this machine has no {at}"));
            continue;
        };
        let address = SocketAddr::new(bound.local_addr().unwrap().ip(), free_port());
        let to = format!("tcp-listen:{address}");
        let child = command(&["fanout", "synthetic:packets=1000", "--to", &to, "--json"]).spawn().unwrap();
        let reads = |address: SocketAddr| {
            let mut connection = None;
            until("somebody listens", || {
                connection = TcpStream::connect(address).ok();
                connection.is_some()
            });
            let mut capture = Vec::new();
            let _ = connection.unwrap().read_to_end(&mut capture);
            capture
        };
        let stranger = || {
            let nobody = rustix::thread::Uid::from_raw(NOBODY);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            reads(address)
        };
        assert_eq!(thread::scope(|scope| scope.spawn(stranger).join().unwrap()), [0; 0], "{at}");
        let capture = reads(address);
        let ran = Ran::of(child.wait_with_output().unwrap());
        assert_eq!((ran.code, packets(&capture)), (Some(0), 1000), "{ran:?}");
        let note = format!("belongs to user {NOBODY}; only root may read the packets");
        assert_eq!(ran.err.lines().filter(|line| line.contains(&note)).count(), 1, "{ran:?}");
        assert!(!ran.err.contains("whoever connects"), "{ran:?}");
    }
}

#[test]
fn an_open_address_is_warned_of() {
    let port = free_port();
    let to = format!("tcp-listen:0.0.0.0:{port}");
    let child = command(&["fanout", "synthetic:packets=1000", "--to", &to, "--json"]).spawn().unwrap();
    let mut connection = None;
    until("somebody listens", || {
        connection = TcpStream::connect(("127.0.0.1", port)).ok();
        connection.is_some()
    });
    let mut capture = Vec::new();
    connection.unwrap().read_to_end(&mut capture).unwrap();
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert_eq!((ran.code, packets(&capture)), (Some(0), 1000), "{ran:?}");
    let warning = format!("warning: whoever connects to 0.0.0.0:{port} first gets the packets");
    assert_eq!(ran.err.lines().filter(|line| line.starts_with(&warning)).count(), 1, "{ran:?}");
}

#[test]
fn who_connects_reads_a_capture() {
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let to = format!("tcp-listen:{address}");
    let child = command(&["fanout", "synthetic:packets=1000", "--to", &to, "--json"]).spawn().unwrap();
    let reader = thread::spawn(move || {
        let mut connection = None;
        until("somebody listens", || {
            connection = TcpStream::connect(address).ok();
            connection.is_some()
        });
        let mut capture = Vec::new();
        connection.unwrap().read_to_end(&mut capture).unwrap();
        capture
    });
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert_eq!((ran.code, packets(&reader.join().unwrap())), (Some(0), 1000), "{ran:?}");
}
