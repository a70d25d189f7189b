//! The filter of a packet socket: a classic BPF program that checks the direction of frames,
//! applies the user's filter, and cuts frames to the snap length.

use libc::sock_filter as Instruction;

use super::Direction;

/// `BPF_RET | BPF_K`: accepts the first `k` bytes of the frame, or drops the frame (0).
const RETURN: u16 = 0x06;
/// `BPF_LD | BPF_W | BPF_ABS`.
const LOAD: u16 = 0x20;
/// `BPF_JMP | BPF_JEQ | BPF_K`.
const JUMP_EQUAL: u16 = 0x15;

/// The packet's type, which shows a frame's direction.
const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
const OUTGOING: u32 = libc::PACKET_OUTGOING as u32;

const fn instruction(code: u16, jump_true: u8, jump_false: u8, operand: u32) -> Instruction {
    Instruction { code, jt: jump_true, jf: jump_false, k: operand }
}

pub(super) const NOTHING: [Instruction; 1] = [instruction(RETURN, 0, 0, 0)];

#[cfg(feature = "capture")]
pub(super) fn of_filter(filter: &steerage_capture::filter::Filter) -> Vec<Instruction> {
    let each = filter.instructions().iter();
    each.map(|each| instruction(each.code, each.jump_true, each.jump_false, each.operand)).collect()
}

/// Returns the socket's filter. `None` if all frames are accepted and no frame is cut.
pub(super) fn program(
    direction: Direction,
    filter: Option<Vec<Instruction>>,
    snaplen: Option<u32>,
) -> Option<Vec<Instruction>> {
    let mut program = Vec::new();
    // The jump leads past the next instruction, which drops the frame.
    let jump = match direction {
        Direction::InOut => None,
        Direction::In => Some(instruction(JUMP_EQUAL, 0, 1, OUTGOING)),
        Direction::Out => Some(instruction(JUMP_EQUAL, 1, 0, OUTGOING)),
    };
    if let Some(jump) = jump {
        program.extend([instruction(LOAD, 0, 0, PACKET_TYPE), jump, NOTHING[0]]);
    }
    let most = snaplen.unwrap_or(u32::MAX);
    match filter {
        // A filter returns the length to which the kernel cuts the frame.
        Some(filter) => program.extend(filter.into_iter().map(|each| match each.code {
            RETURN => Instruction { k: each.k.min(most), ..each },
            _ => each,
        })),
        None if program.is_empty() && snaplen.is_none() => return None,
        None => program.push(instruction(RETURN, 0, 0, most)),
    }
    Some(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(program: &[Instruction], packet_type: u32) -> u32 {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let Instruction { code, jt: jump_true, jf: jump_false, k: operand } = program[at];
            at += 1;
            match code {
                LOAD => accumulator = if operand == PACKET_TYPE { packet_type } else { panic!("{operand:x}") },
                JUMP_EQUAL => at += usize::from(if accumulator == operand { jump_true } else { jump_false }),
                RETURN => return operand,
                _ => panic!("{code:x}"),
            }
        }
    }

    #[test]
    fn each_direction_lets_its_own_through() {
        for (direction, incoming, outgoing) in
            [(Direction::In, 96, 0), (Direction::Out, 0, 96), (Direction::InOut, 96, 96)]
        {
            let program = program(direction, None, Some(96)).unwrap();
            assert_eq!([run(&program, 0), run(&program, 3), run(&program, OUTGOING)], [incoming, incoming, outgoing]);
        }
    }

    #[test]
    fn nothing_is_run_where_all_is_wanted() {
        assert!(program(Direction::InOut, None, None).is_none());
        assert_eq!(run(&program(Direction::In, None, None).unwrap(), 0), u32::MAX);
    }
}
