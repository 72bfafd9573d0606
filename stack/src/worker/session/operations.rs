//! What has the numbers of an application's operations.
//!
//! An application may ask for a million. The table is made as they are used, so that neither a join nor the end of a session takes
//! the worker the time to write to all of it.

use super::application::Posted;
use crate::fep::CallError;
use crate::prefetch::prefetch;

/// Numbers in a page, which is made when the first of them is asked for.
const PAGE: usize = 256;

type Page = [Posted; PAGE];

#[cold]
#[inline(never)]
fn new_page() -> Box<Page> {
    Box::new([Posted::Nothing; PAGE])
}

/// The operations of an application, by their numbers.
#[derive(Debug)]
pub(super) struct Operations {
    /// How many there may be.
    count: u32,
    /// `None` for pages of which no number was asked for.
    pages: Box<[Option<Box<Page>>]>,
}

impl Operations {
    /// Numbers up to `count`, of which none is in use.
    pub(super) fn new(count: u32) -> Operations {
        Operations { count, pages: (0..(count as usize).div_ceil(PAGE)).map(|_| None).collect() }
    }

    /// How many there may be.
    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// What has the number; `None` if there is no such number.
    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<Posted> {
        if number >= self.count {
            return None;
        }
        let page = self.pages.get(number as usize / PAGE)?;
        Some(page.as_ref().map_or(Posted::Nothing, |page| page[number as usize % PAGE]))
    }

    /// Prefetches what has the number, if there is such a number.
    #[inline]
    pub(super) fn prefetch(&self, number: u32) {
        if let Some(Some(page)) = self.pages.get(number as usize / PAGE) {
            prefetch(&page[number as usize % PAGE]);
        }
    }

    /// The place of a number that is not in use, for the operation that gets it.
    ///
    /// # Errors
    /// It is in use, or there is no such number.
    #[inline]
    pub(super) fn vacant(&mut self, number: u32) -> Result<&mut Posted, CallError> {
        let count = self.count;
        let no_such = CallError::NoSuchNumber { number, count };
        let page = self.pages.get_mut(number as usize / PAGE).filter(|_| number < count).ok_or(no_such)?;
        let page = page.get_or_insert_with(new_page);
        match &mut page[number as usize % PAGE] {
            place @ Posted::Nothing => Ok(place),
            _ => Err(CallError::NumberInUse(number)),
        }
    }

    /// `posted` has the number from now on, if there is such a number.
    pub(super) fn set(&mut self, number: u32, posted: Posted) {
        if let Some(page) = self.pages.get_mut(number as usize / PAGE) {
            page.get_or_insert_with(new_page)[number as usize % PAGE] = posted;
        }
    }

    /// The number is free from now on. Returns what had it, if it was in use.
    #[inline]
    pub(super) fn free(&mut self, number: u32) -> Option<Posted> {
        let page = self.pages.get_mut(number as usize / PAGE)?.as_mut()?;
        match std::mem::replace(&mut page[number as usize % PAGE], Posted::Nothing) {
            Posted::Nothing => None,
            posted => Some(posted),
        }
    }

    /// How many pages there are, of which some are not made yet.
    pub(super) fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Frees those numbers of a page of which `is_free` is true, and the page if none is in use then. Returns how many were freed, and
    /// the bytes that were touched.
    pub(super) fn free_page(&mut self, page: usize, is_free: impl Fn(&Posted) -> bool) -> (usize, usize) {
        let place = &mut self.pages[page];
        let Some(page) = place else { return (0, size_of::<Option<Box<Page>>>()) };
        let (mut freed, mut stays) = (0, false);
        for posted in page.iter_mut().filter(|posted| !matches!(posted, Posted::Nothing)) {
            if is_free(posted) {
                *posted = Posted::Nothing;
                freed += 1;
            } else {
                stays = true;
            }
        }
        if !stays {
            *place = None;
        }
        (freed, size_of::<Page>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ses::ReceiveId;

    fn receive(number: u32) -> Posted {
        Posted::Receive { id: ReceiveId(number.into()), offset: number }
    }

    fn has(operations: &Operations, number: u32) -> bool {
        matches!(operations.get(number), Some(Posted::Receive { offset, .. }) if offset == number)
    }

    /// How many pages are made.
    fn made(operations: &Operations) -> usize {
        operations.pages.iter().flatten().count()
    }

    #[test]
    fn the_table_is_made_as_numbers_are_used() {
        let mut operations = Operations::new(1 << 20);
        assert_eq!((operations.count(), made(&operations)), (1 << 20, 0));
        for number in [0, 255, 256, (1 << 20) - 1] {
            assert!(matches!(operations.get(number), Some(Posted::Nothing)));
            assert!(operations.free(number).is_none());
            operations.set(number, receive(number));
            assert!(has(&operations, number));
        }
        assert_eq!(made(&operations), 3);
        assert!(matches!(operations.get(1), Some(Posted::Nothing)));
        assert!(operations.free(255).is_some() && operations.free(255).is_none() && has(&operations, 0));
    }

    #[test]
    fn there_are_no_more_numbers_than_were_asked_for() {
        for count in [1, 255, 256, 257] {
            let mut operations = Operations::new(count);
            operations.set(count - 1, receive(count - 1));
            assert!(has(&operations, count - 1) && operations.get(count).is_none(), "{count}");
            assert!(operations.get(u32::MAX).is_none());
        }
    }

    #[test]
    fn pages_go_when_none_of_their_numbers_is_in_use() {
        let mut operations = Operations::new(600);
        for number in [1, 2, 513] {
            operations.set(number, receive(number));
        }
        operations.set(3, Posted::Held { question: 1, number: 2 });
        let is_receive = |posted: &Posted| matches!(posted, Posted::Receive { .. });
        assert_eq!(operations.pages(), 3);
        assert_eq!([0, 1, 2].map(|page| operations.free_page(page, is_receive).0), [2, 0, 1]);
        assert_eq!(made(&operations), 1);
        assert!(matches!(operations.get(3), Some(Posted::Held { .. })) && operations.free(513).is_none());
    }
}
