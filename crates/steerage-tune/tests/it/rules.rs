//! Tests the rules with which a card steers traffic to queues.

use std::io::ErrorKind;

use steerage_fixtures::cable::Net;
use steerage_fixtures::scratch::Scratch;
use steerage_netlink::ethtool::Channels;
use steerage_tune::purpose::{Lead, Nic, Purpose, plan};
use steerage_tune::{Knob, Machine, Plan, Setting, Stages, TuneError, Undo};

use crate::made_up::MadeUp;

fn nic(name: &str) -> Nic {
    let channels = Some(Channels { combined: 4, combined_max: 4, ..Channels::default() });
    Nic { name: name.to_owned(), channels, cpus: 8, ..Nic::default() }
}

fn lead(flows: &[&str], queues: &[u32]) -> Lead {
    Lead { flows: flows.iter().map(|flow| flow.parse().unwrap()).collect(), queues: queues.to_vec() }
}

/// A card with four locations for rules, one of which has another program's rule.
fn card() -> MadeUp {
    let made_up = MadeUp::new(8, 4);
    for location in 1020..1024 {
        made_up.write(&format!("ethtool/eth0/rules/{location}"), "none");
    }
    made_up.write("ethtool/eth0/rules/1022", "flow-type udp4 dst-port 53 action 0");
    made_up
}

fn planned(machine: &mut Machine, lead: &Lead, ours: &Setting) -> Result<Plan, TuneError> {
    plan(machine, &nic("eth0"), Purpose::Listen, lead, &Stages::default(), ours)
}

#[test]
fn rules_are_added_once_checked_and_removed() {
    let (made_up, directory) = (card(), Scratch::new());
    let mut machine = made_up.machine();
    let lead = lead(&["tcp4 dst-port 443"], &[2, 3]);
    let plan = planned(&mut machine, &lead, &Setting::default()).unwrap();
    let commands: Vec<String> = plan.changes.iter().map(|change| change.command()).collect();
    assert_eq!(
        commands,
        [
            "ethtool -N eth0 flow-type tcp4 src-port 0 m 0xfffd dst-port 443 action 2 loc 1023",
            "ethtool -N eth0 flow-type tcp4 src-port 2 m 0xfffd dst-port 443 action 3 loc 1021"
        ]
    );
    assert!(!plan.may_take_the_link_down());
    let mut undo = Undo::begin(&directory, &mut machine, "eth0", &[&plan]).unwrap();
    plan.new_setting().apply(&mut machine).unwrap();
    undo.keep(&mut machine, plan.new_setting()).unwrap();
    let kept = undo.kept().unwrap().clone();
    assert_eq!(kept.differences(&mut machine), []);
    assert_eq!(planned(&mut machine, &lead, &kept).unwrap().changes, []);
    let without = planned(&mut machine, &Lead::default(), &kept).unwrap();
    assert_eq!(without.changes[0].command(), "ethtool -N eth0 delete 1021");
    made_up.write("ethtool/eth0/rules/1021", "flow-type tcp4 dst-port 22 action 1");
    assert_eq!(kept.differences(&mut machine).len(), 1);
    let restored = Undo::load(&directory, &machine, "eth0").unwrap().unwrap().restore(&mut machine).unwrap();
    assert!(restored.left[0].contains("dst-port 22 action 1, which tune did not set: left alone"), "{restored:?}");
    let rules = [1020, 1021, 1022, 1023].map(|location| made_up.read(&format!("ethtool/eth0/rules/{location}")));
    assert_eq!(
        rules.each_ref().map(String::as_str),
        ["none", "flow-type tcp4 dst-port 22 action 1", "flow-type udp4 dst-port 53 action 0", "none"]
    );
}

#[test]
fn what_a_card_cannot_lead_is_refused() {
    let made_up = card();
    let refused = |flows: &[&str], queues: &[u32]| {
        planned(&mut made_up.machine(), &lead(flows, queues), &Setting::default()).unwrap_err().to_string()
    };
    for (flows, queues, why) in [
        (&["tcp4 dst-port 443"][..], &[4][..], "it has no receive queue 4, but the queues 0 to 3"),
        // To spread the traffic equally over three queues, the card needs eight rules.
        (&["tcp4 dst-port 443"], &[0, 1, 2], "the card has no room for more rules"),
        (
            &["tcp4 src-port 443"],
            &[0, 1, 2],
            "'tcp4 src-port 443' has a src-port, by which several queues would share it",
        ),
        (&["tcp4", "udp4", "tcp6"], &[0, 1], "the card has no room for more rules"),
    ] {
        let error = refused(flows, queues);
        let begin = format!("eth0 cannot lead this traffic to queues: {why}");
        assert!(error.starts_with(&begin) && error.ends_with("nothing was changed"), "{error}");
    }
}

/// A driver may refuse a rule that compares only some bits of a port.
#[test]
fn a_rule_that_the_driver_refuses_says_what_to_do() {
    let knob = Knob("/ethtool/eth0/rules/1023".to_owned());
    let error =
        TuneError::Write { knob, value: "flow-type tcp4 action 2".to_owned(), error: ErrorKind::InvalidInput.into() };
    assert!(
        error.to_string().ends_with("name one queue, or lead the traffic to a context of ethtool -X by hand"),
        "{error}"
    );
}

#[test]
fn a_veth_has_no_rules() {
    let Some(net) = Net::new() else { return };
    net.near(|| {
        let lead = lead(&["tcp4 dst-port 443"], &[0]);
        let refused =
            plan(&mut Machine::new(), &nic("near0"), Purpose::AfXdp, &lead, &Stages::default(), &Setting::default());
        assert_eq!(
            refused.unwrap_err().to_string(),
            "near0 cannot lead this traffic to queues: its driver has no rules for queues (ethtool -N); nothing was changed"
        );
    });
}
