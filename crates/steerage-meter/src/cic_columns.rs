//! The columns of CICFlowMeter, which `docs/python.md` defines.

use steerage::flow::wire::tcp::{ACK, CWR, ECE, FIN, PSH, RST, SYN, URG};

use super::cic::{Bulks, Cic, FLAGS, Side, Stat, per_second};
use super::column::{Column, Values};
use super::record::FlowRecord;

struct View<'a> {
    record: &'a FlowRecord,
    cic: &'a Cic,
    sides: [&'a Side; 2],
    payload: Stat,
    active: Stat,
    nanos: u64,
}

impl<'a> View<'a> {
    fn of(record: &'a FlowRecord) -> Option<Self> {
        let cic = record.cic()?;
        let [one, other] = &cic.sides;
        let sides = if record.flow().is_turned() { [other, one] } else { [one, other] };
        let mut active = cic.active;
        active.add(cic.last - cic.active_since);
        let nanos = record.flow().last - record.flow().first;
        Some(Self { record, cic, sides, payload: one.payload.plus(&other.payload), active, nanos })
    }

    fn per_subflow(&self, count: u64) -> f64 {
        count as f64 / (self.cic.pauses + 1) as f64
    }

    fn flag(&self, flag: u16) -> u64 {
        FLAGS.iter().zip(self.cic.flags).find(|(known, _)| **known == flag).map_or(0, |(_, count)| count)
    }

    fn endpoint(&self, nth: usize) -> (Option<String>, Option<u16>) {
        let (address, port) = &self.record.endpoints()[nth];
        let mut text = Vec::new();
        let has_address = super::columns::address(address, &mut text);
        (String::from_utf8(text).ok().filter(|_| has_address), *port)
    }
}

fn micros(nanos: f64) -> f64 {
    nanos / 1000.0
}

enum Cell {
    Text(fn(&View<'_>) -> Option<String>),
    Time(fn(&View<'_>) -> u64),
    U8(fn(&View<'_>) -> Option<u8>),
    U16(fn(&View<'_>) -> Option<u16>),
    Count(fn(&View<'_>) -> u64),
    Float(fn(&View<'_>) -> Option<f64>),
}

use Cell::{Count, Float, Text, Time, U8, U16};

const FORTH: usize = 0;
const BACK: usize = 1;

/// The columns of CICFlowMeter 4.0, without `Label`.
#[rustfmt::skip]
const COLUMNS: [(&str, Cell); 83] = [
    ("Flow ID", Text(|v| {
        let [(from, from_port), (to, to_port)] = [v.endpoint(FORTH), v.endpoint(BACK)];
        let (from, to) = (from.unwrap_or_default(), to.unwrap_or_default());
        let protocol = v.record.protocol().unwrap_or(0);
        Some(format!("{from}-{to}-{}-{}-{protocol}", from_port.unwrap_or(0), to_port.unwrap_or(0)))
    })),
    ("Src IP", Text(|v| v.endpoint(FORTH).0)),
    ("Src Port", U16(|v| v.endpoint(FORTH).1)),
    ("Dst IP", Text(|v| v.endpoint(BACK).0)),
    ("Dst Port", U16(|v| v.endpoint(BACK).1)),
    ("Protocol", U8(|v| v.record.protocol())),
    ("Timestamp", Time(|v| v.record.flow().first)),
    ("Flow Duration", Float(|v| Some(micros(v.nanos as f64)))),
    ("Total Fwd Packet", Count(|v| v.sides[FORTH].payload.count)),
    ("Total Bwd packets", Count(|v| v.sides[BACK].payload.count)),
    ("Total Length of Fwd Packet", Count(|v| v.sides[FORTH].payload.sum)),
    ("Total Length of Bwd Packet", Count(|v| v.sides[BACK].payload.sum)),
    ("Fwd Packet Length Max", Count(|v| v.sides[FORTH].payload.max)),
    ("Fwd Packet Length Min", Count(|v| v.sides[FORTH].payload.min)),
    ("Fwd Packet Length Mean", Float(|v| Some(v.sides[FORTH].payload.mean()))),
    ("Fwd Packet Length Std", Float(|v| Some(v.sides[FORTH].payload.deviation()))),
    ("Bwd Packet Length Max", Count(|v| v.sides[BACK].payload.max)),
    ("Bwd Packet Length Min", Count(|v| v.sides[BACK].payload.min)),
    ("Bwd Packet Length Mean", Float(|v| Some(v.sides[BACK].payload.mean()))),
    ("Bwd Packet Length Std", Float(|v| Some(v.sides[BACK].payload.deviation()))),
    ("Flow Bytes/s", Float(|v| per_second(v.payload.sum, v.nanos))),
    ("Flow Packets/s", Float(|v| per_second(v.payload.count, v.nanos))),
    ("Flow IAT Mean", Float(|v| Some(micros(v.cic.gaps.mean())))),
    ("Flow IAT Std", Float(|v| Some(micros(v.cic.gaps.deviation())))),
    ("Flow IAT Max", Float(|v| Some(micros(v.cic.gaps.max as f64)))),
    ("Flow IAT Min", Float(|v| Some(micros(v.cic.gaps.min as f64)))),
    ("Fwd IAT Total", Float(|v| Some(micros(v.sides[FORTH].gaps.sum as f64)))),
    ("Fwd IAT Mean", Float(|v| Some(micros(v.sides[FORTH].gaps.mean())))),
    ("Fwd IAT Std", Float(|v| Some(micros(v.sides[FORTH].gaps.deviation())))),
    ("Fwd IAT Max", Float(|v| Some(micros(v.sides[FORTH].gaps.max as f64)))),
    ("Fwd IAT Min", Float(|v| Some(micros(v.sides[FORTH].gaps.min as f64)))),
    ("Bwd IAT Total", Float(|v| Some(micros(v.sides[BACK].gaps.sum as f64)))),
    ("Bwd IAT Mean", Float(|v| Some(micros(v.sides[BACK].gaps.mean())))),
    ("Bwd IAT Std", Float(|v| Some(micros(v.sides[BACK].gaps.deviation())))),
    ("Bwd IAT Max", Float(|v| Some(micros(v.sides[BACK].gaps.max as f64)))),
    ("Bwd IAT Min", Float(|v| Some(micros(v.sides[BACK].gaps.min as f64)))),
    ("Fwd PSH Flags", Count(|v| v.sides[FORTH].psh)),
    ("Bwd PSH Flags", Count(|v| v.sides[BACK].psh)),
    ("Fwd URG Flags", Count(|v| v.sides[FORTH].urg)),
    ("Bwd URG Flags", Count(|v| v.sides[BACK].urg)),
    ("Fwd Header Length", Count(|v| v.sides[FORTH].header_bytes)),
    ("Bwd Header Length", Count(|v| v.sides[BACK].header_bytes)),
    ("Fwd Packets/s", Float(|v| per_second(v.sides[FORTH].payload.count, v.nanos))),
    ("Bwd Packets/s", Float(|v| per_second(v.sides[BACK].payload.count, v.nanos))),
    ("Packet Length Min", Count(|v| v.payload.min)),
    ("Packet Length Max", Count(|v| v.payload.max)),
    ("Packet Length Mean", Float(|v| Some(v.payload.mean()))),
    ("Packet Length Std", Float(|v| Some(v.payload.deviation()))),
    ("Packet Length Variance", Float(|v| Some(v.payload.variance()))),
    ("FIN Flag Count", Count(|v| v.flag(FIN))),
    ("SYN Flag Count", Count(|v| v.flag(SYN))),
    ("RST Flag Count", Count(|v| v.flag(RST))),
    ("PSH Flag Count", Count(|v| v.flag(PSH))),
    ("ACK Flag Count", Count(|v| v.flag(ACK))),
    ("URG Flag Count", Count(|v| v.flag(URG))),
    ("CWR Flag Count", Count(|v| v.flag(CWR))),
    ("ECE Flag Count", Count(|v| v.flag(ECE))),
    ("Down/Up Ratio", Float(|v| {
        let [forth, back] = v.sides.map(|side| side.payload.count);
        (forth > 0).then(|| back as f64 / forth as f64)
    })),
    ("Average Packet Size", Float(|v| Some(v.payload.mean()))),
    ("Fwd Segment Size Avg", Float(|v| Some(v.sides[FORTH].payload.mean()))),
    ("Bwd Segment Size Avg", Float(|v| Some(v.sides[BACK].payload.mean()))),
    ("Fwd Bytes/Bulk Avg", Float(|v| Some(bulks(v, FORTH, |bulks| bulks.bytes)))),
    ("Fwd Packet/Bulk Avg", Float(|v| Some(bulks(v, FORTH, |bulks| bulks.packets)))),
    ("Fwd Bulk Rate Avg", Float(|v| v.sides[FORTH].bulks.ended().rate())),
    ("Bwd Bytes/Bulk Avg", Float(|v| Some(bulks(v, BACK, |bulks| bulks.bytes)))),
    ("Bwd Packet/Bulk Avg", Float(|v| Some(bulks(v, BACK, |bulks| bulks.packets)))),
    ("Bwd Bulk Rate Avg", Float(|v| v.sides[BACK].bulks.ended().rate())),
    ("Subflow Fwd Packets", Float(|v| Some(v.per_subflow(v.sides[FORTH].payload.count)))),
    ("Subflow Fwd Bytes", Float(|v| Some(v.per_subflow(v.sides[FORTH].payload.sum)))),
    ("Subflow Bwd Packets", Float(|v| Some(v.per_subflow(v.sides[BACK].payload.count)))),
    ("Subflow Bwd Bytes", Float(|v| Some(v.per_subflow(v.sides[BACK].payload.sum)))),
    ("FWD Init Win Bytes", U16(|v| v.sides[FORTH].window)),
    ("Bwd Init Win Bytes", U16(|v| v.sides[BACK].window)),
    ("Fwd Act Data Pkts", Count(|v| v.sides[FORTH].with_data)),
    ("Fwd Seg Size Min", Count(|v| v.sides[FORTH].header_min.into())),
    ("Active Mean", Float(|v| Some(micros(v.active.mean())))),
    ("Active Std", Float(|v| Some(micros(v.active.deviation())))),
    ("Active Max", Float(|v| Some(micros(v.active.max as f64)))),
    ("Active Min", Float(|v| Some(micros(v.active.min as f64)))),
    ("Idle Mean", Float(|v| Some(micros(v.cic.idle.mean())))),
    ("Idle Std", Float(|v| Some(micros(v.cic.idle.deviation())))),
    ("Idle Max", Float(|v| Some(micros(v.cic.idle.max as f64)))),
    ("Idle Min", Float(|v| Some(micros(v.cic.idle.min as f64)))),
];

fn bulks(view: &View<'_>, side: usize, of: fn(&Bulks) -> u64) -> f64 {
    let bulks = view.sides[side].bulks.ended();
    bulks.average(of(&bulks))
}

pub(super) fn columns() -> Vec<Column> {
    let column = |(name, cell): &(&'static str, Cell)| {
        let values = match cell {
            Text(_) => Values::Text(Vec::new(), Vec::new()),
            Time(_) => Values::Time(Vec::new()),
            U8(_) => Values::U8(Vec::new()),
            U16(_) => Values::U16(Vec::new()),
            Count(_) => Values::U64(Vec::new()),
            Float(_) => Values::F64(Vec::new()),
        };
        Column::new(name, &values, true)
    };
    COLUMNS.iter().map(column).collect()
}

pub(super) fn add(columns: &mut [Column], records: &[FlowRecord]) {
    let mut cells: Vec<_> = columns
        .iter_mut()
        .filter_map(|column| {
            let (_, cell) = COLUMNS.iter().find(|(name, _)| *name == column.name())?;
            Some((column, cell))
        })
        .collect();
    if cells.is_empty() {
        return;
    }
    for record in records {
        let view = View::of(record);
        let view = view.as_ref();
        for (column, cell) in &mut cells {
            match cell {
                Text(of) => column.push_bytes(|text| {
                    let value = view.and_then(of);
                    text.extend_from_slice(value.as_deref().unwrap_or_default().as_bytes());
                    value.is_some()
                }),
                Time(of) => column.push_number(view.map(of)),
                U8(of) => column.push_number(view.and_then(of).map(u64::from)),
                U16(of) => column.push_number(view.and_then(of).map(u64::from)),
                Count(of) => column.push_number(view.map(of)),
                Float(of) => column.push_float(view.and_then(of)),
            }
        }
    }
}
