use steerage::flow::wire::{ethernet, vlan};

/// Inserts a VLAN tag that the kernel or a card has removed from the frame at `at`. Returns false
/// if there is too little space before the frame.
pub(crate) fn put_back(bytes: &mut [u8], at: usize, len: usize, tag: [u8; vlan::BYTES]) -> bool {
    let Some(start) = at.checked_sub(vlan::BYTES).filter(|_| len >= ethernet::TYPE_AT) else { return false };
    let Some(frame) = bytes.get_mut(start..at + ethernet::TYPE_AT) else { return false };
    frame.copy_within(vlan::BYTES.., 0);
    frame[ethernet::TYPE_AT..].copy_from_slice(&tag);
    true
}
