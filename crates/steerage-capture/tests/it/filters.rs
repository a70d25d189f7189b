use std::net::UdpSocket;
use std::process::Command;
use std::thread;

use nix::sched::{CloneFlags, unshare};
use socket2::{SockFilter, SockRef};
use steerage::LinkType;
use steerage_capture::filter::{Filter, FilterError, INSTRUCTIONS_MAX, Instruction};
use steerage_fixtures::{is_installed, skip};

const RET: Instruction = Instruction { code: 0x06, jump_true: 0, jump_false: 0, operand: 0 };

fn compile(text: &str) -> Result<Filter, FilterError> {
    Filter::compile(text, None, LinkType::ETHERNET)
}

fn tcpdump(options: &[&str], expression: &str) -> String {
    let output = Command::new("tcpdump").args(options).args(["-ddd", expression]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn lines(filter: &Filter) -> String {
    let mut lines = format!("{}\n", filter.instructions().len());
    for Instruction { code, jump_true, jump_false, operand } in filter.instructions() {
        lines.push_str(&format!("{code} {jump_true} {jump_false} {operand}\n"));
    }
    lines
}

#[test]
fn an_expression_is_what_tcpdump_makes_of_it() {
    if !is_installed("tcpdump", "tcpdump") {
        return;
    }
    for expression in [
        "",
        "ip",
        "not port 22",
        "tcp and (dst portrange 1000-2000 or host 10.0.0.1)",
        "ip6 and udp port 53",
        "vlan 7 and icmp",
        "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0 and not src and dst net 192.168.0.0/16",
        "ether[0] & 1 = 0 and ip[16] >= 224",
        "mpls 100000 && mpls 1024",
        "pppoes and ip proto 1",
        "less 128",
    ] {
        let filter = compile(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
        assert_eq!(lines(&filter), tcpdump(&["-y", "EN10MB"], expression), "{expression}");
        // Parses the program's numbers, first on separate lines, then with commas between them.
        let printed = lines(&filter);
        assert_eq!(printed.parse::<Filter>().unwrap(), filter);
        assert_eq!(compile(&printed.replace('\n', ",")).unwrap(), filter);
    }
    let raw = Filter::compile("udp", None, LinkType::RAW).unwrap();
    assert_eq!(lines(&raw), tcpdump(&["-y", "RAW"], "udp"));
}

#[test]
fn what_tcpdump_refuses_is_a_mistake_in_one_line() {
    if !is_installed("tcpdump", "tcpdump") {
        return;
    }
    for (wrong, said) in [
        ("port", "syntax error"),
        ("tcp and udp", "expression rejects all packets"),
        ("-w file", "syntax error"),
        ("port 22 or\nport", "syntax error"),
    ] {
        let error = compile(wrong).unwrap_err();
        let line = error.to_string();
        assert!(error.is_mistake() && line.contains(said), "{line}");
        assert!(!line.contains(char::is_control), "{line}");
    }
    let error = Filter::compile("ip", None, LinkType::PPP).unwrap_err();
    assert!(matches!(error, FilterError::Link(_)), "{error}");
}

/// `vlan` reads the kernel's metadata. 4294963248 is `SKF_AD_VLAN_TAG_PRESENT`.
#[test]
fn for_an_interface_vlan_finds_the_tag_that_the_kernel_took_out() {
    let in_a_namespace = || {
        if !is_installed("tcpdump", "tcpdump") || !is_installed("ip", "iproute2") {
            return;
        }
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            return skip(&format!("no network namespace: {error}"));
        }
        let on = |text| Filter::compile(text, Some("lo"), LinkType::ETHERNET);
        // tcpdump cannot open an interface that is down. Only `vlan` needs an open interface.
        assert!(on("vlan").unwrap_err().to_string().contains("not up"));
        assert_eq!(on("not port 22").unwrap(), compile("not port 22").unwrap());
        assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
        let loads = |filter: &Filter| filter.instructions().iter().any(|one| one.operand == 4_294_963_248);
        assert!(loads(&on("vlan").unwrap()) && !loads(&compile("vlan").unwrap()));
        let absent = Filter::compile("vlan", Some("nosuch0"), LinkType::ETHERNET).unwrap_err();
        assert!(absent.to_string().contains("No such device"), "{absent}");
    };
    thread::spawn(in_a_namespace).join().unwrap();
}

#[test]
fn a_filter_can_lie_in_a_file() {
    let path = std::env::temp_dir().join(format!("steerage-filter-{}", std::process::id()));
    let at = format!("@{}", path.display());
    std::fs::write(&path, "2\n40 0 0 12\n6 0 0 0\n").unwrap();
    assert_eq!(compile(&at).unwrap().instructions().len(), 2);
    std::fs::write(&path, b"\xff\xfe").unwrap();
    assert!(matches!(compile(&at), Err(FilterError::File { .. })));
    std::fs::write(&path, "1 ".repeat(200_000)).unwrap();
    assert!(compile(&at).unwrap_err().to_string().contains("longer than"));
    std::fs::remove_file(&path).unwrap();
    let gone = compile(&at).unwrap_err();
    assert!(!gone.is_mistake() && gone.to_string().contains("cannot read the filter in"), "{gone}");
    assert!(compile("@/dev/zero").is_err());
}

#[test]
fn numbers_that_are_no_program_say_what_is_wrong() {
    for (text, what) in [
        ("0", "begins with 0"),
        ("4097 6 0 0 0", "the kernel takes 1 to 4096"),
        ("99999999999 6 0 0 0", "`99999999999` is not how many"),
        ("1", "ends before an operation of instruction 0"),
        ("2 6 0 0 0", "ends before an operation of instruction 1"),
        ("1 6 0 0", "ends before an operand of instruction 0"),
        ("1 6 0 0 0 6", "more behind the 1 instructions"),
        ("1 6 256 0 0", "`256` is not a jump"),
        ("1 65536 0 0 0", "`65536` is not an operation"),
        ("1 6 0 0 4294967296", "`4294967296` is not an operand"),
        ("1, 40 0 0 12", "instruction 0 is the last and does not return"),
        ("2, 21 1 0 0, 6 0 0 0", "instruction 0 jumps beyond the end"),
        ("2, 5 0 0 1, 6 0 0 0", "instruction 0 jumps beyond the end"),
        ("2, 255 0 0 1, 6 0 0 0", "instruction 0 is no operation"),
        ("2, 96 0 0 3, 6 0 0 0", "instruction 0 reads a memory word that may not"),
        ("2, 2 0 0 16, 6 0 0 0", "instruction 0 names a memory word beyond"),
        ("2, 52 0 0 0, 6 0 0 0", "instruction 0 divides by 0"),
        ("2, 100 0 0 32, 6 0 0 0", "instruction 0 shifts by"),
        ("2, 32 0 0 4294963201, 6 0 0 0", "instruction 0 asks for what the kernel does not know"),
    ] {
        let error = compile(text).unwrap_err();
        assert!(error.is_mistake() && error.to_string().contains(what), "{text}: {error}");
    }
    assert!("".parse::<Filter>().is_err());
    assert!(Filter::from_instructions(vec![RET; INSTRUCTIONS_MAX]).is_ok());
    assert!(Filter::from_instructions(vec![RET; INSTRUCTIONS_MAX + 1]).is_err());
    assert!(Filter::from_instructions([]).is_err());
}

/// Random programs, most of which are almost valid.
#[test]
fn we_refuse_what_the_kernel_refuses_and_nothing_else() {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket needs no privilege");
    let codes = [
        0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x0c, 0x15, 0x16, 0x1d, 0x20, 0x28, 0x30, 0x34, 0x3c, 0x40,
        0x45, 0x54, 0x60, 0x61, 0x64, 0x74, 0x80, 0x81, 0x84, 0x87, 0x94, 0x9c, 0xa4, 0xb1,
    ];
    let mut random = fastrand::Rng::with_seed(1);
    let mut chance = |below: u64| random.u64(..below);
    let mut taken = 0;
    for round in 0..20_000 {
        let len = 1 + chance(8);
        let mut program: Vec<Instruction> = (0..len)
            .map(|_| Instruction {
                code: if chance(60) == 0 { chance(0x200) as u16 } else { codes[chance(codes.len() as u64) as usize] },
                jump_true: chance(4) as u8,
                jump_false: chance(4) as u8,
                operand: match chance(8) {
                    0 => u32::MAX - chance(0x1100) as u32,
                    1 => chance(40) as u32,
                    _ => chance(3) as u32,
                },
            })
            .collect();
        if chance(20) > 0 {
            program.push(RET);
        }
        let raw: Vec<SockFilter> =
            program.iter().map(|one| SockFilter::new(one.code, one.jump_true, one.jump_false, one.operand)).collect();
        let kernels = SockRef::from(&socket).attach_filter(&raw).is_ok();
        let ours = Filter::from_instructions(program.clone());
        assert_eq!(ours.is_ok(), kernels, "round {round}: {program:?}: {ours:?}");
        taken += u32::from(kernels);
    }
    // The test is useful only if both outcomes, accepted and rejected, occurred often.
    assert!((2_000..18_000).contains(&taken), "{taken}");
}
