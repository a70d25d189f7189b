//! Tests the control socket with many clients, and with clients that send wrong requests or
//! disconnect early.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};
use steerage_control::{
    Audience, CLIENTS_MAX, CLIENTS_RESERVED, Client, ClientError, CpuView, Listening, REQUEST_BYTES_MAX, SocketError,
    find,
};
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{HANG, NOBODY, is_root, quiet_panics};

use crate::common::{BySocket, Instance, owner};

const MASK: &str = "sys/class/net/synthetic/queues/rx-0/rps_cpus";

fn ask(stream: &UnixStream, line: &str) -> Value {
    (&*stream).write_all(format!("{line}\n").as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).unwrap()
}

#[test]
fn requests_and_answers_are_lines_of_json() {
    let instance = Instance::quiet(2);
    let socket = BySocket::new(&instance.tree);
    let stream = UnixStream::connect(&socket.path).unwrap();
    assert_eq!(ask(&stream, &json!({"get": MASK}).to_string()), json!({"value": "3\n"}));
    assert_eq!(ask(&stream, r#"{"snapshot":true}"#), json!({"snapshot": {"a": 1, "flows": ["10.0.0.1"]}}));
    let hello = json!({"protocol": 1, "version": env!("CARGO_PKG_VERSION"), "pid": std::process::id(), "uid": owner()});
    assert_eq!(ask(&stream, r#"{"hello":true}"#), json!({ "hello": hello }));
    let entries = json!([{"name": "softnet_stat", "type": "file", "mode": "0444"}]);
    assert_eq!(ask(&stream, r#"{"list":"proc/net"}"#), json!({ "entries": entries }));
    assert_eq!(ask(&stream, r#"{"events":0}"#), json!({"events": []}));
    assert_eq!(ask(&stream, r#"{"get":"no/such"}"#)["error"], "ENOENT");
    assert_eq!(ask(&stream, r#"{"get":"proc"}"#)["error"], "EISDIR");
    for wrong in
        ["", "x", "[]", "{}", r#"{"get":1}"#, r#"{"set":"a"}"#, r#"{"hello":false}"#, r#"{"get":"a","list":"a"}"#]
    {
        assert_eq!(ask(&stream, wrong)["error"], "EINVAL", "{wrong}");
    }
    // If a request has no end of line, only the maximum length is read.
    let _ = (&stream).write_all(&vec![b' '; REQUEST_BYTES_MAX]);
    let mut rest = String::new();
    let _ = (&stream).read_to_string(&mut rest);
    assert!(rest.contains("EINVAL") && rest.lines().count() == 1, "{rest}");
}

#[test]
fn others_may_ask_and_not_tell() {
    if !is_root() {
        return;
    }
    let instance = Instance::quiet(2);
    let socket = BySocket::new(&instance.tree);
    let ask = || {
        // The system call changes the user ID of this thread only.
        let nobody = rustix::process::Uid::from_raw(NOBODY);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let mut client = Client::connect(&socket.path).unwrap();
        let told = [MASK, "proc/sys/net/core/dev_weight"].map(|path| match client.set(path, "1") {
            Err(ClientError::Refused { code, .. }) => code,
            other => panic!("{other:?}"),
        });
        (told, client.get(MASK).unwrap())
    };
    let (told, read) = thread::scope(|scope| scope.spawn(ask).join().unwrap());
    assert_eq!((told, read.as_str()), (["EPERM".to_owned(), "EPERM".to_owned()], "3\n"));
}

/// The client's place is free again, or the last of these clients would be refused.
#[test]
fn a_panic_closes_the_connection_of_one_client() {
    quiet_panics();
    let instance = Instance::quiet(2);
    let scratch = Scratch::new();
    let path = scratch.join("x.sock");
    let report = |_: Audience| -> String { panic!("planted") };
    let _serving = Listening::bind(&path).unwrap().serve(Arc::clone(&instance.tree), report).unwrap();
    let mut other = Client::connect(&path).unwrap();
    for _ in 0..CLIENTS_MAX {
        let stream = UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(HANG)).unwrap();
        (&stream).write_all(b"{\"snapshot\":true}\n").unwrap();
        assert_eq!((&stream).read_to_end(&mut Vec::new()).unwrap(), 0);
    }
    assert_eq!(other.get(MASK).unwrap(), "3\n");
    assert_eq!(other.set(MASK, "1").unwrap(), "1\n");
}

/// The user who opened the connection determines what a reply contains.
#[test]
fn flows_are_for_root_and_the_owner() {
    const OWNER: u32 = 12345;
    if !is_root() {
        return;
    }
    let instance = Instance::of_user(OWNER, "synthetic:rate=1000", 2, CpuView::new(2));
    let socket = BySocket::new(&instance.tree);
    let seen_by = |uid: u32| {
        let ask = || {
            let user = rustix::process::Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            Client::connect(&socket.path).unwrap().snapshot().unwrap()
        };
        thread::scope(|scope| scope.spawn(ask).join().unwrap())
    };
    let all = json!({"a": 1, "flows": ["10.0.0.1"]});
    assert_eq!([0, OWNER, NOBODY].map(seen_by), [all.clone(), all, json!({"a": 1})]);
}

/// The old value of each change is the new value of the change before, which shows that writes
/// never overlap.
#[test]
fn two_writers_take_turns() {
    let instance = Instance::new("synthetic:rate=50000,flows=500", 4, CpuView::new(4));
    let socket = BySocket::new(&instance.tree);
    thread::scope(|scope| {
        for masks in [["1", "6", "f"], ["3", "8", "c"]] {
            let path = socket.path.clone();
            scope.spawn(move || {
                let mut client = Client::connect(&path).unwrap();
                for nth in 0..30 {
                    client.set(MASK, masks[nth % 3]).unwrap();
                }
            });
        }
    });
    let events = Client::connect(&socket.path).unwrap().events(0).unwrap();
    assert!(events.len() >= 30, "{}", events.len());
    assert!(events.iter().map(|event| event.number).eq(1..=events.len() as u64));
    assert_eq!(events[0].from, "f");
    for pair in events.windows(2) {
        assert_eq!(pair[0].to, pair[1].from, "{pair:?}");
    }
    assert_eq!(Client::connect(&socket.path).unwrap().get(MASK).unwrap().trim(), events.last().unwrap().to);
    let ledger = instance.end().snapshot;
    assert_eq!((ledger.reordered(), ledger.in_flight()), (Some(0), 0));
}

/// A client that does not read, and a client whose request has no end of line, delay no other
/// client.
#[test]
fn a_hung_client_hangs_alone() {
    let instance = Instance::quiet(2);
    let scratch = Scratch::new();
    let path = scratch.join("x.sock");
    let report = |_| json!({"long": "x".repeat(1 << 20)}).to_string();
    let serving = Listening::bind(&path).unwrap().serve(Arc::clone(&instance.tree), report).unwrap();
    let (deaf, slow) = (UnixStream::connect(&path).unwrap(), UnixStream::connect(&path).unwrap());
    (&deaf).write_all("{\"snapshot\":true}\n".repeat(100).as_bytes()).unwrap();
    (&slow).write_all(b"{\"get\":").unwrap();
    let before = instance.handle().snapshot().delivered();
    let mut client = Client::connect(&path).unwrap();
    for _ in 0..20 {
        assert_eq!(client.get(MASK).unwrap(), "3\n");
    }
    while instance.handle().snapshot().delivered() < before + 100 {
        thread::yield_now();
    }
    // When the server ends, it disconnects clients that hang, without waiting for them.
    drop(serving);
    assert!(!path.exists());
    let mut rest = Vec::new();
    let _ = (&slow).read_to_end(&mut rest);
    assert!(rest.is_empty());
}

#[test]
fn one_client_too_many_is_told_so() {
    let instance = Instance::quiet(1);
    let mut socket = BySocket::new(&instance.tree);
    // Users other than root cannot use the connections that are reserved for root.
    let places = if owner() == 0 { CLIENTS_MAX } else { CLIENTS_MAX - CLIENTS_RESERVED };
    let mut clients: Vec<Client> = (1..places).map(|_| Client::connect(&socket.path).unwrap()).collect();
    clients.iter_mut().for_each(|client| drop(client.hello().unwrap()));
    match Client::connect(&socket.path).unwrap().hello() {
        Err(ClientError::Refused { code, .. }) => assert_eq!(code, "EBUSY"),
        // On a very slow machine, the client `socket` may have been silent for so long that it was
        // disconnected.
        Ok(_) => assert!(socket.client.hello().is_err()),
        other => panic!("{other:?}"),
    }
    drop(clients.pop());
    let start = Instant::now();
    while Client::connect(&socket.path).unwrap().hello().is_err() {
        assert!(start.elapsed() < HANG, "its place is not free again");
        thread::yield_now();
    }
}

#[test]
fn sockets_of_the_dead_make_way_and_those_of_the_living_stay() {
    let scratch = Scratch::new();
    let (dead, alive) = (scratch.join("dead.sock"), scratch.join("alive.sock"));
    drop(UnixListener::bind(&dead).unwrap());
    let listening = Listening::bind(&alive).unwrap();
    assert_eq!(fs::metadata(&alive).unwrap().permissions().mode() & 0o777, 0o666);
    assert!(matches!(Listening::bind(&alive), Err(SocketError::InUse(_))));
    assert_eq!(find(&scratch).unwrap(), [alive.as_path()]);
    assert!(find(&scratch.join("none")).unwrap().is_empty());
    assert!(!dead.exists() && alive.exists());

    drop(UnixListener::bind(&dead).unwrap());
    let heir = Listening::bind(&dead).unwrap();
    assert_eq!(find(&scratch).unwrap().len(), 2);
    fs::write(scratch.join("file"), "").unwrap();
    assert!(matches!(Listening::bind(&scratch.join("file")), Err(SocketError::NotASocket(_))));
    // Dropping a `Listening` does not remove a newer socket of the same name.
    fs::remove_file(&dead).unwrap();
    let other = Listening::bind(&dead).unwrap();
    drop(heir);
    assert!(dead.exists());
    drop((other, listening));
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 1);
}

/// A client does not wait for ever if the instance is stopped (SIGSTOP), or if it replies byte by
/// byte.
#[test]
fn a_client_does_not_wait_for_ever() {
    let scratch = Scratch::new();
    let path = scratch.join("x.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let mut client = Client::connect(&path).unwrap();
    let error = client.get(MASK).unwrap_err();
    assert!(matches!(error, ClientError::TimedOut(_)) && error.to_string().contains("timed out"), "{error}");

    let mut client = Client::connect(&path).unwrap();
    drop(listener.accept().unwrap());
    let (mut slow, _) = listener.accept().unwrap();
    let trickle = thread::spawn(move || {
        while slow.write_all(b" ").is_ok() {
            thread::sleep(std::time::Duration::from_millis(10));
        }
    });
    assert!(matches!(client.get(MASK), Err(ClientError::TimedOut(_))));
    drop(client);
    trickle.join().unwrap();
}
