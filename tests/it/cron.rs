//! Runs the lines of docs/cron.md as cron does: by `/bin/sh`, with what the crontab sets, and nothing else to speak of.

use crate::support::pages::{blocks, page};
use crate::support::program;
use crate::support::shell::{Desk, Ran, run};
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;
use tempfile::TempDir;
use tokio::process::Command;

const PAGE: &str = "cron.md";
const JOBS: [&str; 4] = ["make-report", "sync-mirrors", "make-rollup", "warm-cache"];
/// Folders of the crontab, each with its name in a [`Node`].
const FOLDERS: [(&str, &str); 3] = [
    ("/usr/local/bin", "bin"),
    ("/etc/claimlock", "etc"),
    ("/var/log", "log"),
];

/// A machine with a crontab, and jobs that leave a line in the file `runs`.
struct Node {
    root: TempDir,
}

impl Node {
    fn new(service: SocketAddr, job: &str) -> Self {
        let node = Self {
            root: TempDir::new().expect("a temporary folder"),
        };
        for (_, folder) in FOLDERS {
            fs::create_dir(node.path(folder)).expect("the folder can be written to");
        }
        let settings =
            format!("[client]\nendpoint = \"http://{service}\"\ncall-timeout = \"2s\"\n");
        fs::write(node.path("etc/client.toml"), settings).expect("the folder can be written to");
        symlink(program::FILE, node.path("bin/claimlock")).expect("a link");
        let runs = node.path("runs");
        for name in JOBS {
            let file = node.path("bin").join(name);
            let script = format!(
                "#!/bin/sh\necho {name} \"$@\" >> {}\n{job}\n",
                runs.display()
            );
            fs::write(&file, script).expect("the folder can be written to");
            fs::set_permissions(file, fs::Permissions::from_mode(0o755)).expect("it is ours");
        }
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn here(&self, text: &str) -> String {
        let path = |name| self.path(name).display().to_string();
        FOLDERS
            .iter()
            .fold(text.to_owned(), |text, (folder, name)| {
                text.replace(folder, &path(name))
            })
    }

    /// `/bin/sh` with a crontab's environment.
    fn shell(&self, variables: &[(String, String)], script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command
            .env_clear()
            .envs([("HOME", "/"), ("LOGNAME", "cron"), ("SHELL", "/bin/sh")])
            .env("PATH", "/usr/bin:/bin")
            .envs(
                variables
                    .iter()
                    .map(|(name, value)| (name, self.here(value))),
            )
            .arg("-c")
            .arg(self.here(script))
            .current_dir(self.root.path())
            .kill_on_drop(true);
        command
    }

    /// What ran here since it was asked last.
    fn runs(&self) -> Vec<String> {
        let runs = fs::read_to_string(self.path("runs")).unwrap_or_default();
        let _ = fs::remove_file(self.path("runs"));
        runs.lines().map(str::to_owned).collect()
    }
}

/// A line of a crontab, with the variables that are set before it.
struct Line {
    variables: Vec<(String, String)>,
    command: String,
}

fn crontab_lines() -> Vec<Line> {
    let mut lines = Vec::new();
    for block in blocks(&page(PAGE))
        .iter()
        .filter(|block| block.language == "crontab")
    {
        let mut variables = Vec::new();
        for line in block
            .text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            let is_name = |name: &str| name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
            match line.split_once('=') {
                Some((name, value)) if is_name(name) => {
                    variables.push((name.to_owned(), value.to_owned()))
                }
                _ => lines.push(Line {
                    variables: variables.clone(),
                    command: command(line),
                }),
            }
        }
    }
    assert!(lines.len() >= 4, "only {} lines were found", lines.len());
    lines
}

/// What stands behind the five fields of time.
fn command(line: &str) -> String {
    let fields: Vec<_> = line.split_whitespace().take(5).collect();
    assert!(
        fields
            .iter()
            .all(|field| !field.contains(|c: char| c.is_alphabetic())),
        "{line}"
    );
    let mut command = line;
    for field in fields {
        command = command
            .trim_start()
            .strip_prefix(field)
            .expect("it is the next field");
    }
    let plain = command.replace("\\%", "");
    assert!(!plain.contains('%'), "cron would cut this off: {line}");
    command.trim().replace("\\%", "%")
}

/// With a short wait: a service that is away is waited for as well.
fn impatient(command: &str) -> String {
    let mut words: Vec<_> = command.split(' ').collect();
    for place in 1..words.len() {
        if words[place - 1] == "--wait" {
            words[place] = "100ms";
        }
    }
    words.join(" ")
}

/// Runs a line on each node, in one period. Keys have the hour in them.
async fn run_on(nodes: &[Node; 2], line: &Line) -> [Ran; 2] {
    loop {
        let began = hour().await;
        let mut ran = Vec::new();
        for node in nodes {
            ran.push(run(node.shell(&line.variables, &line.command)).await);
        }
        if hour().await == began {
            return ran.try_into().expect("there are two nodes");
        }
        nodes.iter().for_each(|node| drop(node.runs()));
    }
}

async fn hour() -> String {
    let mut date = Command::new("date");
    date.args(["-u", "+%FT%H"]);
    run(date).await.stdout
}

#[tokio::test]
async fn each_crontab_line_runs_its_job_on_one_of_two_nodes_and_prints_nothing() {
    let desk = Desk::start().await;
    let nodes = [(); 2].map(|()| Node::new(desk.service.grpc, "exit 0"));
    for line in crontab_lines() {
        for ran in run_on(&nodes, &line).await {
            assert_eq!(ran, Ran::printing(0, ""), "{}", line.command);
        }
        let runs = [nodes[0].runs().len(), nodes[1].runs().len()];
        assert_eq!(runs, [1, 0], "{}", line.command);
    }
}

#[tokio::test]
async fn a_job_that_fails_is_mailed_about_and_tried_by_the_next_node() {
    let desk = Desk::start().await;
    let nodes = [(); 2].map(|()| Node::new(desk.service.grpc, "echo broken; exit 3"));
    let daily = &crontab_lines()[0];
    for ran in run_on(&nodes, daily).await {
        assert_eq!(ran, Ran::printing(0, "make-report: exit code 3\n"));
    }
    for node in &nodes {
        assert_eq!(node.runs(), ["make-report"]);
        let log = fs::read_to_string(node.path("log/report.log")).expect("it is written");
        assert_eq!(log, "broken\n");
    }
}

#[tokio::test]
async fn with_the_service_away_a_line_runs_nothing_unless_it_says_so() {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], 9));
    let nodes = [(); 2].map(|()| Node::new(nowhere, "exit 0"));
    let mut ran_all_the_same = 0;
    for mut line in crontab_lines() {
        line.command = impatient(&line.command);
        let ran = run_on(&nodes, &line).await;
        let runs = [nodes[0].runs().len(), nodes[1].runs().len()];
        if line.command.contains("[ $? != 69 ] ||") {
            assert_eq!(runs, [1, 1], "{}", line.command);
            ran_all_the_same += 1;
        } else {
            assert_eq!(runs, [0, 0], "{}", line.command);
            let is_told = |ran: &Ran| ran.code == 69 || ran.stdout.ends_with(": exit code 69\n");
            assert!(ran.iter().all(is_told), "{}: {ran:?}", line.command);
        }
    }
    assert_eq!(ran_all_the_same, 1);
}

#[tokio::test]
async fn the_loop_over_the_last_days_makes_up_for_each_once() {
    let desk = Desk::start().await;
    let nodes = [(); 2].map(|()| Node::new(desk.service.grpc, "exit 0"));
    let variables = crontab_lines().remove(0).variables;
    let all = blocks(&page(PAGE));
    let script = all
        .iter()
        .find(|block| block.language == "sh")
        .expect("the page has it");
    let catch_up = Line {
        variables,
        command: script.text.clone(),
    };
    for ran in run_on(&nodes, &catch_up).await {
        assert_eq!(ran, Ran::printing(0, ""));
    }
    let [first, second] = [nodes[0].runs(), nodes[1].runs()];
    assert_eq!((first.len(), second.len()), (4, 0), "{first:?} {second:?}");
    assert!(first.is_sorted(), "{first:?}");
}
