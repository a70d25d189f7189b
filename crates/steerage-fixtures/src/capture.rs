//! Generates capture files, and counts packets in them.

/// Returns a pcap file of Ethernet frames, with timestamps in seconds and microseconds.
pub fn pcap<F: AsRef<[u8]>>(records: impl IntoIterator<Item = (u32, u32, F)>) -> Vec<u8> {
    let header: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1];
    let mut bytes: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    for (seconds, microseconds, frame) in records {
        let frame = frame.as_ref();
        let len = frame.len() as u32;
        bytes.extend([seconds, microseconds, len, len].iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(frame);
    }
    bytes
}

/// Counts the complete packets (enhanced packet blocks) in a pcapng file that steerage has written.
pub fn whole_packets(bytes: &[u8]) -> u64 {
    let word = |at: usize| bytes.get(at..at + 4).map(|word| u32::from_ne_bytes(word.try_into().unwrap()));
    let (mut at, mut count) = (0, 0);
    while let (Some(kind), Some(len)) = (word(at), word(at + 4)) {
        if at + len as usize > bytes.len() {
            break;
        }
        count += u64::from(kind == 6);
        at += len as usize;
    }
    count
}
