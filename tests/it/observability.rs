//! The dashboard, the alerts and the runbook, held to what the service really exports and the program understands.
//! `make rules` has promtool check the alerts themselves.

use crate::support::metrics::Scrape;
use crate::support::redis::RedisServer;
use crate::support::service::Service;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn dashboard() -> Value {
    let text = file("deploy/observability/dashboard.json");
    serde_json::from_str(&text).expect("the dashboard is JSON")
}

/// The expressions of a dashboard's panels and variables.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str() {
                    Some(text) if ["expr", "query"].contains(&name.as_str()) => {
                        found.push(text.to_owned());
                    }
                    _ => expressions(value, found),
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

/// The words in a text that can only be names of our metrics.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = |word: &&str| {
        let is_label = ["grpc_service", "grpc_method", "grpc_code", "grpc_type"].contains(word);
        (word.starts_with("claimlock_") || word.starts_with("grpc_")) && !is_label
    };
    words.filter(ours).collect()
}

/// Each alert with its text in the rules.
fn alerts() -> Vec<(String, String)> {
    let rules = file("deploy/observability/alerts.yaml");
    let mut alerts: Vec<(String, String)> = Vec::new();
    for line in rules.lines() {
        if let Some(name) = line.trim_start().strip_prefix("- alert: ") {
            alerts.push((name.to_owned(), String::new()));
        } else if let Some((_, text)) = alerts.last_mut() {
            text.push_str(line);
            text.push('\n');
        }
    }
    alerts
}

#[tokio::test]
async fn the_dashboard_and_the_alerts_ask_for_nothing_that_is_not_exported() {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    let scrape = Scrape::of(&service).await;
    let exported: BTreeSet<&str> = scrape
        .names()
        .into_iter()
        .map(|series| series.split('{').next().unwrap_or(series))
        .collect();
    let mut texts = Vec::new();
    expressions(&dashboard(), &mut texts);
    assert!(texts.len() > 15, "{texts:?}");
    texts.extend(alerts().into_iter().map(|(_, text)| text));
    let wanted: BTreeSet<&str> = texts.iter().flat_map(|text| metrics_in(text)).collect();
    assert!(wanted.len() > 8, "{wanted:?}");
    let missing: Vec<_> = wanted.difference(&exported).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn each_panel_of_the_dashboard_has_a_place_of_its_own() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut taken = BTreeSet::new();
    for panel in panels {
        let at = |side: &str| panel["gridPos"][side].as_u64().expect("a number");
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(x < 24 && taken.insert((x, y)), "{}", panel["title"]);
            }
        }
    }
}

/// The part of the runbook under a heading.
fn section<'a>(runbook: &'a str, heading: &str) -> Option<&'a str> {
    let (_, rest) = runbook.split_once(&format!("\n## {heading}\n"))?;
    Some(rest.split("\n## ").next().unwrap_or(rest))
}

#[test]
fn each_alert_has_a_section_in_the_runbook_that_ends_with_commands() {
    let runbook = file("docs/runbook.md");
    let alerts = alerts();
    assert!(alerts.len() >= 10, "{alerts:?}");
    for (name, text) in &alerts {
        let anchor = format!("/docs/runbook.md#{}\n", name.to_lowercase());
        assert!(text.contains(&anchor), "{name} has no runbook_url");
        let section = section(&runbook, name).unwrap_or_else(|| panic!("no section on {name}"));
        assert!(
            section.trim_end().ends_with("\n```"),
            "{name} ends without commands"
        );
        assert!(section.contains("\n```sh\n"), "{name} has no commands");
    }
    let sections = runbook.matches("\n## ").count();
    assert_eq!(sections, alerts.len(), "a section without an alert");
}

#[test]
fn each_command_of_ours_in_the_runbook_is_one_that_the_program_understands() {
    let runbook = file("docs/runbook.md");
    let commands = runbook
        .lines()
        .filter_map(|line| line.strip_prefix("claimlock "));
    let mut seen = 0;
    for command in commands {
        // With `--help` nothing is asked, and what is not understood is told all the same.
        let ran = Command::new(env!("CARGO_BIN_EXE_claimlock"))
            .env_clear()
            .args(command.split_whitespace())
            .arg("--help")
            .output()
            .expect("the program starts");
        assert!(
            ran.status.success(),
            "{command}: {}",
            String::from_utf8_lossy(&ran.stderr)
        );
        seen += 1;
    }
    assert!(seen >= 5, "{seen}");
}
