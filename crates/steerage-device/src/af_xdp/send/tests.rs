//! Tests steerage as a forwarder that receives from two interfaces with AF_XDP, and sends to both.

use steerage::Builder;
use steerage_fixtures::handlers::{Wire, end};
use steerage_fixtures::namespaces::{Namespaces, converse};

use crate::af_xdp::AfXdpOptions;
use crate::output::open_for;

#[test]
fn two_kernels_speak_over_two_interfaces() {
    if !steerage_fixtures::is_installed("ethtool", "ethtool") {
        return;
    }
    let Some(namespaces) = Namespaces::new(3) else { return };
    namespaces.veth((0, "far0"), (1, "one0"));
    namespaces.veth((2, "far0"), (1, "other0"));
    for (end, host) in [(0, 1), (2, 2)] {
        // With checksum offload, frames on a veth pair have no checksums, which AF_XDP cannot
        // detect.
        namespaces.features(end, "far0", "tx off");
        namespaces.address(end, host, "far0");
    }
    let mut builder = Builder::new().virtual_cpus(2).check_order(true);
    for interface in ["one0", "other0"] {
        let take = Some("all or arp or nd".parse().unwrap());
        let options = AfXdpOptions { take, ..AfXdpOptions::new(interface) };
        builder = builder.input(namespaces.within(1, || options.open()).unwrap().input);
    }
    for interface in ["one0", "other0"] {
        builder = builder.output(namespaces.within(1, || open_for(&format!("af_xdp:{interface}"), 2)).unwrap());
    }
    let running = builder.build(|_| Wire(1)).unwrap().start().unwrap();
    converse(&namespaces, 0, 2);
    let ledger = end(running);
    assert!(ledger.outputs.iter().all(|output| output.packets > 1000 && output.error.is_none()));
}
