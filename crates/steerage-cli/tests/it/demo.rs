//! Tests that tshark finds the protocols that the documentation names in `examples/demo.pcapng`.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use steerage_fixtures::tshark;

const PACKETS: usize = 1000;

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/demo.pcapng")
}

/// Returns the fields of the frames that `filter` selects, or `None` if tshark is not installed.
fn fields(filter: &str, fields: &[&str]) -> Option<Vec<Vec<String>>> {
    let mut arguments = vec!["-n", "-Y", filter, "-T", "fields", "-E", "separator=;"];
    let checked = ["ip.check_checksum:TRUE", "udp.check_checksum:TRUE", "tcp.check_checksum:TRUE"];
    arguments.extend(checked.iter().flat_map(|option| ["-o", *option]));
    arguments.extend(fields.iter().flat_map(|field| ["-e", *field]));
    arguments.push("-r");
    let text = tshark::output("tshark", &arguments, &demo())?;
    Some(text.lines().map(|line| line.split(';').map(str::to_owned).collect()).collect())
}

#[test]
fn tshark_finds_nothing_wrong() {
    let Some(all) = fields("frame", &["frame.number"]) else { return };
    assert_eq!(all.len(), PACKETS);
    // This filter selects malformed frames, and frames for which tshark has warnings or errors, but
    // not mere remarks.
    let wrong = "_ws.malformed || _ws.expert.severity > 0x400000 || tcp.analysis.flags || ip.checksum.status == 0 || \
                 udp.checksum.status == 0 || tcp.checksum.status == 0";
    let found = fields(wrong, &["frame.number", "_ws.expert.message"]).unwrap();
    assert!(found.is_empty(), "{found:?}");
    let unchecked = fields("udp.checksum.status == 2 || tcp.checksum.status == 2", &["frame.number"]).unwrap();
    assert!(unchecked.is_empty(), "{unchecked:?}");
}

#[test]
fn it_has_what_the_documentation_says() {
    for (filter, at_least) in [
        ("dns.flags.response == 0 && dns.qry.name", 20),
        ("dns.flags.response == 1 && dns.a", 10),
        ("dns.flags.response == 1 && dns.aaaa", 5),
        ("dns.flags.rcode == 3", 1),
        ("http.request", 20),
        ("http.response.code == 200 && http.content_length", 10),
        ("tcp.flags.syn == 1 && tcp.flags.ack == 0", 20),
        ("tcp.flags.fin == 1", 20),
        ("rtp || udp.port == 5004", 100),
        ("vlan.id == 10", 20),
        ("vlan.id == 20", 20),
        ("ipv6 && tcp", 20),
        ("ipv6 && udp", 20),
        ("ip && tcp && !vlan", 20),
    ] {
        let Some(found) = fields(filter, &["frame.number"]) else { return };
        assert!(found.len() >= at_least, "{filter}: {}", found.len());
    }
    let all = fields("frame", &["frame.time_relative", "frame.len", "tcp.stream"]).unwrap();
    let times: Vec<f64> = all.iter().map(|frame| frame[0].parse().unwrap()).collect();
    assert!(times.is_sorted() && *times.last().unwrap() > 3.0);
    let bytes =
        |frames: &mut dyn Iterator<Item = &Vec<String>>| frames.map(|f| f[1].parse::<u64>().unwrap()).sum::<u64>();
    let elephant = bytes(&mut all.iter().filter(|frame| frame[2] == "0"));
    let total = bytes(&mut all.iter());
    assert!(elephant * 2 > total && elephant * 4 < total * 3, "{elephant} of {total}");
    // A few DNS requests at the end of the capture have no reply.
    let asked = fields("dns.flags.response == 0", &["dns.id"]).unwrap();
    let answered: HashSet<_> = fields("dns.flags.response == 1", &["dns.id"]).unwrap().into_iter().collect();
    let unanswered = asked.iter().filter(|id| !answered.contains(*id)).count();
    assert!(unanswered <= 3, "{unanswered}: some that were under way at the end");
}
