//! Last touch to a profile: only the functions that were seen, with file and line where debug information has them.

use std::path::Path;

use thalweg_model::Profile;
use thalweg_symbols::Lines;

/// Drops functions that no context names, numbers the others anew, and looks up where they are defined.
pub fn complete(profile: &mut Profile) {
    let mut seen = vec![false; profile.functions.len()];
    for thread in profile.processes.iter().flat_map(|p| &p.threads) {
        for node in &thread.nodes {
            seen[node.function as usize] = true;
        }
        if let Some(function) = thread.created_by.and_then(|c| c.function) {
            seen[function as usize] = true;
        }
    }
    let mut numbers = vec![0u32; seen.len()];
    let mut next = 0;
    for (number, &seen) in numbers.iter_mut().zip(&seen) {
        *number = next;
        next += u32::from(seen);
    }
    let mut index = 0;
    profile.functions.retain(|_| {
        index += 1;
        seen[index - 1]
    });
    for thread in profile.processes.iter_mut().flat_map(|p| &mut p.threads) {
        for node in &mut thread.nodes {
            node.function = numbers[node.function as usize];
        }
        if let Some(function) = thread.created_by.as_mut().and_then(|c| c.function.as_mut()) {
            *function = numbers[*function as usize];
        }
    }
    look_up(profile);
}

fn look_up(profile: &mut Profile) {
    for (index, module) in profile.modules.iter().enumerate() {
        let mut wanted = profile
            .functions
            .iter_mut()
            .filter(|f| f.module == index as u32)
            .peekable();
        if wanted.peek().is_none() {
            continue;
        }
        let lines = Lines::load(Path::new(&module.path));
        for function in wanted {
            if let Some((file, line)) = lines.lookup(function.address) {
                function.file = Some(file);
                function.line = line;
            }
        }
    }
}
