//! Holds the pages together: their links, and the way to each of them.

use crate::support::pages::{all, prose, repository};
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

/// What a page links to in this repository: the file, and the heading if one is named.
fn links(page: &Path) -> Vec<(PathBuf, Option<String>)> {
    let text = fs::read_to_string(page).expect("a page can be read");
    targets(&text)
        .into_iter()
        .filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
        .map(|target| {
            let (path, heading) = match target.split_once('#') {
                Some((path, heading)) => (path, Some(heading.to_owned())),
                None => (target.as_str(), None),
            };
            let folder = page.parent().expect("a page is in a folder");
            let path = if path.is_empty() {
                page.to_owned()
            } else {
                folder.join(path)
            };
            (path, heading)
        })
        .collect()
}

/// Every `[…](target)` in the prose that is no code.
fn targets(text: &str) -> Vec<String> {
    let lines: Vec<_> = prose(text).collect();
    let lines = lines.join("\n");
    let plain: String = lines.split('`').step_by(2).collect();
    let after = plain.split("](").skip(1);
    after
        .filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()))
        .collect()
}

/// What the headings of a page are linked by, as GitHub makes it of them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen = HashMap::new();
    prose(text)
        .filter(|line| line.starts_with('#'))
        .filter_map(|line| line.trim_start_matches('#').strip_prefix(' '))
        .map(|heading| {
            let plain = heading.to_lowercase().replace(' ', "-");
            let anchor: String = plain
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_'))
                .collect();
            let times = seen.entry(anchor.clone()).or_insert(0);
            *times += 1;
            match *times {
                1 => anchor,
                times => format!("{anchor}-{}", times - 1),
            }
        })
        .collect()
}

fn broken(page: &Path) -> Vec<String> {
    let mut broken = Vec::new();
    for (path, heading) in links(page) {
        let shown = format!("{} -> {}", page.display(), path.display());
        if !path.exists() {
            broken.push(shown);
        } else if let Some(heading) = heading {
            let text = fs::read_to_string(&path).unwrap_or_default();
            if !anchors(&text).contains(&heading) {
                broken.push(format!("{shown}#{heading}"));
            }
        }
    }
    broken
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    let broken: Vec<_> = all().iter().flat_map(|page| broken(page)).collect();
    assert_eq!(broken, [""; 0]);
    let links: usize = all().iter().map(|page| links(page).len()).sum();
    assert!(links > 20, "only {links} links were found");
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let folder = tempfile::TempDir::new().expect("a temporary folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("the folder can be written to");
        path
    };
    write(
        "other.md",
        "# Other\n\n## It's `so`, twice\n\n```sh\n# no heading\n```\n\n## Other\n",
    );
    let page = write(
        "page.md",
        "[a](other.md) [b](other.md#its-so-twice) [c](other.md#other-1) [d](#here)\n\n# Here\n\
         [e](https://example.com/missing) `[f](missing.md)`\n\n```text\n[g](missing.md)\n```\n",
    );
    assert_eq!(broken(&page), [""; 0]);
    for wrong in [
        "missing.md",
        "other.md#no-heading",
        "other.md#other-2",
        "#other",
    ] {
        let page = write("wrong.md", &format!("# Wrong\n\n[a]({wrong})\n"));
        assert_eq!(broken(&page).len(), 1, "{wrong}");
    }
}

#[test]
fn every_page_can_be_reached_from_the_readme() {
    let mut reached = BTreeSet::new();
    let mut open = vec![repository().join("README.md")];
    while let Some(page) = open.pop() {
        if page.extension().is_some_and(|extension| extension == "md") && page.exists() {
            let page = fs::canonicalize(page).expect("it exists");
            if reached.insert(page.clone()) {
                open.extend(links(&page).into_iter().map(|(path, _)| path));
            }
        }
    }
    let missed: Vec<_> = all()
        .into_iter()
        .filter(|page| !reached.contains(page))
        .collect();
    assert!(missed.is_empty(), "{missed:?}");
}
