//! Each test drops the privileges of a separate thread, so that other threads keep theirs.

use std::error::Error;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::thread;

use steerage::DeviceError;
use steerage_device::af_packet::AfPacketOptions;
use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::{NOBODY, is_root};
use steerage_guard::capabilities::{self, Needed};

fn listen() -> Result<(), DeviceError> {
    AfPacketOptions::new("lo").open().map(drop)
}

fn errno(error: &DeviceError) -> Option<i32> {
    error.source()?.downcast_ref::<io::Error>()?.raw_os_error()
}

fn status(key: &str) -> String {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    status.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim().to_owned()
}

#[test]
fn without_privileges_no_interface_is_opened() {
    if !is_root() {
        return;
    }
    let without = || {
        let refused = listen().unwrap_err();
        assert_eq!(errno(&refused), Some(libc::EPERM), "{refused}");
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            assert_eq!(status(set), "0000000000000000", "{set}");
        }
        assert_eq!(status("NoNewPrivs:"), "1");
    };
    let dropped = thread::spawn(move || {
        listen().unwrap();
        capabilities::drop_all().unwrap();
        without();
        thread::spawn(without).join().unwrap();
        capabilities::drop_all().unwrap();
    });
    dropped.join().unwrap();
    listen().unwrap();
}

/// With the kept capabilities, the thread can open the files that it has named, but no interface.
#[test]
fn files_of_others_are_read_and_written_if_they_are_needed() {
    if !is_root() {
        return;
    }
    let theirs = Scratch::new();
    let capture = theirs.join("theirs.pcap");
    fs::write(&capture, "").unwrap();
    fs::set_permissions(&capture, fs::Permissions::from_mode(0o400)).unwrap();
    fs::set_permissions(&theirs, fs::Permissions::from_mode(0o755)).unwrap();
    for path in [&capture, Path::new(&*theirs)] {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let (read, write) = (|| fs::read(&capture).is_ok(), |name: &str| fs::write(theirs.join(name), "").is_ok());
    let flows = theirs.join("%H").join("flows.csv");
    thread::scope(|scope| {
        scope.spawn(|| {
            let kept = capabilities::drop_except(&Needed::default().read_file(&capture).written_files(&flows)).unwrap();
            assert!(read() && write("1"));
            // Threads that were started earlier keep their capabilities.
            kept.drop_start_up().unwrap();
            assert!(!read() && !write("2"));
            assert_eq!(errno(&listen().unwrap_err()), Some(libc::EPERM));
        });
        scope.spawn(|| {
            let ours = Scratch::new();
            // A user's own files can be opened without a capability, so no capability is kept.
            let kept = capabilities::drop_except(&Needed::default().written_files(&ours.join("flows.csv"))).unwrap();
            assert_eq!(status("CapPrm:"), "0000000000000000");
            assert!(!read() && !write("3"));
            kept.drop_start_up().unwrap();
        });
    });
}
