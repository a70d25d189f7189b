//! Tests that the completion scripts and the manual pages contain all commands and options.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::program::run;

fn commands() -> Vec<String> {
    let help = run(&["--help"]).out;
    let (_, list) = help.split_once("Look at traffic:\n").unwrap();
    let (list, _) = list.split_once("\nOptions:\n").unwrap();
    let lines = list.lines().filter(|line| line.starts_with("  "));
    let names: Vec<String> = lines.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
    for known in ["count", "meter", "explain", "run", "check", "completions", "man", "help"] {
        assert!(names.iter().any(|name| name == known), "{known} in {names:?}");
    }
    names
}

fn long_options(command: &str) -> Vec<String> {
    let help = run(&[command, "--help"]).out;
    let (options, _) = help.split_once("DEVICE:").unwrap_or((&help, ""));
    // In the help text, an option has a line such as `-c, --packets <N> Stop after N packets`,
    // perhaps without a short form.
    let of_line = |line: &str| {
        // In the help text, explanations are indented further than options.
        line.strip_prefix("  ").filter(|rest| rest.starts_with('-') || rest.starts_with("    --"))?;
        let long = line.split_whitespace().take(2).find_map(|word| word.strip_prefix("--"))?;
        long.split(['<', '[', '=', '.']).next().map(str::to_owned)
    };
    options.lines().filter_map(of_line).collect()
}

fn is_there(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Runs the program with `text` as its input. Returns the exit code and the standard error.
fn check_with(program: &str, args: &[&str], text: &str) -> (Option<i32>, String) {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn every_command_has_examples() {
    for command in commands() {
        assert!(run(&[&command, "--help"]).out.contains("\nExamples:\n  "), "{command}");
    }
}

#[test]
fn completions_know_every_command_and_option() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = run(&["completions", shell]);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{shell}");
        for command in commands() {
            assert!(ran.out.contains(&command), "{shell}: {command}");
            for option in long_options(&command) {
                // A completion script for fish contains `-l option` in place of `--option`.
                let known = ran.out.contains(&format!("--{option}")) || ran.out.contains(&format!("-l {option}"));
                assert!(known, "{shell}: {command} --{option}");
            }
        }
    }
    assert!(long_options("meter").len() > 15);
    let wrong = run(&["completions", "tcsh"]);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.complaint().contains("possible values: bash, elvish, fish, powershell, zsh"), "{wrong:?}");
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that tests less has to say so")]
fn shells_take_their_completions() {
    for shell in ["bash", "zsh", "fish"] {
        if !is_there(shell) {
            assert!(shell != "bash", "every Linux machine that builds this has bash");
            eprintln!("skipped: {shell} is not there");
            continue;
        }
        let (code, said) = check_with(shell, &["-n"], &run(&["completions", shell]).out);
        assert_eq!((code, said.as_str()), (Some(0), ""), "{shell}");
    }
    // In this script, `offered` returns the completions of bash, and `steerage` is a function that
    // starts the program.
    let script =
        run(&["completions", "bash"]).out + "\nsteerage() { " + env!("CARGO_BIN_EXE_steerage") + " \"$@\"; }\n";
    let offered = |words: &str| {
        let ask = format!(
            "{script}\nCOMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n_steerage_values steerage \
             \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"\necho \"${{COMPREPLY[@]}}\""
        );
        let output = Command::new("bash").args(["--norc", "-c", &ask]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(offered("steerage me"), "meter");
    assert_eq!(offered("steerage meter --max-f"), "--max-flows");
    assert_eq!(offered("steerage count --max-f"), "");
    assert_eq!((offered("steerage help pa"), offered("steerage explain l")), ("parallel".to_owned(), "lo".to_owned()));
    // The completion script asks a running instance for the names of attributes. In this test,
    // `steerage` is a function that prints names, as if a run had answered. A name that looks like
    // a shell command must be quoted and not executed.
    let bad = Path::new(env!("CARGO_TARGET_TMPDIR")).join("executed-by-a-completion");
    let _ = fs::remove_file(&bad);
    let names = format!("{script}steerage() {{ echo sys/a; echo proc/b; echo 'sys/$(touch {})'; }}", bad.display());
    let ask = names
        + "\nCOMP_WORDS=(steerage get sy); COMP_CWORD=2\n_steerage_values steerage sy get\necho \"${COMPREPLY[@]}\"";
    let output = Command::new("bash").args(["--norc", "-c", &ask]).output().unwrap();
    let quoted = format!("sys/a sys/\\$\\(touch\\ {}\\)", bad.display());
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), quoted);
    assert!(!bad.exists(), "a name was executed");
}

/// If there are no values, the hidden command `complete` prints no error.
#[test]
fn values_for_the_scripts_of_shells() {
    let values = |words: &[&str]| {
        let ran = run(&[&["complete", "steerage"], words].concat());
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{words:?}");
        ran.out
    };
    assert!(values(&["help"]).contains("\nparallel\n") && values(&["count", "-c", "10"]).contains("lo\n"));
    assert_eq!((values(&["count", "-c"]), values(&["nonsense"]), values(&[])), Default::default());
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that tests less has to say so")]
fn manual_pages_are_whole_and_sound() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("man/man1");
    let _ = fs::remove_dir_all(&directory);
    let absent = run(&["man", "--out", directory.to_str().unwrap()]);
    assert_eq!(absent.code, Some(1));
    assert!(absent.complaint().ends_with("there is no such directory; make it with mkdir -p"), "{absent:?}");
    fs::create_dir_all(&directory).unwrap();
    let ran = run(&["man", "--out", directory.to_str().unwrap()]);
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (Some(0), "", ""));
    let mut names: Vec<String> =
        fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let mut expected: Vec<String> = commands().iter().map(|command| format!("steerage-{command}.1")).collect();
    expected.push("steerage.1".to_owned());
    expected.sort();
    assert_eq!(names, expected);
    assert_eq!(fs::read_to_string(directory.join("steerage.1")).unwrap(), run(&["man"]).out);
    assert_eq!(fs::read_to_string(directory.join("steerage-meter.1")).unwrap(), run(&["man", "meter"]).out);
    assert!(run(&["man", "metre"]).complaint().contains("there is no manual page for metre"));

    for command in commands() {
        let page = fs::read_to_string(directory.join(format!("steerage-{command}.1"))).unwrap();
        for section in ["TH", "SH NAME", "SH SYNOPSIS", "SH OPTIONS", "SH EXAMPLES", "SH \"SEE ALSO\""] {
            assert!(page.contains(&format!("\n.{section}")), "{command}: {section}");
        }
        for option in long_options(&command) {
            let written = format!("\\-\\-{}", option.replace('-', "\\-"));
            assert!(page.contains(&written), "{command}: {written}");
        }
        // In a manual page, the first line after `.TP` names an option, and the second line
        // describes the option.
        let described = page.split("\n.TP\n").skip(1).map(|block| block.lines().take(2).collect::<Vec<_>>());
        for block in described {
            let text = block.get(1).is_some_and(|text| !text.is_empty() && !text.starts_with('.'));
            assert!(text, "{command}: no text for {block:?}");
        }
        let synopsis = page.split_once(".SH SYNOPSIS\n").and_then(|(_, rest)| rest.lines().next()).unwrap();
        assert!(synopsis.starts_with(&format!("steerage {command}")) && !synopsis.contains("\\-v"), "{synopsis}");
    }
    for name in names {
        let page = fs::read_to_string(directory.join(&name)).unwrap();
        match ["groff", "mandoc"].into_iter().find(|program| is_there(program)) {
            Some("groff") => {
                let (code, said) = check_with("groff", &["-man", "-Tutf8", "-ww", "-z"], &page);
                assert_eq!((code, said.as_str()), (Some(0), ""), "{name}");
            }
            Some(_) => assert_eq!(check_with("mandoc", &["-Tlint", "-Wwarning"], &page).0, Some(0), "{name}"),
            None => eprintln!("skipped for {name}: neither groff nor mandoc is there"),
        }
    }
}

#[test]
fn a_page_that_cannot_be_written_is_an_error() {
    let ran = run(&["man", "--out", "/dev/null/man1"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.complaint().contains("cannot write a manual page to /dev/null/man1"), "{ran:?}");
}

/// The pages of docs/ are compiled into the program.
#[test]
fn help_has_pages_and_commands() {
    let overview = run(&["help"]);
    assert_eq!((overview.code, overview.err.as_str()), (Some(0), ""));
    assert!(overview.out.contains("Steer packets:\n") && overview.out.contains("\n  report "), "{overview:?}");
    let page = run(&["help", "report"]).out;
    assert!(page.starts_with("# ") && page.contains("ended_by"), "{page}");
    assert_eq!(run(&["help", "count"]).out, run(&["count", "--help"]).out);
    let wrong = run(&["help", "reprot"]);
    assert_eq!(wrong.code, Some(2));
    assert!(wrong.complaint().ends_with("a similar one exists: report; `steerage help` lists all"), "{wrong:?}");
}

/// Files of the repository exist only in a clone, and not where the program is installed.
#[test]
fn help_points_to_no_file_of_the_repository() {
    for command in commands() {
        let help = run(&[&command, "--help"]).out;
        assert!(!help.contains("docs/"), "{command}: {help}");
    }
}
