//! How the subcommands find the service: flags, variables, a file; and what they say where they do not.

use crate::support::certificates::{TlsDoor, certificates};
use crate::support::shell::{Desk, Shell, run};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

fn nowhere() -> Shell {
    Shell::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 9)))
}

#[tokio::test]
async fn a_flag_counts_before_a_variable_before_the_file() {
    let desk = Desk::start().await;
    let here = format!("http://{}", desk.service.grpc);
    let nowhere = nowhere();
    let file = nowhere.path("claimlock.toml");
    fs::write(
        &file,
        format!("[client]\nendpoint = \"{here}\"\ntenant = \"from-file\"\n"),
    )
    .expect("it can be written");
    let file = file.to_str().expect("a test's path is UTF-8");

    let by_flag = nowhere.run("health --endpoint", &[&here]).await;
    assert_eq!(by_flag.code, 0, "{by_flag:?}");
    let variable_wins = nowhere
        .run("health --call-timeout 100ms --config", &[file])
        .await;
    assert_eq!(variable_wins.code, 69, "{variable_wins:?}");
    // As cron has it: no environment at all.
    let mut command = nowhere.command("claim order-1 --config", &[file]);
    command.env_remove("CLAIMLOCK_ENDPOINT");
    let by_file = run(command).await;
    assert_eq!(by_file.code, 0, "{by_file:?}");
    assert!(
        desk.redis
            .dump()
            .await
            .iter()
            .any(|(key, _)| String::from_utf8_lossy(key).contains("from-file"))
    );
}

#[tokio::test]
async fn a_file_of_the_services_settings_can_hold_those_of_the_clients() {
    let desk = Desk::start().await;
    let file = desk.shell.path("claimlock.toml");
    fs::write(
        &file,
        "grpc-addr = \"127.0.0.1:1\"\n[client]\ntenant = \"a\"\n",
    )
    .expect("it can be written");
    let file = file.to_str().expect("a test's path is UTF-8");
    for line in ["health --config", "config --config"] {
        let ran = desk.shell.run(line, &[file]).await;
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    fs::write(file, "[client]\nendpint = \"http://a\"\n").expect("it can be written");
    for line in ["health --config", "config --config"] {
        let ran = desk.shell.run(line, &[file]).await;
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.stderr.contains("endpint"), "{ran:?}");
    }
}

#[tokio::test]
async fn a_service_that_is_not_there_is_told_with_the_reason() {
    let ran = nowhere().run("health --call-timeout 200ms", &[]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (69, ""), "{ran:?}");
    assert!(ran.stderr.contains("onnection refused"), "{ran:?}");
    assert!(
        ran.stderr.starts_with("claimlock: http://127.0.0.1:"),
        "{ran:?}"
    );
}

#[tokio::test]
async fn the_port_for_http_in_place_of_that_for_grpc_is_told_as_such() {
    let desk = Desk::start().await;
    let endpoint = format!("http://{}", desk.service.http);
    let ran = desk.shell.run("health --endpoint", &[&endpoint]).await;
    assert_eq!((ran.code, ran.stdout.as_str()), (69, ""), "{ran:?}");
    let told = format!("claimlock: {endpoint}: what answers is no gRPC service");
    assert!(ran.stderr.starts_with(&told), "{ran:?}");
}

#[tokio::test]
async fn wrong_settings_are_told_before_anything_is_asked() {
    let shell = nowhere();
    for (line, word) in [
        ("health --endpoint localhost:7420", "endpoint"),
        ("health --endpoint ftp://localhost:7420", "endpoint"),
        ("health --ca-file missing", "ca-file"),
        ("health --client-cert-file missing", "client-cert-file"),
        ("health --credential-file missing", "credential-file"),
        ("health --call-timeout soon", "call-timeout"),
        ("health --config missing", "config"),
    ] {
        let ran = shell.run(line, &[]).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (2, ""), "{line}: {ran:?}");
        assert!(ran.stderr.contains(word), "{line}: {ran:?}");
    }
}

#[tokio::test]
async fn a_credential_is_not_shown() {
    let shell = nowhere();
    let mut command = shell.command("health --call-timeout 100ms", &[]);
    command.env("CLAIMLOCK_CREDENTIAL", "tr0ub4dor");
    let ran = run(command).await;
    assert!(!format!("{ran:?}").contains("tr0ub4dor"), "{ran:?}");
    let help = shell.run("health --help", &[]).await;
    assert!(!help.stdout.contains("--credential "), "{help:?}");

    let mut command = shell.command("health --credential-file token", &[]);
    command.env("CLAIMLOCK_CREDENTIAL", "tr0ub4dor");
    let both = run(command).await;
    assert_eq!(both.code, 2, "{both:?}");
    assert!(!format!("{both:?}").contains("tr0ub4dor"), "{both:?}");
}

#[tokio::test]
async fn a_service_behind_tls_is_reached_by_its_authority_and_one_that_asks_for_a_certificate_by_it()
 {
    let desk = Desk::start().await;
    let certificates = certificates();
    let file = |name: &str| certificates.path().join(name).display().to_string();
    let open = TlsDoor::open(certificates.path(), desk.service.grpc, false).await;
    let mutual = TlsDoor::open(certificates.path(), desk.service.grpc, true).await;
    let health = async |door: &TlsDoor, flags: &[&str]| {
        let endpoint = format!("https://{}", door.address);
        let line = "health --call-timeout 2s --endpoint";
        desk.shell
            .run(line, &[&[endpoint.as_str()], flags].concat())
            .await
    };
    let trusting = ["--ca-file", &file("ca.pem")];
    assert_eq!(health(&open, &trusting).await.code, 0);
    let distrusting = health(&open, &[]).await;
    assert_eq!(distrusting.code, 69, "{distrusting:?}");
    assert!(
        distrusting.stderr.contains("certificate"),
        "{distrusting:?}"
    );

    let (certificate, key) = (file("client.pem"), file("client.key"));
    let known = [
        &trusting[..],
        &[
            "--client-cert-file",
            &certificate,
            "--client-key-file",
            &key,
        ],
    ]
    .concat();
    assert_eq!(health(&mutual, &known).await.code, 0);
    let unknown = health(&mutual, &trusting).await;
    assert_eq!(unknown.code, 69, "{unknown:?}");
    let half = health(&mutual, &known[..4]).await;
    assert_eq!(half.code, 2, "{half:?}");
}

#[tokio::test]
async fn every_subcommand_has_examples_and_pages() {
    let shell = nowhere();
    let help = shell.run("--help", &[]).await;
    assert!(!help.stdout.contains("run-bound"), "{help:?}");
    for line in [
        "serve",
        "config",
        "once",
        "lock",
        "claim",
        "complete",
        "abandon",
        "acquire",
        "renew",
        "release",
        "claims",
        "locks",
        "health",
        "doctor",
        "completions",
        "man",
    ] {
        assert!(
            help.stdout.contains(&format!("\n  {line}")),
            "{line}: {help:?}"
        );
        let ran = shell.run(&format!("{line} --help"), &[]).await;
        assert!(ran.stdout.contains("Examples:"), "{line}: {ran:?}");
    }
    for group in ["claims", "locks"] {
        for verb in [
            "ls",
            "get",
            if group == "claims" {
                "resolve"
            } else {
                "release"
            },
        ] {
            let ran = shell.run(&format!("{group} {verb} --help"), &[]).await;
            assert!(ran.stdout.contains("Examples:"), "{verb}: {ran:?}");
            assert!(ran.stdout.contains("Exit codes:"), "{verb}: {ran:?}");
        }
    }
    let written = shell.run("man --dir pages", &[]).await;
    assert_eq!(written.code, 0, "{written:?}");
    for page in ["claimlock.1", "claimlock-once.1", "claimlock-renew-claim.1"] {
        assert!(shell.path("pages").join(page).exists(), "{page}");
    }
    let once = std::fs::read_to_string(shell.path("pages").join("claimlock-once.1"));
    let once = once.expect("a page");
    for text in ["CLAIMLOCK_ENDPOINT", "is running elsewhere"] {
        assert!(once.contains(text), "{text}: {once}");
    }
    std::fs::write(shell.path("file"), "").expect("a file where the folder would be");
    let unwritable = shell.run("man --dir file/pages", &[]).await;
    assert_eq!(unwritable.code, 1, "{unwritable:?}");
    let what = "cannot write to file/pages: ";
    assert!(unwritable.stderr.contains(what), "{unwritable:?}");
    for name in ["bash", "zsh", "fish"] {
        let script = shell.run(&format!("completions {name}"), &[]).await;
        assert!(script.stdout.contains("hold-at-least"), "{name}");
        assert!(!script.stdout.contains("run-bound"), "{name}");
    }
}

#[tokio::test]
async fn a_name_that_somebody_else_chose_does_not_write_on_the_terminal() {
    let desk = Desk::start().await;
    let name = ["evil\x1b[31m\nclaimlock: all is well"];
    for line in ["claim job --holder", "acquire job --holder"] {
        assert_eq!(desk.shell.run(line, &name).await.code, 0, "{line}");
    }
    let operation = [name[0], "--", "true"];
    let ran = desk.shell.run("once done --operation", &operation).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    for (line, code) in [
        ("once job --ignore-arguments --operation", 75),
        ("lock job --holder", 75),
        ("once done --operation", 65),
    ] {
        let ran = desk.shell.run(line, &["", "--", "true"]).await;
        assert_eq!(ran.code, code, "{ran:?}");
        assert!(ran.stderr.contains("evil\\u{1b}[31m\\n"), "{ran:?}");
        assert_eq!(ran.stderr.lines().count(), 1, "{ran:?}");
    }
}

#[tokio::test]
async fn a_time_that_is_longer_than_any_clock_can_tell_is_no_defect() {
    let desk = Desk::start().await;
    for (line, code) in [
        (
            "once job --wait 500000000000y --kill-after 500000000000y -- true",
            0,
        ),
        (
            "lock job --wait 500000000000y --kill-after 500000000000y -- true",
            0,
        ),
        ("claim other --wait 500000000000y", 2),
        ("acquire other --wait 500000000000y", 2),
    ] {
        let ran = desk.shell.run(line, &[]).await;
        assert_eq!(ran.code, code, "{line}: {ran:?}");
    }
}
