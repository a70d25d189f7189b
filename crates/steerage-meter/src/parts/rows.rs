//! The edges of parts of a recording, as rows of a table, for other processes with this version of
//! steerage.
//!
//! A row is one piece of a flow that may continue in another part: the columns of a record, and the
//! column `state`, from which [`PartEdges::read`] creates the edges. One more row, without a flow, has
//! two lists: IP fragments whose first fragment may be in an earlier part, and IP datagrams whose
//! later fragments may be in a later part. The values of `state` of all rows, one after another, are
//! the edges as [bytes](PartEdges::to_bytes).

use std::collections::{BTreeMap, HashMap};

use super::waiting::Fragments;
use super::{Edges, Next, Opening, Piece};
use crate::batch::ColumnBatch;
use crate::code::{Coder, MalformedEdges, Reader, Writer};
use crate::column::{Column, Values};
use crate::flow::{Flow, FlowEnd};
use crate::record::FlowRecord;
use crate::timeouts::Timeouts;

const ENDS: [FlowEnd; 5] = [FlowEnd::Idle, FlowEnd::Active, FlowEnd::Finished, FlowEnd::Forced, FlowEnd::Resources];

/// The format and its version. The length of the rest of the `state` follows in four bytes.
const MAGIC: [u8; 4] = *b"SEE3";

const LEFT_OUT: [&str; 8] =
    ["end", "dns_query", "dns_type", "dns_rcode", "dns_answer", "tls_sni", "tls_alpn", "http_host"];

/// The edges of consecutive parts of a recording (flows that other parts may continue), with the
/// numbers of the first and the last part.
#[derive(Clone, Debug)]
pub struct PartEdges {
    /// The number of the first part.
    pub first: u64,
    /// The number of the last part.
    pub last: u64,
    /// The flows that earlier or later parts of the recording may continue.
    pub edges: Edges,
}

/// The error for rows that are not exactly those of [`PartEdges`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EdgesError {
    /// The bytes were not written by steerage.
    #[error(transparent)]
    Malformed(#[from] MalformedEdges),
    /// A row occurs twice.
    #[error("{0}: merged twice: give each part once")]
    Twice(String),
    /// Some rows are missing.
    #[error("{parts}: {missing} of {rows} rows of the edges are missing: give all rows")]
    Missing {
        /// The parts whose rows are missing.
        parts: String,
        /// The number of missing rows.
        missing: u64,
        /// The number of rows that these parts have.
        rows: u64,
    },
}

impl PartEdges {
    /// Returns the parts as text: `part 3`, or `parts 3 to 7`.
    pub fn name(&self) -> String {
        name(self.first, self.last)
    }

    /// If fragments wait or there are no pieces, one additional row has no piece.
    fn rows(&self) -> Vec<(bool, Option<&Piece>)> {
        let mut flows: Vec<_> = self.edges.flows.iter().collect();
        // The rows are sorted, because the order of a hash table differs between runs.
        flows.sort_unstable_by_key(|(key, _)| **key);
        let pieces = flows.into_iter().flat_map(|(_, flow)| {
            let chain = flow.chain.iter().map(|piece| (false, Some(piece)));
            chain.chain(flow.open.iter().map(|piece| (true, Some(piece))))
        });
        let mut rows: Vec<_> = pieces.collect();
        if rows.is_empty() || !self.edges.fragments.is_empty() {
            rows.push((false, None));
        }
        rows
    }

    fn state(&self, (nth, rows): (usize, usize), (is_open, piece): (bool, Option<&Piece>)) -> Vec<u8> {
        let mut head =
            Head { first: self.first, last: self.last, nth: nth as u64, rows: rows as u64, ..Head::of(&self.edges) };
        let mut writer = Writer::default();
        let _ = head.code(&mut writer);
        let _ = writer.flag(&mut piece.is_some());
        let _ = match piece {
            Some(piece) => writer.flag(&mut { is_open }).and_then(|()| code_piece(&mut writer, &mut piece.clone())),
            None => self.edges.fragments.clone().code(&mut writer),
        };
        let length = (writer.0.len() as u32).to_le_bytes();
        [&MAGIC[..], &length, &writer.0].concat()
    }

    /// Returns the edges as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let rows = self.rows();
        rows.iter().enumerate().flat_map(|(nth, row)| self.state((nth, rows.len()), *row)).collect()
    }

    /// Returns an empty table with the columns of [`PartEdges`].
    pub fn columns() -> ColumnBatch {
        let optional = |column: &Column| Column::new(column.name(), column.values(), true);
        let of_record = ColumnBatch::all().columns().iter().map(optional).collect::<Vec<_>>();
        let of_record = of_record.into_iter().filter(|column| !LEFT_OUT.contains(&column.name()));
        let (number, flag) = (Values::U64(Vec::new()), Values::U8(Vec::new()));
        let sequence = Values::U32(Vec::new());
        let before = [("part_first", &number, false), ("part_last", &number, false)];
        let after = [
            ("begins_before", &flag, true),
            ("goes_on", &flag, true),
            ("follows_piece", &flag, true),
            ("sequence", &sequence, true),
            ("sequence_back", &sequence, true),
            ("acknowledged", &sequence, true),
            ("acknowledged_back", &sequence, true),
            ("state", &Values::Bytes(Vec::new(), Vec::new()), false),
        ];
        let column = |(name, values, optional): (&'static str, &Values, bool)| Column::new(name, values, optional);
        ColumnBatch::new(before.into_iter().map(column).chain(of_record).chain(after.into_iter().map(column)).collect())
    }

    /// Adds a row for each piece of a flow to the [columns](Self::columns). Calls `added` after each
    /// row, so that the caller can take the rows of a large batch.
    pub fn add_to(&self, batch: &mut ColumnBatch, mut added: impl FnMut(&mut ColumnBatch)) {
        let rows = self.rows();
        let mut before: Option<&Piece> = None;
        for (nth, (is_open, piece)) in rows.iter().enumerate() {
            let follows = before.is_some_and(|before| {
                before.next == Next::Piece && piece.is_some_and(|piece| piece.flow.key == before.flow.key)
            });
            before = *piece;
            let number = |flag: bool| piece.map(|_| u64::from(flag));
            let (sequences, acknowledged) = piece.and_then(|piece| piece.flow.sequences()).map_or(
                ([None; 2], [None; 2]),
                |(next, acknowledged)| {
                    (next.map(|number| Some(number.into())), acknowledged.map(|number| Some(number.into())))
                },
            );
            if let Some(piece) = piece {
                batch.add(&[FlowRecord::new(piece.flow, FlowEnd::Forced)]);
            }
            for column in batch.columns_mut() {
                match column.name() {
                    "part_first" => column.push_number(Some(self.first)),
                    "part_last" => column.push_number(Some(self.last)),
                    "begins_before" => column.push_number(number(!is_open && !follows)),
                    "goes_on" => {
                        column.push_number(number(piece.is_some_and(|piece| matches!(piece.next, Next::Part))));
                    }
                    "follows_piece" => column.push_number(number(follows)),
                    "sequence" => column.push_number(sequences[0]),
                    "sequence_back" => column.push_number(sequences[1]),
                    "acknowledged" => column.push_number(acknowledged[0]),
                    "acknowledged_back" => column.push_number(acknowledged[1]),
                    "state" => {
                        let state = self.state((nth, rows.len()), (*is_open, *piece));
                        column.push_bytes(|bytes| {
                            bytes.extend_from_slice(&state);
                            true
                        });
                    }
                    _ if piece.is_none() && matches!(column.values(), Values::Text(..)) => {
                        column.push_bytes(|_| false);
                    }
                    _ if piece.is_none() => column.push_number(None),
                    _ => {}
                }
            }
            added(batch);
        }
    }

    /// Reads the values of the column `state`, which may be in any order, and may belong to any
    /// number of parts.
    ///
    /// # Errors
    /// Returns an error for bytes of another version, and if a row is missing or occurs twice.
    pub fn read(mut bytes: &[u8]) -> Result<Vec<Self>, EdgesError> {
        let mut parts: BTreeMap<(u64, u64), Vec<RowState>> = BTreeMap::new();
        while !bytes.is_empty() {
            let (length, rest) =
                bytes.strip_prefix(&MAGIC).and_then(|rest| rest.split_first_chunk()).ok_or(MalformedEdges)?;
            let (state, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or(MalformedEdges)?;
            let (head, content) = read_state(state)?;
            parts.entry((head.first, head.last)).or_default().push((head, content));
            bytes = rest;
        }
        parts.into_values().map(Self::of_rows).collect()
    }

    fn of_rows(mut rows: Vec<RowState>) -> Result<Self, EdgesError> {
        rows.sort_by_key(|(head, _)| head.nth);
        let head = rows.first().ok_or(MalformedEdges)?.0;
        let mut edges = head.edges();
        for pair in rows.windows(2) {
            if pair[0].0.nth == pair[1].0.nth {
                return Err(EdgesError::Twice(name(head.first, head.last)));
            }
        }
        if rows.len() as u64 != head.rows {
            let missing = head.rows.saturating_sub(rows.len() as u64);
            return Err(EdgesError::Missing { parts: name(head.first, head.last), missing, rows: head.rows });
        }
        for (its, content) in rows {
            if (Head { nth: head.nth, ..its }) != head {
                return Err(MalformedEdges.into());
            }
            match content {
                Content::Open(piece) => {
                    let flow = edges.flows.entry(piece.flow.key).or_default();
                    flow.open = Some(piece);
                }
                Content::Piece(piece) => edges.flows.entry(piece.flow.key).or_default().chain.push(piece),
                Content::Fragments(fragments) => edges.fragments = fragments,
            }
        }
        Ok(Self { first: head.first, last: head.last, edges })
    }
}

fn name(first: u64, last: u64) -> String {
    if first == last { format!("part {first}") } else { format!("parts {first} to {last}") }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    first: u64,
    last: u64,
    nth: u64,
    rows: u64,
    begin: Option<u64>,
    end: u64,
    joined: u64,
    timeouts: Timeouts,
}

impl Head {
    fn of(edges: &Edges) -> Self {
        let Edges { begin, end, timeouts, joined, .. } = *edges;
        Self { first: 0, last: 0, nth: 0, rows: 0, begin, end, joined, timeouts }
    }

    fn edges(&self) -> Edges {
        let Self { begin, end, timeouts, joined, .. } = *self;
        Edges { begin, end, timeouts, flows: HashMap::new(), fragments: Fragments::default(), joined }
    }

    fn code(&mut self, coder: &mut impl Coder) -> Result<(), MalformedEdges> {
        let Self { first, last, nth, rows, begin, end, joined, timeouts } = self;
        let mut has_begun = begin.is_some();
        coder.flag(&mut has_begun)?;
        let mut began = begin.unwrap_or_default();
        let Timeouts { active, clock, inactive, closed } = timeouts;
        let numbers = [first, last, nth, rows, &mut began, end, joined, active, clock, inactive, closed];
        numbers.into_iter().try_for_each(|number| coder.number(number))?;
        *begin = has_begun.then_some(began);
        Ok(())
    }
}

enum Content {
    Piece(Piece),
    Open(Piece),
    Fragments(Fragments),
}

type RowState = (Head, Content);

fn read_state(state: &[u8]) -> Result<RowState, MalformedEdges> {
    let mut reader = Reader(state);
    let timeouts = Timeouts { active: 0, clock: 0, inactive: 0, closed: 0 };
    let mut head = Head { first: 0, last: 0, nth: 0, rows: 0, begin: None, end: 0, joined: 0, timeouts };
    head.code(&mut reader)?;
    let (mut has_piece, mut is_open) = (false, false);
    reader.flag(&mut has_piece)?;
    let content = if has_piece {
        reader.flag(&mut is_open)?;
        let mut piece = Piece::new(Flow::vacant(), Opening::default(), Next::Part, None);
        code_piece(&mut reader, &mut piece)?;
        if is_open { Content::Open(piece) } else { Content::Piece(piece) }
    } else {
        let mut fragments = Fragments::default();
        fragments.code(&mut reader)?;
        Content::Fragments(fragments)
    };
    if reader.0.is_empty() { Ok((head, content)) } else { Err(MalformedEdges) }
}

fn code_piece(coder: &mut impl Coder, piece: &mut Piece) -> Result<(), MalformedEdges> {
    piece.flow.code(coder)?;
    let Opening { time, tcp_flags, sequence, is_segment, turned, follows_pause, number } = &mut piece.opening;
    coder.number(time)?;
    coder.number(number)?;
    coder.number(tcp_flags)?;
    coder.number(sequence)?;
    for flag in [is_segment, turned, follows_pause] {
        coder.flag(flag)?;
    }
    let mut next: u8 = match piece.next {
        Next::Piece => 0,
        Next::Part => 6,
        Next::End(why) => why as u8,
    };
    coder.number(&mut next)?;
    piece.next = match next {
        0 => Next::Piece,
        6 => Next::Part,
        why => Next::End(*ENDS.get(usize::from(why) - 1).ok_or(MalformedEdges)?),
    };
    coder.number(&mut piece.joined)?;
    coder.flag(&mut piece.follows_cut)?;
    let mut has_log = piece.log.is_some();
    coder.flag(&mut has_log)?;
    if has_log {
        piece.log.get_or_insert_default().code(coder)?;
    }
    Ok(())
}
