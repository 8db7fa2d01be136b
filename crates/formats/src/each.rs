//! JSON that is made while it is written, so that the text of a million nodes never stands in
//! memory.

use serde::{Serialize, Serializer};

/// A JSON array whose elements are made one by one.
pub struct Each<F>(pub F);

impl<F, I> Serialize for Each<F>
where
    F: Fn() -> I,
    I: IntoIterator,
    I::Item: Serialize,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}
