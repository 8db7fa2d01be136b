//! Responses that were given lately. Nothing of a reading changes, so that the second one to ask
//! the same waits for no computing.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::ApiError;

/// A response can be told several times without a copy.
pub type Response = Result<Arc<[u8]>, ApiError>;

/// Larger ones are a tree of 50,000 contexts or a river of 10,000 functions: some 5 MB.
const MAX_BYTES: usize = 64 << 20;
const MAX_RESPONSES: usize = 400;

#[derive(Default)]
pub struct Kept {
    /// By the spelling of the query, the latest first.
    recent: Mutex<VecDeque<(String, Arc<OnceLock<Response>>)>>,
}

impl Kept {
    /// Who asks what is being computed waits for it.
    pub fn get(&self, spelling: String, compute: impl FnOnce() -> Response) -> Response {
        let place = {
            let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            let known = recent.iter().position(|(known, _)| *known == spelling);
            let entry = known.and_then(|known| recent.remove(known));
            let entry = entry.unwrap_or_else(|| (spelling, Arc::default()));
            let place = entry.1.clone();
            recent.push_front(entry);
            place
        };
        let response = place.get_or_init(compute).clone();
        self.trim();
        response
    }

    fn trim(&self) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = 0;
        let fits = recent.iter().take(MAX_RESPONSES).take_while(|(_, place)| {
            let response = place.get().and_then(|response| response.as_ref().ok());
            bytes += response.map_or(0, |response| response.len());
            bytes <= MAX_BYTES
        });
        let fits = fits.count();
        recent.truncate(fits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_computed_once_until_others_need_its_room() {
        let kept = Kept::default();
        let mut computed = 0;
        let mut ask = |spelling: &str, bytes: usize| {
            let response = kept.get(spelling.to_string(), || {
                computed += 1;
                Ok(vec![0; bytes].into())
            });
            assert_eq!(response.map(|response| response.len()), Ok(bytes));
            computed
        };
        assert_eq!((ask("river", 10), ask("river", 10)), (1, 1));
        assert_eq!(ask("tree", MAX_BYTES), 2);
        assert_eq!(ask("river", 10), 3, "the tree took its room");
        assert_eq!(ask("river", 10), 3);
    }
}
