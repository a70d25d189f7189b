//! The columns of CICFlowMeter, which `docs/python.md` defines.

use std::io::Write;

use steerage::flow::wire::tcp::{ACK, CWR, ECE, FIN, PSH, RST, SYN, URG};

use super::cic::{Bulks, CicView, per_second};
use super::columns::Cell::{F64, Text, Time, U8, U16, U64};
use super::columns::{Field, address, maybe};

fn micros(nanos: f64) -> f64 {
    nanos / 1000.0
}

const FORTH: usize = 0;
const BACK: usize = 1;

/// The columns of CICFlowMeter 4.0, without `Label`.
#[rustfmt::skip]
pub(super) static CIC: [Field; 83] = [
    maybe("Flow ID", Text(|row, text| {
        let [(from, from_port), (to, to_port)] = &row.ends;
        let protocol = row.record.protocol().unwrap_or(0);
        row.cic().is_some_and(|_| {
            address(from, text);
            text.push(b'-');
            address(to, text);
            write!(text, "-{}-{}-{protocol}", from_port.unwrap_or(0), to_port.unwrap_or(0)).is_ok()
        })
    })),
    maybe("Src IP", Text(|row, text| row.cic().is_some() && address(&row.ends[FORTH].0, text))),
    maybe("Src Port", U16(|row| row.cic().and(row.ends[FORTH].1))),
    maybe("Dst IP", Text(|row, text| row.cic().is_some() && address(&row.ends[BACK].0, text))),
    maybe("Dst Port", U16(|row| row.cic().and(row.ends[BACK].1))),
    maybe("Protocol", U8(|row| row.cic().and(row.record.protocol()))),
    maybe("Timestamp", Time(|row| row.cic().map(|_| row.record.flow().first))),
    maybe("Flow Duration", F64(|row| Some(micros(row.cic()?.nanos as f64)))),
    maybe("Total Fwd Packet", U64(|row| Some(row.cic()?.sides[FORTH].payload.count))),
    maybe("Total Bwd packets", U64(|row| Some(row.cic()?.sides[BACK].payload.count))),
    maybe("Total Length of Fwd Packet", U64(|row| Some(row.cic()?.sides[FORTH].payload.sum))),
    maybe("Total Length of Bwd Packet", U64(|row| Some(row.cic()?.sides[BACK].payload.sum))),
    maybe("Fwd Packet Length Max", U64(|row| Some(row.cic()?.sides[FORTH].payload.max))),
    maybe("Fwd Packet Length Min", U64(|row| Some(row.cic()?.sides[FORTH].payload.min))),
    maybe("Fwd Packet Length Mean", F64(|row| Some(row.cic()?.sides[FORTH].payload.mean()))),
    maybe("Fwd Packet Length Std", F64(|row| Some(row.cic()?.sides[FORTH].payload.deviation()))),
    maybe("Bwd Packet Length Max", U64(|row| Some(row.cic()?.sides[BACK].payload.max))),
    maybe("Bwd Packet Length Min", U64(|row| Some(row.cic()?.sides[BACK].payload.min))),
    maybe("Bwd Packet Length Mean", F64(|row| Some(row.cic()?.sides[BACK].payload.mean()))),
    maybe("Bwd Packet Length Std", F64(|row| Some(row.cic()?.sides[BACK].payload.deviation()))),
    maybe("Flow Bytes/s", F64(|row| row.cic().and_then(|v| per_second(v.payload.sum, v.nanos)))),
    maybe("Flow Packets/s", F64(|row| row.cic().and_then(|v| per_second(v.payload.count, v.nanos)))),
    maybe("Flow IAT Mean", F64(|row| Some(micros(row.cic()?.whole.gaps.mean())))),
    maybe("Flow IAT Std", F64(|row| Some(micros(row.cic()?.whole.gaps.deviation())))),
    maybe("Flow IAT Max", F64(|row| Some(micros(row.cic()?.whole.gaps.max as f64)))),
    maybe("Flow IAT Min", F64(|row| Some(micros(row.cic()?.whole.gaps.min as f64)))),
    maybe("Fwd IAT Total", F64(|row| Some(micros(row.cic()?.sides[FORTH].gaps.sum as f64)))),
    maybe("Fwd IAT Mean", F64(|row| Some(micros(row.cic()?.sides[FORTH].gaps.mean())))),
    maybe("Fwd IAT Std", F64(|row| Some(micros(row.cic()?.sides[FORTH].gaps.deviation())))),
    maybe("Fwd IAT Max", F64(|row| Some(micros(row.cic()?.sides[FORTH].gaps.max as f64)))),
    maybe("Fwd IAT Min", F64(|row| Some(micros(row.cic()?.sides[FORTH].gaps.min as f64)))),
    maybe("Bwd IAT Total", F64(|row| Some(micros(row.cic()?.sides[BACK].gaps.sum as f64)))),
    maybe("Bwd IAT Mean", F64(|row| Some(micros(row.cic()?.sides[BACK].gaps.mean())))),
    maybe("Bwd IAT Std", F64(|row| Some(micros(row.cic()?.sides[BACK].gaps.deviation())))),
    maybe("Bwd IAT Max", F64(|row| Some(micros(row.cic()?.sides[BACK].gaps.max as f64)))),
    maybe("Bwd IAT Min", F64(|row| Some(micros(row.cic()?.sides[BACK].gaps.min as f64)))),
    maybe("Fwd PSH Flags", U64(|row| Some(row.cic()?.sides[FORTH].psh))),
    maybe("Bwd PSH Flags", U64(|row| Some(row.cic()?.sides[BACK].psh))),
    maybe("Fwd URG Flags", U64(|row| Some(row.cic()?.sides[FORTH].urg))),
    maybe("Bwd URG Flags", U64(|row| Some(row.cic()?.sides[BACK].urg))),
    maybe("Fwd Header Length", U64(|row| Some(row.cic()?.sides[FORTH].header_bytes))),
    maybe("Bwd Header Length", U64(|row| Some(row.cic()?.sides[BACK].header_bytes))),
    maybe("Fwd Packets/s", F64(|row| row.cic().and_then(|v| per_second(v.sides[FORTH].payload.count, v.nanos)))),
    maybe("Bwd Packets/s", F64(|row| row.cic().and_then(|v| per_second(v.sides[BACK].payload.count, v.nanos)))),
    maybe("Packet Length Min", U64(|row| Some(row.cic()?.payload.min))),
    maybe("Packet Length Max", U64(|row| Some(row.cic()?.payload.max))),
    maybe("Packet Length Mean", F64(|row| Some(row.cic()?.payload.mean()))),
    maybe("Packet Length Std", F64(|row| Some(row.cic()?.payload.deviation()))),
    maybe("Packet Length Variance", F64(|row| Some(row.cic()?.payload.variance()))),
    maybe("FIN Flag Count", U64(|row| Some(row.cic()?.flag(FIN)))),
    maybe("SYN Flag Count", U64(|row| Some(row.cic()?.flag(SYN)))),
    maybe("RST Flag Count", U64(|row| Some(row.cic()?.flag(RST)))),
    maybe("PSH Flag Count", U64(|row| Some(row.cic()?.flag(PSH)))),
    maybe("ACK Flag Count", U64(|row| Some(row.cic()?.flag(ACK)))),
    maybe("URG Flag Count", U64(|row| Some(row.cic()?.flag(URG)))),
    maybe("CWR Flag Count", U64(|row| Some(row.cic()?.flag(CWR)))),
    maybe("ECE Flag Count", U64(|row| Some(row.cic()?.flag(ECE)))),
    maybe("Down/Up Ratio", F64(|row| {
        let [forth, back] = row.cic()?.sides.map(|side| side.payload.count);
        (forth > 0).then(|| back as f64 / forth as f64)
    })),
    maybe("Average Packet Size", F64(|row| Some(row.cic()?.payload.mean()))),
    maybe("Fwd Segment Size Avg", F64(|row| Some(row.cic()?.sides[FORTH].payload.mean()))),
    maybe("Bwd Segment Size Avg", F64(|row| Some(row.cic()?.sides[BACK].payload.mean()))),
    maybe("Fwd Bytes/Bulk Avg", F64(|row| row.cic().map(|v| bulks(v, FORTH, |bulks| bulks.bytes)))),
    maybe("Fwd Packet/Bulk Avg", F64(|row| row.cic().map(|v| bulks(v, FORTH, |bulks| bulks.packets)))),
    maybe("Fwd Bulk Rate Avg", F64(|row| row.cic()?.sides[FORTH].bulks.ended().rate())),
    maybe("Bwd Bytes/Bulk Avg", F64(|row| row.cic().map(|v| bulks(v, BACK, |bulks| bulks.bytes)))),
    maybe("Bwd Packet/Bulk Avg", F64(|row| row.cic().map(|v| bulks(v, BACK, |bulks| bulks.packets)))),
    maybe("Bwd Bulk Rate Avg", F64(|row| row.cic()?.sides[BACK].bulks.ended().rate())),
    maybe("Subflow Fwd Packets", F64(|row| row.cic().map(|v| v.per_subflow(v.sides[FORTH].payload.count)))),
    maybe("Subflow Fwd Bytes", F64(|row| row.cic().map(|v| v.per_subflow(v.sides[FORTH].payload.sum)))),
    maybe("Subflow Bwd Packets", F64(|row| row.cic().map(|v| v.per_subflow(v.sides[BACK].payload.count)))),
    maybe("Subflow Bwd Bytes", F64(|row| row.cic().map(|v| v.per_subflow(v.sides[BACK].payload.sum)))),
    maybe("FWD Init Win Bytes", U16(|row| row.cic()?.sides[FORTH].window)),
    maybe("Bwd Init Win Bytes", U16(|row| row.cic()?.sides[BACK].window)),
    maybe("Fwd Act Data Pkts", U64(|row| Some(row.cic()?.sides[FORTH].with_data))),
    maybe("Fwd Seg Size Min", U64(|row| Some(row.cic()?.sides[FORTH].header_min.into()))),
    maybe("Active Mean", F64(|row| Some(micros(row.cic()?.active.mean())))),
    maybe("Active Std", F64(|row| Some(micros(row.cic()?.active.deviation())))),
    maybe("Active Max", F64(|row| Some(micros(row.cic()?.active.max as f64)))),
    maybe("Active Min", F64(|row| Some(micros(row.cic()?.active.min as f64)))),
    maybe("Idle Mean", F64(|row| Some(micros(row.cic()?.whole.idle.mean())))),
    maybe("Idle Std", F64(|row| Some(micros(row.cic()?.whole.idle.deviation())))),
    maybe("Idle Max", F64(|row| Some(micros(row.cic()?.whole.idle.max as f64)))),
    maybe("Idle Min", F64(|row| Some(micros(row.cic()?.whole.idle.min as f64)))),
];

fn bulks(view: &CicView<'_>, side: usize, of: fn(&Bulks) -> u64) -> f64 {
    let bulks = view.sides[side].bulks.ended();
    bulks.average(of(&bulks))
}
