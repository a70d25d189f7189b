//! Tests the data layouts of a dispatcher. The tests of the command line use libxdp's own programs.

use super::code::{CONFIGURATION_BYTES, Rule, configuration, dispatcher, rules, several, types};

const FILTER: Rule = Rule { priority: 10, goes_on_after: 1 << 2, several: false };

#[test]
fn a_configuration_is_read_as_it_was_written() {
    let written = [FILTER, Rule::of_ours(50), Rule { priority: 4_000_000_000, goes_on_after: 0b11111, several: true }];
    let bytes = configuration(&written);
    assert_eq!((bytes.len(), &bytes[..4]), (CONFIGURATION_BYTES, &[236, 2, 3, 0][..]));
    assert_eq!(rules(&bytes).unwrap(), written);
    assert!(several(&written[1..]) && !several(&written));
    // The configured return values include `NOT_REPLACED` (31).
    assert_eq!(bytes[4..8], (1_u32 << 31 | 1 << 2).to_ne_bytes());
}

#[test]
fn another_layout_is_named_by_its_version() {
    let mut bytes = configuration(&[FILTER]);
    bytes[1] = 3;
    assert_eq!(rules(&bytes), Err(3));
    // The first version of libxdp's layout began with the number of programs.
    bytes[0] = 1;
    assert_eq!(rules(&bytes), Err(1));
    let mut bytes = configuration(&[FILTER]);
    bytes[2] = 11;
    assert_eq!(rules(&bytes), Err(2));
}

#[test]
fn each_component_has_a_function_with_a_type() {
    let rules: Vec<Rule> = (0..10).map(Rule::of_ours).collect();
    let (instructions, functions) = dispatcher(&rules, 3).unwrap();
    assert_eq!(functions.iter().map(|function| function.kind).collect::<Vec<_>>(), (5..16).collect::<Vec<_>>());
    assert!(functions.windows(2).all(|two| two[0].at < two[1].at));
    assert!(functions.iter().all(|function| (function.at as usize) < instructions.len()));
    let types = types(["xdp_dispatcher", "prog0"].into_iter());
    assert!(types.ends_with(b"\0xdp_dispatcher\0prog0\0"));
}
