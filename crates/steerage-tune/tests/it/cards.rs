use steerage_fixtures::cable::Net;
use steerage_fixtures::scratch::Scratch;
use steerage_tune::{Knob, Machine, Scope, Setting, Stages, Undo, Value, Wish};

fn setting(knob: &str, value: &str) -> Setting {
    Setting([(Knob(knob.to_owned()), value.to_owned())].into())
}

#[test]
fn a_feature_is_switched_off_and_on() {
    let Some(net) = Net::new() else { return };
    net.near(|| {
        let mut machine = Machine::new();
        let gro = Knob("/ethtool/near0/features/rx-gro".to_owned());
        for value in ["off", "on", "off"] {
            setting(&gro.0, value).apply(&mut machine).unwrap();
            assert_eq!(machine.read(&gro).unwrap(), value);
        }
        // A veth does not support rules that assign packets to queues.
        let error = setting("/ethtool/near0/features/rx-ntuple-filter", "on").apply(&mut machine).unwrap_err();
        assert!(error.to_string().contains("cannot set /ethtool/near0/features/rx-ntuple-filter to on"), "{error}");
    });
}

/// A new `Machine`, which is like another process, removes the flow dissector.
#[test]
fn the_flow_dissector_is_a_stage_that_is_undone() {
    let Some(net) = Net::new() else { return };
    net.near(|| {
        let (mut machine, directory) = (Machine::new(), Scratch::new());
        let stages = Stages::default().with(Scope::Global);
        let wish = Wish::default().set("flow_dissector", Value::Text("steerage".to_owned()));
        assert!(stages.plan(&mut machine, "near0", &wish).changes.is_empty(), "it is not loaded yet");
        machine.load_dissector();
        let plan = stages.plan(&mut machine, "near0", &wish);
        assert_eq!(plan.changes.iter().map(|change| change.old.as_str()).collect::<Vec<_>>(), ["none"]);
        assert_eq!(plan.changes[0].command(), "bpftool prog attach name steerage_flow flow_dissector");
        let mut undo = Undo::begin(&directory, &mut machine, "near0", &[&plan]).unwrap();
        plan.new_setting().apply(&mut machine).unwrap();
        undo.keep(&mut machine, plan.new_setting()).unwrap();
        assert_eq!(plan.new_setting().differences(&mut machine), []);
        drop(machine);

        let mut later = Machine::new();
        assert_eq!(plan.new_setting().differences(&mut later), []);
        let undo = Undo::load(&directory, &later, "near0").unwrap().unwrap();
        assert_eq!(undo.restore(&mut later).unwrap().left, [""; 0]);
        assert_eq!(later.read(&plan.changes[0].knob).unwrap(), "none");
    });
}
