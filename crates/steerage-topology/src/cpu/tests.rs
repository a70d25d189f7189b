use super::*;
use MaskErrorKind::{Invalid, Overflow, Range};

fn bitmap(text: &str, nr: usize) -> Result<String, MaskErrorKind> {
    CpuMask::parse_bitmap(text, nr).map(|mask| mask.to_list()).map_err(|e| e.kind())
}

fn list(text: &str, nr: usize) -> Result<String, MaskErrorKind> {
    CpuMask::parse_list(text, nr).map(|mask| mask.to_list()).map_err(|e| e.kind())
}

fn ok(text: &str) -> Result<String, MaskErrorKind> {
    Ok(text.to_owned())
}

#[test]
fn a_bitmap_ends_at_the_first_newline_or_nul() {
    assert_eq!(bitmap("3\nzz", 8), ok("0-1"));
    assert_eq!(bitmap("3\0zz", 8), ok("0-1"));
    assert_eq!(bitmap("\n3", 8), ok(""));
}

#[test]
fn hex_in_either_case_and_runs_of_separators() {
    assert_eq!(bitmap("aB", 8), ok("0-1,3,5,7"));
    for text in ["1,,5", "1 5", "1,5", " \t1 ,\x0b, 5,\r\n"] {
        assert_eq!(bitmap(text, 64), ok("0,2,32"), "{text:?}");
    }
}

#[test]
fn what_is_too_long_or_too_high_overflows() {
    assert_eq!(bitmap("100", 8), Err(Overflow));
    assert_eq!(bitmap("0,1", 8), Err(Overflow));
    assert_eq!(bitmap("000000001", 8), Err(Overflow));
    assert_eq!(bitmap("000000001", 64), Err(Overflow));
    assert_eq!(bitmap("00000001", 8), ok("0"));
    assert_eq!(bitmap("1,00000000", 33), ok("32"));
    assert_eq!(bitmap("2,00000000", 33), Err(Overflow));
    assert_eq!(bitmap("0,0,0", 64), Err(Overflow));
}

#[test]
fn what_is_not_hex_is_invalid() {
    for text in ["0xff", "0-3", "g", "1;2", "ü", "0000000g1", "-1", "+1", "0x"] {
        assert_eq!(bitmap(text, 64), Err(Invalid), "{text:?}");
    }
}

/// The kernel's `bitmap_get_x32_reverse` (lib/bitmap-str.c) does not check the byte before eight
/// hex digits.
#[test]
fn a_byte_before_eight_digits_is_ignored() {
    assert_eq!(bitmap("x00000001", 8), ok("0"));
    assert_eq!(bitmap("-00000001", 64), ok("0"));
    assert_eq!(bitmap("5x00000001", 64), ok("0,32,34"));
    assert_eq!(bitmap("5,x00000001", 64), ok("0,32,34"));
    assert_eq!(bitmap("x00000005 y00000001", 64), ok("0,32,34"));
    assert_eq!(bitmap("x0000001", 8), Err(Invalid));
    assert_eq!(bitmap("yx00000001", 64), Err(Invalid));
    assert_eq!(bitmap("yx00000001", 8), Err(Overflow));
    assert_eq!(bitmap("1x00000001", 8), Err(Overflow));
    assert_eq!(bitmap("0x00000001", 64), ok("0"));
    assert_eq!(bitmap("\u{fc}00000001", 64), Err(Invalid));
}

#[test]
fn nothing_is_the_zero_mask_and_a_success() {
    for text in ["", ",", "\n", " , ,\n"] {
        assert!(CpuMask::parse_bitmap(text, 8).unwrap().is_empty(), "{text:?}");
        assert!(CpuMask::parse_list(text, 8).unwrap().is_empty(), "{text:?}");
    }
}

#[test]
fn prints_as_wide_as_there_are_cpus() {
    let print = |list: &str, nr| CpuMask::parse_list(list, nr).unwrap().to_bitmap(nr);
    assert_eq!(print("0-3", 12), "00f");
    assert_eq!(print("0", 36), "0,00000001");
    assert_eq!(print("all", 32), "ffffffff");
    assert_eq!(print("all", 33), "1,ffffffff");
    assert_eq!(print("", 8), "00");
    assert_eq!(print("0", 1), "1");
    assert_eq!(print("64", 65), "1,00000000,00000000");
    assert_eq!(CpuMask::new().to_bitmap(0), "0");
    assert_eq!(CpuMask::from_iter([CpuId(0), CpuId(9)]).to_bitmap(8), "01");
}

#[test]
fn lists() {
    assert_eq!(list("0-3,8", 12), ok("0-3,8"));
    assert_eq!(list("all", 12), ok("0-11"));
    assert_eq!(list("ALL", 2), ok("0-1"));
    assert_eq!(list("N", 12), ok("11"));
    assert_eq!(list("8-N", 12), ok("8-11"));
    assert_eq!(list("0-1023:2/256", 1024), ok("0-1,256-257,512-513,768-769"));
    assert_eq!(list("all:1/4", 10), ok("0,4,8"));
    assert_eq!(list(" 1 ,, 3\n9", 12), ok("1,3"));
    assert_eq!(list("0-3:0/2", 4), ok(""));
}

#[test]
fn lists_that_are_wrong() {
    for text in ["8", "0-8", "99999999999999999999", "0-99999999999999999999"] {
        assert_eq!(list(text, 8), Err(Range), "{text:?}");
    }
    for text in ["3-0", "a", "0-", "-3", "0--3", "0-3:2", "0-3:2/0", "0-3:3/2", "0:1/2", "n", "0x1", "+1", "all-2"] {
        assert_eq!(list(text, 8), Err(Invalid), "{text:?}");
    }
    assert_eq!(list("all", 0), Err(Range));
}

#[test]
fn errors_are_one_line_with_what_is_right() {
    let of = |result: Result<CpuMask, MaskError>| result.unwrap_err().to_string();
    assert_eq!(
        of(CpuMask::parse_bitmap("0xff", 8)),
        "`0xff` is not a CPU mask: write hex digits without 0x, such as ff"
    );
    assert_eq!(of(CpuMask::parse_bitmap("100", 8)), "`100` has a CPU that there isn't: the last of 8 is CPU 7");
    let long = of(CpuMask::parse_list(&"\u{1b}x".repeat(100_000), 8));
    assert!(long.len() < 400 && long.chars().all(|c| !c.is_control()), "{long}");
    assert_eq!(CpuMask::parse_bitmap("z", 8).unwrap_err().errno_name(), "EINVAL");
}

#[test]
fn a_set_is_a_set() {
    let mut mask: CpuMask = [CpuId(70), CpuId(3), CpuId(u16::MAX)].into_iter().collect();
    assert_eq!(mask.iter().collect::<Vec<_>>(), [CpuId(3), CpuId(70), CpuId(u16::MAX)]);
    assert_eq!((mask.len(), mask.first(), mask.last()), (3, Some(CpuId(3)), Some(CpuId(u16::MAX))));
    mask.remove(CpuId(u16::MAX));
    mask.remove(CpuId(500));
    assert!(mask.contains(CpuId(70)) && !mask.contains(CpuId(71)) && !mask.contains(CpuId(u16::MAX)));
    assert_eq!(mask, CpuMask::parse_list("3,70", 128).unwrap());
    assert_eq!(mask.and(&[CpuId(3), CpuId(4)].into_iter().collect()).to_list(), "3");
    assert!(mask.and(&[CpuId(4)].into_iter().collect()).is_empty());
    mask.remove(CpuId(3));
    mask.remove(CpuId(70));
    assert_eq!(mask, CpuMask::new());
}

#[test]
fn this_process_may_run_somewhere() {
    assert!(!CpuMask::allowed().unwrap().is_empty());
}
