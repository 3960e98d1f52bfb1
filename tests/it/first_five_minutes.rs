//! Does what docs/first-five-minutes.md says, in real terminals, and holds what they show against the page. So with what other
//! pages show.
//!
//! A `sh` block is typed into the terminal that the text before it names last, or else into that of the block before;
//! "both terminals" is each. A `text` block is what that terminal shows next, to the letter, but for numbers of sixteen
//! digits and more: these are fencing tokens, which must be equal, less or greater among themselves as they are on the page.
//! A block has ended before the next is typed, unless its terminal shows more of it further down.

use crate::support::pages::{Block, blocks, page};
use crate::support::redis::RedisServer;
use crate::support::service::Service;
use crate::support::terminal::Terminal;
use crate::support::{BOUND, program};
use std::fs;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const PAGE: &str = "first-five-minutes.md";
const UNCERTAIN: &str = "take-over-or-mark-uncertain.md";
const NEXT_CLAIMANT: &str = "\n## What the next claimant sees\n";
/// From here on people are asked.
const OPERATORS: &str = "\n## How an operator resolves\n";
/// The service; the test has one of its own.
const SERVES: &str = "make run\n";
/// As a page begins whose reader has the program on PATH.
const INSTALLED: &str = "```sh\nexport PATH=\"$PWD/target/release:$PATH\"\n```\n";
const FENCING_TOKEN_DIGITS: usize = 16;

/// What a block is to the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Typed,
    Shown,
}

/// A block, in one terminal.
#[derive(Debug)]
struct Step {
    kind: Kind,
    terminal: usize,
    text: String,
    line: usize,
}

fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut terminals = vec![0];
    for Block {
        language,
        text,
        prose,
        line,
    } in blocks(page)
    {
        if let Some(named) = named_last(&prose) {
            terminals = named;
        }
        let kind = match language.as_str() {
            "sh" if text == SERVES => continue,
            "sh" => Kind::Typed,
            "text" => Kind::Shown,
            other => panic!("line {line}: {other:?} is neither typed nor shown"),
        };
        steps.extend(terminals.iter().map(|&terminal| Step {
            kind,
            terminal,
            text: text.clone(),
            line,
        }));
    }
    steps
}

fn named_last(prose: &str) -> Option<Vec<usize>> {
    let prose = prose.to_lowercase().replace('\n', " ");
    [
        ("terminal 1", vec![0]),
        ("terminal 2", vec![1]),
        ("both terminals", vec![0, 1]),
    ]
    .into_iter()
    .filter_map(|(name, terminals)| Some((prose.rfind(name)?, terminals)))
    .max()
    .map(|(_, terminals)| terminals)
}

/// Fencing tokens on the page, each with what it is in this run.
#[derive(Debug, Default)]
struct FencingTokens(Vec<(u64, u64)>);

impl FencingTokens {
    /// Whether a text says the same; learns its tokens where it does.
    fn agree(&mut self, on_page: &str, shown: &str) -> bool {
        let (said, on_page) = taken_out(on_page);
        let (shown_words, shown) = taken_out(shown);
        let mut all = self.0.clone();
        all.extend(on_page.iter().copied().zip(shown.iter().copied()));
        let in_order = all.iter().all(|one| {
            let same = |other: &(u64, u64)| one.0.cmp(&other.0) == one.1.cmp(&other.1);
            all.iter().all(same)
        });
        let agree = said == shown_words && on_page.len() == shown.len() && in_order;
        if agree {
            self.0 = all;
        }
        agree
    }
}

/// A text with a mark for each fencing token, and the tokens.
fn taken_out(text: &str) -> (String, Vec<u64>) {
    let mut words = String::new();
    let mut tokens = Vec::new();
    for piece in text.split_inclusive(|c: char| !c.is_ascii_digit()) {
        let digits = piece.trim_end_matches(|c: char| !c.is_ascii_digit());
        if digits.len() < FENCING_TOKEN_DIGITS {
            words.push_str(piece);
            continue;
        }
        tokens.push(digits.parse().expect("a fencing token fits"));
        words.push('#');
        words.push_str(&piece[digits.len()..]);
    }
    (words, tokens)
}

/// Does all that a page says; what is otherwise than it says.
async fn run(page: &str) -> Result<usize, String> {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let folder = TempDir::new().expect("a temporary folder");
    let built = folder.path().join("target/release");
    fs::create_dir_all(&built).expect("the folder can be written to");
    std::os::unix::fs::symlink(program::FILE, built.join("claimlock")).expect("a link");
    let mut terminals = [
        Terminal::open(folder.path(), "terminal 1", service.grpc).await,
        Terminal::open(folder.path(), "terminal 2", service.grpc).await,
    ];

    let mut tokens = FencingTokens::default();
    let steps = steps(page);
    for (number, step) in steps.iter().enumerate() {
        let terminal = &mut terminals[step.terminal];
        match step.kind {
            Kind::Typed => terminal.types(&step.text).await,
            Kind::Shown => {
                shows(terminal, step, |shown, _| tokens.agree(&step.text, shown)).await?;
                terminal.looked_at();
            }
        }
        let next = steps[number + 1..]
            .iter()
            .find(|next| next.terminal == step.terminal);
        if next.is_none_or(|next| next.kind == Kind::Typed) {
            shows(terminal, step, |shown, ended| shown.is_empty() && ended).await?;
            terminal.is_done();
        }
    }
    Ok(steps.len())
}

/// Waits until a terminal shows what it is to; at most until what was typed has ended.
async fn shows(
    terminal: &Terminal,
    step: &Step,
    mut is_as_said: impl FnMut(&str, bool) -> bool,
) -> Result<(), String> {
    let deadline = Instant::now() + BOUND;
    loop {
        let (shown, ended) = terminal.shown();
        if is_as_said(&shown, ended) {
            return Ok(());
        }
        if ended || Instant::now() > deadline {
            let Step {
                kind,
                terminal,
                text,
                line,
            } = step;
            let more = if ended { "" } else { ", and goes on" };
            return Err(format!(
                "line {line}: {kind:?} in terminal {}:\n{text}\nit shows{more}:\n{shown}",
                terminal + 1
            ));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn the_first_five_minutes_are_as_the_page_says() {
    let steps = run(&page(PAGE))
        .await
        .unwrap_or_else(|wrong| panic!("{PAGE}, {wrong}"));
    assert!(steps >= 20, "only {steps} blocks were found");
}

#[tokio::test]
async fn what_is_said_of_an_uncertain_claim_is_what_is_shown() {
    let page = page(UNCERTAIN);
    let (before, _) = page.split_once(OPERATORS).expect("the heading is there");
    let (_, runs) = before.split_once(NEXT_CLAIMANT).expect("so is this");
    let steps = run(&format!("{INSTALLED}{runs}"))
        .await
        .unwrap_or_else(|wrong| panic!("{UNCERTAIN}, {wrong}"));
    assert_eq!(steps, 3);
}

#[tokio::test]
async fn a_page_that_is_wrong_is_found() {
    let wrong = |typed: &str, shown: &str| {
        format!("In terminal 1:\n\n```sh\n{typed}\n```\n\n```text\n{shown}\n```\n")
    };
    let two_tokens = "echo 1796067124874447; echo 1796067124874448";
    let (one, other) = ("1000000000000001", "1000000000000002");
    assert_eq!(
        run(&wrong(two_tokens, &format!("{one}\n{other}"))).await,
        Ok(2)
    );
    for page in [
        wrong("echo a", "b"),
        wrong("echo a", "a\nb"),
        wrong("echo a; echo b", "a"),
        wrong(two_tokens, &format!("{other}\n{one}")),
        wrong(two_tokens, &format!("{one}\n{one}")),
        wrong("echo 42", "41"),
        "In terminal 2:\n```sh\necho unsaid\n```\n".to_owned(),
    ] {
        let found = run(&page).await;
        assert!(found.is_err(), "{page}\n{found:?}");
    }
}
