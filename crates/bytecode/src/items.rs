//! Values on their way out of the target: `{value id u16, status u8, length u16, bytes}`, one after
//! another, little endian.

use crate::header::u16_at;

/// Bytes before an item's own.
pub const ITEM_HEADER: usize = 5;

/// The item in which the entry part leaves for the exit part what only it knew. No value of a rule
/// has this id.
pub const STATE_ID: u16 = 0xffff;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    Ok = 0,
    /// The memory could not be read, at least not beyond the bytes that are there; or there is no
    /// such value.
    Unreadable = 1,
    /// Longer than the limit; the bytes are its beginning.
    Cut = 2,
    /// Never read: its name is on the list of those that are not to be seen.
    Redacted = 3,
    /// A null pointer stands where the value's address should.
    Null = 4,
}

impl Status {
    pub fn from_byte(byte: u8) -> Status {
        match byte {
            0 => Status::Ok,
            2 => Status::Cut,
            3 => Status::Redacted,
            4 => Status::Null,
            _ => Status::Unreadable,
        }
    }
}

/// A bounded buffer that items are appended to.
pub struct Out<'b> {
    bytes: &'b mut [u8],
    len: usize,
    lost: bool,
}

impl<'b> Out<'b> {
    pub fn new(bytes: &'b mut [u8]) -> Out<'b> {
        Out {
            bytes,
            len: 0,
            lost: false,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Some item found no room at all.
    pub fn lost(&self) -> bool {
        self.lost
    }

    pub fn written(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Room for the bytes of one item, at most `wanted`; `None` if not even its header fits.
    pub(crate) fn room(&mut self, wanted: usize) -> Option<&mut [u8]> {
        let start = self.len.checked_add(ITEM_HEADER)?;
        let free = self.bytes.len().saturating_sub(start);
        if start > self.bytes.len() {
            self.lost = true;
            return None;
        }
        let most = wanted.min(free).min(usize::from(u16::MAX));
        self.bytes.get_mut(start..start.checked_add(most)?)
    }

    /// Ends an item whose first `len` bytes were written into `room`.
    pub(crate) fn finish(&mut self, id: u16, status: Status, len: usize) {
        let Some(end) = self.len.checked_add(ITEM_HEADER + len) else {
            return;
        };
        let Ok(short) = u16::try_from(len) else {
            return;
        };
        if end > self.bytes.len() {
            self.lost = true;
            return;
        }
        let [a, b] = id.to_le_bytes();
        let [c, d] = short.to_le_bytes();
        if let Some([i, j, s, k, l]) = self.bytes.get_mut(self.len..self.len + ITEM_HEADER) {
            (*i, *j, *s, *k, *l) = (a, b, status as u8, c, d);
            self.len = end;
        }
    }

    /// One whole item; what does not fit is cut.
    pub fn push(&mut self, id: u16, status: Status, bytes: &[u8]) {
        let Some(room) = self.room(bytes.len()) else {
            return;
        };
        let len = room.len();
        for (to, from) in room.iter_mut().zip(bytes) {
            // Else the loop becomes a call of memcpy, which the agent does not have.
            *to = core::hint::black_box(*from);
        }
        let status = if len < bytes.len() {
            Status::Cut
        } else {
            status
        };
        self.finish(id, status, len);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<'b> {
    pub id: u16,
    pub status: Status,
    pub bytes: &'b [u8],
}

/// The items of a byte string; ends where the bytes make no sense.
#[derive(Clone, Copy, Debug)]
pub struct Items<'b> {
    rest: &'b [u8],
}

impl<'b> Items<'b> {
    pub fn new(bytes: &'b [u8]) -> Items<'b> {
        Items { rest: bytes }
    }
}

impl<'b> Iterator for Items<'b> {
    type Item = Item<'b>;

    fn next(&mut self) -> Option<Item<'b>> {
        let id = u16_at(self.rest, 0)?;
        let status = Status::from_byte(*self.rest.get(2)?);
        let len = usize::from(u16_at(self.rest, 3)?);
        let bytes = self.rest.get(ITEM_HEADER..ITEM_HEADER + len)?;
        self.rest = self.rest.get(ITEM_HEADER + len..)?;
        Some(Item { id, status, bytes })
    }
}
