//! Tables for people: columns that line up, a page at a time.

use std::fmt::Write as _;

/// A longer value pushes the rest of its own row aside, not everyone's.
const WIDEST_COLUMN: usize = 40;
const GAP: &str = "  ";

/// A table that is printed page by page, so that a long one needs no more memory than a page.
pub(super) struct Table {
    widths: Vec<usize>,
    header: Vec<&'static str>,
}

impl Table {
    pub(super) fn new(header: Vec<&'static str>) -> Self {
        Self {
            widths: header.iter().map(|name| name.len()).collect(),
            header,
        }
    }

    /// The rows as text, below the header where they are the first. The values of the last column can have any length.
    pub(super) fn page(&mut self, rows: &[Vec<String>]) -> String {
        if rows.is_empty() {
            return String::new();
        }
        for row in rows {
            for (width, cell) in self.widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count().min(WIDEST_COLUMN));
            }
        }
        let mut text = String::new();
        let header = std::mem::take(&mut self.header);
        if !header.is_empty() {
            let header: Vec<_> = header.into_iter().map(str::to_owned).collect();
            self.add(&mut text, &header);
        }
        for row in rows {
            self.add(&mut text, row);
        }
        text
    }

    fn add(&self, text: &mut String, row: &[String]) {
        let cells = row.iter().zip(&self.widths);
        let line = cells.fold(String::new(), |mut line, (cell, width)| {
            let _ = write!(line, "{cell:<width$}{GAP}");
            line
        });
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

/// Names and their values, one pair a line.
pub(super) fn pairs(pairs: &[(&'static str, String)]) -> String {
    let widest = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    pairs.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name:<widest$}{GAP}{value}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: [&str; 2]) -> Vec<String> {
        cells.map(str::to_owned).to_vec()
    }

    #[test]
    fn columns_line_up_and_the_header_is_printed_once() {
        let mut table = Table::new(vec!["KEY", "STATE"]);
        assert_eq!(table.page(&[]), "");
        let first = table.page(&[row(["a", "in-flight"]), row(["longer", "-"])]);
        assert_eq!(first, "KEY     STATE\na       in-flight\nlonger  -\n");
        assert_eq!(table.page(&[row(["b", "x"])]), "b       x\n");
    }

    #[test]
    fn a_long_value_pushes_only_its_own_row_aside() {
        let mut table = Table::new(vec!["KEY", "STATE"]);
        let long = "k".repeat(200);
        let text = table.page(&[row([&long, "x"]), row(["a", "y"])]);
        assert!(text.contains(&format!("{long}  x\n")), "{text}");
        assert!(text.ends_with(&format!("a{}y\n", " ".repeat(41))), "{text}");
    }
}
