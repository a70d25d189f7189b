const NANOS_PER_SECOND: u128 = 1_000_000_000;

const MICROSECONDS: u8 = 6;

/// The bit of `if_tsresol` for a resolution that is a power of 2 instead of 10.
const POWER_OF_TWO: u8 = 0x80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    unit: Unit,
    offset_nanos: i128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// The number of nanoseconds in a tick of the clock.
    Nanos(u64),
    /// The number of ticks in a nanosecond.
    Parts(u64),
    /// The number of ticks in a second is 2 to the power of this value.
    PowerOfTwo(u32),
    /// The tick is so short that 2^64 ticks take less than a nanosecond.
    Nothing,
}

impl Clock {
    /// Makes a clock from `if_tsresol` and `if_tsoffset` (in seconds), if the file has them.
    pub(super) fn new(resolution: Option<u8>, offset: Option<i64>) -> Self {
        let resolution = resolution.unwrap_or(MICROSECONDS);
        let exponent = u32::from(resolution & !POWER_OF_TWO);
        let unit = match (resolution & POWER_OF_TWO != 0, exponent) {
            (true, exponent) => Unit::PowerOfTwo(exponent),
            (false, 0..=9) => Unit::Nanos(10u64.pow(9 - exponent)),
            (false, exponent) => 10u64.checked_pow(exponent - 9).map_or(Unit::Nothing, Unit::Parts),
        };
        Self { unit, offset_nanos: i128::from(offset.unwrap_or(0)) * NANOS_PER_SECOND as i128 }
    }

    /// Returns `None` for times before 1970 and from the year 2554 on.
    #[inline]
    pub(super) fn nanos(self, ticks: u64) -> Option<u64> {
        let nanos = match self.unit {
            Unit::Nanos(each) => u128::from(ticks) * u128::from(each),
            Unit::Parts(parts) => u128::from(ticks / parts),
            Unit::PowerOfTwo(exponent) => (u128::from(ticks) * NANOS_PER_SECOND) >> exponent,
            Unit::Nothing => 0,
        };
        // The terms `nanos` and `offset_nanos` are below `2^95` and `2^94`, so adding them cannot
        // overflow. The highest 64-bit value is reserved for "no time".
        u64::try_from(nanos as i128 + self.offset_nanos).ok().filter(|nanos| *nanos < u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKS: u64 = 1_700_000_000_123_456;

    #[test]
    fn decimal_and_binary_resolutions() {
        let nanos = |resolution, ticks| Clock::new(Some(resolution), None).nanos(ticks);
        assert_eq!(Clock::new(None, None).nanos(TICKS), Some(TICKS * 1000));
        assert_eq!(nanos(0, 1_700_000_000), Some(1_700_000_000_000_000_000));
        assert_eq!(nanos(9, 123_456_789), Some(123_456_789));
        assert_eq!(nanos(12, 1999), Some(1));
        assert_eq!((nanos(28, u64::MAX), nanos(29, u64::MAX), nanos(127, u64::MAX)), (Some(1), Some(0), Some(0)));
        assert_eq!(nanos(0x80, 5), Some(5_000_000_000));
        assert_eq!(nanos(0x80 | 20, 3 << 19), Some(1_500_000_000));
        assert_eq!((nanos(0xff, u64::MAX), nanos(0x80 | 64, u64::MAX)), (Some(0), Some(999_999_999)));
    }

    #[test]
    fn offsets_move_the_time_both_ways() {
        let nanos = |offset, ticks| Clock::new(Some(9), Some(offset)).nanos(ticks);
        assert_eq!((nanos(2, 5), nanos(-1, 1_000_000_007)), (Some(2_000_000_005), Some(7)));
    }

    #[test]
    fn times_that_64_bits_do_not_hold_are_none() {
        let last = u64::MAX - 1;
        let nanos = Clock::new(Some(9), None);
        assert_eq!((nanos.nanos(last), nanos.nanos(u64::MAX)), (Some(last), None));
        assert_eq!(Clock::new(Some(0), None).nanos(u64::MAX), None);
        for offset in [i64::MIN, -1, i64::MAX] {
            assert_eq!(Clock::new(None, Some(offset)).nanos(999_999), None, "{offset}");
        }
    }
}
