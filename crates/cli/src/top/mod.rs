//! The live view: what is on the screen, as a state that keys change and new profiles feed.
//!
//! ```text
//! commands/top (snapshots, keys) -> State -> rows (what there is to see) -> draw (the screen)
//! ```
//!
//! Nothing here knows of a process or a terminal, so tests press keys and read the screen.

mod draw;
mod rows;

use std::collections::{HashMap, HashSet, VecDeque};

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use thalweg_model::{FuncId, Profile};

pub use draw::draw;
use rows::{Row, RowId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    Functions,
    Tree,
    Threads,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    SelfTime,
    Total,
    Calls,
    Name,
}

impl Sort {
    const ALL: [Sort; 4] = [Sort::SelfTime, Sort::Total, Sort::Calls, Sort::Name];

    fn title(self) -> &'static str {
        match self {
            Sort::SelfTime => "self",
            Sort::Total => "total",
            Sort::Calls => "calls",
            Sort::Name => "name",
        }
    }
}

/// What the figures are sums over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    SinceStart,
    /// Between the last two readings, per second.
    Now,
}

/// What a key asks of whoever watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    Stay,
    Quit,
    /// The probes of a function, by its number in the process's catalog.
    Switch(FuncId, Probes),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probes {
    Timed,
    Counted,
    Off,
}

/// So many readings has the small picture of each function.
const SPARKS: usize = 8;

pub struct State {
    profile: Profile,
    /// The reading before, for what happened in between.
    before: Option<Profile>,
    title: String,
    view: View,
    sort: Sort,
    span: Span,
    frozen: bool,
    /// Of each function, what it took between two readings, the latest last.
    history: HashMap<FuncId, VecDeque<u64>>,
    /// What came of the last order.
    said: String,
    /// Why nothing new will come.
    ended: Option<String>,
    search: String,
    typing: bool,
    selected: usize,
    /// The row that stays selected while others move.
    selected_id: Option<RowId>,
    offset: usize,
    expanded: HashSet<RowId>,
    /// The tree is that of the callers of this function.
    callers: Option<FuncId>,
    rows: Vec<Row>,
    help: bool,
}

impl State {
    pub fn new(profile: Profile, title: String) -> State {
        let sort = if profile.meta.timed {
            Sort::SelfTime
        } else {
            Sort::Calls
        };
        let mut state = State {
            profile,
            before: None,
            title,
            view: View::Functions,
            sort,
            span: Span::Now,
            frozen: false,
            history: HashMap::new(),
            said: String::new(),
            ended: None,
            search: String::new(),
            typing: false,
            selected: 0,
            selected_id: None,
            offset: 0,
            expanded: HashSet::new(),
            callers: None,
            rows: Vec::new(),
            help: false,
        };
        state.refresh();
        state
    }

    /// A new reading; ignored while the picture is frozen.
    pub fn feed(&mut self, profile: Profile) {
        if !self.frozen && self.ended.is_none() {
            self.before = Some(std::mem::replace(&mut self.profile, profile));
            self.remember();
            self.refresh();
        }
    }

    /// Nothing happens any more: what happened in all is what is left to see.
    pub fn end(&mut self, why: String) {
        self.ended = Some(why);
        self.span = Span::SinceStart;
        self.refresh();
    }

    /// What came of an order, for the line below the table.
    pub fn say(&mut self, text: &str) {
        self.said = text.split_whitespace().collect::<Vec<_>>().join(" ");
    }

    /// What each function took since the reading before: time, or calls where nothing is timed.
    fn remember(&mut self) {
        let timed = self.profile.meta.timed;
        let figures = |profile: &Profile| -> HashMap<FuncId, u64> {
            let rows = thalweg_analysis::flat(profile).into_iter();
            rows.map(|row| (row.function, if timed { row.self_ns } else { row.calls }))
                .collect()
        };
        let before = self.before.as_ref().map(figures).unwrap_or_default();
        for (function, now) in figures(&self.profile) {
            let old = before.get(&function).copied().unwrap_or(0);
            let past = self.history.entry(function).or_default();
            past.push_back(now.saturating_sub(old));
            if past.len() > SPARKS {
                past.pop_front();
            }
        }
    }

    pub fn key(&mut self, key: KeyEvent) -> Wish {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Wish::Quit;
        }
        if self.typing {
            self.type_search(key.code);
            return Wish::Stay;
        }
        self.help = key.code == KeyCode::Char('?') && !self.help;
        match key.code {
            KeyCode::Char('q') => return Wish::Quit,
            KeyCode::Char('1') => self.show(View::Functions),
            KeyCode::Char('2') => self.show(View::Tree),
            KeyCode::Char('3') => self.show(View::Threads),
            KeyCode::Tab => self.show(match self.view {
                View::Functions => View::Tree,
                View::Tree => View::Threads,
                View::Threads => View::Functions,
            }),
            KeyCode::Char('s') => {
                let at = Sort::ALL.iter().position(|sort| *sort == self.sort);
                self.sort = Sort::ALL[(at.unwrap_or(0) + 1) % Sort::ALL.len()];
                self.refresh();
            }
            KeyCode::Char('d') => {
                self.span = match self.span {
                    Span::SinceStart => Span::Now,
                    Span::Now => Span::SinceStart,
                };
                self.refresh();
            }
            KeyCode::Char(' ' | 'f') => self.frozen = !self.frozen,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Esc => {
                self.search.clear();
                self.refresh();
            }
            KeyCode::Up | KeyCode::Char('k') => self.select(self.selected.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(self.selected + 1),
            KeyCode::PageUp => self.select(self.selected.saturating_sub(20)),
            KeyCode::PageDown => self.select(self.selected + 20),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(usize::MAX),
            KeyCode::Right | KeyCode::Char('l') => self.expand(),
            KeyCode::Left | KeyCode::Char('h') => self.collapse(),
            KeyCode::Enter => match self.row().is_some_and(|row| row.expanded) {
                true => self.collapse(),
                false => self.expand(),
            },
            KeyCode::Char('w') => self.show_callers(),
            KeyCode::Char('x') => self.expand_heaviest(),
            KeyCode::Char('o') => return self.switch(Probes::Off),
            KeyCode::Char('c') => return self.switch(Probes::Counted),
            KeyCode::Char('t') => return self.switch(Probes::Timed),
            _ => {}
        }
        Wish::Stay
    }

    fn switch(&self, probes: Probes) -> Wish {
        match self.row().and_then(|row| row.function) {
            Some(function) if self.ended.is_none() => Wish::Switch(function, probes),
            _ => Wish::Stay,
        }
    }

    fn type_search(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.search.clear();
            }
            KeyCode::Backspace => {
                self.search.pop();
            }
            KeyCode::Char(c) => self.search.push(c),
            _ => {}
        }
        self.refresh();
    }

    /// Who calls the function of the row; from there back to the functions.
    fn show_callers(&mut self) {
        let function = self.row().and_then(|row| row.function);
        match function {
            _ if self.callers.is_some() => self.show(View::Functions),
            None => {}
            Some(function) => {
                self.show(View::Tree);
                self.callers = Some(function);
                self.expanded.insert(RowId::of_callers(function));
                self.refresh();
                self.expand_heaviest();
            }
        }
    }

    fn show(&mut self, view: View) {
        self.view = view;
        self.callers = None;
        self.selected_id = None;
        self.selected = 0;
        self.offset = 0;
        self.refresh();
    }

    fn row(&self) -> Option<&Row> {
        self.rows.get(self.selected)
    }

    fn select(&mut self, row: usize) {
        self.selected = row.min(self.rows.len().saturating_sub(1));
        self.selected_id = self.row().map(|row| row.id);
    }

    fn expand(&mut self) {
        if let Some(row) = self.row().filter(|row| row.children > 0) {
            let id = row.id;
            self.select(self.selected);
            self.expanded.insert(id);
            self.refresh();
        }
    }

    /// An open row closes; a closed one moves to its parent.
    fn collapse(&mut self) {
        let Some(&Row {
            id,
            level,
            expanded,
            ..
        }) = self.row()
        else {
            return;
        };
        self.select(self.selected);
        if expanded {
            self.expanded.remove(&id);
            self.refresh();
            return;
        }
        let above = &self.rows[..self.selected];
        if let Some(parent) = above.iter().rposition(|row| row.level < level) {
            self.select(parent);
        }
    }

    /// Opens the selected row and the heaviest below it, as far as it goes.
    fn expand_heaviest(&mut self) {
        self.select(self.selected);
        let mut at = self.selected;
        while let Some(row) = self.rows.get(at).filter(|row| row.children > 0) {
            let level = row.level;
            self.expanded.insert(row.id);
            self.refresh();
            let below = self.rows.iter().enumerate().skip(at + 1);
            let children = below
                .take_while(|(_, row)| row.level > level)
                .filter(|(_, row)| row.level == level + 1);
            let Some((heaviest, row)) = children.max_by_key(|(_, row)| row.total_ns) else {
                break;
            };
            if row.total_ns * 5 < self.rows[at].total_ns {
                break;
            }
            at = heaviest;
        }
    }

    /// Makes the rows anew and finds the selected one among them.
    fn refresh(&mut self) {
        self.rows = rows::rows(self);
        let kept = self
            .selected_id
            .and_then(|id| self.rows.iter().position(|row| row.id == id));
        self.selected = kept
            .unwrap_or(self.selected)
            .min(self.rows.len().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests;
