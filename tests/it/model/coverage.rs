//! Which cells of the tables a run went through.

use std::collections::BTreeMap;
use std::fmt;

/// A state, a call and who made it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    pub row: String,
    pub call: &'static str,
    pub who: String,
}

impl Cell {
    pub fn new(row: impl Into<String>, call: &'static str, who: impl Into<String>) -> Self {
        Self {
            row: row.into(),
            call,
            who: who.into(),
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} / {} / {}", self.row, self.call, self.who)
    }
}

#[derive(Clone, Debug, Default)]
pub struct Coverage {
    hits: BTreeMap<(Cell, String), usize>,
    cut_short: usize,
}

impl Coverage {
    /// Of the outcome only the name is kept, and the reason of a loss.
    pub fn hit(&mut self, cell: Cell, outcome: &impl fmt::Debug) {
        let outcome = format!("{outcome:?}");
        let name = outcome.split([' ', '{']).next().unwrap_or_default();
        *self.hits.entry((cell, name.to_owned())).or_default() += 1;
    }

    /// A sequence ended early because its calls took too long.
    pub fn cut_short(&mut self) {
        self.cut_short += 1;
    }

    pub fn sequences_cut_short(&self) -> usize {
        self.cut_short
    }

    pub fn add(&mut self, other: &Self) {
        for (key, hits) in &other.hits {
            *self.hits.entry(key.clone()).or_default() += hits;
        }
        self.cut_short += other.cut_short;
    }

    /// How often a call fell into a cell. `who` may be the beginning of several.
    pub fn hits(&self, row: &str, call: &str, who: &str) -> usize {
        let cells = self.hits.iter().filter(|((cell, _), _)| {
            cell.row == row && cell.call == call && cell.who.starts_with(who)
        });
        cells.map(|(_, hits)| hits).sum()
    }

    /// How often a call that fell into a cell was answered so. Any row where `row` is empty.
    pub fn outcomes(&self, row: &str, call: &str, who: &str, outcome: &str) -> usize {
        let cells = self.hits.iter().filter(|((cell, name), _)| {
            (row.is_empty() || cell.row == row)
                && cell.call == call
                && cell.who == who
                && name == outcome
        });
        cells.map(|(_, hits)| hits).sum()
    }
}

/// One line a cell and outcome, the rarest first.
impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut hits: Vec<_> = self.hits.iter().collect();
        hits.sort_by_key(|(_, hits)| **hits);
        for ((cell, outcome), hits) in hits {
            writeln!(f, "{hits:>7}  {cell} -> {outcome}")?;
        }
        Ok(())
    }
}
