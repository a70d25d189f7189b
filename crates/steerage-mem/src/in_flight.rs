//! [`InFlight`] holds the pages from which a device is sending, until the device reports them as
//! sent. Several CPUs may send through one queue, but the device reports all pages in a single
//! ring. While a page is in flight, an address and a table entry with the number of the sending CPU
//! replace the page's token. The CPU that reads the device's reports returns each page to the CPU
//! that sent it.

use std::fmt;
use std::sync::Arc;

use crate::page::Page;
use crate::region::Region;
use crate::stack::PageStack;
use crate::sync::{AtomicU32, Ordering};

/// The pages from which one queue sends. Addresses are in bytes from the start of the region.
///
/// ```
/// use steerage_mem::{InFlight, Region};
///
/// let (region, mut pages) = Region::map(4, 2048)?;
/// // Two CPUs send from pages of the region.
/// let (in_flight, mut reaper) = InFlight::new(region, 2);
/// let page = pages.pop().unwrap();
/// let number = page.number();
/// let address = in_flight.post(1, page, 1).unwrap();
///
/// // CPU 0 reads the device's report. The page is not its own, so it waits for CPU 1.
/// assert!(reaper.tell(address, 0, |_page| unreachable!()));
/// in_flight.collect(1, |page| assert_eq!(page.number(), number));
/// # Ok::<(), steerage_mem::RegionError>(())
/// ```
pub struct InFlight {
    region: Arc<Region>,
    /// For each page, 0 if it is not in flight. For a page in flight, the lower half is the sender
    /// (counted from 1), and the upper half is the number of parts not reported as sent.
    pages: Box<[AtomicU32]>,
    /// For each sender, the sent pages that it has not taken back yet.
    back: Box<[PageStack]>,
}

const SENDER: u32 = 0xffff;
const ONCE: u32 = 1 << 16;

/// The maximum number of senders (CPUs that send through one queue), and the maximum number of
/// parts of a page.
pub const SENDERS_MAX: usize = SENDER as usize;

impl InFlight {
    /// Creates an empty table for `senders` senders, at most [`SENDERS_MAX`], and the [`Reaper`]
    /// that processes the device's reports.
    pub fn new(region: Arc<Region>, senders: usize) -> (Arc<Self>, Reaper) {
        let pages = (0..region.pages()).map(|_| AtomicU32::new(0)).collect();
        let back = (0..senders.min(SENDERS_MAX)).map(|_| PageStack::new()).collect();
        let in_flight = Arc::new(Self { region, pages, back });
        (Arc::clone(&in_flight), Reaper(in_flight))
    }

    /// Keeps a page's token until the device has reported `parts` parts of the page as sent, and
    /// returns the page's address. `Err` returns the page if it belongs to another region, or if
    /// `sender` or `parts` is too large.
    #[inline]
    pub fn post(&self, sender: usize, page: Page, parts: usize) -> Result<u64, Page> {
        let sensible = sender < self.back.len() && (1..=SENDERS_MAX).contains(&parts);
        let Some(index) = self.region.index_of(page.number()).filter(|_| sensible) else { return Err(page) };
        // F1, release: pairs with F2. Only the holder of a page's token stores to the page's entry.
        self.pages[index as usize].store(parts as u32 * ONCE + sender as u32 + 1, Ordering::Release);
        Ok(self.region.address_of(index))
    }

    /// Takes back the pages that `sender` sent and that another CPU found in the device's reports.
    #[inline]
    pub fn collect(&self, sender: usize, each: impl FnMut(Page)) {
        if let Some(back) = self.back.get(sender).filter(|back| back.any()) {
            back.collect(&self.region, each);
        }
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pages of {} senders in flight", self.back.len())
    }
}

/// Processes the device's reports. Each [`InFlight`] has exactly one `Reaper`.
#[derive(Debug)]
pub struct Reaper(Arc<InFlight>);

impl Reaper {
    /// Records that the part in which `address` lies was sent. When all parts of a page were sent,
    /// the page is passed to `each` if `me` sent the page, or else waits until its sender takes it
    /// back. Returns false if the page is not in flight.
    #[inline]
    pub fn tell(&mut self, address: u64, me: usize, mut each: impl FnMut(Page)) -> bool {
        let Some((index, _)) = self.0.region.find(address) else { return false };
        let entry = &self.0.pages[index as usize];
        // F2, acquire: pairs with F1.
        let was = entry.load(Ordering::Acquire);
        if was == 0 {
            return false;
        }
        let still = was - ONCE;
        // Relaxed: only this thread and the holder of the page's token store to this entry.
        entry.store(if still < ONCE { 0 } else { still }, Ordering::Relaxed);
        if still < ONCE {
            let page = Page::new(self.0.region.number_of(index));
            match (was & SENDER) as usize - 1 {
                sender if sender == me => each(page),
                sender => self.0.back[sender].put(&self.0.region, page),
            }
        }
        true
    }

    /// Takes back all pages of a sender. The device must no longer read any page of this sender.
    pub fn take_all(&mut self, sender: usize, mut each: impl FnMut(Page)) {
        self.0.collect(sender, &mut each);
        for (index, entry) in self.0.pages.iter().enumerate() {
            // Acquire and relaxed as in `tell`.
            if (entry.load(Ordering::Acquire) & SENDER) as usize == sender + 1 {
                entry.store(0, Ordering::Relaxed);
                each(Page::new(self.0.region.number_of(index as u32)));
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PAGE_BYTES: usize = 2112;

    fn told(sent: &mut Reaper, address: u64, me: usize) -> (bool, Vec<u32>) {
        let mut back = Vec::new();
        let known = sent.tell(address, me, |page| back.push(page.number()));
        (known, back)
    }

    #[test]
    fn a_page_comes_back_to_its_sender_and_once() {
        let (region, pages) = Region::map(9, PAGE_BYTES).unwrap();
        let (in_flight, mut sent) = InFlight::new(region, 2);
        let numbers: Vec<u32> = pages.iter().map(Page::number).collect();
        let addresses: Vec<u64> =
            pages.into_iter().enumerate().map(|(nth, page)| in_flight.post(nth % 2, page, 1).unwrap()).collect();
        for (nth, address) in addresses.iter().enumerate() {
            let mine = if nth % 2 == 0 { vec![numbers[nth]] } else { vec![] };
            assert_eq!(told(&mut sent, address + 17 * nth as u64, 0), (true, mine));
            assert_eq!(told(&mut sent, *address, 0), (false, vec![]), "page {nth} came back twice");
        }
        let mut back = Vec::new();
        in_flight.collect(1, |page| back.push(page.number()));
        back.sort_unstable();
        assert_eq!(back, [numbers[1], numbers[3], numbers[5], numbers[7]]);
        in_flight.collect(0, |page| panic!("{page:?} is somebody else's"));
    }

    #[test]
    fn a_page_of_parts_comes_back_with_the_last() {
        let (region, mut pages) = Region::map(2, PAGE_BYTES).unwrap();
        let (in_flight, mut sent) = InFlight::new(region, 1);
        let page = pages.pop().unwrap();
        let number = page.number();
        let address = in_flight.post(0, page, 3).unwrap();
        assert_eq!(told(&mut sent, address + 100, 0), (true, vec![]));
        assert_eq!(told(&mut sent, address + 1000, 0), (true, vec![]));
        assert_eq!(told(&mut sent, address, 0), (true, vec![number]));
        assert_eq!(told(&mut sent, address, 0), (false, vec![]));
    }

    #[test]
    fn what_is_not_in_flight_is_no_page() {
        let (region, mut pages) = Region::map(3, PAGE_BYTES).unwrap();
        let (_other, mut others) = Region::map(1, PAGE_BYTES).unwrap();
        let (in_flight, mut sent) = InFlight::new(region, 1);
        assert!(in_flight.post(0, others.pop().unwrap(), 1).is_err());
        let page = in_flight.post(1, pages.pop().unwrap(), 1).unwrap_err();
        let page = in_flight.post(0, page, 0).unwrap_err();
        let address = in_flight.post(0, page, 1).unwrap();
        for wrong in [0, address - 1, address + PAGE_BYTES as u64, 1 << 32, 1 << 48, u64::MAX] {
            assert_eq!(told(&mut sent, wrong, 0), (false, vec![]), "{wrong:#x}");
        }
    }

    #[test]
    fn all_of_a_sender_come_back_at_the_end() {
        let (region, pages) = Region::map(8, PAGE_BYTES).unwrap();
        let (in_flight, mut sent) = InFlight::new(region, 2);
        let addresses: Vec<u64> =
            pages.into_iter().enumerate().map(|(nth, page)| in_flight.post(nth % 2, page, 1).unwrap()).collect();
        assert_eq!(told(&mut sent, addresses[1], 0), (true, vec![]));
        let mut back = 0;
        sent.take_all(1, |_| back += 1);
        assert_eq!(back, 4);
        sent.take_all(1, |page| panic!("{page:?} came back twice"));
        assert_eq!(told(&mut sent, addresses[3], 1), (false, vec![]));
    }
}
