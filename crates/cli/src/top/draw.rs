//! The screen: a line about the target, the table, a line of keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span as Text};
use ratatui::widgets::{Clear, Paragraph};
use unicode_width::UnicodeWidthStr;

use super::rows::Row;
use super::{SPARKS, Span, State, View};
use crate::report::{Weights, at_least, count, counted, cut, printable, share, time};

const KEYS: &str =
    "1 functions 2 tree 3 threads  s sort  / search  w callers  o off  ? help  q quit";

const HELP: &str = "\
1 2 3, Tab   functions, tree, threads
up down      move; also j k, PgUp PgDn, Home End
right left   open and close a row of the tree; Enter does both
x            open the heaviest path below the row
w            who calls the function; again: back to the functions
s            sort by self, total, calls, name
/            search; Enter keeps, Esc drops it
space, f     freeze; the target goes on
d            what happens now, or totals since the start
o c t        probes of the function: off, counted, timed
q            quit";

pub fn draw(state: &mut State, frame: &mut Frame) {
    let [head, columns, body, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_head(state, frame, head);
    let figures = Figures::from_state(state);
    frame.render_widget(
        Paragraph::new(titles(state, figures, columns.width.into()))
            .style(Style::new().add_modifier(Modifier::REVERSED)),
        columns,
    );
    draw_body(state, frame, body, figures);
    let foot_line = match (state.typing, state.search.is_empty()) {
        (true, _) => format!("search: {}_", state.search),
        (false, false) => format!("showing '{}' only (Esc shows all)   {KEYS}", state.search),
        (false, true) if !state.said.is_empty() => format!("{}   {KEYS}", state.said),
        (false, true) => KEYS.to_string(),
    };
    frame.render_widget(Paragraph::new(foot_line).style(Style::new().dim()), foot);
    if state.help {
        draw_help(frame);
    }
}

fn draw_head(state: &State, frame: &mut Frame, area: Rect) {
    let profile = &state.profile;
    let summary = thalweg_analysis::summary(profile);
    let rate = state.before.as_ref().map(|before| {
        let span = profile
            .meta
            .duration_ns
            .saturating_sub(before.meta.duration_ns);
        let calls = summary
            .calls
            .saturating_sub(thalweg_analysis::summary(before).calls);
        calls as f64 * 1e9 / span.max(1) as f64
    });
    let mark = match (&state.ended, state.frozen) {
        (Some(why), _) => format!("  [{why}]"),
        (None, true) => "  [frozen]".to_string(),
        (None, false) => String::new(),
    };
    let first = Line::from(vec![
        Text::styled(printable(&state.title).into_owned(), Style::new().bold()),
        Text::styled(mark, Style::new().fg(Color::Yellow)),
    ]);
    let second = format!(
        "{} for {}   {} calls{}   {}   {}   {}, sorted by {}",
        if profile.meta.attached {
            "attached"
        } else {
            "recorded"
        },
        time(profile.meta.duration_ns).trim(),
        at_least(
            thalweg_analysis::Bounds::from_profile(profile).any(),
            count(summary.calls)
        ),
        rate.map_or(String::new(), |rate| format!(" ({}/s)", count(rate as u64))),
        counted(summary.threads, "thread", "threads"),
        counted(summary.contexts, "context", "contexts"),
        match state.span {
            Span::Now => "now",
            Span::SinceStart => "in all",
        },
        state.sort.title(),
    );
    frame.render_widget(Paragraph::new(vec![first, Line::raw(second)]), area);
}

/// Columns of figures before the name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Figures {
    Calls,
    Times,
    /// The same where some are estimates.
    TimesWithErrors,
}

/// So much room have names before the small pictures get any.
const NAME_ROOM: usize = 35;

const CALLS: usize = 14 + 2;
const TIMES: usize = 10 + 7 + 2 + 10 + 7 + 2;
const ERROR: usize = 10 + 2;

impl Figures {
    fn from_state(state: &State) -> Figures {
        let profile = &state.profile;
        let is_estimated =
            !profile.sampled.is_empty() || profile.meta.costs.is_some_and(|costs| costs.taken_out);
        // They are those of the sums.
        let has_errors = state.view == View::Functions
            && (state.span == Span::SinceStart || state.before.is_none());
        match profile.meta.timed {
            false => Figures::Calls,
            true if has_errors && is_estimated => Figures::TimesWithErrors,
            true => Figures::Times,
        }
    }

    /// For the small pictures. Beside errors it is better spent on what is to be known of the figures.
    fn leave_room(self, width: usize) -> bool {
        self != Figures::TimesWithErrors && width >= self.width() + SPARKS + 2 + NAME_ROOM
    }

    fn width(self) -> usize {
        match self {
            Figures::Calls => CALLS,
            Figures::Times => CALLS + TIMES,
            Figures::TimesWithErrors => CALLS + TIMES + ERROR,
        }
    }
}

fn titles(state: &State, figures: Figures, width: usize) -> String {
    let name = match state.view {
        View::Functions => "Function",
        View::Tree if state.callers.is_some() => "Callers",
        View::Tree => "Context",
        View::Threads => "Thread",
    };
    let calls = match state.span {
        Span::SinceStart => "Calls",
        Span::Now => "Calls now",
    };
    let error = match figures {
        Figures::TimesWithErrors => format!("{:>10}  ", "Error"),
        _ => String::new(),
    };
    let lately = match state.view {
        View::Functions if figures.leave_room(width) => format!("{:<SPARKS$}  ", "Lately"),
        _ => String::new(),
    };
    let line = match figures {
        Figures::Calls => format!("{calls:>14}  {lately}{name}"),
        _ => format!(
            "{calls:>14}  {:>10} {:>6}  {error}{:>10} {:>6}  {lately}{name}",
            "Self", "%", "Total", "%"
        ),
    };
    format!("{line:<width$}")
}

fn draw_body(state: &mut State, frame: &mut Frame, area: Rect, figures: Figures) {
    let height = usize::from(area.height);
    // The selected row stays in sight.
    let lowest = (state.selected + 1).saturating_sub(height);
    state.offset = state
        .offset
        .clamp(lowest, state.selected.max(lowest))
        .min(state.rows.len().saturating_sub(1));
    let whole = match state.view {
        View::Tree => state
            .rows
            .iter()
            .filter(|row| row.level == 0)
            .map(|row| row.self_ns)
            .sum(),
        View::Functions | View::Threads => state.rows.iter().map(|row| row.self_ns).sum::<u64>(),
    };
    let rows = state
        .rows
        .iter()
        .enumerate()
        .skip(state.offset)
        .take(height);
    let lines: Vec<Line> = rows
        .map(|(index, row)| {
            let line = line(row, state.view, whole, figures, area.width.into());
            match index == state.selected {
                true => line.style(Style::new().bg(Color::DarkGray).fg(Color::White)),
                false => line,
            }
        })
        .collect();
    if lines.is_empty() {
        let nothing = match state.search.is_empty() {
            true => "nothing was called yet",
            false => "nothing matches",
        };
        frame.render_widget(Paragraph::new(nothing).style(Style::new().dim()), area);
        return;
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn line(row: &Row, view: View, whole: u64, figures: Figures, width: usize) -> Line<'static> {
    let calls = row.calls.map_or_else(|| "-".to_owned(), count);
    let calls = at_least(row.at_least, calls);
    let mut parts = vec![Text::raw(format!("{calls:>14}  "))];
    let timed = |ns: u64| {
        let heat = match whole {
            0 => Color::Reset,
            whole if ns >= whole / 5 => Color::Red,
            whole if ns >= whole / 20 => Color::Yellow,
            _ => Color::Reset,
        };
        let text = format!("{:>10} {}  ", time(ns), share(ns, whole));
        Text::styled(text, Style::new().fg(heat))
    };
    if figures != Figures::Calls {
        parts.push(timed(row.self_ns));
        if figures == Figures::TimesWithErrors {
            parts.push(Text::raw(format!(
                "{}  ",
                Weights::by(None).text_if(row.error > 0, row.error)
            )));
        }
        parts.push(timed(row.total_ns));
    }
    let mut room = width.saturating_sub(figures.width());
    if view == View::Functions && figures.leave_room(width) {
        parts.push(Text::styled(
            format!("{:<SPARKS$}  ", row.sparks),
            Style::new().fg(Color::Cyan),
        ));
        room = room.saturating_sub(SPARKS + 2);
    }
    let mark = match (view, row.children, row.expanded) {
        (View::Tree, 0, _) => "  ",
        (View::Tree, _, true) => "- ",
        (View::Tree, _, false) => "+ ",
        _ => "",
    };
    // Deep contexts keep some room for their name.
    let indent = " ".repeat((row.level * 2).min(room / 2));
    let name_room = room.saturating_sub(indent.len() + mark.len());
    let state = match row.mark.is_empty() {
        true => String::new(),
        false => format!(" [{}]", row.mark),
    };
    let module = match row.module.is_empty() {
        true => String::new(),
        false => format!("  {}", printable(&row.module)),
    };
    // What is to be known of the figures goes before the rest of a long name.
    let name_room = name_room.saturating_sub(state.len()).max(name_room / 2);
    let module_room = name_room.saturating_sub(row.name.width());
    let name = cut(&printable(&row.name), name_room).into_owned();
    parts.push(Text::raw(format!("{indent}{mark}{name}")));
    parts.push(Text::styled(state, Style::new().dim()));
    if module.width() <= module_room {
        parts.push(Text::styled(module, Style::new().dim()));
    }
    Line::from(parts)
}

fn draw_help(frame: &mut Frame) {
    let area = frame.area();
    let (width, height) = (64.min(area.width), 13.min(area.height));
    let place = Rect {
        x: (area.width - width) / 2,
        y: (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, place);
    let block = ratatui::widgets::Block::bordered().title(" keys ");
    frame.render_widget(Paragraph::new(HELP).block(block), place);
}
