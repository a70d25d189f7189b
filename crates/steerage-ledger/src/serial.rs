//! Serializes types that do not implement serde's traits: times as seconds, CPUs as a list, counts
//! by name.
//!
//! A `FlowKey` deliberately cannot be serialized: a ledger type with addresses of packets does not
//! compile until a programmer decides who may see them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer, de};
use steerage_topology::CpuId;

/// A limit on CPU numbers that is greater than the number of CPUs in any machine.
const NR_CPU_IDS: usize = 1 << u16::BITS;

pub(crate) mod cpu {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(cpu: &CpuId, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(cpu.0)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CpuId, D::Error> {
        u16::deserialize(deserializer).map(CpuId)
    }
}

/// CPUs as a list: `0-3,8`.
pub(crate) mod cpu_list {
    use super::*;
    use steerage_topology::CpuMask;

    pub(crate) fn serialize<S: Serializer>(cpus: &[CpuId], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&cpus.iter().copied().collect::<CpuMask>().to_list())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<CpuId>, D::Error> {
        let list = String::deserialize(deserializer)?;
        let mask = CpuMask::parse_list(&list, NR_CPU_IDS).map_err(de::Error::custom)?;
        Ok(mask.iter().collect())
    }
}

/// Seconds with six decimals, because the times in reports are not more precise.
pub(crate) mod seconds {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(time.as_micros() as f64 / 1e6)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// A missing time is written as 0.
pub(crate) mod seconds_or_zero {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        seconds::serialize(&time.unwrap_or_default(), serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Some(seconds::deserialize(deserializer)?).filter(|time| !time.is_zero()))
    }
}

pub(crate) mod nanoseconds {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match time {
            Some(time) => serializer.serialize_u64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::deserialize(deserializer)?.map(Duration::from_nanos))
    }
}

/// An empty name is null.
pub(crate) mod name {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(name: &str, serializer: S) -> Result<S::Ok, S::Error> {
        if name.is_empty() { serializer.serialize_none() } else { serializer.serialize_str(name) }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cow<'static, str>, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Cow::Borrowed(""), Cow::Owned))
    }
}

pub(crate) mod by_name {
    use super::*;

    type Counts = Vec<(Cow<'static, str>, u64)>;

    pub(crate) fn serialize<S: Serializer>(counts: &Counts, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(counts.iter().map(|(name, count)| (name, count)))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Counts, D::Error> {
        Ok(BTreeMap::deserialize(deserializer)?
            .into_iter()
            .map(|(name, count): (String, u64)| (name.into(), count))
            .collect())
    }
}

/// Numbers rounded to a tenth, because further digits of an estimate would be noise.
pub(crate) mod tenths {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64((value * 10.0).round() / 10.0)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        f64::deserialize(deserializer)
    }
}

pub(crate) mod whole {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(value.round())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        f64::deserialize(deserializer)
    }
}

pub(crate) mod backing {
    use super::*;
    use steerage_mem::Backing::{self, Foreign, HugePages, SmallPages, TransparentHugePages};

    pub(crate) fn serialize<S: Serializer>(backing: &Backing, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(backing)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Backing, D::Error> {
        let name = String::deserialize(deserializer)?;
        let all = [HugePages, TransparentHugePages, SmallPages, Foreign];
        let found = all.into_iter().find(|backing| backing.to_string() == name);
        found.ok_or_else(|| de::Error::custom(format_args!("{name:?} is no kind of pages")))
    }
}

/// Lost packets by reason. Reasons without lost packets are left out.
mod drops {
    use serde::Serialize;

    use super::*;
    use crate::drops::Drops;
    use crate::reasons::DropReason;

    impl Serialize for Drops {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_map(self.iter().map(|(reason, packets)| (reason.name(), packets)))
        }
    }

    /// Unknown drop reasons are ignored: a later version of steerage may have written them.
    impl<'de> Deserialize<'de> for Drops {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let counts = BTreeMap::<String, u64>::deserialize(deserializer)?;
            let mut drops = Self::default();
            for reason in DropReason::ALL {
                drops.add(reason, counts.get(reason.name()).copied().unwrap_or(0));
            }
            Ok(drops)
        }
    }
}

/// Moved buckets by cause. Causes for which no bucket was moved are left out.
pub(crate) mod moves {
    use serde::Serialize;
    use steerage_moves::{MoveCause, MoveCounts};

    use super::*;

    #[derive(Default, Serialize, Deserialize)]
    #[serde(default)]
    struct Moves {
        buckets: u64,
        slices: u64,
        by_cause: BTreeMap<Cow<'static, str>, u64>,
    }

    pub(crate) fn serialize<S: Serializer>(moves: &MoveCounts, serializer: S) -> Result<S::Ok, S::Error> {
        let by_cause = MoveCause::ALL.into_iter().map(|cause| (cause.name().into(), moves.of(cause)));
        let by_cause = by_cause.filter(|(_, buckets)| *buckets > 0).collect();
        Moves { buckets: moves.buckets, slices: moves.slices, by_cause }.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<MoveCounts, D::Error> {
        let read = Moves::deserialize(deserializer)?;
        let mut moves = MoveCounts::default();
        for cause in MoveCause::ALL {
            moves.count(cause, read.by_cause.get(cause.name()).copied().unwrap_or(0));
        }
        (moves.buckets, moves.slices) = (read.buckets, read.slices);
        Ok(moves)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use steerage_flow::FlowKey;
    use steerage_moves::MoveCause;

    use super::*;
    use crate::{
        Backing, CostEstimate, Counters, CpuSnapshot, DropReason, Elephant, Findings, GroupSnapshot, QueueSnapshot,
        Snapshot,
    };

    fn snapshot() -> Snapshot {
        let mut queue = QueueSnapshot { rps_cpus: vec![CpuId(0), CpuId(1), CpuId(8)], ..QueueSnapshot::default() };
        queue.dropped.add(DropReason::NoPage, 2);
        queue.device_counts = vec![("rx_ring_full".into(), 3)];
        let cpu = CpuSnapshot { cpu: CpuId(8), busy: Duration::from_nanos(1_500_000_999), ..CpuSnapshot::default() };
        let costs = vec![CostEstimate::new("give", 12.345, 0.06)];
        let findings =
            Findings { regime: "inline".into(), apart: Some(Duration::from_nanos(58)), costs, ..Findings::default() };
        let flow = FlowKey::v4("192.0.2.1:1".parse().unwrap(), "192.0.2.2:2".parse().unwrap(), 6);
        let elephants = vec![Elephant::new(7, 0.5, Some(flow))];
        let groups = vec![GroupSnapshot::new("balance", vec![0], vec![CpuId(8)], elephants, findings)];
        let counters = Counters::new();
        counters.add("passed", "Packets within their rate.", "packets").unwrap().on(CpuId(8)).add(4);
        let counters = counters.snapshot(&[CpuId(8)]);
        let mut snapshot = Snapshot { queues: vec![queue], cpus: vec![cpu], counters, groups, ..Snapshot::default() };
        snapshot.backing = Backing::TransparentHugePages;
        snapshot.moves.count(MoveCause::Left, 5);
        snapshot.moves.slices = 2;
        snapshot
    }

    #[test]
    fn values_have_forms_that_scripts_can_read() {
        let written = serde_json::to_value(snapshot()).unwrap();
        for (path, expected) in [
            ("/seconds", json!(0.0)),
            ("/received", json!(0)),
            ("/backing", json!("transparent huge pages")),
            ("/moves", json!({ "buckets": 5, "slices": 2, "by_cause": { "left": 5 } })),
            ("/queues/0/mode", Value::Null),
            ("/queues/0/rps_cpus_list", json!("0-1,8")),
            ("/queues/0/dropped", json!({ "no_page": 2 })),
            ("/queues/0/device_counts", json!({ "rx_ring_full": 3 })),
            ("/cpus/0/cpu", json!(8)),
            ("/cpus/0/busy_seconds", json!(1.5)),
            ("/cpus/0/handler_seconds", json!(0.0)),
            (
                "/counters",
                json!([{ "name": "passed", "help": "Packets within their rate.", "unit": "packets", "total": 4, "by_cpu": [4] }]),
            ),
            ("/groups/0/active_list", json!("8")),
            ("/groups/0/elephants", json!([{ "bucket": 7, "load": 0.5 }])),
            ("/groups/0/findings/apart_ns", json!(58)),
            ("/groups/0/findings/regime", json!("inline")),
            ("/groups/0/findings/reason", Value::Null),
            ("/groups/0/findings/costs", json!([{ "step": "give", "ns": 12.3, "deviation_ns": 0.1 }])),
        ] {
            assert_eq!(written.pointer(path), Some(&expected), "{path}");
        }
        assert!(!written.to_string().contains("192.0.2"), "the traffic is no part of the ledger: {written}");
    }

    #[test]
    fn what_is_written_is_read_again() {
        let written = serde_json::to_string(&snapshot()).unwrap();
        let read: Snapshot = serde_json::from_str(&written).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), written);
        assert_eq!((read.queues[0].dropped, read.moves), (snapshot().queues[0].dropped, snapshot().moves));
    }

    #[test]
    fn keys_that_are_missing_are_zero_and_those_that_are_not_known_are_skipped() {
        let newer = json!({ "new": [1], "dropped": { "new": 7, "tx_full": 1 }, "queues": [{ "received": 3 }] });
        let read: Snapshot = serde_json::from_value(newer).unwrap();
        assert_eq!((read.dropped().total(), read.queues[0].received, read.pages), (1, 3, 0));
        for wrong in
            [json!({ "seconds": -1.0 }), json!({ "backing": "paper" }), json!({ "queues": [{ "rps_cpus_list": "x" }] })]
        {
            serde_json::from_value::<Snapshot>(wrong).unwrap_err();
        }
    }
}
