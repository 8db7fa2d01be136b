//! Processes as `/proc` shows them: children, and the processor time that they took. Unlike time on the clock, that hardly
//! depends on what else the machine does.

/// Linux gives times to programs in hundredths of a second.
const TICKS_PER_SECOND: f64 = 100.0;

pub fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().filter_map(Result::ok);
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            let pids = list.split_whitespace().filter_map(|word| word.parse().ok());
            pids.collect::<Vec<u32>>()
        })
        .collect()
}

/// A child of the process, by its name.
pub fn child(pid: u32, name: &str) -> Option<u32> {
    children(pid).into_iter().find(|child| {
        let comm = std::fs::read_to_string(format!("/proc/{child}/comm"));
        comm.is_ok_and(|comm| comm.trim_end() == name)
    })
}

/// What a process, its children and those that it had took so far.
pub fn seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name: state, and as the 12th to 15th field utime, stime, cutime, cstime.
    let fields = stat.rsplit(") ").next().unwrap_or_default();
    let times = fields.split(' ').skip(11).take(4);
    let own: f64 = times.filter_map(|time| time.parse::<f64>().ok()).sum();
    let living: f64 = children(pid).into_iter().map(seconds).sum();
    own / TICKS_PER_SECOND + living
}
