//! What the subcommands print: JSON for programs, tables for people.

use std::io::{self, Write as _};

use clap::{Args, ValueEnum};
use serde_json::Value;

use super::Error;

/// What an answer looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// One line of JSON, in the form that proto3 gives the messages of the wire contract
    Json,
    /// Lines for people to read
    Table,
}

/// For subcommands that scripts call.
#[derive(Args)]
pub(super) struct Output {
    /// What the answer looks like
    #[arg(
        short = 'o',
        long = "output",
        value_name = "FORMAT",
        default_value = "json"
    )]
    pub(super) format: Format,
}

/// For subcommands that people call.
#[derive(Args)]
pub(super) struct OutputForPeople {
    /// What the answer looks like
    #[arg(
        short = 'o',
        long = "output",
        value_name = "FORMAT",
        default_value = "table"
    )]
    pub(super) format: Format,
}

/// Prints an answer, whose outcome is its only field.
pub(super) fn answer(format: Format, answer: &Value) -> Result<(), Error> {
    match format {
        Format::Json => line(&answer.to_string()),
        Format::Table => {
            let outcomes = answer.as_object().into_iter().flatten();
            let lines: Vec<_> = outcomes
                .flat_map(|(outcome, fields)| {
                    let mut lines = vec![words(outcome)];
                    let fields = flatten(fields, "");
                    let widest = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
                    let fields = fields.iter();
                    lines.extend(fields.map(|(name, value)| format!("  {name:<widest$}  {value}")));
                    lines
                })
                .collect();
            line(&lines.join("\n"))
        }
    }
}

/// Writes to standard output. A reader that has seen enough, as `head` does, is no failure.
pub(super) fn line(text: &str) -> Result<(), Error> {
    write(format!("{text}\n").as_bytes())
}

pub(super) fn write(bytes: &[u8]) -> Result<(), Error> {
    write_on(bytes).map(|_| ())
}

/// The same, and whether there is still a reader.
pub(super) fn write_on(bytes: &[u8]) -> Result<bool, Error> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true).map_err(Error::Output),
    }
}

/// Says something beside the answer, on standard error.
pub(super) fn note(text: impl std::fmt::Display) {
    // Without standard error there is no one to tell.
    let _ = writeln!(io::stderr(), "claimlock: {text}");
}

/// Each value under the names that lead to it.
pub(super) fn flatten(value: &Value, path: &str) -> Vec<(String, String)> {
    let below = |name: &str| match path {
        "" => words(name),
        _ => format!("{path} {}", words(name)),
    };
    match value {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(name, value)| flatten(value, &below(name)))
            .collect(),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .flat_map(|(index, item)| flatten(item, &below(&(index + 1).to_string())))
            .collect(),
        value => vec![(path.to_owned(), text(value))],
    }
}

/// A value as a person reads it.
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => printable(text),
        value => printable(&value.to_string()),
    }
}

/// Text of somebody else's, whose control characters are not to reach the terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|c| match c {
            c if c.is_control() => c.escape_default().collect::<Vec<_>>(),
            c => vec![c],
        })
        .collect()
}

/// `fencingToken` as `fencing token`.
pub(super) fn words(name: &str) -> String {
    name.chars()
        .flat_map(|c| match c {
            c if c.is_ascii_uppercase() => vec![' ', c.to_ascii_lowercase()],
            c => vec![c],
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nested_values_are_told_by_the_way_to_them() {
        let value = json!({"holders": [{"fencingToken": "7", "holder": "a"}], "retryAfter": "1s"});
        let expected = [
            ("holders 1 fencing token", "7"),
            ("holders 1 holder", "a"),
            ("retry after", "1s"),
        ];
        let flat = flatten(&value, "");
        let flat: Vec<_> = flat.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        assert_eq!(flat, expected);
    }

    #[test]
    fn a_name_cannot_write_on_the_terminal() {
        assert_eq!(text(&json!("a\u{1b}[31m\nb")), "a\\u{1b}[31m\\nb");
    }
}
