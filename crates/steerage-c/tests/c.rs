//! Builds C and C++ programs as a user does, and runs these programs under AddressSanitizer.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use steerage_fixtures::is_installed;
use steerage_fixtures::scratch::Scratch;

const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-g"];
const SANITIZER: [&str; 2] = ["-fsanitize=address", "-fno-omit-frame-pointer"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn header() -> String {
    fs::read_to_string(root().join("crates/steerage-c/include/steerage.h")).unwrap()
}

fn built() -> PathBuf {
    let test = env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let places = [deps, deps.parent().unwrap()].map(|folder| folder.join("libsteerage_c.so"));
    places.into_iter().find(|path| path.is_file()).expect("cargo builds the library for its tests")
}

fn output(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}\n{}", text(&output));
    output
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

struct Installed(Scratch);

impl Installed {
    /// Returns `None` if the compilers and tools are not installed.
    fn new() -> Option<Self> {
        let tools = [("gcc", "gcc"), ("g++", "g++"), ("pkg-config", "pkg-config"), ("nm", "binutils")];
        if !tools.iter().all(|(program, package)| is_installed(program, package)) {
            return None;
        }
        let scratch = Scratch::new();
        output(Command::new(root().join("packaging/c-library")).arg(&*scratch).arg("--built").arg(built()));
        Some(Self(scratch))
    }

    fn pkg_config(&self) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.args(["--cflags", "--libs", "steerage"]).env("PKG_CONFIG_PATH", self.0.join("lib/pkgconfig"));
        text(&output(&mut command)).split_whitespace().map(str::to_owned).collect()
    }

    fn compile(&self, compiler: &str, source: &Path, options: &[&str]) -> PathBuf {
        let program = self.0.join("program");
        let mut command = Command::new(compiler);
        command.args(WARNINGS).args(options).arg(source).args(self.pkg_config()).arg("-pthread");
        let rpath = format!("-Wl,-rpath,{}", self.0.join("lib").display());
        output(command.arg(rpath).arg("-o").arg(&program));
        program
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> String {
        text(&output(Command::new(program).args(arguments).current_dir(root())))
    }
}

/// Returns the functions that the header declares, each at the start of a line.
fn declared() -> BTreeSet<String> {
    let header = header();
    let is_code = |line: &&str| !line.starts_with([' ', '/', '#', '}']) && line.contains('(');
    let name = |line: &str| {
        let start = line.find("steerage_").filter(|start| line[*start..].find('(').is_some());
        start.map(|_| line[..line.find('(').unwrap()].rsplit([' ', '*']).next().unwrap().to_owned())
    };
    header.lines().filter(is_code).filter_map(name).collect()
}

#[test]
fn the_symbols_are_those_of_the_header() {
    if !is_installed("nm", "binutils") || !is_installed("objdump", "binutils") {
        return;
    }
    let symbols = text(&output(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(built())));
    let exported: BTreeSet<String> = symbols.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(exported, declared());
    assert!(exported.len() > 25 && exported.iter().all(|name| name.starts_with("steerage_")));

    let sections = text(&output(Command::new("objdump").arg("-p").arg(built())));
    let soname = sections.lines().find_map(|line| line.trim().strip_prefix("SONAME")).unwrap().trim();
    let header = header();
    let abi = header.lines().find_map(|line| line.strip_prefix("#define STEERAGE_ABI ")).unwrap();
    assert_eq!(soname, format!("libsteerage.so.{abi}"));
    assert_eq!(abi, env!("CARGO_PKG_VERSION_MAJOR"), "cargo-c and the script make the soname of the version");
}

#[test]
fn the_checks_pass_under_address_sanitizer() {
    let Some(installed) = Installed::new() else { return };
    // The capture is cut off in the middle of its first packet.
    let mut capture = [0xA1B2_C3D4_u32, 4 << 16 | 2, 0, 0, 65535, 1].map(u32::to_le_bytes).concat();
    capture.extend([1, 0, 64, 64].map(u32::to_le_bytes).concat());
    capture.extend([0; 10]);
    let path = installed.0.join("broken.pcap");
    fs::write(&path, capture).unwrap();
    let version = format!("-DVERSION=\"{}\"", env!("CARGO_PKG_VERSION"));
    let options = [&SANITIZER[..], &[&version]].concat();
    let program = installed.compile("gcc", &root().join("crates/steerage-c/tests/checks.c"), &options);
    let said = installed.run(&program, &[path.to_str().unwrap()]);
    assert!(said.contains("states made"), "{said}");
}

#[test]
fn the_example_runs_and_the_page_has_it() {
    let source = root().join("examples/c/count.c");
    let example = fs::read_to_string(&source).unwrap();
    assert!(example.lines().count() <= 60, "{} lines", example.lines().count());
    let page = fs::read_to_string(root().join("docs/c.md")).unwrap();
    assert!(page.contains(&format!("```c\n{example}```\n")), "docs/c.md has another program than examples/c/count.c");

    let Some(installed) = Installed::new() else { return };
    let program = installed.compile("gcc", &source, &SANITIZER);
    let said = installed.run(&program, &["examples/demo.pcapng"]);
    // The policy may add a CPU, to which states of the C program's buckets then move.
    assert!(said.starts_with("1000 received, 0 dropped: 724 TCP, 276 UDP, 0 other; "), "{said}");
    let said = installed.run(&program, &["synthetic:packets=20000,flows=300,mix=udp4+tcp6"]);
    assert!(said.starts_with("20000 received, 0 dropped: ") && said.contains(" 0 other; "), "{said}");
    let failed = Command::new(&program).arg("./absent.pcap").output().unwrap();
    let said = text(&failed);
    assert!(failed.status.code() == Some(1) && said.starts_with("count: ./absent.pcap: cannot "), "{said}");
}

#[test]
fn a_program_in_cpp() {
    let Some(installed) = Installed::new() else { return };
    let source = installed.0.join("program.cpp");
    let program = "#include <steerage.h>\n\
        int main() { return steerage_abi_version() == STEERAGE_ABI && *steerage_last_error() == 0 ? 0 : 1; }\n";
    fs::write(&source, program).unwrap();
    let program = installed.compile("g++", &source, &["-Wpedantic", "-std=c++11"]);
    installed.run(&program, &[]);
}

#[test]
fn the_page_names_all_functions() {
    let page = fs::read_to_string(root().join("docs/c.md")).unwrap();
    let absent: Vec<String> = declared().into_iter().filter(|name| !page.contains(&format!("`{name}"))).collect();
    assert!(absent.is_empty(), "docs/c.md does not describe {absent:?}");
}
