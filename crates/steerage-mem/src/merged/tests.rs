use super::*;
use crate::ring::{Consumer, Producer, RingOptions, ring};
use crate::{Completion, Memory, Page, Region, SharedPool};

const HEADERS: usize = 4;

/// Five frames wrap around the end of the buffer. Frame n has n + 1 payload bytes of the value n.
struct World {
    region: Arc<Region>,
    producer: Producer,
    consumer: Consumer,
    spare: Spare,
    kept: Arc<KeptPages>,
}

impl World {
    fn new() -> Self {
        let (region, mut pages) = Region::map(32, 256).unwrap();
        let memory = Memory::new(Arc::clone(&region), None);
        let options = RingOptions { slots: 8, slots_max: 8, limit: 8, arrivals: false };
        let (producer, consumer) = ring(options, memory.clone());
        let shared = Arc::clone(&SharedPool::by_node(&region, pages.split_off(16))[0]);
        let kept = KeptPages::new(memory, 8);
        let mut world = Self { region, producer, consumer, spare: Spare::new(shared), kept };
        world.pass(pages.drain(..6).collect());
        world.consumer.finish();
        world.producer.reclaim(drop);
        world.pass(pages.drain(..5).collect());
        world
    }

    fn pass(&mut self, pages: Vec<Page>) {
        for (number, mut page) in pages.into_iter().enumerate() {
            let frame = &mut self.region.page_mut(&mut page)[64..64 + HEADERS + number + 1];
            frame[HEADERS..].fill(number as u8);
            self.producer.stage(Completion::new(page, 64, HEADERS + number + 1), 0).unwrap();
        }
        self.producer.publish();
        self.consumer.take(8);
    }
}

fn numbers(hand: &mut Hand<'_>) -> Vec<usize> {
    hand.frames().map(|frame| frame.len() - HEADERS - 1).collect()
}

fn merged(world: &mut World, sets: &[u64]) -> (Option<usize>, Vec<Option<Kept>>) {
    let mut copies: Vec<_> = (0..BATCH_MAX).map(|_| None).collect();
    let pages = Pages { spare: &world.spare, kept: &world.kept, headroom: 64 };
    let packets = merge(&mut world.consumer.hand(), &mut copies, pages, |frames, emit| {
        assert_eq!(frames.iter().flatten().count(), 5);
        sets.iter().enumerate().for_each(|(nth, set)| emit(*set, &[nth as u8; HEADERS], [nth as u8; 16]));
    });
    (packets, copies)
}

fn payloads(hand: &mut Hand<'_>) -> Vec<Vec<u8>> {
    hand.frames().map(|frame| frame.bytes()[HEADERS..].to_vec()).collect()
}

#[test]
fn hidden_frames_are_read_behind_their_packet_and_nowhere_else() {
    let payload = |number: usize| vec![number as u8; number + 1];
    for (sets, shown, behind) in [
        // The hidden frames lie before and after the end of the ring's buffer.
        (&[0b11111_u64][..], vec![0], vec![vec![0, 1, 2, 3, 4]]),
        (&[0b10101, 0b01010], vec![0, 1], vec![vec![0, 2, 4], vec![1, 3]]),
        (&[0b11000], vec![0, 1, 2, 3], vec![vec![], vec![], vec![], vec![3, 4]]),
    ] {
        let mut world = World::new();
        let (packets, copies) = merged(&mut world, sets);
        assert_eq!(packets, Some(shown.len()));
        let mut hand = world.consumer.hand();
        hand.with_first(shown.len(), |mut hand| {
            assert_eq!(numbers(&mut hand), shown);
            for ((frame, copy), behind) in hand.frames().zip(&copies).zip(&behind) {
                assert_eq!(
                    (copy.is_some(), frame.has_extra(), !frame.is_writable()),
                    (!behind.is_empty(), copy.is_some(), copy.is_some())
                );
                let Some(copy) = copy else { continue };
                let parts: Vec<_> = behind.iter().map(|number| payload(*number)).collect();
                assert_eq!(copy.behind(&frame).collect::<Vec<_>>(), parts);
                let whole: usize = parts.iter().map(Vec::len).sum();
                assert_eq!((copy.behind_bytes(&frame), copy.frames()), (whole, parts.len() as u64));
                assert_eq!(copy.segments_with(&frame).map(<[u8]>::len).sum::<usize>(), HEADERS + whole);
                assert_eq!(copy.record(), Some([copy[0]; 16]));
            }
        });
        assert_eq!(hand.len(), 5);
        // In the next batch, no frame is hidden, so no packet has payload in other frames.
        let [frame, ..] = &hand.frames().collect::<Vec<_>>()[..] else { panic!() };
        assert!(copies[0].as_ref().is_none_or(|copy| copy.behind(frame).count() == 1));
        drop(copies);
        world.consumer.finish();
        let mut home = 0;
        world.producer.reclaim(|_| home += 1);
        assert_eq!((home, world.kept.kept()), (5, 0));
    }
}

#[test]
fn a_panic_shows_hidden_frames_again() {
    let mut world = World::new();
    let mut hand = world.consumer.hand();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| hand.with_first(2, |_| panic!("planted"))));
    assert!(panicked.is_err());
    assert_eq!(numbers(&mut world.consumer.hand()), [0, 1, 2, 3, 4]);
}

#[test]
fn an_order_without_each_frame_once_changes_nothing() {
    let mut world = World::new();
    let mut hand = world.consumer.hand();
    for wrong in [&[0, 1, 2, 3][..], &[0, 1, 2, 3, 3], &[1, 2, 3, 4, 5], &[0, 1, 2, 3, 64], &[0, 1, 2, 3, 4, 5]] {
        assert!(!hand.reorder(wrong), "{wrong:?}");
    }
    assert_eq!(numbers(&mut hand), [0, 1, 2, 3, 4]);
    assert!(hand.reorder(&[4, 0, 3, 1, 2]));
    assert_eq!(numbers(&mut hand), [4, 0, 3, 1, 2]);
}

#[test]
fn a_packet_that_is_split_is_its_frames_again() {
    let mut world = World::new();
    let (packets, mut copies) = merged(&mut world, &[0b10101, 0b01010]);
    assert_eq!(packets, Some(2));
    assert!(copies[0].as_mut().unwrap().resize(2, 0));
    let mut verdicts: [usize; BATCH_MAX] = from_fn(|nth| nth);
    let mut hand = world.consumer.hand();
    assert_eq!(show(&mut hand, &mut copies, &mut verdicts, (2, 0b01)), 4);
    // The second packet is the frame 1 and the hidden frame 3.
    assert_eq!((numbers(&mut hand), &verdicts[..5]), (vec![0, 2, 4, 1, 3], &[0, 2, 3, 1, 4][..]));
    let pages = Pages { spare: &world.spare, kept: &world.kept, headroom: 64 };
    let headers = |frames: &[Option<Frame<'_>>], copy: &Kept, to: &mut [[u8; 8]; BATCH_MAX]| {
        assert_eq!((frames.len(), copy.len()), (3, HEADERS + 2));
        to.iter_mut().enumerate().for_each(|(nth, to)| to.fill(0x80 + nth as u8));
    };
    write_headers(&mut hand, &mut copies, pages, 4, headers, |_| panic!("there are pages"));
    hand.with_first(4, |mut hand| {
        let frames: Vec<Vec<u8>> = hand.frames().map(|frame| frame.bytes().to_vec()).collect();
        let expected = |header: u8, number: u8| [vec![header; 6], vec![number; usize::from(number) + 1]].concat();
        assert_eq!(frames[..3], [expected(0x80, 0), expected(0x81, 2), expected(0x82, 4)]);
        assert!(hand.frames().take(3).all(|frame| frame.is_writable()));
        let copy = copies[3].as_ref().unwrap();
        let last = hand.frames().nth(3).unwrap();
        assert_eq!(copy.behind(&last).collect::<Vec<_>>(), [&[1; 2][..], &[3; 4]]);
    });
    assert!(copies[..3].iter().all(Option::is_none));
    assert_eq!(payloads(&mut hand)[4], [3; 4]);
}
