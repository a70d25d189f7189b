use std::path::{Path, PathBuf};

use steerage::{Batch, Builder, Cpu, Handler, Snapshot};
use steerage_capture as capture;
use steerage_device::synthetic;
use steerage_fixtures::handlers::SendAll;
use steerage_fixtures::tshark::{captures, tshark};

fn target(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn save(input: steerage::Input, to: &Path, cpus: usize) -> Snapshot {
    let output = capture::create(to).expect("a file can be written there");
    let builder = Builder::new().virtual_cpus(cpus).input(input).output(output);
    let outcome = builder.build(|_| SendAll).unwrap().start().unwrap().join();
    assert_eq!(outcome.snapshot.received(), outcome.snapshot.verdicts().transmitted);
    outcome.snapshot
}

const FIELDS: [&str; 4] = ["frame.time_epoch", "frame.len", "frame.cap_len", "frame.protocols"];

#[test]
fn tshark_reads_the_same_from_a_copy() {
    for path in captures() {
        let Some(mut of_original) = tshark(&path, &FIELDS) else { return };
        let copy = target("copy.pcapng");
        for cpus in [1, 3] {
            let snapshot = save(capture::open(&path).unwrap(), &copy, cpus);
            assert_eq!(snapshot.outputs[0].packets, of_original.len() as u64, "{}", path.display());
            let mut of_copy = tshark(&copy, &FIELDS).unwrap();
            if cpus > 1 {
                // If several CPUs handle the packets, only the packets of each flow keep their
                // order.
                of_copy.sort();
                of_original.sort();
            }
            // tshark recognises some protocols by means of earlier packets.
            let fields = if cpus > 1 { 3 } else { 4 };
            let cut = |rows: &[Vec<String>]| rows.iter().map(|row| row[..fields].to_vec()).collect::<Vec<_>>();
            assert_eq!(cut(&of_copy), cut(&of_original), "{} on {cpus} CPUs", path.display());
        }
    }
}

#[test]
fn what_was_written_is_read_again() {
    struct Collect(Vec<(Option<u64>, u16, usize, Vec<u8>)>);
    impl Handler for Collect {
        type Moved = ();
        type Report = Self;
        fn handle(&mut self, batch: &mut Batch<'_>, _: &mut Cpu) {
            for packet in batch.iter_mut() {
                let got = packet.received();
                self.0.push((got.time.map(|time| time.as_nanos()), got.link.0, got.wire_len, got.data.to_vec()));
            }
        }
        fn finish(self, _cpu: &mut Cpu) -> Self {
            self
        }
    }
    let collect = |input| {
        let instance = Builder::new().virtual_cpus(1).input(input).build(|_| Collect(Vec::new())).unwrap();
        instance.start().unwrap().join().reports.remove(0).1.0
    };
    for path in captures() {
        let copy = target("read-again.pcapng");
        save(capture::open(&path).unwrap(), &copy, 1);
        let (original, copied) = (collect(capture::open(&path).unwrap()), collect(capture::open(&copy).unwrap()));
        assert_eq!(original.len(), copied.len());
        assert!(original == copied, "{}", path.display());
    }
}

#[test]
fn packets_without_a_time_have_that_of_the_run() {
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let path = target("synthetic.pcapng");
    let options = synthetic::SyntheticOptions::new().packets(1000);
    save(options.open().unwrap(), &path, 2);
    let Some(rows) = tshark(&path, &["frame.time_epoch"]) else { return };
    assert_eq!(rows.len(), 1000);
    let time = |row: &Vec<String>| row[0].parse::<f64>().expect("seconds");
    let after = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    // Times may differ by a second, because the clock may be adjusted during the test.
    assert!(rows.iter().map(time).all(|time| time > before - 1.0 && time < after + 1.0));
}

#[test]
fn a_full_disk_ends_the_output_and_is_counted() {
    let options = synthetic::SyntheticOptions::new().packets(10_000);
    let Err(error) = capture::create("/dev/full") else { panic!("nothing fits there") };
    assert_eq!(error.to_string(), "/dev/full: cannot write to: No space left on device (os error 28)");
    // One output fails during the run, because the reader of its pipe closes the pipe.
    let pipe = target("pipe");
    let _ = std::fs::remove_file(&pipe);
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || {
            use std::io::Read;
            let mut file = std::fs::File::open(pipe).unwrap();
            let _ = file.read(&mut [0; 28]).unwrap();
        }
    });
    let output = capture::create(&pipe).unwrap();
    reader.join().unwrap();
    let builder = Builder::new().virtual_cpus(2).input(options.open().unwrap()).output(output);
    let outcome = builder.build(|_| SendAll).unwrap().start().unwrap().join();
    let ledger = outcome.snapshot;
    assert_eq!((ledger.received(), ledger.in_flight()), (10_000, 0));
    assert_eq!(ledger.dropped().total(), 10_000 - ledger.outputs[0].packets);
    assert_eq!((ledger.outputs[0].dropped, ledger.outputs[0].held), (ledger.dropped(), 0));
    assert!(ledger.outputs[0].error.as_ref().unwrap().contains("Broken pipe"), "{:?}", ledger.outputs[0]);
}

#[test]
fn a_place_that_cannot_be_written_is_told() {
    let Err(error) = capture::create("/nowhere/out.pcapng") else { panic!("there is no such folder") };
    assert_eq!(error.to_string(), "/nowhere/out.pcapng: cannot create: No such file or directory (os error 2)");
}
