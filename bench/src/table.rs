//! The benchmark's table: figures, and goals with whether they are met.

/// A figure that must stay at or below another.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    unit: &'static str,
    figure: f64,
    limit: f64,
}

impl Goal {
    pub fn at_most(unit: &'static str, figure: f64, limit: f64) -> Goal {
        Goal {
            unit,
            figure,
            limit,
        }
    }

    pub fn met(&self) -> bool {
        self.figure <= self.limit
    }

    fn text(&self) -> String {
        let verdict = if self.met() { "pass" } else { "MISSED" };
        format!(
            "{:.2} {} (goal {:.2}): {verdict}",
            self.figure, self.unit, self.limit
        )
    }
}

enum Line {
    Heading(String),
    Note(String),
    Row {
        name: String,
        figure: f64,
        ratio: f64,
        bytes: u64,
        goal: Option<Goal>,
    },
    Goal {
        name: String,
        goal: Goal,
    },
}

#[derive(Default)]
pub struct Table {
    lines: Vec<Line>,
}

impl Table {
    pub fn heading(&mut self, text: &str) {
        self.lines.push(Line::Heading(text.to_owned()));
    }

    pub fn row(&mut self, name: &str, figure: f64, ratio: f64, bytes: u64, goal: Option<Goal>) {
        self.lines.push(Line::Row {
            name: name.to_owned(),
            figure,
            ratio,
            bytes,
            goal,
        });
    }

    pub fn goal(&mut self, name: &str, goal: Goal) {
        self.lines.push(Line::Goal {
            name: name.to_owned(),
            goal,
        });
    }

    /// More about the line above.
    pub fn note(&mut self, text: &str) {
        self.lines.push(Line::Note(text.to_owned()));
    }

    pub fn missed(&self) -> usize {
        self.goals().filter(|goal| !goal.met()).count()
    }

    fn goals(&self) -> impl Iterator<Item = &Goal> {
        self.lines.iter().filter_map(|line| match line {
            Line::Heading(_) | Line::Note(_) => None,
            Line::Row { goal, .. } => goal.as_ref(),
            Line::Goal { goal, .. } => Some(goal),
        })
    }

    pub fn print(&self) {
        for line in &self.lines {
            match line {
                Line::Heading(text) => println!("\n{text}"),
                Line::Note(text) => println!("{text}"),
                Line::Row {
                    name,
                    figure,
                    ratio,
                    bytes,
                    goal,
                } => {
                    let bytes = if *bytes > 0 {
                        megabytes(*bytes)
                    } else {
                        String::new()
                    };
                    let goal = goal.as_ref().map(Goal::text).unwrap_or_default();
                    let line =
                        format!("  {name:<32} {figure:>10.2} {ratio:>9.2}x {bytes:>10}  {goal}");
                    println!("{}", line.trim_end());
                }
                Line::Goal { name, goal } => println!("  {name:<32} {:>32}  {}", "", goal.text()),
            }
        }
        println!("\n{} goals, {} missed", self.goals().count(), self.missed());
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.2} MB", bytes as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_goal_is_counted_and_said() {
        let mut table = Table::default();
        table.heading("calls");
        table.row(
            "thalweg",
            22.0,
            18.0,
            0,
            Some(Goal::at_most("x floor", 1.1, 1.25)),
        );
        assert_eq!(table.missed(), 0);
        table.row(
            "thalweg",
            30.0,
            25.0,
            0,
            Some(Goal::at_most("x floor", 1.5, 1.25)),
        );
        table.goal("size", Goal::at_most("MB", 2.5, 2.0));
        assert_eq!(table.missed(), 2);
        assert!(Goal::at_most("MB", 2.5, 2.0).text().contains("MISSED"));
        assert!(Goal::at_most("MB", 2.0, 2.0).text().contains("pass"));
    }
}
