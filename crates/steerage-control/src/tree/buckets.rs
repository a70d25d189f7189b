use std::fmt::Write;

use steerage::{CpuId, stats::BucketSnapshot};

pub(super) fn load(buckets: &[BucketSnapshot]) -> String {
    let mut text = String::new();
    for (bucket, known) in buckets.iter().enumerate() {
        let BucketSnapshot { cpu, packets, moves, .. } = known;
        let _ = writeln!(text, "{bucket} {cpu} {packets} {moves}");
    }
    text
}

/// Returns a line (`FIRST-LAST CPU` or `BUCKET CPU`) for each range of consecutive buckets that
/// have the same CPU.
pub(super) fn stretches(buckets: &[CpuId]) -> String {
    let mut text = String::new();
    let mut first = 0;
    for stretch in buckets.chunk_by(|one, next| one == next) {
        let last = first + stretch.len() - 1;
        let _ = match stretch.len() {
            1 => writeln!(text, "{first} {}", stretch[0]),
            _ => writeln!(text, "{first}-{last} {}", stretch[0]),
        };
        first = last + 1;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_they_lie() {
        assert_eq!(stretches(&[0, 0, 0, 1, 0, 0].map(CpuId)), "0-2 0\n3 1\n4-5 0\n");
        assert_eq!(stretches(&[]), "");
    }
}
