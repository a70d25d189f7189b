use std::fmt::{self, Write as _};

use steerage::FlowKey;
use steerage::flow::{self, FlowHash, FlowParts, bucket_of, even_share};
use steerage::limits::BUCKETS;
use steerage_text::{counted, percent, printable};

use super::advice;
use super::analysis::{Analysis, PacketDetail};
use super::basis::Command;
use super::explained::{CPUS, Explanation, Subject, TrafficExplanation, described, is_datagram, name};
use super::kernel;
use super::shares::Shares;
use super::suggest::Suggestion;

const NO_PACKETS: &str = "\nno packets, so there is no advice: try another input, listen for longer with --seconds, or \
                          change the filter\n";

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&page(self))
    }
}

fn page(explanation: &Explanation) -> String {
    let mut page = String::new();
    match &explanation.what {
        Subject::Flow(flow) => {
            let _ = writeln!(page, "flow       {}", flow.flow);
            goes_to(&mut page, explanation, &flow.key, flow.hash);
        }
        Subject::Traffic(traffic) => {
            let Analysis { all, flows, .. } = &traffic.survey;
            let suggestion = Suggestion::of(traffic);
            let kernel = traffic.basis.kernel.as_ref();
            page += &kernel.map_or(String::new(), |load| {
                kernel::Verdict::of(load, suggestion.as_ref().map(|suggestion| &suggestion.advised)).page()
            });
            let _ = writeln!(
                page,
                "{}  {}  {}  {}",
                printable(&traffic.device),
                counted(all.packets, "packet"),
                counted(all.bytes, "byte"),
                counted(flows.len() as u64, "flow")
            );
            let _ =
                writeln!(page, "steered as by steerage {}: {}", explanation.command.name, kept(explanation.command));
            match (&traffic.survey.packet_detail, all.packets) {
                (Some(specimen), _) => one_packet(&mut page, explanation, traffic, specimen),
                (None, 0) => page += NO_PACKETS,
                (None, packets) => {
                    let are = if packets == 1 { "there is" } else { "there are" };
                    let _ = writeln!(page, "\npacket {}   {are} only {}", traffic.packet, counted(packets, "packet"));
                }
            }
            if all.packets > 0 {
                spread(&mut page, traffic);
                largest(&mut page, traffic, explanation.top);
            }
            for note in advice::notes(traffic) {
                let _ = writeln!(page, "\n{note}");
            }
            page += &kernel.map_or(String::new(), kernel::figures);
            if let Some(suggestion) = suggestion {
                page += &suggestion.page(kernel.is_some());
            }
        }
    }
    page
}

fn kept(command: Command) -> &'static str {
    if command.keeps_both_directions() {
        "both directions of a flow stay on one CPU"
    } else {
        "each direction of a flow stays on one CPU and counts as a flow of its own"
    }
}

fn one_packet(page: &mut String, explanation: &Explanation, traffic: &TrafficExplanation, specimen: &PacketDetail) {
    let title = format!("packet {}", traffic.packet);
    let found = flow::dissect(&specimen.data, specimen.link, traffic.layers);
    let headers: Vec<String> = found.headers().map(|header| format!("{} {}", header.kind, header.offset)).collect();
    let length = counted(specimen.wire_len as u64, "byte");
    let _ = match headers.as_slice() {
        [] => writeln!(page, "\n{title:<10} {length}; no header was read: {}", found.end),
        headers => writeln!(
            page,
            "\n{title:<10} {length}; its headers, and the byte at which each begins:\n           {}; {}",
            headers.join(", "),
            found.end
        ),
    };
    let _ = writeln!(page, "flow       {}", name(&specimen.flow));
    goes_to(page, explanation, &specimen.key, specimen.hash);
}

fn goes_to(page: &mut String, explanation: &Explanation, key: &FlowKey, hash: FlowHash) {
    let about = match key.parts() {
        // A key that consists of bytes has no direction, such as the key of a fragmented datagram
        // or of an MPLS label.
        FlowParts::Bytes { .. } => "",
        _ if explanation.command.keeps_both_directions() => " (the same for both directions)",
        _ => " (the other direction has another key)",
    };
    let _ = match explanation.is_by_device() {
        true => writeln!(page, "key        not known: the device computed the hash"),
        false => match described(key) {
            Some(words) => writeln!(page, "key        {words}"),
            None => writeln!(page, "key        {key}{about}"),
        },
    };
    let random = if explanation.random_key { " with a random key (--hash-key sets it)" } else { "" };
    let bucket = bucket_of(hash);
    let _ = writeln!(page, "hash       {:#010x} by {}{random}", hash.0, explanation.hash);
    let _ = writeln!(page, "bucket     {bucket} of {BUCKETS}");
    let cpus: Vec<String> = CPUS.iter().map(|cpus| format!("{} of {cpus}", even_share(bucket, *cpus))).collect();
    let _ = writeln!(page, "CPU        {}, counted from 0 within the mask", cpus.join(", "));
}

fn spread(page: &mut String, traffic: &TrafficExplanation) {
    let _ = writeln!(page, "\nCPUs       the busiest has of packets  of bytes      speed-up at most");
    for cpus in traffic.cpus() {
        let shares = Shares::even(&traffic.survey.buckets, cpus);
        let (packets, bytes) = (100.0 * shares.busiest(), 100.0 * shares.busiest_bytes());
        let _ = writeln!(page, "{cpus:>4} {packets:>30.1} % {bytes:>7.1} % {:>15.1} times", shares.speed_up());
    }
}

fn largest(page: &mut String, traffic: &TrafficExplanation, top: usize) {
    let _ = writeln!(page, "\nlargest flows");
    for flow in traffic.largest().iter().take(top) {
        let of_all = percent(flow.weight.packets as f64, traffic.survey.all.packets as f64);
        let about = match (flow.is_two_way, is_datagram(flow)) {
            (true, _) => "both directions",
            (_, true) => "a datagram that steering knows only by its fragments",
            _ => "one direction",
        };
        let (packets, bytes) = (counted(flow.weight.packets, "packet"), counted(flow.weight.bytes, "byte"));
        let _ = writeln!(page, "{of_all:>5.1} %    {}, {packets}, {bytes}, {about}", name(&flow.flow));
    }
}
