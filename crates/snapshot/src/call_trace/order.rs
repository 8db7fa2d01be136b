//! Calls of one goroutine come from the rings of several threads, which are read one after the other: here they are put in the order in which they began.

use thalweg_model::Call;

/// Puts callees of one call in the order of their entries, if they are not; the trees stay in theirs. Parents come before children, before and after.
pub fn by_time(calls: &mut Vec<Call>) {
    if is_in_order(calls) {
        return;
    }
    // Of each call its tree, and when it began: never before its caller, whatever it says. A signal handler may have run before the call that
    // it interrupted was said to begin.
    let mut keys: Vec<(u32, u64)> = Vec::with_capacity(calls.len());
    for (place, call) in calls.iter().enumerate() {
        let above = call.parent.and_then(|parent| keys.get(parent as usize));
        keys.push(match above {
            Some(&(root, began)) => (root, began.max(call.entry_ns)),
            None => (place as u32, call.entry_ns),
        });
    }
    let mut order: Vec<u32> = (0..calls.len() as u32).collect();
    order.sort_by_key(|&place| (keys[place as usize], place));
    let mut places = vec![0; calls.len()];
    for (now, &before) in order.iter().enumerate() {
        places[before as usize] = now as u32;
    }
    let moved = order.iter().map(|&before| {
        let call = &calls[before as usize];
        let parent = call.parent.map(|parent| places[parent as usize]);
        Call {
            parent,
            ..call.clone()
        }
    });
    *calls = moved.collect();
}

fn is_in_order(calls: &[Call]) -> bool {
    let mut last = vec![0; calls.len()];
    calls.iter().all(|call| {
        let Some(last) = call.parent.and_then(|parent| last.get_mut(parent as usize)) else {
            return true;
        };
        std::mem::replace(last, call.entry_ns) <= call.entry_ns
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callees_are_put_in_the_order_of_their_entries_and_keep_their_callers() {
        let call = |id: u64, parent: Option<u32>, entry_ns: u64| Call {
            id,
            parent,
            entry_ns,
            ..Call::default()
        };
        let mut calls = vec![
            call(1, None, 10),
            call(2, None, 5),
            call(3, Some(0), 30),
            call(4, Some(2), 31),
            call(5, Some(1), 6),
            call(6, Some(0), 20),
            // Before its caller, by its own account.
            call(7, Some(3), 9),
        ];
        by_time(&mut calls);
        let now: Vec<(u64, Option<u64>)> = calls
            .iter()
            .map(|call| (call.id, call.parent.map(|parent| calls[parent as usize].id)))
            .collect();
        let expected = [
            (1, None),
            (6, Some(1)),
            (3, Some(1)),
            (4, Some(3)),
            (7, Some(4)),
            (2, None),
            (5, Some(2)),
        ];
        assert_eq!(now, expected);
    }
}
