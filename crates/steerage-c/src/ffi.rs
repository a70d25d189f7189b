//! The functions of `steerage.h`, and all `unsafe` code of the crate.
//!
//! Each pointer from the C program is either null or valid as the header says. The library can
//! check only whether a pointer is null: some functions accept null, the others return an error.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;

use steerage::packet::Packets;
use steerage::{Batch, BucketId, Cpu, CpuId, Handle, Handler, Packet};

use crate::failure::{self, Code, Failure};
use crate::run::Run;
use crate::states::States;
use crate::structs::{CpuLedger, FlowView, Ledger, PacketView};

/// `STEERAGE_ABI` of the C header.
const ABI: u32 = 0;

/// `steerage_functions` of the C header.
#[derive(Clone, Copy)]
#[repr(C)]
struct Functions {
    size: usize,
    shared: *mut c_void,
    cpu_begins: Option<unsafe extern "C" fn(*mut c_void, u32) -> *mut c_void>,
    batch: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, *mut View<'static>)>,
    cpu_ends: Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>,
    state_made: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, u32) -> *mut c_void>,
    state_moved: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, u32, *mut c_void)>,
    state_merged: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_void, *mut c_void)>,
    state_dropped: Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>,
}

impl Functions {
    const NONE: Self = Self {
        size: 0,
        shared: ptr::null_mut(),
        cpu_begins: None,
        batch: None,
        cpu_ends: None,
        state_made: None,
        state_moved: None,
        state_merged: None,
        state_dropped: None,
    };
}

struct Callbacks {
    functions: Functions,
    batch: unsafe extern "C" fn(*mut c_void, *mut c_void, *mut View<'static>),
}

// SAFETY: the header says that the functions are called on several threads, with `shared`.
unsafe impl Send for Callbacks {}
// SAFETY: as above.
unsafe impl Sync for Callbacks {}

impl Callbacks {
    /// # Safety
    /// If the pointer is not null, `size` bytes are readable at the pointer, and the functions do
    /// what the header says.
    unsafe fn read(from: *const Functions) -> Result<Self, Failure> {
        let wrong = |text: &str| Failure::new(Code::Argument, format!("cannot start the run: {text}"));
        // SAFETY: the caller's pointer, whose first field is the size.
        let size = unsafe { from.cast::<usize>().as_ref() };
        let size = *size.ok_or_else(|| wrong("the functions are NULL: pass a steerage_functions"))?;
        let mut functions = Functions::NONE;
        let known = size_of::<Functions>();
        // SAFETY: the caller's `size` bytes are readable, at most as many as `functions` has are copied, and any bytes of the
        // program's struct are valid fields.
        unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut functions).cast::<u8>(), size.min(known)) };
        let more = size.saturating_sub(known);
        // SAFETY: as above, after the known fields.
        let is_unknown = more > 0
            && unsafe { std::slice::from_raw_parts(from.cast::<u8>().add(known), more) }.iter().any(|byte| *byte != 0);
        if is_unknown {
            return Err(wrong("the functions have fields that this libsteerage does not know: install a newer one"));
        }
        let batch = functions.batch;
        let batch =
            batch.ok_or_else(|| wrong("`batch` is NULL: set `size` to sizeof(steerage_functions), and `batch`"))?;
        Ok(Self { functions, batch })
    }
}

fn start(run: &Run, callbacks: Callbacks) -> Result<(), Failure> {
    let callbacks = Arc::new(callbacks);
    run.start(move |cpu| CpuHandler::new(&callbacks, cpu))
}

/// The pointer that the C program's `cpu_begins` returned. Dropping this value calls `cpu_ends`.
struct CpuPointer {
    pointer: *mut c_void,
    callbacks: Arc<Callbacks>,
}

impl CpuPointer {
    fn new(callbacks: &Arc<Callbacks>, cpu: u32) -> Self {
        let shared = callbacks.functions.shared;
        // SAFETY: the header's promise about `cpu_begins`.
        let pointer = callbacks.functions.cpu_begins.map_or(ptr::null_mut(), |begins| unsafe { begins(shared, cpu) });
        Self { pointer, callbacks: Arc::clone(callbacks) }
    }

    fn batch(&self, view: &mut View<'_>) {
        let Callbacks { functions, batch } = &*self.callbacks;
        // SAFETY: the header's promise about `batch`, which uses the view only during the call.
        unsafe { batch(functions.shared, self.pointer, ptr::from_mut(view).cast()) };
    }

    fn made(&self, bucket: BucketId) -> Option<State> {
        let Functions { shared, state_made, .. } = self.callbacks.functions;
        // SAFETY: the header's promise about `state_made`.
        let pointer = unsafe { state_made?(shared, self.pointer, number_of(bucket)) };
        (!pointer.is_null()).then(|| State { pointer, callbacks: Arc::clone(&self.callbacks) })
    }

    fn moved(&self, bucket: BucketId, state: &State) {
        let Functions { shared, state_moved, .. } = self.callbacks.functions;
        if let Some(moved) = state_moved {
            // SAFETY: the header's promise about `state_moved`.
            unsafe { moved(shared, self.pointer, number_of(bucket), state.pointer) };
        }
    }

    fn merged(&self, into: &State, from: &State) {
        let Functions { shared, state_merged, .. } = self.callbacks.functions;
        if let Some(merged) = state_merged {
            // SAFETY: the header's promise about `state_merged`.
            unsafe { merged(shared, self.pointer, into.pointer, from.pointer) };
        }
    }
}

impl Drop for CpuPointer {
    fn drop(&mut self) {
        if let Some(ends) = self.callbacks.functions.cpu_ends {
            // SAFETY: the header's promise about `cpu_ends`.
            unsafe { ends(self.callbacks.functions.shared, self.pointer) };
        }
    }
}

/// The C program's state of a bucket. Dropping this value calls `state_dropped`, on whichever CPU
/// drops it.
struct State {
    pointer: *mut c_void,
    callbacks: Arc<Callbacks>,
}

// SAFETY: the header says that states move between CPUs, one thread after the other.
unsafe impl Send for State {}

impl Drop for State {
    fn drop(&mut self) {
        if let Some(dropped) = self.callbacks.functions.state_dropped {
            // SAFETY: the header's promise about `state_dropped`.
            unsafe { dropped(self.callbacks.functions.shared, self.pointer) };
        }
    }
}

fn number_of(bucket: BucketId) -> u32 {
    u32::from(bucket.group) << 16 | u32::from(bucket.bucket)
}

/// `steerage_batch` of the C header: the packets of one call of `batch`.
struct View<'a> {
    packets: Packets<'a>,
    len: u32,
    queue: u32,
    current: Option<Packet<'a>>,
    shown: PacketView,
    flow: FlowView,
    states: &'a mut States<State>,
    cpu: &'a CpuPointer,
}

impl<'a> View<'a> {
    fn new(batch: &'a mut Batch<'_>, states: &'a mut States<State>, cpu: &'a CpuPointer) -> Self {
        let (len, queue) = (batch.len() as u32, batch.queue() as u32);
        let (shown, flow) = (PacketView::NONE, FlowView::default());
        Self { packets: batch.iter_mut(), len, queue, current: None, shown, flow, states, cpu }
    }

    fn next(&mut self) -> Option<&PacketView> {
        self.current = self.packets.next();
        let received = self.current.as_ref()?.received();
        self.shown = PacketView::of(&received);
        Some(&self.shown)
    }

    fn flow(&mut self) -> Option<&FlowView> {
        self.flow = FlowView::of(&self.current.as_ref()?.flow_key()?)?;
        Some(&self.flow)
    }

    fn state(&mut self) -> Option<*mut c_void> {
        let bucket = self.current.as_ref()?.bucket();
        let slot = self.states.slot(bucket);
        if slot.is_none() {
            *slot = self.cpu.made(bucket);
        }
        slot.as_ref().map(|state| state.pointer)
    }
}

/// Calls the program's functions on one CPU.
struct CpuHandler {
    // `states` is the first field, so that the states are dropped before the CPU's pointer.
    states: States<State>,
    cpu: CpuPointer,
}

impl CpuHandler {
    fn new(callbacks: &Arc<Callbacks>, cpu: CpuId) -> Self {
        Self { states: States::new(), cpu: CpuPointer::new(callbacks, u32::from(cpu.0)) }
    }
}

impl Handler for CpuHandler {
    type Moved = State;
    type Report = ();

    fn handle(&mut self, batch: &mut Batch<'_>, _cpu: &mut Cpu) {
        let mut view = View::new(batch, &mut self.states, &self.cpu);
        self.cpu.batch(&mut view);
    }

    fn bucket_leaves(&mut self, bucket: BucketId) -> Option<State> {
        self.states.take(bucket)
    }

    fn bucket_arrives(&mut self, bucket: BucketId, state: State) {
        self.cpu.moved(bucket, &state);
        match self.states.slot(bucket) {
            Some(present) => self.cpu.merged(present, &state),
            empty => *empty = Some(state),
        }
    }

    fn finish(self, _cpu: &mut Cpu) {}
}

/// The return type of a function of the C header.
trait Answer {
    fn of_failure(code: Code) -> Self;
}

impl Answer for c_int {
    fn of_failure(code: Code) -> Self {
        code as Self
    }
}

impl Answer for () {
    fn of_failure(_: Code) {}
}

impl Answer for u32 {
    fn of_failure(_: Code) -> Self {
        0
    }
}

impl Answer for usize {
    fn of_failure(_: Code) -> Self {
        0
    }
}

impl<T> Answer for *const T {
    fn of_failure(_: Code) -> Self {
        ptr::null()
    }
}

impl<T> Answer for *mut T {
    fn of_failure(_: Code) -> Self {
        ptr::null_mut()
    }
}

/// Runs a function of the C header, records its error, and stops panics before they reach the C
/// program.
fn border<R: Answer>(name: &str, body: impl FnOnce() -> Result<R, Failure>) -> R {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(answer)) => return answer,
        Ok(Err(failure)) => failure,
        Err(_) => Failure::new(Code::Internal, format!("{name} has panicked: this is a bug in libsteerage")),
    };
    // Recording the failure may panic too.
    let _ = catch_unwind(AssertUnwindSafe(|| failure::record(&failure)));
    R::of_failure(failure.code)
}

/// Borrows what a pointer of the C program points to.
///
/// # Safety
/// A pointer that is not null is valid for the time of the call.
unsafe fn given<'p, T>(pointer: *const T, what: &str) -> Result<&'p T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or_else(|| Failure::new(Code::Argument, format!("{what} is NULL: pass a pointer")))
}

/// Like [`given`], for a batch. A batch belongs to the thread on which the library calls `batch`.
///
/// # Safety
/// The pointer must be valid as for [`given`], and nothing else may borrow the batch.
unsafe fn batch_of<'p>(batch: *mut View<'static>) -> Result<&'p mut View<'static>, Failure> {
    // SAFETY: the caller's promise.
    unsafe { batch.as_mut() }.ok_or_else(|| Failure::new(Code::Argument, "the batch is NULL: pass that of `batch`"))
}

/// # Safety
/// The pointer must be valid as for [`given`], and the text ends with a zero byte.
unsafe fn text<'p>(pointer: *const c_char, what: &str) -> Result<&'p str, Failure> {
    // SAFETY: the caller's promise.
    unsafe { given(pointer, what) }?;
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Failure::new(Code::Argument, format!("{what} is not UTF-8: {text:?}")))
}

/// Writes a ledger as a C struct of `size` bytes. If the C struct is longer than this version's
/// ledger, its additional fields are set to 0.
///
/// # Safety
/// `size` bytes are writable at `to`, if `to` is not null.
unsafe fn write<T: Copy>(to: *mut T, size: usize, ledger: &T) -> Result<c_int, Failure> {
    // SAFETY: the caller's promise.
    unsafe { given(to.cast::<u8>(), "the ledger") }?;
    // SAFETY: the caller's promise. A ledger is numbers alone, so it has no padding.
    unsafe { ptr::write_bytes(to.cast::<u8>(), 0, size) };
    // SAFETY: as above.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(ledger).cast::<u8>(), to.cast::<u8>(), size.min(size_of::<T>())) };
    Ok(0)
}

fn no_such(what: &str, number: u32, count: usize) -> Failure {
    Failure::new(
        Code::Argument,
        format!("there is no {what} {number}: they are numbered from 0, and there are {count}"),
    )
}

/// The functions of the C header, whose panics and failures [`border`] handles.
macro_rules! exports {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty $body:block)*) => {$(
        // SAFETY: the name begins with `steerage_`, so no other library has it.
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "some bodies use no pointer")]
        unsafe extern "C" fn $name($($argument: $type),*) -> $answer {
            // SAFETY: each pointer of the program is valid or null, as the header says.
            border(stringify!($name), || unsafe { $body })
        }
    )*};
}

exports! {
    fn steerage_abi_version() -> u32 {
        Ok(ABI)
    }

    fn steerage_version() -> *const c_char {
        Ok(concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast())
    }

    fn steerage_strerror(status: c_int) -> *const c_char {
        Ok(failure::meaning(status).as_ptr())
    }

    fn steerage_last_error() -> *const c_char {
        Ok(failure::last(CStr::as_ptr))
    }

    fn steerage_open(run: *mut *mut Run, inputs: *const *const c_char, count: usize, filter: *const c_char) -> c_int {
        given(run, "the place for the run")?;
        run.write(ptr::null_mut());
        given(inputs, "the list of inputs")?;
        let inputs = (0..count).map(|nth| text(*inputs.add(nth), "the text of an input")).collect::<Result<Vec<_>, _>>()?;
        let filter = if filter.is_null() { None } else { Some(text(filter, "the filter")?) };
        run.write(Box::into_raw(Box::new(Run::open(&inputs, filter)?)));
        Ok(0)
    }

    fn steerage_notes(run: *const Run) -> *const c_char {
        Ok(given(run, "the run")?.notes().as_ptr())
    }

    fn steerage_set(run: *mut Run, option: *const c_char, value: *const c_char) -> c_int {
        given(run, "the run")?.set(text(option, "the option")?, text(value, "the value")?).map(|()| 0)
    }

    fn steerage_start(run: *mut Run, functions: *const Functions) -> c_int {
        start(given(run, "the run")?, Callbacks::read(functions)?).map(|()| 0)
    }

    fn steerage_wait(run: *mut Run, timeout_ms: i64) -> c_int {
        let wait = |handle: &Handle, time| handle.wait_finished(time);
        given(run, "the run")?.wait(timeout_ms, wait).map(c_int::from)
    }

    fn steerage_join(run: *mut Run) -> c_int {
        given(run, "the run")?.join().map(|()| 0)
    }

    fn steerage_run(run: *mut Run, functions: *const Functions) -> c_int {
        let run = given(run, "the run")?;
        start(run, Callbacks::read(functions)?)?;
        run.join().map(|()| 0)
    }

    fn steerage_stop(run: *mut Run) -> () {
        // A signal handler may call this function, so it must not allocate an error text. A null
        // pointer is not an error.
        if let Some(run) = run.as_ref() {
            run.stop();
        }
        Ok(())
    }

    fn steerage_free(run: *mut Run) -> () {
        if !run.is_null() {
            drop(Box::from_raw(run));
        }
        Ok(())
    }

    fn steerage_set_rps_cpus(run: *mut Run, list: *const c_char) -> c_int {
        given(run, "the run")?.set_mask(None, text(list, "the list of CPUs")?).map(|()| 0)
    }

    fn steerage_set_queue_rps_cpus(run: *mut Run, queue: u32, list: *const c_char) -> c_int {
        given(run, "the run")?.set_mask(Some(queue), text(list, "the list of CPUs")?).map(|()| 0)
    }

    fn steerage_wait_settled(run: *mut Run, timeout_ms: i64) -> c_int {
        let wait = |handle: &Handle, time| handle.wait_settled(time);
        given(run, "the run")?.wait(timeout_ms, wait).map(c_int::from)
    }

    fn steerage_queues(run: *const Run) -> u32 {
        Ok(given(run, "the run")?.snapshot()?.queues.len() as u32)
    }

    fn steerage_cpus(run: *const Run) -> u32 {
        Ok(given(run, "the run")?.snapshot()?.cpus.len() as u32)
    }

    fn steerage_read_ledger(run: *const Run, ledger: *mut Ledger, size: usize) -> c_int {
        let all = given(run, "the run")?.snapshot()?;
        let counts = [all.received(), all.received_bytes(), all.delivered(), all.in_flight()];
        write(ledger, size, &Ledger::new(counts, &all.verdicts(), &all.dropped(), all.moves.buckets))
    }

    fn steerage_read_queue(run: *const Run, queue: u32, ledger: *mut Ledger, size: usize) -> c_int {
        let all = given(run, "the run")?.snapshot()?;
        let one = all.queues.get(queue as usize).ok_or_else(|| no_such("receive queue", queue, all.queues.len()))?;
        let counts = [one.received, one.received_bytes, one.delivered, one.in_flight];
        write(ledger, size, &Ledger::new(counts, &one.verdicts, &one.dropped, 0))
    }

    fn steerage_read_cpu(run: *const Run, nth: u32, ledger: *mut CpuLedger, size: usize) -> c_int {
        let all = given(run, "the run")?.snapshot()?;
        let one = all.cpus.get(nth as usize).ok_or_else(|| no_such("CPU", nth, all.cpus.len()))?;
        write(ledger, size, &CpuLedger::of(one))
    }

    fn steerage_batch_len(batch: *const View<'static>) -> u32 {
        Ok(given(batch, "the batch")?.len)
    }

    fn steerage_batch_queue(batch: *const View<'static>) -> u32 {
        Ok(given(batch, "the batch")?.queue)
    }

    fn steerage_next(batch: *mut View<'static>) -> *const PacketView {
        Ok(batch_of(batch)?.next().map_or(ptr::null(), ptr::from_ref))
    }

    fn steerage_flow_of(batch: *mut View<'static>) -> *const FlowView {
        Ok(batch_of(batch)?.flow().map_or(ptr::null(), ptr::from_ref))
    }

    fn steerage_bucket(batch: *mut View<'static>) -> u32 {
        Ok(batch_of(batch)?.current.as_ref().map_or(0, |packet| number_of(packet.bucket())))
    }

    fn steerage_state(batch: *mut View<'static>) -> *mut c_void {
        Ok(batch_of(batch)?.state().unwrap_or(ptr::null_mut()))
    }

    fn steerage_copy(batch: *mut View<'static>, offset: usize, to: *mut c_void, len: usize) -> usize {
        let Some(packet) = &batch_of(batch)?.current else { return Ok(0) };
        given(to, "the place for the copy")?;
        let (mut skip, mut copied) = (offset, 0);
        for mut part in packet.segments() {
            let skipped = skip.min(part.len());
            (skip, part) = (skip - skipped, &part[skipped..]);
            let count = part.len().min(len - copied);
            ptr::copy_nonoverlapping(part.as_ptr(), to.cast::<u8>().add(copied), count);
            copied += count;
        }
        Ok(copied)
    }

    fn steerage_discard(batch: *mut View<'static>) -> () {
        if let Some(packet) = batch_of(batch)?.current.take() {
            packet.discard();
        }
        Ok(())
    }
}

/// Several threads of the C program may use the same run.
const _: fn() = || {
    fn shared<T: Send + Sync>() {}
    shared::<Run>();
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_at_the_border() {
        steerage_fixtures::quiet_panics();
        let status: c_int = border("steerage_test", || panic!("planted"));
        assert_eq!(status, Code::Internal as c_int);
        let last = failure::last(|text| text.to_str().unwrap().to_owned());
        assert_eq!(last, "steerage_test has panicked: this is a bug in libsteerage");
        let pointer: *const u8 = border("steerage_test", || panic!("planted"));
        assert!(pointer.is_null());
    }
}
