//! Tables: columns that line up, and that give way to the last one in a stated order where there is no room for all.

use std::borrow::Cow;

use super::{Look, columns, cut};

/// Below this many columns the last column is no use.
const LEAST: usize = 20;
/// Between two columns.
const GAP: usize = 2;
/// The most lines of a last cell that stands below its row.
const LINES: usize = 3;

/// What is written in a place.
#[derive(Debug, Clone, Default)]
pub struct Cell<'a> {
    text: Cow<'a, str>,
    /// A shorter form of the text, for narrow terminals.
    short: Option<Cow<'a, str>>,
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

impl<'a> Cell<'a> {
    /// This text.
    pub fn new(text: impl Into<Cow<'a, str>>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// Adds a shorter form of the text, for narrow terminals.
    pub fn or(self, short: impl Into<Cow<'a, str>>) -> Self {
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
pub struct Table<'a> {
    columns: Vec<Column<'a>>,
}

/// Cells under a heading.
#[derive(Debug, Clone)]
struct Column<'a> {
    heading: &'static str,
    cells: Vec<Cell<'a>>,
    /// What the widest of them takes, the heading included.
    width: usize,
}

impl<'a> Column<'a> {
    fn new(heading: &'static str, rows: usize) -> Self {
        Self { heading, cells: Vec::with_capacity(rows), width: columns(heading) }
    }

    fn push(&mut self, cell: Cell<'a>) {
        self.width = self.width.max(columns(&cell.text));
        self.cells.push(cell);
    }

    fn change(&mut self, change: impl Fn(&mut Cell<'a>)) {
        self.cells.iter_mut().for_each(change);
        let widths = self.cells.iter().map(|cell| columns(&cell.text));
        self.width = widths.chain([columns(self.heading)]).max().unwrap_or(0);
    }
}

impl<'a> Table<'a> {
    /// A table of these columns; the last gives way to none.
    pub fn new<Row: IntoIterator<Item = Cell<'a>>>(
        headings: &[&'static str],
        rows: impl IntoIterator<Item = Row>,
    ) -> Self {
        let rows = rows.into_iter();
        let many = rows.size_hint().0;
        let mut columns: Vec<Column<'a>> = headings.iter().map(|heading| Column::new(heading, many)).collect();
        for row in rows {
            columns.iter_mut().zip(row).for_each(|(column, cell)| column.push(cell));
        }
        Self { columns }
    }

    /// The table as text. `first` are the steps that are taken as long as a last cell would be cut; `then` those that
    /// are taken as long as it would be cut too short to be of use. Where even they do not help, the last cell stands
    /// below its row.
    pub fn show(mut self, look: Look, first: &[Step], then: &[Step]) -> String {
        let Some(last) = self.columns.pop() else { return String::new() };
        let whole = last.width;
        let steps = first.iter().map(|step| (step, whole)).chain(then.iter().map(|step| (step, whole.min(LEAST))));
        for (step, wanted) in steps {
            if self.room(look) < wanted {
                self.take(*step);
            }
        }
        let room = self.room(look);
        let below = room < whole.min(LEAST);
        let mut text = String::new();
        for row in std::iter::once(None).chain((0..last.cells.len()).map(Some)) {
            let reason = row.map_or(last.heading, |row| &*last.cells[row].text);
            let begins = text.len();
            self.write_line(&mut text, row, look);
            if !below {
                text.push_str(&cut(reason, room));
            }
            end_line(&mut text, begins);
            if below {
                for line in wrap(reason, look.width.saturating_sub(GAP)) {
                    text.push_str("  ");
                    text.push_str(&line);
                    text.push('\n');
                }
            }
        }
        text.pop();
        text
    }

    /// What is left of the width for the last column.
    fn room(&self, look: Look) -> usize {
        look.width.saturating_sub(self.columns.iter().map(|column| column.width + GAP).sum())
    }

    fn take(&mut self, step: Step) {
        let named = |columns: &mut Vec<Column<'a>>, name: &str, change: &dyn Fn(&mut Cell<'a>)| {
            columns.iter_mut().filter(|column| column.heading == name).for_each(|column| column.change(change));
        };
        match step {
            Step::LeaveOut(name) => self.columns.retain(|column| column.heading != name),
            Step::LeaveOutEmpty(name) => {
                let is_empty = |column: &Column<'a>| column.cells.iter().all(|cell| cell.text.is_empty());
                self.columns.retain(|column| column.heading != name || !is_empty(column));
            }
            Step::Narrow(name, width) => {
                named(&mut self.columns, name, &|cell| cell.text = cut(&cell.text, width).into_owned().into());
            }
            Step::Shorten(name) => named(&mut self.columns, name, &|cell| {
                if let Some(short) = cell.short.take() {
                    cell.text = short;
                }
            }),
        }
    }

    /// Writes a row, or the headings, up to where the last column begins.
    fn write_line(&self, text: &mut String, row: Option<usize>, look: Look) {
        for column in &self.columns {
            let (shown, colour) = match row {
                Some(row) => (&*column.cells[row].text, column.cells[row].colour.filter(|_| look.colour)),
                None => (column.heading, None),
            };
            text.push_str(&paint(shown, colour));
            text.extend(std::iter::repeat_n(' ', column.width + GAP - columns(shown)));
        }
    }
}

/// Ends the line that begins there, without trailing spaces.
fn end_line(text: &mut String, begins: usize) {
    text.truncate(begins + text[begins..].trim_end().len());
    text.push('\n');
}

fn paint(text: &str, colour: Option<Colour>) -> Cow<'_, str> {
    let code = match colour {
        None => return text.into(),
        Some(Colour::Good) => 32,
        Some(Colour::Doubtful) => 33,
        Some(Colour::Bad) => 31,
        Some(Colour::Quiet) => 2,
    };
    format!("\x1b[{code}m{text}\x1b[0m").into()
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
    lines.iter().map(|line| cut(line, width).into_owned()).collect()
}
