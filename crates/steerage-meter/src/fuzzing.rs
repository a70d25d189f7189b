//! Gives fuzz targets access to private parsers.

use std::sync::Arc;

use super::names::{FlowNames, LOOKS_MAX, Payload, TEXT_MAX, read_stream};

/// Returns the names in a flow with these packets. Each packet is: true if the second endpoint sent
/// it, its TCP sequence number, its bytes.
///
/// # Panics
/// Panics if a parser exceeded its limits.
pub fn names(packets: &[(bool, Option<u32>, &[u8])], is_dns: bool) -> Option<Arc<FlowNames>> {
    let payload = packets.iter().map(|&(turned, sequence, data)| (turned, Payload { data, sequence, is_whole: true }));
    let (names, looks) = read_stream(payload, is_dns);
    assert!(looks <= 2 * usize::from(LOOKS_MAX));
    if let Some(names) = &names {
        let texts = [&names.dns_query, &names.dns_answer, &names.tls_sni, &names.tls_alpn, &names.http_host];
        for text in texts.into_iter().flatten() {
            let is_clean = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
            assert!(!text.is_empty() && text.len() <= TEXT_MAX && text.bytes().all(is_clean), "{text:?}");
        }
    }
    names
}
