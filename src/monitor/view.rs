//! The view of `nereid top`: what is selected, sorted, filtered and paused, what a key changes, and the lines for a
//! terminal of any size.

mod screens;

use super::figures::ModelKey;
use super::history::History;
use super::line::Line;
use super::overview::{Overview, Row};
use super::table::{Column, plain_table};

/// Characters of a filter.
const FILTER_MAX: usize = 200;

/// A key, as far as the view has a use for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Char(char),
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Escape,
    Backspace,
    /// Ctrl-C.
    Interrupt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Continue,
    Quit,
}

/// The state of the screen.
pub struct View {
    address: String,
    overview: Option<Overview>,
    /// Why there is no newer overview.
    trouble: Option<String>,
    history: History,
    sorted_by: Column,
    is_descending: bool,
    filter: String,
    edits_filter: bool,
    is_paused: bool,
    /// Shows one model instead of the table.
    shows_detail: bool,
    selected: Option<ModelKey>,
    /// The first row that is shown.
    top: usize,
    /// Rows that were shown last, for a page up or down.
    page: usize,
}

impl View {
    pub fn new(address: String) -> View {
        View {
            address,
            overview: None,
            trouble: None,
            history: History::default(),
            sorted_by: Column::Requests,
            is_descending: true,
            filter: String::new(),
            edits_filter: false,
            is_paused: false,
            shows_detail: false,
            selected: None,
            top: 0,
            page: 1,
        }
    }

    /// Sorts by a column: names from A, figures from the largest.
    pub fn sort_by(&mut self, column: Column) {
        self.sorted_by = column;
        self.is_descending = column != Column::Model;
    }

    /// Shows only models whose names contain this.
    pub fn filter_by(&mut self, text: &str) {
        self.filter = text.chars().take(FILTER_MAX).collect();
    }

    /// All rows as plain text, with a head and the totals, for scripts.
    pub fn plain(&self) -> String {
        let rates = self.overview.as_ref().map(|overview| overview.totals.rates.clone()).unwrap_or_default();
        plain_table(self.rows().into_iter(), &rates)
    }

    /// Takes a new overview. A paused view keeps the one that it shows.
    pub fn update(&mut self, overview: Overview) {
        self.trouble = None;
        self.history.note(&overview);
        if !self.is_paused || self.overview.is_none() {
            self.overview = Some(overview);
        }
    }

    /// The server does not answer; what it said last stays on the screen.
    pub fn lose(&mut self, reason: String) {
        self.trouble = Some(reason);
    }

    pub fn key(&mut self, key: Key) -> Command {
        match key {
            Key::Interrupt => return Command::Quit,
            _ if self.edits_filter => self.edit_filter(key),
            Key::Char('q' | 'Q') => return Command::Quit,
            Key::Escape if self.shows_detail => self.shows_detail = false,
            Key::Escape => self.filter.clear(),
            Key::Enter => self.shows_detail = !self.shows_detail && self.selected_row().is_some(),
            Key::Char('p' | ' ') => self.is_paused = !self.is_paused,
            Key::Char('/') => (self.edits_filter, self.shows_detail) = (true, false),
            Key::Char('r') => self.is_descending = !self.is_descending,
            Key::Left => self.sort_by_neighbour(-1),
            Key::Right => self.sort_by_neighbour(1),
            Key::Up | Key::Char('k') => self.step(-1),
            Key::Down | Key::Char('j') => self.step(1),
            Key::PageUp => self.step(-(self.page.max(1) as isize)),
            Key::PageDown => self.step(self.page.max(1) as isize),
            Key::Home => self.step(isize::MIN / 2),
            Key::End => self.step(isize::MAX / 2),
            Key::Char(_) | Key::Backspace => {}
        }
        Command::Continue
    }

    fn edit_filter(&mut self, key: Key) {
        match key {
            Key::Char(c) if self.filter.chars().count() < FILTER_MAX => self.filter.push(c),
            Key::Backspace => drop(self.filter.pop()),
            Key::Enter => self.edits_filter = false,
            Key::Escape => {
                self.filter.clear();
                self.edits_filter = false;
            }
            _ => {}
        }
    }

    fn sort_by_neighbour(&mut self, step: isize) {
        let at = Column::ALL.iter().position(|column| *column == self.sorted_by).unwrap_or_default();
        let next = (at as isize + step).rem_euclid(Column::ALL.len() as isize) as usize;
        if let Some(column) = Column::ALL.get(next) {
            self.sort_by(*column);
        }
    }

    /// Selects another row, `by` rows further.
    fn step(&mut self, by: isize) {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1) as isize;
        let at = self.selected.as_ref().and_then(|key| rows.iter().position(|row| row.key == *key));
        let next = match at {
            Some(at) => (at as isize).saturating_add(by).clamp(0, last),
            None if by > 1 => last.min(by),
            None => 0,
        };
        let key = usize::try_from(next).ok().and_then(|next| rows.get(next)).map(|row| row.key.clone());
        self.selected = key;
    }

    /// The rows that the filter leaves, in their order.
    fn rows(&self) -> Vec<&Row> {
        let all = self.overview.as_ref().map(|overview| overview.rows.as_slice()).unwrap_or_default();
        let wanted = self.filter.to_lowercase();
        let mut rows: Vec<&Row> =
            all.iter().filter(|row| wanted.is_empty() || row.key.name.to_lowercase().contains(&wanted)).collect();
        // Rows are sorted by name; equal ones stay so.
        rows.sort_by(|one, other| {
            let order = self.sorted_by.order(one, other);
            if self.is_descending { order.reverse() } else { order }
        });
        rows
    }

    fn selected_row(&self) -> Option<&Row> {
        let key = self.selected.as_ref()?;
        self.overview.as_ref()?.rows.iter().find(|row| row.key == *key)
    }

    /// The screen, top to bottom: at most `height` lines of at most `width` characters.
    pub fn lines(&mut self, width: usize, height: usize) -> Vec<Line> {
        let lines = if self.shows_detail { self.detail(width, height) } else { self.table(width, height) };
        lines.into_iter().take(height).map(|line| line.cut(width)).collect()
    }

    /// The first row that is shown, so that the selected one is on the screen.
    fn first_row(&self, count: usize, selected: Option<usize>, room: usize) -> usize {
        let top = match selected {
            Some(at) => self.top.clamp(at.saturating_sub(room.saturating_sub(1)), at),
            None => self.top,
        };
        top.min(count.saturating_sub(room))
    }
}
