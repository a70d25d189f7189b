//! The edges of a part as bytes, for other processes and machines with the same version of steerage.

use std::collections::HashMap;

use super::{Edges, FlowEdges, Next, Opening, Piece};
use crate::code::{Coder, MalformedEdges, Reader, Writer};
use crate::flow::{Flow, FlowEnd};
use crate::timeouts::Timeouts;

const ENDS: [FlowEnd; 5] = [FlowEnd::Idle, FlowEnd::Active, FlowEnd::Finished, FlowEnd::Forced, FlowEnd::Resources];

fn code_piece(coder: &mut impl Coder, piece: &mut Piece) -> Result<(), MalformedEdges> {
    piece.flow.code(coder)?;
    let Opening { time, tcp_flags, sequence, is_segment, turned, follows_pause } = &mut piece.opening;
    coder.number(time)?;
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
    Ok(())
}

fn code_timeouts(coder: &mut impl Coder, timeouts: &mut Timeouts) -> Result<(), MalformedEdges> {
    let Timeouts { active, clock, inactive, closed } = timeouts;
    [active, clock, inactive, closed].into_iter().try_for_each(|time| coder.number(time))
}

impl Edges {
    /// The edges as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        let _ = self.clone().code_head(&mut writer);
        for flow in self.flows.values() {
            let (mut chain, mut is_open) = (flow.chain.len() as u64, flow.open.is_some());
            let _ = writer.number(&mut chain);
            let _ = writer.flag(&mut is_open);
            for piece in flow.chain.iter().chain(&flow.open) {
                // Writing never fails.
                let _ = code_piece(&mut writer, &mut piece.clone());
            }
        }
        writer.into_bytes()
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// # Errors
    /// If the bytes are no edges, or those of another version.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MalformedEdges> {
        let mut reader = Reader::new(bytes)?;
        let timeouts = Timeouts { active: 0, clock: 0, inactive: 0, closed: 0 };
        let mut edges = Self { begin: None, end: 0, timeouts, flows: HashMap::new(), joined: 0 };
        edges.code_head(&mut reader)?;
        while !reader.is_empty() {
            let (mut chain, mut is_open) = (0u64, false);
            reader.number(&mut chain)?;
            reader.flag(&mut is_open)?;
            let mut flow = FlowEdges::default();
            let mut read = || -> Result<Piece, MalformedEdges> {
                let mut piece = Piece { flow: Flow::vacant(), opening: Opening::default(), next: Next::Part };
                code_piece(&mut reader, &mut piece)?;
                Ok(piece)
            };
            for _ in 0..chain {
                flow.chain.push(read()?);
            }
            flow.open = if is_open { Some(read()?) } else { None };
            let key = flow.chain.first().or(flow.open.as_ref()).ok_or(MalformedEdges)?.flow.key;
            edges.flows.insert(key, flow);
        }
        Ok(edges)
    }

    fn code_head(&mut self, coder: &mut impl Coder) -> Result<(), MalformedEdges> {
        let mut has_begun = self.begin.is_some();
        coder.flag(&mut has_begun)?;
        let mut begin = self.begin.unwrap_or_default();
        coder.number(&mut begin)?;
        self.begin = has_begun.then_some(begin);
        coder.number(&mut self.end)?;
        coder.number(&mut self.joined)?;
        code_timeouts(coder, &mut self.timeouts)
    }
}
