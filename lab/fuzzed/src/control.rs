//! Fuzz targets for requests to the control socket and to the HTTP server of the metrics.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use steerage::{Batch, Builder, Cpu, Handler, Instance};
use steerage_control::{CpuView, Options, Tree, fuzzing};

#[derive(Debug)]
struct Idle;

impl Handler for Idle {
    type Moved = ();
    type Report = ();

    fn handle(&mut self, _batch: &mut Batch<'_>, _cpu: &mut Cpu) {}

    fn finish(self, _cpu: &mut Cpu) {}
}

thread_local! {
    static TREE: RefCell<Option<(Instance<Idle>, Arc<Tree>)>> = const { RefCell::new(None) };
}

/// Input: one byte selects a user, then one request per line. Each reply is one line of JSON.
pub(crate) fn request(bytes: &[u8]) {
    let Some((user, lines)) = bytes.split_first() else { return };
    TREE.with_borrow_mut(|tree| {
        let (_, tree) = tree.get_or_insert_with(|| {
            let input = steerage_device::open("synthetic:queues=2,packets=1").expect("a device");
            let instance = Builder::new().virtual_cpus(4).input(input).build(|_| Idle).expect("memory");
            // No CPU runs, so requested changes never take effect.
            let settle_max = Duration::ZERO;
            let options = Options { machine: CpuView::new(4), uid: 1, queues_off: Vec::new(), settle_max };
            let tree = Arc::new(Tree::new(instance.handle(), options));
            (instance, tree)
        });
        for line in lines.split(|byte| *byte == b'\n') {
            let answer = fuzzing::answer(line, u32::from(user & 3), tree);
            assert!(answer.starts_with('{') && answer.ends_with('}') && !answer.contains('\n'), "{answer}");
        }
    });
}

/// Input: the head of an HTTP request, which may arrive in two parts. After each part, the server
/// sends nothing, or a reply with a status line.
pub(crate) fn http(bytes: &[u8]) {
    let Some((at, request)) = bytes.split_first() else { return };
    let at = usize::from(*at).min(request.len());
    for part in [&request[..at], request] {
        if let Some(answer) = fuzzing::http(part) {
            assert!(answer.starts_with(b"HTTP/1.1 ") && answer.windows(4).any(|end| end == b"\r\n\r\n"));
        }
    }
}
