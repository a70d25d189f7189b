use super::*;

#[test]
fn few_rings_are_told_from_many() {
    let of = |rings: usize| {
        let mut table = Table::new(BUCKETS);
        (0..BUCKETS).for_each(|bucket| table.set(bucket, (bucket % rings) as CpuIndex));
        table.rings_in_use()
    };
    assert_eq!(of(1), RingsInUse::One);
    for rings in 2..=LISTS_MAX {
        assert_eq!(of(rings), RingsInUse::Few, "{rings} rings");
    }
    assert_eq!(of(LISTS_MAX + 1), RingsInUse::Many);
    assert_eq!(of(BUCKETS), RingsInUse::Many);
    // All buckets leave the first ring, and one comes back.
    let mut table = Table::new(3);
    (0..BUCKETS).for_each(|bucket| table.set(bucket, 2));
    assert_eq!(table.rings_in_use(), RingsInUse::One);
    table.set(BUCKETS - 1, 1);
    assert_eq!(table.rings_in_use(), RingsInUse::Few);
    table.set(BUCKETS - 1, 2);
    table.set(7, 2);
    assert_eq!(table.rings_in_use(), RingsInUse::One);
}
