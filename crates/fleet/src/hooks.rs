//! Where tests can end a push, a compaction or an agent, as a kill would.

use object_store::path::Path;

/// `THALWEG_TEST_KILL_AFTER=N`: gone after so many objects.
pub fn after_put(_path: &Path) {
    #[cfg(debug_assertions)]
    {
        use std::sync::atomic::{AtomicU64, Ordering};
        static PUT: AtomicU64 = AtomicU64::new(0);
        let wanted = std::env::var("THALWEG_TEST_KILL_AFTER")
            .ok()
            .and_then(|text| text.parse::<u64>().ok());
        if wanted == Some(PUT.fetch_add(1, Ordering::Relaxed) + 1) {
            std::process::abort();
        }
    }
}
