//! Tables: columns that line up, and that give way to the last one in a stated order where there is no room for all.

use super::{Look, columns, cut};

/// Below this many columns the last column is no use.
const LEAST: usize = 20;
/// Between two columns.
const GAP: usize = 2;
/// The most lines of a last cell that stands below its row.
const LINES: usize = 3;

/// What is written in a place.
#[derive(Debug, Clone, Default)]
pub struct Cell {
    text: String,
    /// The same in less room.
    short: Option<String>,
    colour: Option<Colour>,
}

/// What a cell wants to say by its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    Good,
    Doubtful,
    Bad,
    Quiet,
}

impl Cell {
    /// This text.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// The same in less room.
    pub fn or(self, short: impl Into<String>) -> Self {
        Self { short: Some(short.into()), ..self }
    }

    /// In this colour.
    pub fn coloured(self, colour: Option<Colour>) -> Self {
        Self { colour, ..self }
    }
}

/// One way to make room for the last column.
#[derive(Debug, Clone, Copy)]
pub enum Step {
    /// Leave the column out if nothing stands in it.
    LeaveOutEmpty(&'static str),
    /// Cut its cells to so many columns.
    Narrow(&'static str, usize),
    /// Write its cells in less room.
    Shorten(&'static str),
    /// Leave it out.
    LeaveOut(&'static str),
}

/// Rows under headings.
#[derive(Debug, Clone)]
pub struct Table {
    columns: Vec<(&'static str, Vec<Cell>)>,
}

impl Table {
    /// A table of these columns; the last gives way to none.
    pub fn new(headings: &[&'static str], rows: Vec<Vec<Cell>>) -> Self {
        let mut columns: Vec<(&'static str, Vec<Cell>)> =
            headings.iter().map(|heading| (*heading, Vec::new())).collect();
        for row in rows {
            for (column, cell) in columns.iter_mut().zip(row) {
                column.1.push(cell);
            }
        }
        Self { columns }
    }

    /// The table as text. `first` are the steps that are taken as long as a last cell would be cut; `then` those that
    /// are taken as long as it would be cut too short to be of use. Where even they do not help, the last cell stands
    /// below its row.
    pub fn show(mut self, look: Look, first: &[Step], then: &[Step]) -> String {
        let Some((heading, last)) = self.columns.pop() else { return String::new() };
        let whole = last.iter().map(|cell| columns(&cell.text)).chain([heading.len()]).max().unwrap_or(0);
        let steps = first.iter().map(|step| (step, whole)).chain(then.iter().map(|step| (step, whole.min(LEAST))));
        for (step, wanted) in steps {
            if self.room(look) < wanted {
                self.take(*step);
            }
        }
        let room = self.room(look);
        let below = room < whole.min(LEAST);
        let widths: Vec<usize> = self.columns.iter().map(width).collect();
        let mut lines = Vec::new();
        for row in std::iter::once(None).chain((0..last.len()).map(Some)) {
            let mut line = self.line(row, &widths, look);
            let text = row.map_or(heading, |row| last[row].text.as_str());
            if below {
                lines.push(line.trim_end().to_owned());
                lines.extend(wrap(text, look.width.saturating_sub(GAP)).iter().map(|text| format!("  {text}")));
            } else {
                line.push_str(&cut(text, room));
                lines.push(line.trim_end().to_owned());
            }
        }
        lines.join("\n")
    }

    /// What is left of the width for the last column.
    fn room(&self, look: Look) -> usize {
        look.width.saturating_sub(self.columns.iter().map(|column| width(column) + GAP).sum())
    }

    fn take(&mut self, step: Step) {
        let cells_of = |columns: &mut Vec<(&'static str, Vec<Cell>)>, name: &str, change: &dyn Fn(&mut Cell)| {
            columns.iter_mut().filter(|(of, _)| *of == name).flat_map(|(_, cells)| cells).for_each(change);
        };
        match step {
            Step::LeaveOut(name) => self.columns.retain(|(of, _)| *of != name),
            Step::LeaveOutEmpty(name) => {
                self.columns.retain(|(of, cells)| *of != name || cells.iter().any(|cell| !cell.text.is_empty()));
            }
            Step::Narrow(name, width) => {
                cells_of(&mut self.columns, name, &|cell| cell.text = cut(&cell.text, width));
            }
            Step::Shorten(name) => cells_of(&mut self.columns, name, &|cell| {
                if let Some(short) = cell.short.take() {
                    cell.text = short;
                }
            }),
        }
    }

    /// A row, or the headings, up to where the last column begins.
    fn line(&self, row: Option<usize>, widths: &[usize], look: Look) -> String {
        let mut line = String::new();
        for (column, width) in self.columns.iter().zip(widths) {
            let (text, colour) = match row {
                Some(row) => (column.1[row].text.as_str(), column.1[row].colour.filter(|_| look.colour)),
                None => (column.0, None),
            };
            line.push_str(&paint(text, colour));
            line.extend(std::iter::repeat_n(' ', width + GAP - columns(text)));
        }
        line
    }
}

fn width((heading, cells): &(&'static str, Vec<Cell>)) -> usize {
    cells.iter().map(|cell| columns(&cell.text)).chain([heading.len()]).max().unwrap_or(0)
}

fn paint(text: &str, colour: Option<Colour>) -> String {
    let code = match colour {
        None => return text.into(),
        Some(Colour::Good) => 32,
        Some(Colour::Doubtful) => 33,
        Some(Colour::Bad) => 31,
        Some(Colour::Quiet) => 2,
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// The text in a few lines of `width`, broken between words, the last one cut.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let full = lines.len() == LINES;
        match lines.last_mut() {
            Some(line) if full || columns(line) + 1 + columns(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines.iter().map(|line| cut(line, width)).collect()
}
