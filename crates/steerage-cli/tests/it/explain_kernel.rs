//! Tests `steerage explain IFACE`, which reads how much CPU time the kernel spends on the
//! interface's packets.

use std::net::UdpSocket;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};
use steerage_fixtures::cable::{FAR, NEAR, Net};

use crate::program::{Ran, command};

const DATAGRAMS_MAX: usize = 300_000;

/// Runs the program in the network namespace of `near0`, with the namespace's /sys, while datagrams
/// arrive.
fn flooded(net: &Net, args: &[&str]) -> Ran {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            net.far(|| {
                let sockets: Vec<_> = (0..20).map(|_| UdpSocket::bind((FAR, 0)).unwrap()).collect();
                for socket in sockets.iter().cycle().take(DATAGRAMS_MAX) {
                    // No socket listens on port 9, so `send_to` returns errors.
                    let _ = socket.send_to(&[0; 64], (NEAR, 9));
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        });
        let program = command(&[]);
        let mut explain = Command::new("ip");
        explain.args(["netns", "exec", &net.near]).arg(program.get_program());
        let output = explain.args(["explain", "near0", "--seconds", "1", "-Q", "in"]).args(args).output().unwrap();
        over.store(true, Ordering::Relaxed);
        Ran::of(output)
    })
}

#[test]
fn the_kernel_s_time_and_mask_are_read() {
    let Some(net) = Net::new() else { return };
    let all_cpus = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap().trim().to_owned();
    for mask in ["0", "1"] {
        let set = format!("echo {mask} > /sys/class/net/near0/queues/rx-0/rps_cpus");
        let done = Command::new("ip").args(["netns", "exec", &net.near, "sh", "-c", &set]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        let ran = flooded(&net, &["--json"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let explained: Value = serde_json::from_str(&ran.out).unwrap();
        let (kernel, suggestion) = (&explained["traffic"]["kernel"], &explained["traffic"]["suggestion"]);
        assert!(kernel["packets"].as_u64().unwrap() > 0 && kernel["receive_cpu"].is_u64(), "{kernel}");
        let counted: u64 = kernel["cpus"].as_array().unwrap().iter().map(|cpu| cpu["packets"].as_u64().unwrap()).sum();
        assert!(counted > 0, "{kernel}");
        let expected = if mask == "0" { json!([]) } else { json!([["rx-0", "0"]]) };
        assert_eq!(kernel["rps_cpus"], expected);
        assert_eq!(suggestion["assumed"]["work_measured"], json!(kernel["packet_ns"].is_number()), "{suggestion}");
        let sentence = kernel["sentence"].as_str().unwrap();
        assert!(sentence.starts_with("CPU ") && sentence.contains(" in softirq for near0"), "{sentence}");
        let has_commands = !kernel["commands"].as_array().unwrap().is_empty();
        assert_eq!(has_commands, sentence.contains("would bring it to"), "{kernel} on CPUs {all_cpus}");
    }
    let page = flooded(&net, &[]).out;
    assert!(page.starts_with("CPU ") && page.lines().next().unwrap().contains(" in softirq for near0"), "{page}");
    assert!(
        page.contains("\nkernel      busy  softirq       packets  interrupts\n")
            && page.contains("rps_cpus: rx-0 CPUs 0\n"),
        "{page}"
    );
}
