use std::sync::{Arc, Mutex};
use std::time::Duration;

use steerage::{
    Builder, CpuMask, DeviceError, Input,
    device::{Capabilities, Completions, Filled, Polled, RxQueue},
    policy::{GroupLoad, GroupStart, MapRequest, Plan, Policy},
    topology::Topology,
};
use steerage_fixtures::handlers::Nothing;
use steerage_fixtures::until;

const PROBE_TIME: Duration = Duration::from_micros(200);

struct Endless;

impl RxQueue for Endless {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(60).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        out.fill(budget, |_| Some(Filled::whole(60)));
        Ok(Polled::More)
    }
}

#[derive(Clone, Debug, Default)]
struct Asks {
    last: u16,
    told: Arc<Mutex<Vec<Duration>>>,
}

impl Policy for Asks {
    fn name(&self) -> &'static str {
        "asks"
    }

    fn fresh(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }

    fn plan(&mut self, group: &GroupStart<'_>) -> Plan {
        Plan { order: group.order.to_vec(), active: group.owners }
    }

    fn refine(&mut self, load: &GroupLoad<'_>) -> Option<MapRequest> {
        self.last = load.order[load.order.len() - 1];
        self.told.lock().unwrap().extend(load.apart[usize::from(self.last)]);
        None
    }

    fn asks_distance(&self) -> Option<u16> {
        Some(self.last)
    }
}

#[test]
fn a_cpu_that_sleeps_is_measured_from_one_that_has_no_time() {
    let ours: CpuMask = Topology::read().default_mask().iter().take(2).collect();
    let asks = Asks::default();
    let input = Input::new("endless", "test", vec![Box::new(Endless)]);
    let builder = Builder::new().cpus(ours.clone()).check_order(true).policy(asks.clone()).input(input);
    let running = builder.build(|_| Nothing).unwrap().start().unwrap();
    let handle = running.handle();
    // Busy CPUs may delay the threads that measure distances. With a single CPU, there is no
    // distance to measure.
    let enough =
        || asks.told.lock().unwrap().len() >= 3 || (ours.len() < 2 && handle.snapshot().received() > 1_000_000);
    until("distances are measured", enough);
    handle.stop();
    let outcome = running.join();
    assert_eq!(outcome.snapshot.reordered(), Some(0));
    assert_eq!(outcome.snapshot.received(), outcome.snapshot.delivered() + outcome.snapshot.dropped().total());
    for apart in asks.told.lock().unwrap().iter() {
        assert!(*apart > Duration::ZERO && *apart < PROBE_TIME, "{apart:?}");
    }
}
