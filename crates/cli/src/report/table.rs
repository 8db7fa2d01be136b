//! Rows and columns that line up, whatever the report: widths come from the cells, the last column takes what is left.

use std::io::{self, Write};

use unicode_width::UnicodeWidthStr;

use super::style::{Paint, Style};
use super::text::{cut, pad};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

#[derive(Clone, Debug, Default)]
pub struct Cell {
    text: String,
    /// Stays whole when the text before it has to be cut.
    tail: String,
    /// Dimmed, behind the rest; goes first where there is no room.
    aside: String,
    paint: Paint,
}

impl Cell {
    pub fn new(text: impl Into<String>) -> Cell {
        Cell {
            text: text.into(),
            ..Cell::default()
        }
    }

    pub fn painted(text: impl Into<String>, paint: Paint) -> Cell {
        Cell {
            paint,
            ..Cell::new(text)
        }
    }

    pub fn tail(mut self, tail: impl Into<String>) -> Cell {
        self.tail = tail.into();
        self
    }

    pub fn aside(mut self, aside: impl Into<String>) -> Cell {
        self.aside = format!("  {}", aside.into());
        self
    }

    fn width(&self) -> usize {
        self.text.width() + self.tail.width() + self.aside.width()
    }
}

struct Column {
    title: String,
    align: Align,
    /// On a terminal no wider than this.
    most: Option<usize>,
    /// Left out on a narrow terminal; those with larger numbers go first.
    dispensable: u8,
}

enum Row {
    Cells(Vec<Cell>),
    Text(String, Paint),
}

pub struct Table {
    style: Style,
    columns: Vec<Column>,
    rows: Vec<Row>,
}

/// Columns that can be left out are, until the last one has this.
const GOOD_LAST_WIDTH: usize = 40;
/// Below this a name says nothing; better that the terminal wraps.
const MIN_LAST_WIDTH: usize = 16;
/// The same of what stands behind a name.
const MIN_ASIDE_WIDTH: usize = 9;
const MIN_TAIL_WIDTH: usize = 8;

impl Table {
    pub fn new(style: Style) -> Table {
        Table {
            style,
            columns: Vec::new(),
            rows: Vec::new(),
        }
    }

    pub fn column(mut self, title: impl Into<String>, align: Align) -> Table {
        self.columns.push(Column {
            title: title.into(),
            align,
            most: None,
            dispensable: 0,
        });
        self
    }

    /// Of the column added last.
    pub fn at_most(mut self, width: usize) -> Table {
        self.columns.last_mut().expect("a column").most = Some(width);
        self
    }

    /// Of the column added last.
    pub fn dispensable(mut self, order: u8) -> Table {
        self.columns.last_mut().expect("a column").dispensable = order;
        self
    }

    /// One cell per column.
    pub fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(Row::Cells(cells));
    }

    /// A line of its own, which lines up with nothing.
    pub fn text(&mut self, text: impl Into<String>, paint: Paint) {
        self.rows.push(Row::Text(text.into(), paint));
    }

    pub fn print(mut self, out: &mut impl Write) -> io::Result<()> {
        let last = self.columns.len() - 1;
        let mut widths: Vec<usize> = self.columns.iter().map(|c| c.title.width()).collect();
        for row in &self.rows {
            let Row::Cells(cells) = row else { continue };
            for (width, cell) in widths.iter_mut().zip(cells) {
                *width = (*width).max(cell.width());
            }
        }
        if let Some(terminal) = self.style.width {
            for (width, column) in widths.iter_mut().zip(&self.columns) {
                *width = column.most.map_or(*width, |most| (*width).min(most));
            }
            let left = |widths: &[usize], columns: &[Column]| {
                let shown = widths[..last].iter().zip(columns);
                let before: usize = shown
                    .filter(|(_, column)| column.dispensable != u8::MAX)
                    .map(|(width, _)| width + 2)
                    .sum();
                terminal.saturating_sub(before)
            };
            let wanted = widths[last].min(GOOD_LAST_WIDTH);
            while left(&widths, &self.columns) < wanted {
                let columns = self.columns.iter_mut();
                let next = columns
                    .filter(|column| (1..u8::MAX).contains(&column.dispensable))
                    .max_by_key(|column| column.dispensable);
                match next {
                    Some(column) => column.dispensable = u8::MAX,
                    None => break,
                }
            }
            let room = left(&widths, &self.columns).max(MIN_LAST_WIDTH);
            widths[last] = widths[last].min(room);
        }

        let titles = self.columns.iter().map(|column| Cell::new(&column.title));
        let head = self.line(&titles.collect::<Vec<_>>(), &widths, Style::plain());
        writeln!(out, "{}", self.style.paint(Paint::Title, &head))?;
        for row in &self.rows {
            match row {
                Row::Cells(cells) => writeln!(out, "{}", self.line(cells, &widths, self.style))?,
                Row::Text(text, paint) => {
                    let text = match self.style.width {
                        Some(width) => cut(text, width).into_owned(),
                        None => text.clone(),
                    };
                    writeln!(out, "{}", self.style.paint(*paint, &text))?;
                }
            }
        }
        Ok(())
    }

    fn line(&self, cells: &[Cell], widths: &[usize], style: Style) -> String {
        let mut line = String::new();
        let mut blanks = 0;
        for ((cell, column), &width) in cells.iter().zip(&self.columns).zip(widths) {
            if column.dispensable == u8::MAX {
                continue;
            }
            let aside = fitted_aside(cell, width);
            let fitted = fit(cell, width);
            let fill = width.saturating_sub(fitted.width() + aside.width());
            if column.align == Align::Right {
                blanks += fill;
            }
            if !fitted.is_empty() {
                line.push_str(&pad("", blanks));
                blanks = 0;
                line.push_str(&style.paint(cell.paint, &fitted));
                if !aside.is_empty() {
                    line.push_str(&style.paint(Paint::Aside, &aside));
                }
            }
            if column.align == Align::Left {
                blanks += fill;
            }
            blanks += 2;
        }
        line
    }
}

/// What stands behind the rest, if there is room for enough of it.
fn fitted_aside(cell: &Cell, width: usize) -> String {
    let room = width.saturating_sub(cell.text.width() + cell.tail.width());
    match cell.aside.width() {
        wanted if wanted <= room => cell.aside.clone(),
        _ if room < MIN_ASIDE_WIDTH => String::new(),
        _ => format!("  {}", cut(cell.aside.trim_start(), room - 2)),
    }
}

fn fit(cell: &Cell, width: usize) -> String {
    let whole = || format!("{}{}", cell.text, cell.tail);
    if cell.text.width() + cell.tail.width() <= width {
        whole()
    } else if cell.tail.width() + MIN_LAST_WIDTH <= width {
        let text = cut(&cell.text, width - cell.tail.width());
        format!("{text}{}", cell.tail)
    } else if cell.text.width() + MIN_TAIL_WIDTH <= width {
        let tail = cut(&cell.tail, width - cell.text.width());
        format!("{}{tail}", cell.text)
    } else {
        cut(&whole(), width).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn print(width: Option<usize>) -> String {
        let style = Style {
            width,
            colour: false,
        };
        let mut table = Table::new(style)
            .column("N", Align::Right)
            .column("Note", Align::Left)
            .dispensable(1)
            .column("Name", Align::Left);
        table.row(vec![
            Cell::new("7"),
            Cell::new("a note of some length"),
            Cell::new("a_function_with_a_rather_long_name_in_it").tail(" [mark]"),
        ]);
        table.row(vec![Cell::new("1,000"), Cell::new(""), Cell::new("f")]);
        let mut out = Vec::new();
        table.print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_line_up_and_lines_end_without_blanks() {
        assert_eq!(
            print(None),
            "    N  Note                   Name\n\
             \x20   7  a note of some length  a_function_with_a_rather_long_name_in_it [mark]\n\
             1,000                         f\n"
        );
    }

    #[test]
    fn what_stands_behind_a_name_is_cut_before_the_name_and_before_it_goes() {
        let print = |width| {
            let style = Style {
                width: Some(width),
                colour: false,
            };
            let mut table = Table::new(style).column("Name", Align::Left);
            table.row(vec![Cell::new("sub_fc9b0").aside("libsqlite3.so.0.8.6")]);
            let mut out = Vec::new();
            table.print(&mut out).unwrap();
            String::from_utf8(out)
                .unwrap()
                .lines()
                .nth(1)
                .unwrap()
                .to_string()
        };
        assert_eq!(print(30), "sub_fc9b0  libsqlite3.so.0.8.6");
        assert_eq!(print(26), "sub_fc9b0  libsqlit\u{2026}.0.8.6");
        assert_eq!(print(17), "sub_fc9b0");
        let made = Cell::new("GC Thread#0").tail(" (made in os::create_thread)");
        assert_eq!(fit(&made, 28), "GC Thread#0 (made in\u{2026}thread)");
    }

    #[test]
    fn a_narrow_terminal_loses_what_it_can_spare_and_then_the_middle_of_names() {
        let narrow = print(Some(40));
        assert!(!narrow.contains("note"), "{narrow}");
        assert!(
            narrow.contains("\u{2026}") && narrow.contains(" [mark]"),
            "{narrow}"
        );
        assert!(narrow.lines().all(|line| line.width() <= 40), "{narrow}");
    }
}
