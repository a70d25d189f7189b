//! The sources of a report: the ledger, the capture files, and the counters of the handler.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use steerage::Snapshot;
use steerage_capture::CaptureInfo;
use steerage_control::metrics::More;
use steerage_guard::sandbox::InForce;
use steerage_meter::{FlowOutput, Metering};
use steerage_router::Forwarding;

use crate::metrics;
use crate::report::{Document, EndedBy, FlowOutputReport, FlowStage, Flows, ForwardReport, Recorded, Report, Sandbox};

#[derive(Clone, Debug, Default)]
pub(crate) struct ReportSources {
    pub(crate) capture: Option<Arc<CaptureInfo>>,
    pub(crate) forwarding: Option<Arc<Forwarding>>,
    pub(crate) meters: Option<Metering>,
    /// If the user or a time limit stops the run, the threads of the flow outputs end soon.
    pub(crate) flow_outputs: Vec<FlowOutput>,
    pub(crate) sample: Option<u32>,
    pub(crate) sandbox: Option<InForce>,
    pub(crate) verbose: bool,
}

impl ReportSources {
    pub(super) fn metrics(self) -> Option<More> {
        let flows = self.meters.map(metrics::of_flows);
        let forwarding = self.forwarding.map(metrics::of_forwarding);
        let function = flows.or(forwarding);
        match (function, self.capture.map(metrics::of_capture)) {
            (Some(function), Some(capture)) => Some(Box::new(move || [function(), capture()].concat())),
            (function, capture) => function.or(capture),
        }
    }

    pub(super) fn report(
        &self,
        started: SystemTime,
        start: Instant,
        snapshot: Snapshot,
        ended_by: Option<EndedBy>,
    ) -> Report {
        let so_far = |meters: &Metering| {
            // The outputs must be read before the counts of the meters: see
            // `FlowOutputReport::of_all`.
            let outputs = FlowOutputReport::of_all(&self.flow_outputs);
            let stage = FlowStage::SoFar { counts: meters.so_far(), largest: meters.largest_so_far() };
            Flows { stage, outputs, sample: self.sample }
        };
        let flows = self.meters.as_ref().map(so_far);
        let mut document = Document::new(started, ended_by, snapshot);
        // The elapsed time does not include the preparation of the run.
        document.snapshot.elapsed = start.elapsed();
        document.capture = self.capture.as_deref().map(Recorded::of);
        document.app.forward = self.forwarding.as_deref().map(ForwardReport::of);
        document.sandbox = self.sandbox.as_ref().map(Sandbox::of);
        let mut report = Report::new(document).with_flows(flows);
        (report.sandbox, report.verbose) = (self.sandbox, self.verbose);
        report
    }
}
