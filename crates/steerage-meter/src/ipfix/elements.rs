//! Information elements, by their numbers in IANA's registry or in an enterprise's.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) id: u16,
    pub(super) enterprise: u32,
}

/// The enterprise number of reverse elements, which describe the reverse direction of a flow (RFC
/// 5103).
const REVERSE: u32 = 29_305;
/// The enterprise number of ntop. If collectors know elements for TCP health and for names, these
/// are ntop's.
const NTOP: u32 = 35_632;

const fn iana(id: u16) -> Element {
    Element { id, enterprise: 0 }
}

const fn ntop(id: u16) -> Element {
    Element { id, enterprise: NTOP }
}

impl Element {
    pub(super) const fn reverse(self) -> Self {
        Self { enterprise: REVERSE, ..self }
    }
}

pub(super) const OCTET_DELTA_COUNT: Element = iana(1);
pub(super) const PACKET_DELTA_COUNT: Element = iana(2);
pub(super) const PROTOCOL_IDENTIFIER: Element = iana(4);
pub(super) const TCP_CONTROL_BITS: Element = iana(6);
pub(super) const SOURCE_TRANSPORT_PORT: Element = iana(7);
pub(super) const SOURCE_IPV4_ADDRESS: Element = iana(8);
pub(super) const DESTINATION_TRANSPORT_PORT: Element = iana(11);
pub(super) const DESTINATION_IPV4_ADDRESS: Element = iana(12);
pub(super) const SOURCE_IPV6_ADDRESS: Element = iana(27);
pub(super) const DESTINATION_IPV6_ADDRESS: Element = iana(28);
pub(super) const ICMP_TYPE_CODE_IPV4: Element = iana(32);
pub(super) const EXPORTED_OCTET_TOTAL_COUNT: Element = iana(40);
pub(super) const EXPORTED_MESSAGE_TOTAL_COUNT: Element = iana(41);
pub(super) const EXPORTED_FLOW_RECORD_TOTAL_COUNT: Element = iana(42);
pub(super) const SOURCE_MAC_ADDRESS: Element = iana(56);
pub(super) const VLAN_ID: Element = iana(58);
pub(super) const MPLS_TOP_LABEL_STACK_SECTION: Element = iana(70);
pub(super) const MPLS_LABEL_STACK_SECTION_2: Element = iana(71);
pub(super) const DESTINATION_MAC_ADDRESS: Element = iana(80);
pub(super) const FLOW_END_REASON: Element = iana(136);
pub(super) const ICMP_TYPE_CODE_IPV6: Element = iana(139);
pub(super) const EXPORTING_PROCESS_ID: Element = iana(144);
pub(super) const OBSERVATION_DOMAIN_ID: Element = iana(149);
pub(super) const FLOW_START_MILLISECONDS: Element = iana(152);
pub(super) const FLOW_END_MILLISECONDS: Element = iana(153);
pub(super) const FLOW_START_NANOSECONDS: Element = iana(156);
pub(super) const FLOW_END_NANOSECONDS: Element = iana(157);
pub(super) const IGNORED_PACKET_TOTAL_COUNT: Element = iana(164);
pub(super) const NOT_SENT_FLOW_TOTAL_COUNT: Element = iana(166);
pub(super) const NOT_SENT_PACKET_TOTAL_COUNT: Element = iana(167);
pub(super) const NOT_SENT_OCTET_TOTAL_COUNT: Element = iana(168);
pub(super) const TCP_RST_TOTAL_COUNT: Element = iana(220);
pub(super) const BIFLOW_DIRECTION: Element = iana(239);
pub(super) const DOT1Q_CUSTOMER_VLAN_ID: Element = iana(245);
pub(super) const ETHERNET_TYPE: Element = iana(256);
pub(super) const SELECTOR_ID_ELEMENT: Element = iana(302);
pub(super) const SAMPLING_SIZE: Element = iana(309);
pub(super) const SAMPLING_POPULATION: Element = iana(310);
pub(super) const LAYER2_SEGMENT_ID: Element = iana(351);
pub(super) const LAYER2_OCTET_DELTA_COUNT: Element = iana(352);
pub(super) const FLOW_SELECTOR_ALGORITHM: Element = iana(390);
pub(super) const GTPU_TEID: Element = iana(507);
pub(super) const TUNNEL_ID: Element = ntop(106);
pub(super) const HTTP_HOST: Element = ntop(187);
pub(super) const TLS_SERVER_NAME: Element = ntop(188);
pub(super) const DNS_QUERY: Element = ntop(205);
pub(super) const DNS_QUERY_TYPE: Element = ntop(207);
pub(super) const DNS_RET_CODE: Element = ntop(208);
pub(super) const DNS_RESPONSE: Element = ntop(398);
pub(super) const RETRANSMITTED_IN_PKTS: Element = ntop(109);
pub(super) const RETRANSMITTED_OUT_PKTS: Element = ntop(110);
pub(super) const OOORDER_IN_PKTS: Element = ntop(111);
pub(super) const OOORDER_OUT_PKTS: Element = ntop(112);
