//! A fuzz target for the meter's search for host names in payload.

use steerage_meter::fuzzing;

/// Input: a byte that selects the protocol, then packets. Three bytes before each packet state its
/// direction, its length, and whether its sequence number continues after the previous packet.
pub(crate) fn flow(bytes: &[u8]) {
    let Some((choice, mut rest)) = bytes.split_first() else { return };
    let (is_dns, is_stream) = (choice & 1 != 0, choice & 3 != 1);
    let (mut packets, mut sequences) = (Vec::new(), [u32::MAX - 1000; 2]);
    while let Some(([low, high, jump], behind)) = rest.split_first_chunk::<3>() {
        let length = usize::from(u16::from_le_bytes([*low, *high & 0x1f])).min(behind.len());
        let (data, next) = behind.split_at(length);
        let side = usize::from(high >> 7);
        // Most packets are in order. Some packets repeat earlier data, and some packets follow a
        // gap.
        let sequence = sequences[side].wrapping_add_signed(match jump {
            0..=0xdf => 0,
            _ => i32::from(*jump as i8) + 16,
        });
        sequences[side] = sequence.wrapping_add(length as u32);
        packets.push((side == 1, is_stream.then_some(sequence), data));
        rest = next;
    }
    let names = fuzzing::names(&packets, is_dns);
    if is_stream && packets.iter().all(|(turned, ..)| !turned) && is_in_order(&packets) {
        // A name that is found in several packets must also be found if one packet has their data,
        // unless there are too many packets or too much data to store.
        let whole: Vec<u8> = packets.iter().flat_map(|(_, _, data)| data.iter().copied()).collect();
        let of_whole = fuzzing::names(&[(false, Some(0), &whole)], is_dns);
        let begins = names.is_some() && packets.len() > 1 && fuzzing::names(&packets[..1], is_dns).is_none();
        if begins && of_whole.is_some() {
            assert_eq!(names, of_whole);
        }
    }
}

fn is_in_order(packets: &[(bool, Option<u32>, &[u8])]) -> bool {
    packets.windows(2).all(|pair| pair[0].1.map(|from| from.wrapping_add(pair[0].2.len() as u32)) == pair[1].1)
}
