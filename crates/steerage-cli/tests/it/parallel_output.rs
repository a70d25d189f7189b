//! `steerage parallel` passes on the output of its jobs byte for byte, as GNU parallel does. The
//! output of a single job is the same as without `parallel`.

use std::fs;
use std::process::{Command, Output, Stdio};

use steerage_fixtures::scratch::Scratch;
use steerage_fixtures::skip;

use crate::parallel::capture;
use crate::program::command;

/// Runs a script in three jobs. The script's argument is the number of the job.
fn steerage(options: &[&str], script: &str) -> Output {
    let args = [&["parallel", capture(), "-q"], options, &["--", "sh", "-c", script, "sh", "{n}"]].concat();
    command(&args).output().unwrap()
}

fn gnu(options: &[&str], script: &str) -> Option<Vec<u8>> {
    let scratch = Scratch::new();
    let file = scratch.join("job");
    fs::write(&file, script).unwrap();
    let mut gnu = Command::new("parallel");
    gnu.env("HOME", &*scratch).args(options).arg("sh").arg(&file).arg("{}").args([":::", "1", "2", "3"]);
    match gnu.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Some(output.stdout),
        other => {
            skip(&format!("GNU parallel is absent: {other:?}"));
            None
        }
    }
}

/// Scripts whose outputs end in different ways, or use different separators between lines.
const SCRIPTS: [&str; 9] = [
    "cat >/dev/null; printf 'no newline %s' $1",
    "cat >/dev/null; printf 'one\\n%s' $1",
    "cat >/dev/null; printf '%s\\n\\n\\n' $1",
    "cat >/dev/null; printf '%s\\r\\nx\\r' $1",
    "cat >/dev/null; printf 'a%s\\000b%s\\000' $1 $1",
    "cat >/dev/null; printf '\\n\\r\\r\\n\\001\\002\\377%s\\n\\376' $1",
    "cat >/dev/null; [ $1 = 2 ] || echo $1",
    "cat >/dev/null; head -c 3000000 /dev/zero | tr '\\000' $1",
    "cat >/dev/null",
];

#[test]
fn keep_order_keeps_bytes_as_gnu_parallel_does() {
    for script in SCRIPTS {
        for options in [&["-k"][..], &["-k", "--tag"]] {
            // GNU parallel also writes the tag of a line after each carriage return.
            if options.contains(&"--tag") && script.contains("\\r") {
                continue;
            }
            let Some(expected) = gnu(options, script) else { return };
            let ran = steerage(&[&["-j", "3"], options].concat(), script);
            assert!(ran.status.success(), "{script}: {ran:?}");
            assert!(ran.stdout == expected, "{script} {options:?}: {} bytes", ran.stdout.len());
        }
    }
}

/// Each line of the merged output is from one job.
#[test]
fn lines_of_two_jobs_do_not_join() {
    for script in SCRIPTS {
        let alone = Command::new("sh").args(["-c", script, "sh", "1"]).stdin(Stdio::null()).output().unwrap();
        for options in [&["-j", "1"][..], &["-j", "1", "-k"], &["-j", "1", "--no-merge"]] {
            assert!(steerage(options, script).stdout == alone.stdout, "{script} {options:?}");
        }
    }
    let out = String::from_utf8(steerage(&["-j", "3"], SCRIPTS[0]).stdout).unwrap();
    let mut lines: Vec<&str> = out.split('\n').collect();
    lines.sort_unstable();
    assert_eq!(lines, ["no newline 1", "no newline 2", "no newline 3"]);
    // On standard error, which people read, each line ends with a newline.
    let err = steerage(&["-j", "2", "-k"], "cat >/dev/null; printf 'error %s' $1 >&2").stderr;
    let mut lines: Vec<&str> = str::from_utf8(&err).unwrap().lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["error 1", "error 2"]);
}

/// The header line comes first, whichever job writes first. The columns of a header line may have
/// any separator.
#[test]
fn header_lines_are_printed_once() {
    for (head, count) in [("a,b\\n", "1"), ("a\\tb\\r\\n", "1"), ("#fields\\ta\\n#types\\tcount\\n", "2")] {
        let script = format!("cat >/dev/null; [ $1 = 1 ] && sleep 0.2; printf '{head}%s,1\\n%s,2' $1 $1");
        let shown = Command::new("printf").arg(head).output().unwrap().stdout;
        for options in [&["-k"][..], &[]] {
            let ran = steerage(&[&["-j", "3", "--header", count], options].concat(), &script);
            let out = ran.stdout.strip_prefix(&shown[..]).unwrap_or_else(|| panic!("{options:?}: {ran:?}"));
            let body = String::from_utf8(out.to_vec()).unwrap();
            if options.is_empty() {
                let mut lines: Vec<&str> = body.lines().collect();
                lines.sort_unstable();
                assert_eq!(lines, ["1,1", "1,2", "2,1", "2,2", "3,1", "3,2"]);
            } else {
                assert_eq!(body, "1,1\n1,22,1\n2,23,1\n3,2");
            }
        }
    }
    // The output of a job that writes nothing or too few lines has no complete header.
    let script = "cat >/dev/null; case $1 in 1) ;; 2) echo head ;; 3) printf 'head\\nmore\\nbody\\n' ;; esac";
    for options in [&["-k"][..], &[]] {
        let ran = steerage(&[&["-j", "3", "--header", "2"], options].concat(), script);
        assert_eq!(String::from_utf8(ran.stdout).unwrap(), "head\nmore\nbody\n");
    }
    let ran = steerage(&["-j", "3", "--header", "5"], "cat >/dev/null; printf 'only\\n'");
    assert_eq!(ran.stdout, b"only\n");
    let ran = steerage(&["-j", "2", "--header", "1", "--tag"], "cat >/dev/null; printf 'head\\nbody\\n'");
    let text = String::from_utf8(ran.stdout).unwrap();
    let heads = text.lines().filter(|line| line.ends_with("\thead")).count();
    assert_eq!((heads, text.lines().count()), (1, 3), "{text}");
}

/// A line among the first N lines that differs from the header of other jobs is not lost. A word of
/// a script does not say that the output begins with tshark's header.
#[test]
fn lines_that_differ_from_the_header_are_printed() {
    for options in [&["-j", "3", "--header"][..], &["-j", "3", "--header", "-k"]] {
        let ran = steerage_with_notes(options, "cat >/dev/null; echo job $1 total");
        let (text, err) = (String::from_utf8(ran.stdout).unwrap(), String::from_utf8(ran.stderr).unwrap());
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["job 1 total", "job 2 total", "job 3 total"]);
        assert!(err.contains("header lines of 2 jobs differ from those of the first job"), "{err}");
    }
    let script = ": tshark -E header=y; cat >/dev/null; printf 'equal\\nline %s\\n' $1";
    let out = String::from_utf8(steerage(&["-j", "3"], script).stdout).unwrap();
    assert_eq!((out.lines().count(), out.matches("equal").count()), (6, 3), "{out}");
}

/// A first line that is too long for a header line is normal output.
#[test]
fn a_line_too_long_for_a_header_is_passed_on() {
    let long = |job: u8| [&vec![job; 1_500_000][..], b"\n"].concat();
    for (head, lines) in [("", "1"), ("head\n", "2"), ("head\n", "3")] {
        let long_line = "head -c 1500000 /dev/zero | tr '\\000' $1; echo; echo body $1";
        let script = format!("cat >/dev/null; printf '{head}'; {long_line}");
        let [one, two] = [b'1', b'2'].map(|job| [long(job), format!("body {}\n", job as char).into_bytes()].concat());
        let begin = head.as_bytes();
        for options in [&["-k"][..], &[]] {
            let out = steerage(&[&["-j", "2", "--header", lines], options].concat(), &script).stdout;
            let expected = [begin, &one, &two].concat();
            let sorted = |text: &[u8]| {
                let mut lines: Vec<Vec<u8>> = text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
                lines.sort_unstable();
                lines
            };
            let is_same = if options.is_empty() { sorted(&out) == sorted(&expected) } else { out == expected };
            assert!(is_same && out.starts_with(begin), "{head:?} {options:?}: {} bytes", out.len());
        }
    }
}

/// For outputs of an unknown kind, the user can keep the outputs of the jobs separate.
#[test]
fn output_of_an_unknown_kind_is_not_merged() {
    for (start, kind) in [
        ("text\\000text", "binary data"),
        ("\\037\\213\\010\\000", "binary data"),
        ("<?xml version=\"1.0\"?>\\n", "an XML document"),
        ("{\\n", "JSON over several lines"),
    ] {
        let script = format!("cat >/dev/null; printf '{start}'; printf 'and more'");
        for options in [&["-j", "2"][..], &["-j", "2", "--tag"], &["-j", "2", "--order", "time"]] {
            let ran = steerage(options, &script);
            let err = String::from_utf8(ran.stderr).unwrap();
            assert_eq!((ran.status.code(), ran.stdout.len()), (Some(255), 0), "{err}");
            assert!(err.contains(&format!("writes {kind}")) && err.contains("--results DIR"), "{err}");
            // A job that is still writing gets SIGPIPE, which another line of the error output
            // reports.
            assert_eq!(err.matches("writes").count(), 1, "{err}");
        }
        for options in [&["-j", "2", "-k"][..], &["-j", "1"]] {
            assert!(steerage(options, &script).status.success(), "{options:?}");
        }
    }
    // This line only looks like the start of a JSON array.
    assert!(steerage(&["-j", "2"], "cat >/dev/null; echo '[2026-01-01] begun'").status.success());
    // Each line is a JSON array. One line has no newline at its end, and one is longer than the
    // data that the program keeps in memory.
    for lines in [
        "printf '[{\"a\":1}]\\n[{\"a\":2}]\\n'",
        "printf '[{\"a\":1}, {\"b\":[]} ]\\r\\n'",
        "printf '[{\"a\":1}]'",
        "printf '[{\"a\":\"'; head -c 1500000 /dev/zero | tr '\\000' x; printf '\"}]\\n'",
    ] {
        for options in [&["-j", "2"][..], &["-j", "2", "--tag"]] {
            let ran = steerage(options, &format!("cat >/dev/null; {lines}"));
            assert!(ran.status.success(), "{lines}: {:?}", String::from_utf8_lossy(&ran.stderr));
        }
    }
    // The program refuses jobs with two output formats, and an option that does not fit the
    // output's format.
    for (options, script, why) in [
        (&[][..], "[ $1 = 1 ] && printf '[\\n{}]' || printf 'text\\n'", "another kind of output"),
        (&["--tag"], "printf '[\\n{}]'", "no lines for --tag"),
        (&["--order", "time"], "printf '[\\n{}]'", "do not begin with a time"),
        (&["--order", "time"], "echo text", "does not begin with a time: text"),
    ] {
        let ran = steerage(&[&["-j", "2"], options].concat(), &format!("cat >/dev/null; {script}"));
        let err = String::from_utf8(ran.stderr).unwrap();
        assert!(ran.status.code() == Some(255) && err.contains(why), "{options:?} {script}: {err}");
    }
}

#[test]
fn json_arrays_are_joined() {
    let long = "head -c 2500000 /dev/zero | tr '\\000' x";
    let script = format!(
        "cat >/dev/null; case $1 in 1) printf '[\\n]\\n' ;; 2) printf '[\\n  {{\"job\": 2}},\\n  {{\"s\": \"'; {long}; printf '\"}}\\n]\\n' ;; \
         3) printf '[{{\"job\": 3, \"t\": \"[]],\"}}\\n,7]' ;; esac"
    );
    for options in [&["-j", "4"][..], &["-j", "4", "-k"], &["-j", "4", "--order", "job"]] {
        let ran = steerage(options, &script);
        assert!(ran.status.success() && ran.stderr.is_empty(), "{ran:?}");
        let mut elements: Vec<serde_json::Value> = serde_json::from_slice(&ran.stdout).unwrap();
        if options.len() == 2 {
            elements.sort_by_key(|element| match (element["job"].as_u64(), element["s"].is_null()) {
                (Some(2), _) => 0,
                (None, false) => 1,
                (Some(_), _) => 2,
                (None, true) => 3,
            });
        }
        assert_eq!(
            (elements.len(), &elements[0]["job"], &elements[2]["job"]),
            (4, &2.into(), &3.into()),
            "{options:?}"
        );
        assert_eq!((elements[1]["s"].as_str().map(str::len), elements[3].as_u64()), (Some(2_500_000), Some(7)));
    }
    // The last element of an array that breaks off is omitted, so that the merged array is valid.
    let ran = steerage(&["-j", "2"], "cat >/dev/null; printf '[\\n1, {\"a\":'");
    assert_eq!(serde_json::from_slice::<Vec<u8>>(&ran.stdout).unwrap(), [1, 1], "{ran:?}");
    assert!(String::from_utf8(ran.stderr).unwrap().contains("the JSON array of job 2 is cut short"));
    let ran = steerage(&["-j", "2"], "cat >/dev/null; printf '[\\n]\\n'");
    assert_eq!(serde_json::from_slice::<Vec<u8>>(&ran.stdout).unwrap(), b"");
}

/// One job writes its lines only at the end. The lines of the other jobs must wait for the lines of
/// this job, and do not fit into memory.
#[test]
fn lines_are_merged_by_time() {
    // Job 1 writes only after each other job has written 3 MB.
    let scratch = Scratch::new();
    let script = format!(
        "cat >/dev/null; cd {}; [ $1 = 1 ] && while [ ! -e 2 ] || [ ! -e 3 ]; do sleep 0.02; done; \
         awk -v job=$1 'BEGIN {{ for (i = 0; i < 30000; i++) {{ printf \"%d.%06d job %d %080d\\n\", 1700000000 + i, job, job, i; \
         if (i % 1000 == 0) print \"\\tmore of \" job }} }}'; touch $1",
        scratch.display()
    );
    let ran = steerage(&["-j", "3", "--order", "time", "--tag"], &script);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let text = String::from_utf8(ran.stdout).unwrap();
    let mut lines = text.lines();
    for second in 0..30_000 {
        for job in 1..=3 {
            let line = lines.next().unwrap();
            assert!(line.starts_with(&format!("{job}\t{}.00000{job} job {job} ", 1_700_000_000 + second)), "{line}");
            if second % 1000 == 0 {
                assert_eq!(lines.next().unwrap(), format!("{job}\t\tmore of {job}"));
            }
        }
    }
    assert_eq!(lines.next(), None);
}

/// If the first lines of all jobs are equal and `--header` is not set, the program recommends
/// `--header`.
#[test]
fn equal_first_lines_are_noticed() {
    let script = "cat >/dev/null; printf 'time,b\\n17000000%s0.5,1\\n' $1";
    let ran = steerage_with_notes(&["-j", "3"], script);
    assert_eq!(String::from_utf8(ran.stdout).unwrap().matches("time,b\n").count(), 3);
    let err = String::from_utf8(ran.stderr).unwrap();
    assert!(err.contains("the output of 3 jobs begins with the same line, time,b: --header prints it once"), "{err}");
    for options in [&["--header"][..], &["--header", "--order", "time"], &["--header", "1", "-k"]] {
        let ran = steerage_with_notes(&[&["-j", "3"], options].concat(), script);
        let (text, err) = (String::from_utf8(ran.stdout).unwrap(), String::from_utf8(ran.stderr).unwrap());
        assert!(text.starts_with("time,b\n1700000010.5,1\n") || options == ["--header"], "{text}");
        assert!(text.matches("time,b\n").count() == 1 && !err.contains("--header"), "{text}{err}");
    }
}

fn steerage_with_notes(options: &[&str], script: &str) -> Output {
    let args = [&["parallel", capture()], options, &["--", "sh", "-c", script, "sh", "{n}"]].concat();
    command(&args).output().unwrap()
}

/// The outputs of some jobs begin before midnight, and those of other jobs after it.
#[test]
fn times_of_day_of_all_jobs_pass_midnight_together() {
    let script = "cat >/dev/null; case $1 in 1) printf '00:00:01 b\\n00:00:03 d\\n' ;; 2) printf '23:59:59 a\\n00:00:04 e\\n' ;; \
                  3) printf '00:00:02 c\\n' ;; esac";
    let ran = steerage(&["-j", "4", "--order", "time"], script);
    let letters: Vec<u8> = ran.stdout.split(|byte| *byte == b'\n').filter_map(|line| line.last().copied()).collect();
    assert_eq!(letters, b"abcde", "{ran:?}");
}
