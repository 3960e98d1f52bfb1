//! The pages of the documentation, taken apart.

use std::fs;
use std::path::{Path, PathBuf};

/// A fenced block of code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// What stands behind the fence: `sh`, `text`.
    pub language: String,
    pub text: String,
    /// What is said between the block before and this one.
    pub prose: String,
    /// Where it begins.
    pub line: usize,
}

/// The folder that holds the README.
pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A page of `docs/`.
pub fn page(name: &str) -> String {
    let path = repository().join("docs").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The README, its neighbours, and all pages of `docs/`.
pub fn all() -> Vec<PathBuf> {
    let folder = fs::read_dir(repository().join("docs")).expect("there is a folder of pages");
    let mut pages: Vec<_> = folder
        .map(|entry| entry.expect("it can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .chain(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| repository().join(name)))
        .collect();
    pages.sort();
    pages
}

/// The lines of a page that are in no block.
pub fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_open = false;
    page.lines().filter(move |line| {
        let is_fence = line.starts_with("```");
        is_open ^= is_fence;
        !is_fence && !is_open
    })
}

/// The blocks of a page, in order.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut prose = String::new();
    let mut open: Option<Block> = None;
    for (number, line) in page.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (Some(_), Some("")) => blocks.extend(open.take()),
            (Some(block), _) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, Some(language)) => {
                open = Some(Block {
                    language: language.to_owned(),
                    text: String::new(),
                    prose: std::mem::take(&mut prose),
                    line: number + 1,
                });
            }
            (None, None) => {
                prose.push_str(line);
                prose.push('\n');
            }
        }
    }
    assert_eq!(open, None, "a block has no end");
    blocks
}
