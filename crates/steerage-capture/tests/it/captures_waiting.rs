use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use fastrand::Rng;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use steerage::testing::QueueTester;
use steerage::{Timestamp, device::Polled};
use steerage_capture::{Capture, Pace};
use steerage_fixtures::until;

use crate::common::*;
use steerage_fixtures::queues::{POLLS_MAX, drain, drain_headed};

const SECOND: u64 = 1_000_000_000;

/// Returns true if the descriptor that a waiting queue polls is readable.
fn rings(tester: &QueueTester) -> bool {
    let fd = tester.queue().wait_on().expect("a pipe is waited on");
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1
}

fn poll_dry(tester: &mut QueueTester, now: Timestamp, all: &mut Vec<Vec<u8>>) -> Polled {
    for _ in 0..POLLS_MAX {
        let (polled, frames) = tester.poll(now, 64).unwrap();
        all.extend(frames);
        if polled != Polled::More {
            return polled;
        }
    }
    panic!("it goes on forever");
}

fn poll_some(tester: &mut QueueTester, budget: usize) -> (Polled, Vec<Vec<u8>>) {
    let polls = (0..POLLS_MAX).map(|_| tester.poll(Timestamp::ZERO, budget).unwrap());
    polls.into_iter().find(|(_, frames)| !frames.is_empty()).expect("it has something")
}

/// Between pieces of odd sizes, the queue waits without spinning.
#[test]
fn a_pipe_is_read_as_it_comes() {
    let packets = packets_of((0..200).map(|nth| nth * 7 % 300));
    let (ng, ng_packets, _) = mixed_pcapng();
    for (bytes, packets) in [(pcap(true, MAGICS[1], &packets), packets), (ng, ng_packets)] {
        let path = fifo("pipe");
        let capture = Capture::open(&path).unwrap();
        assert_eq!(capture.info().bytes_total(), None);
        let mut tester = QueueTester::new(Box::new(capture)).unwrap();
        let mut all = Vec::new();
        assert_eq!(poll_dry(&mut tester, Timestamp::ZERO, &mut all), Polled::Drained);
        assert!(tester.queue().capabilities().can_wait && !rings(&tester));
        let mut pipe = OpenOptions::new().write(true).open(&path).unwrap();
        let mut rest = &bytes[..];
        let mut random = Rng::with_seed(11);
        while !rest.is_empty() {
            let (piece, more) = rest.split_at((1 + random.usize(..97)).min(rest.len()));
            pipe.write_all(piece).unwrap();
            assert!(rings(&tester));
            assert_eq!(poll_dry(&mut tester, Timestamp::ZERO, &mut all), Polled::Drained);
            assert!(!rings(&tester));
            rest = more;
        }
        assert_eq!(all, packets, "all that came is handed over before the pipe is closed");
        drop(pipe);
        // A child process that another test has just forked has the pipe open until it runs its
        // executable.
        until("the pipe is closed", || rings(&tester));
        assert_eq!(poll_dry(&mut tester, Timestamp::ZERO, &mut all), Polled::Ended);
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_pipe_is_quiet_while_nobody_waits_for_it() {
    let path = fifo("quiet");
    let mut tester = QueueTester::new(Box::new(Capture::open(&path).unwrap())).unwrap();
    assert_eq!(tester.poll(Timestamp::ZERO, 64).unwrap().0, Polled::Drained);
    let mut pipe = OpenOptions::new().write(true).open(&path).unwrap();
    pipe.write_all(&pcap(false, MAGICS[0], &packets_of([60; 9]))).unwrap();
    drop(pipe);
    assert!(rings(&tester));
    let (polled, frames) = poll_some(&mut tester, 4);
    assert_eq!((polled, frames.len()), (Polled::More, 4));
    assert!(!rings(&tester));
    fs::remove_file(path).unwrap();
}

/// A dropped queue leaves no descriptor in the epoll instance on which it waited.
#[test]
fn a_silent_pipe_can_be_dropped() {
    let path = fifo("silent");
    let mut tester = QueueTester::new(Box::new(Capture::open(&path).unwrap())).unwrap();
    assert_eq!(tester.poll(Timestamp::ZERO, 64).unwrap().0, Polled::Drained);
    drop(tester);
    fs::remove_file(path).unwrap();
}

/// Packets of 1 byte, recorded at `times` in nanoseconds.
fn timed(times: &[u64]) -> Vec<u8> {
    let mut file = pcap(false, MAGICS[1], &[]);
    for (nth, time) in times.iter().enumerate() {
        file.extend(words(false, &[(time / SECOND) as u32, (time % SECOND) as u32, 1, 1]));
        file.push(nth as u8);
    }
    file
}

#[test]
fn a_pace_hands_each_packet_over_when_it_is_due() {
    let first = 1_700_000_000 * SECOND;
    let times = [0, 10, 1000, 1001, 500, 3 * SECOND].map(|after| first + after);
    let capture = Capture::from_reader("timed", std::io::Cursor::new(timed(&times)));
    let mut tester = QueueTester::new(Box::new(capture.paced(Pace::times(0.5).unwrap()))).unwrap();
    assert!(tester.queue().capabilities().can_wait);
    let start = 5000;
    let mut history = Vec::new();
    let mut now = Timestamp::from_nanos(start);
    loop {
        let mut all = Vec::new();
        let polled = poll_dry(&mut tester, now, &mut all);
        history.push((now.as_nanos() - start, all.concat()));
        match polled {
            Polled::NotBefore(due) => {
                assert!(due > now);
                let early = tester.poll(Timestamp::from_nanos(due.as_nanos() - 1), 64).unwrap();
                assert_eq!(early, (Polled::NotBefore(due), vec![]));
                now = due;
            }
            Polled::Ended => break,
            other => panic!("{other:?}"),
        }
    }
    // The capture is replayed at half of the recorded speed. A packet with an earlier time than the
    // previous packet is due immediately.
    let expected = [(0, vec![0]), (20, vec![1]), (2000, vec![2]), (2002, vec![3, 4]), (6 * SECOND, vec![5])];
    assert_eq!(history, expected);
}

#[test]
fn a_pace_catches_up_and_ignores_packets_without_a_time() {
    let capture = Capture::from_reader("timed", std::io::Cursor::new(timed(&[7, 8, 9, 7 + SECOND])));
    let mut tester = QueueTester::new(Box::new(capture.paced(Pace::RECORDED))).unwrap();
    let mut all = Vec::new();
    let due = Timestamp::from_nanos(SECOND);
    assert_eq!(poll_some(&mut tester, 1), (Polled::More, vec![vec![0]]));
    assert_eq!(poll_dry(&mut tester, Timestamp::from_nanos(500), &mut all), Polled::NotBefore(due));
    assert_eq!(poll_dry(&mut tester, due, &mut all), Polled::Ended);
    assert_eq!(all, [[1], [2], [3]]);

    let file = [section(false), interface(false, 1, 0), simple(false, 1, &[1]), simple(false, 1, &[2])].concat();
    let capture = Capture::from_reader("simple", std::io::Cursor::new(file)).paced(Pace::RECORDED);
    assert_eq!(drain(Box::new(capture)).0, [[1], [2]]);
}

#[test]
fn several_files_are_one_capture() {
    let packets = packets_of([60, 61, 62, 63]);
    let (ng, ng_packets, _) = mixed_pcapng();
    let first = temporary("first.pcap", &pcap(false, MAGICS[0], &packets));
    let second = temporary("second.pcapng", &ng);
    let bytes = fs::metadata(&first).unwrap().len() + fs::metadata(&second).unwrap().len();
    let capture = Capture::open_all(&[&first, &second, &first]).unwrap();
    let info = capture.info();
    assert_eq!(info.bytes_total(), Some(bytes + fs::metadata(&first).unwrap().len()));
    let frames: Vec<Vec<u8>> = drain_headed(Box::new(capture)).into_iter().map(|(_, frame)| frame).collect();
    assert!(frames == [packets.clone(), ng_packets, packets].concat());
    assert_eq!(Some(info.bytes_read()), info.bytes_total());

    // If several files are replayed at a pace, each file begins when the previous file has ended.
    let late = temporary("late.pcap", &timed(&[9_000_000 * SECOND, 9_000_000 * SECOND + 5]));
    let early = temporary("early.pcap", &timed(&[3, 4]));
    let mut tester =
        QueueTester::new(Box::new(Capture::open_all(&[&early, &late]).unwrap().paced(Pace::RECORDED))).unwrap();
    let mut all = Vec::new();
    assert_eq!(poll_dry(&mut tester, Timestamp::ZERO, &mut all), Polled::NotBefore(Timestamp::from_nanos(1)));
    let then = Timestamp::from_nanos(1);
    assert_eq!(poll_dry(&mut tester, then, &mut all), Polled::NotBefore(Timestamp::from_nanos(6)));
    assert_eq!(poll_dry(&mut tester, Timestamp::from_nanos(6), &mut all), Polled::Ended);
    assert_eq!(all, [[0], [1], [0], [1]]);
    [first, second, late, early].iter().for_each(|path| fs::remove_file(path).unwrap());
}

#[test]
fn the_second_file_may_be_wrong() {
    let good = pcap(false, MAGICS[0], &packets_of([60]));
    let (first, second) = (temporary("good.pcap", &good), temporary("bad.pcap", &good[..50]));
    let (frames, end, _) = drain(Box::new(Capture::open_all(&[&first, &second]).unwrap()));
    let line = end.unwrap_err().to_string();
    assert!(frames.len() == 1 && line.contains("bad.pcap: cannot read the capture at byte 24: "), "{line}");

    File::create(&second).unwrap().write_all(b"no capture").unwrap();
    let line = Capture::open_all(&[&first, &second]).unwrap_err().to_string();
    assert!(line.contains("bad.pcap: cannot read the capture at byte 0: it begins with 6e 6f 20 63"), "{line}");
    fs::remove_file(&second).unwrap();
    assert!(Capture::open_all(&[&first, &second]).unwrap_err().to_string().contains("No such file"));
    assert!(Capture::open_all(&[] as &[PathBuf]).unwrap_err().to_string().contains("there are none"));
    fs::remove_file(first).unwrap();
}
