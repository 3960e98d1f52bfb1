//! The settings of the real program: where each comes from, and what is refused.

mod secrets;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use tempfile::TempDir;

/// Every setting with a default that does not depend on the user, and another valid value.
const SETTINGS: [(&str, &str, &str); 15] = [
    ("grpc-addr", "127.0.0.1:7420", "127.0.0.1:0"),
    ("http-addr", "127.0.0.1:7421", "0.0.0.0:0"),
    ("redis-connections", "4", "64"),
    ("store-timeout", "1s", "10ms"),
    ("embedded-fsync", "everysec", "always"),
    ("max-retention", "30d", "10y"),
    ("memory", "10m", "24h"),
    ("max-response-body", "1MiB", "1048577"),
    ("max-response-headers", "32KiB", "31KiB"),
    ("drain-delay", "0s", "3s"),
    ("drain-grace", "10s", "1h"),
    ("max-connection-age", "0s", "1s"),
    ("metrics-tenants", "0", "1000"),
    ("log-format", "text", "json"),
    ("log-level", "info", "warn,claimlock=debug"),
];

const SECRET: &str = "tr0ub4dor";

/// A home folder, and the program in an environment with nothing else in it.
struct World {
    home: TempDir,
}

impl World {
    fn new() -> Self {
        Self {
            home: TempDir::new().expect("a temporary folder can be made"),
        }
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.home.path().join(name);
        std::fs::write(&path, text).expect("a temporary folder can be written to");
        path
    }

    fn claimlock(&self, subcommand: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_claimlock"));
        command
            .arg(subcommand)
            .env_clear()
            .env("HOME", self.home.path())
            .current_dir(self.home.path());
        command
    }

    /// `claimlock config` with these flags and variables.
    fn config(&self, flags: &[&str], variables: &[(&str, &str)]) -> Ran {
        let mut command = self.claimlock("config");
        Ran::from(command.args(flags).envs(variables.iter().copied()))
    }

    fn config_of_file(&self, text: &str) -> Ran {
        let file = self.write("claimlock.toml", text);
        self.config(&["--config", path(&file)], &[])
    }
}

fn path(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

fn variable(setting: &str) -> String {
    format!("CLAIMLOCK_{}", setting.replace('-', "_").to_uppercase())
}

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

impl Ran {
    fn from(command: &mut Command) -> Self {
        let Output {
            status,
            stdout,
            stderr,
        } = command.output().expect("the program starts");
        Self {
            code: status.code().expect("no signal ends it"),
            stdout: String::from_utf8(stdout).expect("it prints UTF-8"),
            stderr: String::from_utf8(stderr).expect("it prints UTF-8"),
        }
    }

    /// The value and source of a setting.
    #[track_caller]
    fn setting(&self, name: &str) -> (String, String) {
        assert_eq!(self.code, 0, "{}", self.stderr);
        let line = self
            .stdout
            .lines()
            .find(|line| line.starts_with(&format!("{name} = ")));
        let line = line.unwrap_or_else(|| panic!("no {name} in {}", self.stdout));
        let source = line
            .rsplit_once("# from ")
            .expect("each line says its source")
            .1;
        let value = match toml::from_str::<toml::Table>(line)
            .expect("a line is TOML")
            .remove(name)
        {
            Some(toml::Value::String(text)) => text,
            Some(other) => other.to_string(),
            None => panic!("{line} sets something else"),
        };
        (value, source.to_owned())
    }

    fn without_sources(&self) -> Vec<&str> {
        let lines = self.stdout.lines();
        lines
            .map(|line| line.split("  # from ").next().unwrap_or(line))
            .collect()
    }

    /// The one line that says what is wrong.
    #[track_caller]
    fn refusal(&self) -> &str {
        assert_eq!(self.code, 2, "{}{}", self.stdout, self.stderr);
        assert_eq!(self.stdout, "");
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        self.stderr.trim_end()
    }

    #[track_caller]
    fn shows_no_secret(&self) {
        let shown = format!("{}{}", self.stdout, self.stderr);
        assert!(!shown.contains(SECRET), "{shown}");
    }
}

fn is(value: &str, source: &str) -> (String, String) {
    (value.to_owned(), source.to_owned())
}

#[test]
fn each_setting_has_its_default() {
    let world = World::new();
    let ran = world.config(&[], &[]);
    for (name, default, _) in SETTINGS {
        assert_eq!(ran.setting(name), is(default, "default"), "{name}");
    }
    assert!(
        ran.stdout
            .contains("# redis-url: not set, an embedded server is used")
    );
    assert!(ran.stdout.contains("# redis-url-file: not set"));
    let folder = world.home.path().join(".local/share/claimlock");
    assert_eq!(ran.setting("data-dir"), is(path(&folder), "default"));
    let elsewhere = world.config(&[], &[("XDG_DATA_HOME", "/elsewhere")]);
    assert_eq!(
        elsewhere.setting("data-dir"),
        is("/elsewhere/claimlock", "default")
    );
    assert_eq!(ran.stderr, "");
}

#[test]
fn each_setting_can_come_from_each_source() {
    let world = World::new();
    for (name, _, other) in SETTINGS.into_iter().chain([
        ("redis-url", "", "redis://localhost:6379/1"),
        ("data-dir", "", "/var/lib/claimlock"),
    ]) {
        let flag = format!("--{name}={other}");
        assert_eq!(world.config(&[&flag], &[]).setting(name), is(other, "flag"));
        let ran = world.config(&[], &[(&variable(name), other)]);
        assert_eq!(ran.setting(name), is(other, "environment"));
        let ran = world.config_of_file(&format!("{name} = {other:?}"));
        assert_eq!(ran.setting(name), is(other, "file"));
    }
}

#[test]
fn flag_wins_over_environment_over_file_over_default() {
    let world = World::new();
    let file = world.write(
        "claimlock.toml",
        "store-timeout = '2s'\nmemory = '2m'\nlog-level = 'warn'",
    );
    let ran = world.config(
        &["--store-timeout", "4s"],
        &[
            ("CLAIMLOCK_CONFIG", path(&file)),
            ("CLAIMLOCK_STORE_TIMEOUT", "3s"),
            ("CLAIMLOCK_MEMORY", "3m"),
        ],
    );
    assert_eq!(ran.setting("store-timeout"), is("4s", "flag"));
    assert_eq!(ran.setting("memory"), is("3m", "environment"));
    assert_eq!(ran.setting("log-level"), is("warn", "file"));
    assert_eq!(ran.setting("log-format"), is("text", "default"));
}

#[test]
fn the_file_of_the_flag_wins_over_the_file_of_the_environment() {
    let world = World::new();
    let one = world.write("one.toml", "memory = '1m'");
    let two = world.write("two.toml", "memory = '2m'");
    let ran = world.config(
        &["--config", path(&one)],
        &[("CLAIMLOCK_CONFIG", path(&two))],
    );
    assert_eq!(ran.setting("memory"), is("1m", "file"));
}

#[test]
fn an_empty_variable_counts_as_not_set() {
    let world = World::new();
    let file = world.write("claimlock.toml", "memory = '2m'");
    let mut variables: Vec<_> = SETTINGS.iter().map(|(name, ..)| variable(name)).collect();
    variables.extend(["redis-url", "redis-url-file", "data-dir"].map(variable));
    let mut empty: Vec<_> = variables.iter().map(|name| (name.as_str(), "")).collect();
    let ran = world.config(&["--config", path(&file)], &empty);
    assert_eq!(ran.setting("memory"), is("2m", "file"));
    assert_eq!(ran.setting("grpc-addr"), is("127.0.0.1:7420", "default"));
    assert_eq!(ran.stderr, "");

    empty.push(("CLAIMLOCK_CONFIG", ""));
    assert_eq!(
        world.config(&[], &empty).setting("memory"),
        is("10m", "default")
    );
}

#[test]
fn numbers_in_the_file_need_no_quotes() {
    let world = World::new();
    let ran = world.config_of_file("redis-connections = 8\nmax-response-body = 1000");
    assert_eq!(ran.setting("redis-connections"), is("8", "file"));
    assert_eq!(ran.setting("max-response-body"), is("1000", "file"));
}

#[test]
fn an_unknown_name_in_the_file_is_refused_by_its_name_and_line() {
    let world = World::new();
    let ran = world.config_of_file("memory = '2m'\ngrpc-adr = '127.0.0.1:1'\n");
    let refusal = ran.refusal();
    assert!(refusal.contains("claimlock.toml, line 2"), "{refusal}");
    assert!(
        refusal.contains("`grpc-adr`") && refusal.contains("`grpc-addr`"),
        "{refusal}"
    );
    for text in [
        "[redis]\nurl = 'x'",
        "config = 'other.toml'",
        "grpc_addr = '127.0.0.1:1'",
    ] {
        assert!(
            world
                .config_of_file(text)
                .refusal()
                .contains("unknown field"),
            "{text}"
        );
    }
}

#[test]
fn a_file_that_cannot_be_read_is_refused() {
    let world = World::new();
    let ran = world.config(&[], &[("CLAIMLOCK_CONFIG", "/nowhere/claimlock.toml")]);
    let refusal = ran.refusal();
    assert!(
        refusal.contains("environment variable CLAIMLOCK_CONFIG"),
        "{refusal}"
    );
    assert!(refusal.contains("/nowhere/claimlock.toml"), "{refusal}");
}

#[test]
fn a_wrong_value_is_refused_with_its_name_and_source() {
    let world = World::new();
    for (name, wrong) in [
        ("grpc-addr", "localhost:7420"),
        ("http-addr", "7421"),
        ("redis-url", "http://localhost"),
        ("redis-url-file", "/nowhere/url"),
        ("redis-connections", "65"),
        ("store-timeout", "9ms"),
        ("embedded-fsync", "no"),
        ("max-retention", "11y"),
        ("memory", "25h"),
        ("max-response-body", "65MiB"),
        ("max-response-headers", "2MiB"),
        ("drain-delay", "1"),
        ("drain-grace", "2h"),
        ("max-connection-age", "999ms"),
        ("log-format", "xml"),
        ("log-level", "inf0"),
    ] {
        let ran = world.config(&[&format!("--{name}"), wrong], &[]);
        let refusal = ran.refusal();
        let start = format!("claimlock: {name} (from flag --{name}): ");
        assert!(refusal.starts_with(&start), "{refusal}");

        let ran = world.config(&[], &[(&variable(name), wrong)]);
        let refusal = ran.refusal();
        let start = format!(
            "claimlock: {name} (from environment variable {}): ",
            variable(name)
        );
        assert!(refusal.starts_with(&start), "{refusal}");

        let ran = world.config_of_file(&format!("{name} = '{wrong}'"));
        let refusal = ran.refusal();
        let start = format!("claimlock: {name} (from file ");
        assert!(
            refusal.starts_with(&start) && refusal.contains("claimlock.toml): "),
            "{refusal}"
        );
    }
}

#[test]
fn an_empty_value_that_is_no_variable_is_refused() {
    let world = World::new();
    for name in ["redis-url", "data-dir", "memory"] {
        let ran = world.config(&[&format!("--{name}=")], &[]);
        assert!(ran.refusal().contains("is empty"), "{name}");
        let ran = world.config_of_file(&format!("{name} = ''"));
        assert!(ran.refusal().contains("is empty"), "{name}");
    }
}

#[test]
fn settings_that_do_not_go_together_are_refused() {
    let world = World::new();
    let ran = world.config(&["--drain-delay=11s"], &[]);
    let refusal = ran.refusal();
    assert!(
        refusal.contains("drain-delay (\"11s\" from flag --drain-delay)"),
        "{refusal}"
    );
    assert!(
        refusal.contains("drain-grace (\"10s\" from default)"),
        "{refusal}"
    );
    let ran = world.config(&["--drain-delay=10s"], &[]);
    assert_eq!(ran.setting("drain-delay"), is("10s", "flag"));

    let ran = world.config(&["--http-addr=127.0.0.1:7420"], &[]);
    assert!(ran.refusal().contains("they have to be different"));
}

#[test]
fn what_config_prints_gives_the_same_as_a_file() {
    let world = World::new();
    let secret = world.write("u\"r'l\\", "redis://user:secret@localhost");
    let mut flags: Vec<_> = SETTINGS
        .iter()
        .map(|(name, _, other)| format!("--{name}={other}"))
        .collect();
    flags.push("--data-dir=a \"quoted\" \\ # folder".to_owned());
    for url in [
        format!("--redis-url=redis://user:{SECRET}@localhost"),
        format!("--redis-url-file={}", path(&secret)),
    ] {
        let mut flags: Vec<_> = flags.iter().map(String::as_str).collect();
        flags.push(&url);
        for flags in [&flags[..], &[]] {
            let first = world.config(flags, &[]);
            assert_eq!(first.code, 0, "{}", first.stderr);
            let again = world.config_of_file(&first.stdout);
            assert_eq!(again.code, 0, "{}", again.stderr);
            assert_eq!(again.without_sources(), first.without_sources());
        }
    }
}

#[test]
fn unknown_variables_warn_and_harm_nothing() {
    let world = World::new();
    let ran = world.config(
        &[],
        &[
            ("CLAIMLOCK_REDIS_PASSWORD", SECRET),
            ("CLAIMLOCK_PORT", "tcp://10.0.0.1:7420"),
            ("CLAIMLOCK_PORT_7420_TCP_ADDR", "10.0.0.1"),
            ("CLAIMLOCK_SERVICE_HOST", "10.0.0.1"),
        ],
    );
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let [unknown, injected] = ran.stderr.lines().collect::<Vec<_>>()[..] else {
        panic!("{}", ran.stderr);
    };
    assert!(
        unknown.starts_with("claimlock: warning: CLAIMLOCK_REDIS_PASSWORD: "),
        "{unknown}"
    );
    let names = "CLAIMLOCK_PORT, CLAIMLOCK_PORT_7420_TCP_ADDR, CLAIMLOCK_SERVICE_HOST";
    assert!(
        injected.contains(names) && injected.contains("kubernetes"),
        "{injected}"
    );
    ran.shows_no_secret();
}

#[test]
fn the_variables_of_clients_are_known() {
    let world = World::new();
    let names = [
        "ENDPOINT",
        "TENANT",
        "CREDENTIAL",
        "CA_FILE",
        "CLIENT_CERT_FILE",
        "CLIENT_KEY_FILE",
    ];
    let variables = names.map(|name| format!("CLAIMLOCK_{name}"));
    let variables: Vec<_> = variables.iter().map(|name| (name.as_str(), "x")).collect();
    let ran = world.config(&[], &variables);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
}

/// Ends a service that a test has started, however the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn serve_logs_unknown_variables_in_the_format_that_is_set() {
    let world = World::new();
    let mut command = world.claimlock("serve");
    command
        .args([
            "--grpc-addr=127.0.0.1:0",
            "--http-addr=127.0.0.1:0",
            "--log-format=json",
        ])
        .args(["--redis-url=redis://127.0.0.1:1"])
        .env("CLAIMLOCK_GRPC_ADR", SECRET)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut serve = Running(command.spawn().expect("the program starts"));
    let stderr = serve.0.stderr.take().expect("it is piped");

    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(stderr).lines().map_while(Result::ok);
        lines.for_each(|line| drop(sender.send(line)));
    });
    let line = lines
        .recv_timeout(Duration::from_secs(20))
        .expect("it logs before it serves");
    let event: serde_json::Value = serde_json::from_str(&line).expect("each line is JSON");
    assert_eq!(event["level"], "WARN");
    assert_eq!(event["variables"], "CLAIMLOCK_GRPC_ADR");
    assert!(!line.contains(SECRET), "{line}");
}

#[test]
fn help_lists_every_setting_with_its_default_and_variable() {
    let world = World::new();
    for subcommand in ["serve", "config"] {
        let ran = Ran::from(world.claimlock(subcommand).arg("--help"));
        assert_eq!(ran.code, 0);
        let help = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        let none = [("config", "none", ""), ("redis-url-file", "none", "")];
        for (name, default, _) in SETTINGS.into_iter().chain(none) {
            let start = help
                .find(&format!("--{name} <"))
                .unwrap_or_else(|| panic!("no {name}"));
            let entry = &help[start..];
            let entry = &entry[..=entry.find(&variable(name)).expect("it names its variable")];
            assert!(
                entry.contains(&format!("[default: {default}]")),
                "{name}: {entry}"
            );
            assert_eq!(entry.matches("[default: ").count(), 1, "{entry}");
        }
        for name in ["redis-url", "data-dir"] {
            assert!(
                help.contains(&format!("[env: {}]", variable(name))),
                "{name}"
            );
        }
        assert!(help.contains("Examples:"));
    }
}

#[test]
fn every_setting_that_config_prints_is_in_the_list_of_these_tests() {
    let printed = World::new().config(&[], &[]).stdout;
    let lines = printed
        .lines()
        .filter(|line| line.contains("  # from "))
        .count();
    assert_eq!(
        lines,
        SETTINGS.len() + ["redis-url", "redis-url-file", "data-dir"].len()
    );
}

#[test]
fn version_is_told() {
    let ran = Ran::from(&mut World::new().claimlock("--version"));
    let version = format!("claimlock {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!((ran.code, ran.stdout), (0, version));
}
