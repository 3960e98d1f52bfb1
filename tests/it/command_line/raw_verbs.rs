//! The verbs for scripts: what they print, and their exit codes.

use crate::support::shell::Desk;
use serde_json::json;
use std::fs;

const TOKEN: &str = "--token worker-1-attempt-1";

#[tokio::test]
async fn a_script_claims_completes_and_gets_the_replay() {
    let desk = Desk::start().await;
    let sh = &desk.shell;
    fs::write(sh.path("request.json"), "{\"b\": 1, \"a\": 2}").expect("it can be written");
    fs::write(sh.path("same.json"), "{\"a\":2,\"b\":1}").expect("it can be written");
    fs::write(sh.path("other.json"), "{\"a\":3}").expect("it can be written");

    let line = format!("claim order-1 {TOKEN} --json-body request.json");
    let claimed = sh.run(&line, &[]).await;
    assert_eq!(claimed.code, 0, "{claimed:?}");
    let answer = claimed.json();
    assert_eq!(answer["claimed"]["claimToken"], "worker-1-attempt-1");
    assert_eq!(answer["claimed"]["attempt"], "1");

    let in_flight = sh
        .run("claim order-1 --json-body same.json --holder b", &[])
        .await;
    assert_eq!(in_flight.code, 75, "{in_flight:?}");
    assert_eq!(in_flight.json()["inFlight"]["attempt"], "1");
    let mismatch = sh.run("claim order-1 --json-body other.json", &[]).await;
    assert_eq!(
        (mismatch.code, mismatch.json()),
        (65, json!({"mismatch": {}}))
    );

    let renewed = sh
        .run(&format!("renew claim order-1 {TOKEN} --lease 1h"), &[])
        .await;
    assert_eq!(renewed.code, 0, "{renewed:?}");
    assert_eq!(
        renewed.json()["renewed"]["fencingToken"],
        answer["claimed"]["fencingToken"]
    );

    fs::write(sh.path("answer"), [0, 255]).expect("it can be written");
    let line = format!("complete order-1 {TOKEN} --status 201 --body answer --header");
    let completed = sh.run(&line, &["content-type: application/json"]).await;
    assert_eq!(completed.code, 0, "{completed:?}");
    let replay = sh.run("claim order-1 --json-body same.json", &[]).await;
    assert_eq!(replay.code, 80, "{replay:?}");
    assert_eq!(
        replay.json()["replay"]["response"],
        json!({
            "status": 201,
            "body": "AP8=",
            "headers": [{"name": "content-type", "value": "YXBwbGljYXRpb24vanNvbg=="}],
        })
    );
    let late = sh
        .run("complete order-1 --token another-worker-9", &[])
        .await;
    assert_eq!(
        (late.code, late.json()["lost"]["reason"].as_str()),
        (76, Some("LOSS_REASON_COMPLETED"))
    );
}

#[tokio::test]
async fn a_claim_that_is_given_up_is_free_or_uncertain_as_it_says() {
    let desk = Desk::start().await;
    let sh = &desk.shell;
    assert_eq!(sh.run(&format!("claim order-1 {TOKEN}"), &[]).await.code, 0);
    let abandoned = sh
        .run(&format!("abandon order-1 {TOKEN} --effect none"), &[])
        .await;
    assert_eq!(
        (abandoned.code, abandoned.json()),
        (0, json!({"abandoned": {}}))
    );
    let spent = sh.run(&format!("claim order-1 {TOKEN}"), &[]).await;
    assert_eq!(spent.code, 76, "{spent:?}");

    let second = "--token worker-2-attempt-1";
    let claimed = sh
        .run(&format!("claim order-1 {second} --uncertain"), &[])
        .await;
    assert_eq!(
        (claimed.code, &claimed.json()["claimed"]["attempt"]),
        (0, &json!("2"))
    );
    let line = format!("abandon order-1 {second} --effect unknown --reason timeout");
    assert_eq!(sh.run(&line, &[]).await.code, 0);
    let uncertain = sh.run("claim order-1", &[]).await;
    assert_eq!(uncertain.code, 79, "{uncertain:?}");
    let foreign = sh
        .run(
            "abandon order-1 --token nobodys-token-at-all --effect none",
            &[],
        )
        .await;
    assert_eq!(foreign.code, 76, "{foreign:?}");
}

#[tokio::test]
async fn a_script_acquires_renews_and_releases_a_lock() {
    let desk = Desk::start().await;
    let sh = &desk.shell;
    let acquired = sh
        .run(&format!("acquire backup {TOKEN} --holder a"), &[])
        .await;
    assert_eq!(acquired.code, 0, "{acquired:?}");
    let again = sh.run(&format!("acquire backup {TOKEN}"), &[]).await;
    assert_eq!(again.json()["acquired"]["alreadyHeld"], true);
    let held = sh.run("acquire backup", &[]).await;
    assert_eq!(
        (held.code, &held.json()["held"]["holders"][0]["holder"]),
        (75, &json!("a"))
    );
    assert_eq!(
        sh.run(&format!("renew lock backup {TOKEN}"), &[])
            .await
            .code,
        0
    );
    assert_eq!(
        sh.run("renew lock backup --token nobodys-token-at-all", &[])
            .await
            .code,
        76
    );
    assert_eq!(
        sh.run("release backup --token nobodys-token-at-all", &[])
            .await
            .code,
        76
    );
    for _ in 0..2 {
        let released = sh.run(&format!("release backup {TOKEN}"), &[]).await;
        assert_eq!(
            (released.code, released.json()),
            (0, json!({"released": {"freeIn": "0s"}}))
        );
    }
    let spent = sh.run(&format!("acquire backup {TOKEN}"), &[]).await;
    assert_eq!(spent.code, 76, "{spent:?}");
}

#[tokio::test]
async fn a_random_token_is_in_the_answer_and_good_for_the_rest() {
    let desk = Desk::start().await;
    let claimed = desk.shell.run("claim order-1", &[]).await.json();
    let token = claimed["claimed"]["claimToken"]
        .as_str()
        .expect("there is one");
    let completed = desk.shell.run("complete order-1 --token", &[token]).await;
    assert_eq!(completed.code, 0, "{completed:?}");
}

#[tokio::test]
async fn an_answer_can_be_read_by_people() {
    let desk = Desk::start().await;
    let claimed = desk
        .shell
        .run(&format!("claim order-1 -o table {TOKEN}"), &[])
        .await;
    assert!(
        claimed
            .stdout
            .starts_with("claimed\n  attempt        1\n  claim token    worker-1-attempt-1\n"),
        "{claimed:?}"
    );
}

#[tokio::test]
async fn a_body_comes_from_standard_input_too() {
    use tokio::io::AsyncWriteExt;
    let desk = Desk::start().await;
    let mut bodies = Vec::new();
    for body in ["a", "a", "b"] {
        let mut command = desk.shell.command("claim order-1 --body -", &[]);
        command
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut stdin = child.stdin.take().expect("it is piped");
        stdin.write_all(body.as_bytes()).await.expect("it reads");
        drop(stdin);
        bodies.push(child.wait().await.expect("it ends").code());
    }
    assert_eq!(bodies, [Some(0), Some(75), Some(65)]);
}
