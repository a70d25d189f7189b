//! Tests wrong command lines and missing devices. The program must print one line that says what to
//! do, and return the documented exit code.

use crate::program::run;

/// Runs a command line that must fail. Returns the only line on standard error. Standard output
/// must be empty.
fn fails(code: i32, args: &str) -> String {
    let ran = run(&args.split_whitespace().collect::<Vec<_>>());
    assert_eq!(ran.code, Some(code), "{args}: {ran:?}");
    assert_eq!(ran.out, "", "{args}");
    ran.complaint().to_owned()
}

#[test]
fn a_wrong_command_line_is_2() {
    for args in [
        "nonsense",
        "count --cpu 0",
        "count --pace",
        "count --pace a.pcap",
        "count a.pcap --pace 0",
        "count --cpus",
        "count --cpus x",
        "count --cpus ,",
        "count --cpus 0-65535",
        "count --rx-cpu ,",
        "count --rx-cpu 3 --virtual-cpus 3",
        "count --rps-cpus 0xff",
        "count --rps-cpus 000000001",
        "count --rps-cpus 4 --virtual-cpus 2",
        "count --rps-cpus-list 2 --virtual-cpus 2",
        "count --rps-cpus 1 --rps-cpus-list 0",
        "count --rps-cpus 2 --cpus 0 --virtual-cpus 2",
        "count --rps-cpus 1 --rps-cpus 2",
        "count --rps-cpus rx-0=1 --rps-cpus rx-0=2",
        "count --rps-cpus rx-0=0-1",
        "count --rps-cpus rx=1",
        "count --rps-cpus rx-+0=1",
        "count --rps-cpus rx-1=1",
        "count --rps-cpus eth1/rx-0=1",
        "count --rps-cpus rx-0=4 --virtual-cpus 2",
        "count --rps-cpus-list rx-0=2 --virtual-cpus 2",
        "count --rps-cpus-list rx-0=1 --rps-cpus 1",
        "count --rps-cpus-list rx-0=1 --rps-cpus-list synthetic/rx-0=0",
        "count --virtual-cpus 0",
        "count --virtual-cpus 1025",
        "count -c 0",
        "count -c -1",
        "count -c many",
        "count --seconds -1",
        "count --seconds soon",
        "count --interval 0",
        "count --interval 9ms",
        "count --interval soon",
        "count --hash md5",
        "count --hash-key 00",
        "count --backlog 0",
        "count --dev-weight 0",
        "count --dev-weight 65",
        "count --backlog 1048577",
        "count --memory 1T",
        "count -Q up",
        "count --block-timeout 0",
        "count --block-timeout 11s",
        "count --queues 0",
        "count --queues 257",
        "count af_packet:lo,queue=1",
        "count synthetic:flow=1",
        "count synthetic:rate=0",
    ] {
        fails(2, args);
    }
}

#[test]
fn what_cannot_be_done_is_1() {
    fails(1, "count nowhere.pcap");
    fails(1, "count a b");
    fails(1, "count /");
    fails(1, "count /dev/null");
    fails(1, "count --memory 1M");
    assert!(fails(1, "count Cargo.toml").contains("neither pcap nor pcapng"));
}

#[test]
fn a_complaint_says_what_to_do() {
    assert_eq!(
        fails(2, "count --cpus 0-9 --virtual-cpus 4"),
        "steerage: --cpus: `0-9` has a CPU that there isn't: the last of 4 is CPU 3"
    );
    assert_eq!(
        fails(2, "count --rps-cpus 2 --cpus 0 --virtual-cpus 2"),
        "steerage: CPU 1 of the mask is not among the CPUs that work (0): add it to --cpus, or leave it out of the mask"
    );
    assert_eq!(
        fails(2, "count synthetic:queues=4 --rps-cpus rx-4=1 --virtual-cpus 2"),
        "steerage: --rps-cpus: there is no queue rx-4: there is rx-0 to rx-3"
    );
    assert_eq!(
        fails(2, "count synthetic:queues=4 synthetic --rps-cpus-list rx-0=1 --virtual-cpus 2"),
        "steerage: --rps-cpus-list: there is no queue rx-0: there is synthetic/rx-0 to rx-3, synthetic.2/rx-0"
    );
    assert_eq!(
        fails(2, "count --rps-cpus 1 --rps-cpus 2"),
        "steerage: --rps-cpus: there are two masks for all queues (one queue's is written rx-0=3): keep one"
    );
    assert_eq!(
        fails(2, "count --rps-cpus 0=1"),
        "steerage: --rps-cpus: `0` is not the name of a queue: write such as rx-0=3 or eth1/rx-0=3"
    );
    assert_eq!(
        fails(2, "count --rps-cpus rx-0=2 --cpus 0 --virtual-cpus 2"),
        "steerage: CPU 1 of the mask is not among the CPUs that work (0): add it to --cpus, or leave it out of the mask"
    );
    assert_eq!(
        fails(2, "count --package 1"),
        "steerage: unexpected argument '--package' found; a similar argument exists: '--packets'; see --help"
    );
    assert_eq!(
        fails(2, "count --seconds -1"),
        "steerage: invalid value '-1' for '--seconds <S>': write a number of seconds from 0 on; see --help"
    );
    assert_eq!(
        fails(2, "count synthetic -f ip"),
        "steerage: -f is for interfaces and capture files, and synthetic is neither: leave -f out"
    );
    assert_eq!(
        fails(1, "count nowhere"),
        "steerage: nowhere: cannot open it: there is neither a file nor an interface of that name; `ls` shows the files \
         here, `ip link` the interfaces"
    );
    let memory = fails(1, "count --memory 1M --virtual-cpus 4");
    assert!(memory.contains("--memory allows 1.0 MiB: allow more, or use fewer --cpus"), "{memory}");
}

/// Other users may choose file names with any characters.
#[test]
fn a_name_cannot_break_the_line() {
    let ran = run(&["count", "two\nlines\u{1b}[2J"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.complaint().contains("two\\nlines\\u{1b}[2J"), "{ran:?}");
}

#[test]
fn without_a_command_there_is_help() {
    let ran = run(&[]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
    assert!(ran.err.contains("Usage: steerage") && ran.err.contains("Examples:"), "{ran:?}");
}

/// Wrong command lines, each with a text that the error message must contain.
const TYPICAL: [(&str, &str); 48] = [
    // These command lines have options of tcpdump.
    ("count -i eth1", "steerage count eth1"),
    ("meter -r night.pcap", "steerage meter night.pcap"),
    ("-i eth1", "steerage meter eth1"),
    ("count lo -w out.pcap", "--to pcap:out.pcap"),
    ("count lo -s 96", "snaplen=96"),
    ("count -D", "`ip link` lists the interfaces"),
    ("count lo -X", "exec:tcpdump -n -r - -X"),
    ("port 53", "-f 'port 53'"),
    ("count synthetic port 53", "write -f 'port 53' after the input"),
    ("explain synthetic tcp and port 80", "write -f 'tcp and port 80' after the input"),
    ("count synthetic -f ip", "leave -f out"),
    // In these command lines, the command is missing or wrong.
    ("night.pcap", "steerage meter night.pcap"),
    ("lo", "steerage meter lo"),
    ("metre lo", "a similar subcommand exists: 'meter'"),
    ("help reprot", "a similar one exists: report"),
    ("man metre", "`steerage --help` lists the commands"),
    // In these command lines, the input is wrong.
    ("count nowhere.pcap", "`ls` shows the files"),
    ("meter eth99", "`ip link` the interfaces"),
    ("count synthetic:flow=1", "flows"),
    ("count synthetic:rate=0", "1 to"),
    ("count /dev/null", "pcap"),
    ("forward", "steerage forward eth1 eth2"),
    ("forward nowhere", "`ip link` lists"),
    ("parallel synthetic:packets=10", "<COMMAND>"),
    ("parallel big.pcap tshark -r -", "steerage parallel big.pcap -- tshark"),
    ("parallel big.pcap -j 2 tshark -n -r -", "steerage parallel big.pcap -j 2 -- tshark"),
    ("parallel big.pcap tshark", "write -- before the command"),
    // In these command lines, an option or its value is wrong.
    ("count --cpu 0", "'--cpus'"),
    ("meter lo --top", "<N>"),
    ("count --cpus x", "0-3,8"),
    ("count --cpus 0-9 --virtual-cpus 4", "the last of 4 is CPU 3"),
    ("count --rps-cpus 0xff --virtual-cpus 4", "--rps-cpus"),
    ("count --rps-cpus 2 --cpus 0 --virtual-cpus 2", "add it to --cpus"),
    ("count -c 0", "write a number from 1 on"),
    ("count --seconds soon", "write a number of seconds"),
    ("count --interval 1ms", "write 10 ms or more"),
    ("count --hash md5", "possible values"),
    ("count --memory 1T", "such as 512M"),
    ("count -Q up", "possible values"),
    ("count synthetic --pace", "rate=N"),
    ("meter synthetic:packets=1 --flows flows.txt", ".csv"),
    ("meter synthetic:packets=1 --flows nowhere/flows.csv", "mkdir -p"),
    ("meter synthetic:packets=1 --rotate 5m", "--flows"),
    ("fanout synthetic:packets=1", "--to <OUTPUT>"),
    ("fanout synthetic:packets=1 --to out.pcap", "write pcap: before its name"),
    ("send out.pcap synthetic:packets=1", "write pcap: before its name"),
    ("get --to 99999999", "by the path of its socket"),
    ("run nowhere.toml", "`ls` shows the files"),
];

#[test]
fn typical_mistakes_are_answered_with_what_to_do() {
    for (line, advice) in TYPICAL {
        let ran = run(&line.split_whitespace().collect::<Vec<_>>());
        assert!(matches!(ran.code, Some(1 | 2 | 255)), "{line}: {ran:?}");
        assert_eq!(ran.out, "", "{line}");
        assert!(ran.complaint().contains(advice), "{line}: {ran:?}");
    }
}
