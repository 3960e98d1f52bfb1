//! The password in the Redis URL: where it can come from, and that it is never shown.

use super::{Ran, SECRET, World, is, path};

#[test]
fn secrets_are_not_printed() {
    let world = World::new();
    let url = format!("redis://user:{SECRET}@localhost:6379/0");
    let shown = "redis://user:***@localhost:6379/0";

    let ran = world.config(&["--redis-url", &url], &[]);
    assert_eq!(ran.setting("redis-url"), is(shown, "flag"));
    ran.shows_no_secret();
    let ran = world.config(&[], &[("CLAIMLOCK_REDIS_URL", &url)]);
    assert_eq!(ran.setting("redis-url"), is(shown, "environment"));
    ran.shows_no_secret();
    let ran = world.config_of_file(&format!("redis-url = '{url}'"));
    assert_eq!(ran.setting("redis-url"), is(shown, "file"));
    ran.shows_no_secret();

    let ran = Ran::from(
        world
            .claimlock("serve")
            .arg("--help")
            .env("CLAIMLOCK_REDIS_URL", &url),
    );
    assert_eq!(ran.code, 0);
    ran.shows_no_secret();
}

#[test]
fn secrets_are_not_printed_where_they_are_wrong_or_in_the_wrong_place() {
    let world = World::new();
    let url = format!("redis://user:{SECRET}@localhost:6379");
    for broken in [
        format!("redis://user:{SECRET}/1@localhost"),
        format!("redis://user:12/{SECRET}@localhost"),
        format!("redis://user:{SECRET}@localhost:port"),
        format!("redis://user:{SECRET}@localhost#1"),
        format!("user:{SECRET}@localhost"),
        format!("{SECRET}\n"),
    ] {
        let ran = world.config(&["--redis-url", &broken], &[]);
        ran.refusal();
        ran.shows_no_secret();
        let ran = world.config(&[], &[("CLAIMLOCK_REDIS_URL", &broken)]);
        ran.refusal();
        ran.shows_no_secret();
    }
    for flag in [
        "--config",
        "--memory",
        "--grpc-addr",
        "--log-level",
        "--redis-url-file",
    ] {
        let ran = world.config(&[flag, &url], &[]);
        ran.refusal();
        ran.shows_no_secret();
    }
    for line in [
        [url.as_str()].as_slice(),
        &["--redis-ulr", &url],
        &["--log-level", "info", &url],
    ] {
        let ran = world.config(line, &[]);
        assert_eq!(ran.code, 2);
        ran.shows_no_secret();
    }
    for text in [
        format!("redis-url = {url}"),
        format!("redis-url = '{url}"),
        format!("redis-url = ['{url}']"),
        format!("memory = '{url}'"),
        format!("\nredis-password = '{SECRET}'"),
        format!("[{SECRET}"),
    ] {
        let ran = world.config_of_file(&text);
        ran.refusal();
        ran.shows_no_secret();
    }
}

#[test]
fn a_url_can_be_read_from_a_file_less_its_line_break() {
    let world = World::new();
    for end in ["", "\n", "\r\n"] {
        let file = world.write("url", &format!("redis://user:{SECRET}@localhost{end}"));
        for ran in [
            world.config(&["--redis-url-file", path(&file)], &[]),
            world.config(&[], &[("CLAIMLOCK_REDIS_URL_FILE", path(&file))]),
            world.config_of_file(&format!("redis-url-file = {:?}", path(&file))),
        ] {
            assert_eq!(ran.setting("redis-url-file").0, path(&file));
            let shown = "# redis-url: redis://user:***@localhost, read from redis-url-file";
            assert!(ran.stdout.contains(shown), "{}", ran.stdout);
            ran.shows_no_secret();
        }
    }
}

#[test]
fn a_wrong_url_in_a_file_is_refused_without_its_text() {
    let world = World::new();
    for (text, said) in [
        (
            format!("http://user:{SECRET}@localhost"),
            "starts with http:",
        ),
        (format!("redis://user:{SECRET}@localhost\n\n"), "line break"),
        (SECRET.to_owned(), "is not a URL"),
        ("\n".to_owned(), "is empty"),
    ] {
        let file = world.write("url", &text);
        let ran = world.config(&[], &[("CLAIMLOCK_REDIS_URL_FILE", path(&file))]);
        let refusal = ran.refusal();
        assert!(
            refusal.contains(said) && refusal.contains(path(&file)),
            "{refusal}"
        );
        assert!(refusal.contains("CLAIMLOCK_REDIS_URL_FILE"), "{refusal}");
        ran.shows_no_secret();
    }
}

#[test]
fn a_url_and_a_file_with_one_are_refused_together() {
    let world = World::new();
    let file = world.write("url", "redis://localhost");
    let ran = world.config(
        &["--redis-url", &format!("redis://:{SECRET}@localhost")],
        &[("CLAIMLOCK_REDIS_URL_FILE", path(&file))],
    );
    let refusal = ran.refusal();
    assert!(
        refusal.contains("redis-url (from flag --redis-url)"),
        "{refusal}"
    );
    assert!(
        refusal.contains("environment variable CLAIMLOCK_REDIS_URL_FILE"),
        "{refusal}"
    );
    ran.shows_no_secret();
}

#[test]
fn serve_refuses_a_password_that_config_has_hidden() {
    let world = World::new();
    let ran = Ran::from(
        world
            .claimlock("serve")
            .args(["--redis-url", "redis://user:***@localhost"]),
    );
    let refusal = ran.refusal();
    assert!(
        refusal.contains("redis-url") && refusal.contains("claimlock config"),
        "{refusal}"
    );
}
