use steerage::messages::TakesMessages;
use steerage::{
    Batch, BuildError, Builder, Cpu, CpuId, CpuMask, DeviceError, Handle, Handler, Hash, Input, Running,
    device::{Capabilities, Completions, Filled, Polled, RxQueue},
    limits::STACK_BYTES,
    testing,
    topology::Topology,
};
use steerage_core::limits::{DRAIN_MAX, JOIN_LOOK, LEAVE_BEHIND_AFTER};
use steerage_fixtures::handlers::Nothing;
use steerage_fixtures::{in_own_process, until};

struct Frames(Option<usize>);

impl RxQueue for Frames {
    fn capabilities(&self) -> Capabilities {
        Capabilities::pages(60).can_wait()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        let Self(left) = self;
        out.fill(budget, |_| {
            if let Some(left) = left {
                *left = left.checked_sub(1)?;
            }
            Some(Filled::whole(60))
        });
        Ok(if *left == Some(0) { Polled::Ended } else { Polled::More })
    }
}

fn started(builder: Builder, frames: Option<usize>) -> Running<()> {
    let input = Input::new("frames", "test", vec![Box::new(Frames(frames))]);
    builder.input(input).build(|_| Nothing).unwrap().start().unwrap()
}

fn virtual_cpus() -> Builder {
    Builder::new().virtual_cpus(2)
}

fn until_more_is_received(handle: &Handle) {
    let before = handle.snapshot().received();
    until("more is received", || handle.snapshot().received() > before);
}

fn control_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    // A thread may end before its name is read.
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    // The kernel keeps only the first 15 characters of "steerage/control".
    names.filter(|name| name.trim_end() == "steerage/contro").count()
}

fn fails_early(seen: &mut Option<Handle>) -> Result<(), std::num::ParseIntError> {
    let running = started(virtual_cpus(), None);
    *seen = Some(running.handle());
    let _seconds: u32 = "ten".parse()?;
    running.join();
    Ok(())
}

#[test]
fn an_error_after_the_start_stops_the_run() {
    let mut handle = None;
    fails_early(&mut handle).unwrap_err();
    let handle = handle.unwrap();
    assert!(handle.is_stopping(), "the run goes on, and nobody has it");
    until("the run has ended", || handle.is_finished());
    let ledger = handle.snapshot();
    assert_eq!(ledger.received(), ledger.delivered() + ledger.dropped().total() + ledger.in_flight());
}

#[test]
fn a_detached_run_goes_on_until_it_is_stopped() {
    let handle = started(virtual_cpus(), None).detach();
    until_more_is_received(&handle);
    assert!(!handle.is_stopping());
    handle.stop();
    until("the run has ended", || handle.is_finished());
}

#[test]
fn a_run_that_ended_by_itself_was_not_stopped() {
    let running = started(virtual_cpus(), Some(1000));
    let handle = running.handle();
    assert_eq!(running.join().snapshot.delivered(), 1000);
    assert!(!handle.is_stopping());
}

#[test]
fn a_detached_run_is_controlled_until_its_end() {
    // The test counts the threads of the process.
    if !in_own_process("running::a_detached_run_is_controlled_until_its_end") {
        return;
    }
    let one: CpuMask = Topology::read().default_mask().iter().take(1).collect();
    let pinned = || Builder::new().cpus(one.clone());
    for (builder, again) in [(pinned(), pinned()), (virtual_cpus(), virtual_cpus().policy(Hash))] {
        let handle = started(builder, None).detach();
        until_more_is_received(&handle);
        until("it is controlled", || control_threads() == 1);
        handle.stop();
        until("the control thread has ended", || control_threads() == 0);

        drop(started(again, None));
        until("the control thread has ended", || control_threads() == 0);
    }
}

/// A network card closes slowly if its driver restarts the card to detach the XDP program.
struct ClosesSlowly(Frames);

impl RxQueue for ClosesSlowly {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn poll(&mut self, out: &mut Completions<'_>, budget: usize) -> Result<Polled, DeviceError> {
        self.0.poll(out, budget)
    }
}

impl Drop for ClosesSlowly {
    fn drop(&mut self) {
        std::thread::sleep(DRAIN_MAX + LEAVE_BEHIND_AFTER + JOIN_LOOK * 4);
    }
}

/// All packets are handled, and all CPU threads have ended, before the devices are closed.
#[test]
fn a_device_that_closes_slowly_is_waited_for() {
    let queues: Vec<Box<dyn RxQueue>> = vec![Box::new(ClosesSlowly(Frames(None))), Box::new(Frames(None))];
    let input = Input::new("slow", "test", queues);
    let running = virtual_cpus().input_on(input, &[CpuId(0)], None).build(|_| Nothing).unwrap().start().unwrap();
    let handle = running.handle();
    until_more_is_received(&handle);
    handle.stop();
    let outcome = running.join();
    assert_eq!((outcome.left_behind, outcome.snapshot.in_flight()), (vec![], 0));
}

/// The state of this handler is not in a `Box` or `Vec`, but on the stack while it is created.
struct Large<const BYTES: usize>([u8; BYTES]);

impl<const BYTES: usize> TakesMessages for Large<BYTES> {
    type Message = ();

    fn message(&mut self, (): (), _cpu: &mut Cpu) {}
}

impl<const BYTES: usize> Handler for Large<BYTES> {
    type Moved = ();
    type Report = usize;

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        for packet in &mut *batch {
            self.0[packet.data().len()] += 1;
        }
    }

    fn finish(self, _cpu: &mut Cpu) -> usize {
        self.0[60].into()
    }
}

#[test]
fn a_large_handler_gets_the_stack_that_it_needs() {
    let builder = || Builder::new().virtual_cpus(1).input(testing::input([[0; 60]; 3]));
    let build = |stack_size| builder().stack_size(stack_size).build(|_| Large([0; 3 << 20])).unwrap().start();
    let error = build(STACK_BYTES).err().unwrap();
    assert!(matches!(error, BuildError::HandlerTooLarge { bytes, .. } if bytes == 3 << 20));
    assert!(error.to_string().contains("raise stack_size (2097152)"), "{error}");
    // The largest handlers that are allowed do not overflow the stack, even without optimisation.
    assert_eq!(build(24 << 20).unwrap().join().reports[0].1, 3);
    let (instance, _post) = builder().build_with_messages(1, |_| Large([0; STACK_BYTES / 8 - 1024])).unwrap();
    assert_eq!(instance.start().unwrap().join().reports[0].1, 3);
}
