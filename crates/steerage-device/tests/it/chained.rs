use std::path::Path;
use std::time::Instant;

use steerage::testing::QueueTester;
use steerage::{Builder, Input, Output, Snapshot, Timestamp, limits::POLL_BUDGET};
use steerage_capture as capture;
use steerage_device::{open, output};
use steerage_fixtures::cable::Net;
use steerage_fixtures::handlers::SendAll;
use steerage_fixtures::{HANG, assert_at_rest};

use steerage_fixtures::queues::drain;

/// A packet socket has room for this number of packets.
const PACKETS: usize = 200;

/// Devices with frames of 64 and of 5000 bytes, with one buffer per frame and with short buffers.
fn specs(buffer: usize, seed: u64) -> [(String, String); 2] {
    [64, 5000].map(|size| {
        let whole = format!("synthetic:size={size},packets={PACKETS},flows=8,seed={seed}");
        let in_buffers = format!("{whole},buffer={buffer}");
        (whole, in_buffers)
    })
}

fn expected(specs: &[(String, String)]) -> Vec<Vec<u8>> {
    let frames = specs.iter().map(|(whole, _)| drain(open(whole).unwrap().queues.remove(0)).0);
    let mut all: Vec<_> = frames.flatten().collect();
    all.sort();
    all
}

fn send(specs: &[(String, String)], output: Output) -> Snapshot {
    let inputs: Vec<Input> = specs.iter().map(|(_, in_buffers)| open(in_buffers).unwrap()).collect();
    let builder = inputs.into_iter().fold(Builder::new().virtual_cpus(2), Builder::input);
    let ledger = builder.output(output).build(|_| SendAll).unwrap().start().unwrap().join().snapshot;
    assert_at_rest(&ledger);
    assert_eq!((ledger.dropped().total(), ledger.outputs[0].packets), (0, 2 * PACKETS as u64));
    assert_eq!(ledger.outputs[0].bytes, ledger.received_bytes());
    ledger
}

fn listen(tester: &mut QueueTester) -> Vec<Vec<u8>> {
    let (start, mut came) = (Instant::now(), Vec::new());
    while came.len() < 2 * PACKETS {
        assert!(start.elapsed() < HANG, "{} came, {} were lost", came.len(), tester.lost());
        let (_, frames) = tester.poll(Timestamp::ZERO + start.elapsed(), POLL_BUDGET).unwrap();
        came.extend(frames.into_iter().filter(|frame| steerage_device::synthetic::parse_payload(frame).is_some()));
    }
    came.sort();
    came
}

#[test]
fn a_capture_file_has_all_of_them() {
    for (nth, buffer) in [300, 700, 4999].into_iter().enumerate() {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("chained{nth}.pcapng"));
        let specs = specs(buffer, 1);
        send(&specs, capture::create(&file).unwrap());
        let mut saved = drain(capture::open(&file).unwrap().queues.remove(0)).0;
        saved.sort();
        assert!(saved == expected(&specs), "{buffer}");
    }
}

#[test]
fn a_packet_socket_sends_all_of_them() {
    let Some(net) = Net::with("mtu 9000") else { return };
    let mut far = net.far(|| QueueTester::new(open("af_packet:far0,direction=in").unwrap().queues.remove(0)).unwrap());
    for (seed, buffer) in [300, 700, 4999].into_iter().enumerate() {
        let specs = specs(buffer, seed as u64);
        send(&specs, net.near(|| output::open("near0")).unwrap());
        assert!(net.far(|| listen(&mut far)) == expected(&specs), "{buffer}");
    }
}

#[test]
fn a_tap_is_given_all_of_them() {
    let Some(net) = Net::new() else { return };
    for (seed, buffer) in [300, 700, 4999].into_iter().enumerate() {
        let specs = specs(buffer, seed as u64);
        let output = net.near(|| output::open("tap:chained0,mtu=9000")).unwrap();
        let listening = || QueueTester::new(open("af_packet:chained0,direction=in").unwrap().queues.remove(0)).unwrap();
        let mut kernel = net.near(listening);
        send(&specs, output);
        assert!(net.near(|| listen(&mut kernel)) == expected(&specs), "{buffer}");
    }
}
