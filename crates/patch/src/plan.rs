//! Plans a whole module: every function on its own first, then what they owe each other (`plan/finish.rs`).

use crate::flow::{Body, ExitKind, LeavesFor, body_of};
use crate::helper_thread::HelperThread;
use crate::image::Image;
use crate::insn::{Flow, Insn};
use crate::interface::{MAX_PROBE_BYTES, Method, ModulePlan, PatchForm, SkipReason, Window};
use crate::kernel::EntersKernel;
use crate::leaf::is_leaf;
use crate::limiting::Watched;
use crate::pun::prefix_behind;
use crate::solve::{Draft, Effort, QUICK, Solver, THOROUGH};
use crate::space::{Byte, JUMP, Space};
use crate::targets::{Targets, collect};
use std::collections::HashMap;
use std::rc::Rc;
use thalweg_symbols::{FunctionKind, Module};

mod finish;
mod hosts;

pub(crate) use finish::plt_slot;
use hosts::Hosts;

/// What is known of one function so far.
pub(crate) enum State {
    /// Not asked for.
    Untouched,
    Waiting,
    Failed(SkipReason),
    Planned(Box<Planned>),
}

pub(crate) struct Planned {
    pub windows: Vec<Window>,
    /// Parallel to the windows' events: how the function is left there.
    exits: Vec<(u64, ExitKind)>,
    /// Starts of windows that are there for the sake of others' springboards only.
    spare: Vec<u64>,
    /// Indices of functions whose plans this one needs in force.
    needs: Vec<(usize, Need)>,
    loops: bool,
    leaf: bool,
    leaves_for: LeavesFor,
    /// Where the entry probe stands; `None` where nothing but its system calls has a probe.
    entered: Option<u64>,
    /// System calls with a probe at the end of the window before them.
    pub enters: Vec<u64>,
    /// The same with a probe that looks whether the program limits itself.
    pub watches: Vec<u64>,
    method: Method,
    pub stub_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Code goes on there, so its exits must be probed.
    Exits,
    /// A springboard stands in bytes that the other's window displaced.
    Bytes,
}

pub(crate) struct Planner<'a, 'm> {
    pub image: &'a Image<'m>,
    pub targets: Targets,
    pub space: Space,
    pub states: Vec<State>,
    /// Rank of the next window in the order of writing.
    pub rank: u32,
    /// Dead bytes by the function whose window displaced them.
    hosts: Hosts,
    /// Functions that are looked at more than once, and their neighbours.
    bodies: HashMap<usize, Rc<Body>>,
}

/// How far apart a short jump and its springboard may be, about.
const REACH: u64 = 140;
/// How many functions are decoded before they are planned: bounds the memory for their instructions.
const BATCH: usize = 2048;
/// How many are kept decoded while room is made among neighbours.
const KEPT_BODIES: usize = 256;
/// Below this many functions a second thread is not worth its start.
const WORTH_A_THREAD: usize = 128;

fn bodies_of(
    image: &Image,
    targets: &Targets,
    functions: &[usize],
) -> Vec<Result<Body, SkipReason>> {
    let decode =
        |part: &[usize]| -> Vec<_> { part.iter().map(|&f| body_of(image, targets, f)).collect() };
    if functions.len() < WORTH_A_THREAD {
        return decode(functions);
    }
    let (here, there) = functions.split_at(functions.len() / 2);
    std::thread::scope(|scope| {
        let there_decoded = HelperThread::spawn(scope, || decode(there));
        let mut bodies = decode(here);
        // A thread that could not do its part leaves it to this one.
        bodies.extend(there_decoded.join().unwrap_or_else(|_| decode(there)));
        bodies
    })
}

/// Plans every function of `module` whose flag in `selected` (parallel to `module.functions`) is set.
pub fn plan(module: &Module, selected: &[bool]) -> ModulePlan {
    plan_entering(module, selected, &[])
}

/// The same, with a probe before each system call of those among `kernel` that are to have one, where there is room.
pub fn plan_entering(module: &Module, selected: &[bool], kernel: &[EntersKernel]) -> ModulePlan {
    plan_watching(module, selected, kernel, &[])
}

/// The same, with a probe before each of those in `watched`, too, where there is room.
pub fn plan_watching(
    module: &Module,
    selected: &[bool],
    kernel: &[EntersKernel],
    watched: &[Watched],
) -> ModulePlan {
    let image = Image::new(module);
    let states = module
        .functions
        .iter()
        .enumerate()
        .map(|(i, f)| match f.kind {
            _ if !selected.get(i).copied().unwrap_or(false) => State::Untouched,
            // Resolvers run before their module is relocated: probes need nothing of it.
            FunctionKind::Normal | FunctionKind::IfuncResolver => State::Waiting,
            FunctionKind::Fragment => State::Untouched,
            FunctionKind::Plt => State::Failed(SkipReason::Plt),
            FunctionKind::EntryCode => State::Failed(SkipReason::EntryCode),
            FunctionKind::Untouchable(why) => State::Failed(SkipReason::Untouchable(why)),
        })
        .collect();
    let mut planner = Planner::new(&image, states);
    planner.run();
    planner.finish(kernel, watched)
}

/// Probes before the system calls in `watched`, where there is room, and nothing else.
pub fn plan_sites(module: &Module, watched: &[Watched]) -> ModulePlan {
    let image = Image::new(module);
    let states = module.functions.iter().map(|_| State::Untouched).collect();
    let mut planner = Planner::new(&image, states);
    for &site in watched.iter().flat_map(|one| &one.sites) {
        let owner = image.function_at(site);
        if let Some(owner) =
            owner.filter(|&owner| matches!(planner.states[owner], State::Untouched))
        {
            planner.states[owner] = State::Planned(Box::new(Planned::bare()));
        }
    }
    let mut plan = planner.finish(&[], watched);
    plan.functions.retain(|plan| !plan.windows.is_empty());
    plan.fragments.retain(|plan| !plan.windows.is_empty());
    plan
}

impl Planned {
    /// Of a function that is not to be counted.
    fn bare() -> Planned {
        Planned {
            windows: Vec::new(),
            exits: Vec::new(),
            spare: Vec::new(),
            needs: Vec::new(),
            loops: false,
            leaf: false,
            leaves_for: LeavesFor::Caller,
            entered: None,
            enters: Vec::new(),
            watches: Vec::new(),
            method: Method::Direct,
            stub_bytes: 0,
        }
    }
}

impl<'i, 'm> Planner<'i, 'm> {
    fn new(image: &'i Image<'m>, states: Vec<State>) -> Planner<'i, 'm> {
        let targets = collect(image);
        let mut space = Space::new(image);
        for &(start, end) in &targets.padding {
            space.free(start, end);
        }
        Planner {
            image,
            targets,
            space,
            states,
            rank: 0,
            hosts: Hosts::default(),
            bodies: HashMap::new(),
        }
    }
}

impl Planner<'_, '_> {
    fn run(&mut self) {
        let mut queue: Vec<usize> = (0..self.states.len())
            .filter(|&i| matches!(self.states[i], State::Waiting))
            .collect();
        let mut hard_ones = Vec::new();
        let mut next = 0;
        while next < queue.len() {
            let batch: Vec<usize> = queue[next..].iter().copied().take(BATCH).collect();
            next += batch.len();
            let bodies = bodies_of(self.image, &self.targets, &batch);
            for (function, body) in batch.into_iter().zip(bodies) {
                let body = match body {
                    Ok(body) => body,
                    Err(reason) => {
                        self.states[function] = State::Failed(reason);
                        continue;
                    }
                };
                for &(start, end) in &body.free {
                    self.space.free(start, end);
                }
                for &other in &body.continues_in {
                    if self.image.is_fragment(other)
                        && matches!(self.states[other], State::Untouched)
                    {
                        self.states[other] = State::Waiting;
                        queue.push(other);
                    }
                }
                if self.attempt(function, &body, QUICK).is_err() {
                    hard_ones.push(function);
                }
            }
        }
        // Room that one of them makes may serve another nearby that was tried before it.
        while !hard_ones.is_empty() {
            let mut served = Vec::new();
            let mut failed = Vec::new();
            for function in hard_ones {
                let solved = self.attempt_hard(function);
                (if solved { &mut served } else { &mut failed }).push(function);
            }
            let functions = &self.image.module.functions;
            let near = |a: &usize, b: &usize| {
                let (a, b) = (&functions[*a], &functions[*b]);
                a.start < b.end.saturating_add(REACH) && b.start < a.end.saturating_add(REACH)
            };
            failed.retain(|f| served.iter().any(|s| near(f, s)));
            hard_ones = failed;
        }
    }

    pub(crate) fn body(&mut self, function: usize) -> Option<Rc<Body>> {
        if let Some(body) = self.bodies.get(&function) {
            return Some(Rc::clone(body));
        }
        if self.bodies.len() >= KEPT_BODIES {
            self.bodies.clear();
        }
        let body = Rc::new(body_of(self.image, &self.targets, function).ok()?);
        self.bodies.insert(function, Rc::clone(&body));
        Some(body)
    }

    /// Plans a function by whatever means there are. False if there is no room for it yet.
    fn attempt_hard(&mut self, function: usize) -> bool {
        let Some(body) = self.body(function) else {
            return true;
        };
        let mut tried = self.attempt(function, &body, THOROUGH);
        if tried.is_err() && self.loosen_neighbours(&body) {
            tried = self.attempt(function, &body, THOROUGH);
        }
        if tried.is_err() {
            tried = self.attempt_punned(function, &body);
        }
        match tried {
            Ok(()) => true,
            Err(reason) => {
                self.states[function] = State::Failed(reason);
                false
            }
        }
    }

    /// Lets planned functions next to `body` displace more than they need, for the sake of springboards. True if any did.
    fn loosen_neighbours(&mut self, body: &Body) -> bool {
        let functions = &self.image.module.functions;
        let (low, high) = (body.start.saturating_sub(REACH), body.end + REACH);
        let first = functions.partition_point(|f| f.end <= low);
        let mut any = false;
        for (g, neighbour) in functions.iter().enumerate().skip(first) {
            if neighbour.start >= high {
                break;
            }
            if neighbour.start != body.start && matches!(self.states[g], State::Planned(_)) {
                any |= self.rework(g, |solver| solver.loosen(low, high));
            }
        }
        any
    }

    /// Lets a planned function displace more than it needs. True if it does.
    pub(crate) fn rework(&mut self, function: usize, change: impl Fn(&mut Solver)) -> bool {
        if !matches!(self.states[function], State::Planned(_)) {
            return false;
        }
        let Some(body) = self.body(function) else {
            return false;
        };
        let State::Planned(planned) = &mut self.states[function] else {
            return false;
        };
        let fragment = self.image.is_fragment(function);
        let mut solver = Solver::new(&body, &self.targets, &self.space, fragment, QUICK);
        for window in &planned.windows {
            let first = body.index_of(window.start);
            let last = body
                .insns
                .partition_point(|i| i.addr < window.end)
                .checked_sub(1);
            let (Some(first), Some(last)) = (first, last) else {
                return false;
            };
            let (start, end, patch) = (window.start, window.end, window.patch);
            solver.drafts.push(Draft {
                first,
                last,
                start,
                end,
                patch,
                prefix: window.prefix,
            });
        }
        let given = solver.drafts.clone();
        change(&mut solver);
        let kept = |g: &Draft| {
            let same = |d: &Draft| (d.start, d.patch, d.prefix) == (g.start, g.patch, g.prefix);
            solver.drafts.iter().any(same)
        };
        if !given.iter().all(kept) {
            return false;
        }
        let mut any = false;
        for draft in solver.drafts {
            let known = planned.windows.iter().position(|w| w.start == draft.start);
            if known.is_some_and(|w| planned.windows[w].end == draft.end) {
                continue;
            }
            any = true;
            planned.stub_bytes += stub_bytes(&body, &draft);
            let padding = padding_in(&body, &draft);
            let dead_from = match known {
                Some(w) => {
                    let window = &mut planned.windows[w];
                    let dead_from = window.end.max(window.patch_end());
                    (window.end, window.padding) = (draft.end, padding);
                    dead_from
                }
                None => {
                    let (start, end, patch) = (draft.start, draft.end, draft.patch);
                    planned.spare.push(start);
                    planned.windows.push(Window {
                        start,
                        end,
                        patch,
                        prefix: draft.prefix,
                        events: Vec::new(),
                        padding,
                        rank: self.rank,
                        keeps_from: None,
                    });
                    self.rank += 1;
                    self.space.set(start, draft.patch_end(), Byte::Taken);
                    draft.patch_end()
                }
            };
            // A jump in a stub may be what keeps another window's inside from being a target.
            let jumps = |i: &Insn| i.jump_target().is_some();
            if body.insns[draft.first..=draft.last].iter().any(jumps) {
                planned.spare.retain(|&start| start != draft.start);
            }
            self.space.set(dead_from, draft.end, Byte::Dead);
            self.hosts.add(draft.patch_end(), draft.end, function);
        }
        any
    }

    pub(crate) fn attempt(
        &mut self,
        function: usize,
        body: &Body,
        effort: Effort,
    ) -> Result<(), SkipReason> {
        let fragment = self.image.is_fragment(function);
        let next = effort.puns.then(|| self.window_behind(body.end)).flatten();
        let mut solver = Solver::new(body, &self.targets, &self.space, fragment, effort);
        solver.next = next;
        let drafts = solver.solve()?;
        let mut planned = self.commit(function, body, &drafts, fragment);
        for draft in &drafts {
            if draft.end == body.end && matches!(draft.patch, PatchForm::Pun { .. }) {
                planned
                    .needs
                    .extend(self.lend(draft.end, prefix_behind(draft)));
            }
        }
        self.states[function] = State::Planned(Box::new(planned));
        Ok(())
    }

    /// Gives the window at `start` the prefix that a pun before it needs. Returns whose it is.
    fn lend(&mut self, start: u64, prefix: Option<u8>) -> Option<(usize, Need)> {
        let g = self.image.function_at(start)?;
        let State::Planned(planned) = &mut self.states[g] else {
            return None;
        };
        let window = planned.windows.iter_mut().find(|w| w.start == start)?;
        window.prefix = prefix;
        self.space.set(start, window.patch_end(), Byte::Taken);
        Some((g, Need::Bytes))
    }

    /// Takes the bytes that `drafts` ask for.
    fn commit(
        &mut self,
        function: usize,
        body: &Body,
        drafts: &[Draft],
        fragment: bool,
    ) -> Planned {
        let mut needs: Vec<(usize, Need)> = body
            .continues_in
            .iter()
            .map(|&g| (g, Need::Exits))
            .collect();
        for draft in drafts {
            if let Some(springboard) = draft.patch.springboard() {
                let hosts = self.hosts.of(springboard, springboard + JUMP);
                let others = hosts.into_iter().filter(|&h| h != function);
                needs.extend(others.map(|h| (h, Need::Bytes)));
            }
        }
        for draft in drafts {
            self.space.set(draft.start, draft.patch_end(), Byte::Taken);
            if draft.end > draft.patch_end() {
                self.space.set(draft.patch_end(), draft.end, Byte::Dead);
                self.hosts.add(draft.patch_end(), draft.end, function);
            }
        }
        for draft in drafts {
            if let Some(springboard) = draft.patch.springboard() {
                self.space.set(springboard, springboard + JUMP, Byte::Taken);
            }
        }
        let mut planned = Planned {
            windows: Vec::with_capacity(drafts.len()),
            exits: Vec::with_capacity(body.exits.len()),
            spare: Vec::new(),
            needs,
            loops: false,
            leaf: !fragment && is_leaf(self.image, body),
            leaves_for: body.leaves_for,
            entered: Some(body.insns[body.entered].addr),
            enters: Vec::new(),
            watches: Vec::new(),
            method: method(body, drafts, fragment),
            stub_bytes: 0,
        };
        for exit in &body.exits {
            let insn = &body.insns[exit.insn];
            let at = if let ExitKind::FallThrough(_) = exit.kind {
                insn.end()
            } else {
                insn.addr
            };
            planned.exits.push((at, exit.kind));
        }
        if !fragment && body.entered == body.entry {
            // Jumps that run in a stub go past the entry probe.
            let entry = body.insns[body.entry].addr;
            planned.loops = body
                .sources(body.start)
                .chain(body.sources(entry))
                .any(|source| !drafts.iter().any(|d| (d.first..=d.last).contains(&source)));
        }
        for draft in drafts {
            planned.stub_bytes += stub_bytes(body, draft);
            planned.windows.push(Window {
                start: draft.start,
                end: draft.end,
                patch: draft.patch,
                prefix: draft.prefix,
                events: Vec::new(),
                padding: padding_in(body, draft),
                rank: self.rank,
                keeps_from: None,
            });
            self.rank += 1;
        }
        planned.stub_bytes += MAX_PROBE_BYTES * (1 + planned.exits.len() as u64);
        planned
    }
}

fn method(body: &Body, drafts: &[Draft], fragment: bool) -> Method {
    let insns = &body.insns;
    let whole = |d: &Draft| d.first == body.entry && d.last == insns.len() - 1;
    let inner_jump = |d: &Draft| !body.soft_in(d.start + 1, d.end).is_empty();
    if !fragment && drafts.len() == 1 && whole(&drafts[0]) && inner_jump(&drafts[0]) {
        Method::Relocated
    } else if drafts.iter().any(inner_jump) {
        Method::Retargeted
    } else if drafts
        .iter()
        .any(|d| matches!(insns[d.last].flow, Flow::Call(_) | Flow::CallIndirect))
    {
        Method::CallMoved
    } else if drafts.iter().any(|d| d.patch != PatchForm::Near) {
        Method::Springboard
    } else {
        Method::Direct
    }
}

/// Padding between the instructions of `draft`.
fn padding_in(body: &Body, draft: &Draft) -> Vec<(u64, u64)> {
    body.insns[draft.first..=draft.last]
        .windows(2)
        .filter(|pair| pair[0].end() < pair[1].addr)
        .map(|pair| (pair[0].end(), pair[1].addr))
        .collect()
}

/// No copy of `draft` is longer, probes not counted.
pub(crate) fn stub_bytes(body: &Body, draft: &Draft) -> u64 {
    let insns = &body.insns[draft.first..=draft.last];
    let copies: u64 = insns
        .iter()
        .map(|insn| match insn.flow {
            Flow::Next | Flow::Return | Flow::ReturnPop => u64::from(insn.len),
            // Stored target of an indirect jump, condition, displacement: see the emitter.
            _ => u64::from(insn.len) + 48,
        })
        .sum();
    copies + JUMP
}
