//! Doubly linked lists over page numbers. A page is in at most one list of a set.

const NONE: u32 = u32::MAX;

/// Several lists that share their links.
pub(super) struct Lists<const COUNT: usize> {
    next: Vec<u32>,
    previous: Vec<u32>,
    /// The list of each page; `COUNT` for none.
    list: Vec<u8>,
    heads: [u32; COUNT],
    tails: [u32; COUNT],
    lens: [usize; COUNT],
}

impl<const COUNT: usize> Lists<COUNT> {
    /// Empty lists for `page_count` pages.
    pub(super) fn new(page_count: usize) -> Self {
        Self {
            next: vec![NONE; page_count],
            previous: vec![NONE; page_count],
            list: vec![COUNT as u8; page_count],
            heads: [NONE; COUNT],
            tails: [NONE; COUNT],
            lens: [0; COUNT],
        }
    }

    /// Returns the list that the page is in.
    pub(super) fn list(&self, page: u32) -> Option<usize> {
        Some(usize::from(self.list[page as usize])).filter(|list| *list < COUNT)
    }

    /// Pages in a list.
    pub(super) fn len(&self, list: usize) -> usize {
        self.lens[list]
    }

    /// Returns the oldest page of a list.
    pub(super) fn tail(&self, list: usize) -> Option<u32> {
        Some(self.tails[list]).filter(|page| *page != NONE)
    }

    /// Returns the page that was inserted just after this one.
    pub(super) fn newer(&self, page: u32) -> Option<u32> {
        Some(self.previous[page as usize]).filter(|page| *page != NONE)
    }

    /// Puts a page that is in no list to the head of one.
    pub(super) fn push(&mut self, list: usize, page: u32) {
        let head = self.heads[list];
        self.next[page as usize] = head;
        self.previous[page as usize] = NONE;
        match head {
            NONE => self.tails[list] = page,
            head => self.previous[head as usize] = page,
        }
        self.heads[list] = page;
        self.list[page as usize] = list as u8;
        self.lens[list] += 1;
    }

    /// Takes a page out of its list.
    pub(super) fn remove(&mut self, page: u32) {
        let Some(list) = self.list(page) else { return };
        let (next, previous) = (self.next[page as usize], self.previous[page as usize]);
        match previous {
            NONE => self.heads[list] = next,
            previous => self.next[previous as usize] = next,
        }
        match next {
            NONE => self.tails[list] = previous,
            next => self.previous[next as usize] = previous,
        }
        self.list[page as usize] = COUNT as u8;
        self.lens[list] -= 1;
    }

    /// Takes the oldest page out of a list.
    pub(super) fn pop(&mut self, list: usize) -> Option<u32> {
        let page = self.tail(list)?;
        self.remove(page);
        Some(page)
    }

    /// Moves a page to the head of a list.
    pub(super) fn move_to(&mut self, list: usize, page: u32) {
        self.remove(page);
        self.push(list, page);
    }
}
