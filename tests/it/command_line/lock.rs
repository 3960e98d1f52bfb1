//! What `claimlock lock` runs, and where somebody else holds the lock.

use crate::support::answers::acquired;
use crate::support::requests::{acquire, release, share};
use crate::support::shell::{Desk, Ran};
use claimlock::rpc::proto::GetLockRequest;
use std::time::Duration;

const WAITS: &str = "echo $$ > pid; while [ ! -e go ]; do sleep 0.05; done; echo done";

async fn lock_info(desk: &Desk, resource: &str) -> Option<claimlock::rpc::proto::LockInfo> {
    let request = GetLockRequest {
        resource: resource.to_owned(),
        ..Default::default()
    };
    let answer = desk.service.admin().await.get_lock(request).await;
    answer.expect("the service answers").into_inner().lock
}

#[tokio::test]
async fn a_command_runs_under_the_lock_and_gets_a_higher_fencing_token_each_time() {
    let desk = Desk::start().await;
    let script = ["echo $CLAIMLOCK_FENCING_TOKEN; test $CLAIMLOCK_RESOURCE = nightly; exit 3"];
    let mut last = 0;
    for _ in 0..3 {
        let ran = desk.shell.run("lock nightly -- sh -c", &script).await;
        assert_eq!((ran.code, ran.stderr.as_str()), (3, ""), "{ran:?}");
        let fencing_token: i64 = ran.stdout.trim().parse().expect("a number");
        assert!(fencing_token > last, "{fencing_token} after {last}");
        last = fencing_token;
        assert_eq!(lock_info(&desk, "nightly").await, None, "it was released");
    }
    assert_eq!(desk.redis.keys_without_expiry().await, [""; 0]);
}

#[tokio::test]
async fn a_lock_that_somebody_else_holds_is_a_failure_with_its_own_code_or_skipped() {
    let desk = Desk::start().await;
    let mut client = desk.service.coordination().await;
    acquired(client.acquire_lock(acquire("nightly", "a")).await);
    let held = desk.shell.run("lock nightly -- touch ran", &[]).await;
    assert_eq!(held.code, 75);
    assert_eq!(held.stderr, "claimlock: nightly is held by holder a\n");
    assert_eq!(
        desk.shell
            .run("lock nightly -E 3 -- touch ran", &[])
            .await
            .code,
        3
    );
    let skipped = desk
        .shell
        .run("lock nightly --if-held=skip -- touch ran", &[])
        .await;
    assert_eq!(skipped, Ran::printing(0, ""));
    assert!(!desk.shell.exists("ran"));
}

#[tokio::test]
async fn a_lock_that_is_waited_for_is_got_when_it_is_released() {
    let desk = Desk::start().await;
    let mut client = desk.service.coordination().await;
    acquired(client.acquire_lock(acquire("nightly", "a")).await);
    let waiting = desk.shell.start("lock nightly --wait 1m -- echo got", &[]);
    let in_vain = desk
        .shell
        .run("lock nightly --wait 100ms -- echo got", &[])
        .await;
    assert_eq!(in_vain.code, 75);
    let answer = client.release_lock(release("nightly", "a")).await;
    answer.expect("the lock is held");
    assert_eq!(waiting.ends().await, Ran::printing(0, "got\n"));
}

#[tokio::test]
async fn so_many_may_share_a_lock_and_no_more() {
    let desk = Desk::start().await;
    let mut client = desk.service.coordination().await;
    acquired(client.acquire_lock(share("pool", "a", 2)).await);
    let line = "lock pool --shared --max-holders 2 -- sh -c";
    let second = desk.shell.start(line, &[WAITS]);
    desk.shell.written("pid").await;
    assert_eq!(desk.shell.run(line, &["true"]).await.code, 75);
    assert_eq!(desk.shell.run("lock pool -- true", &[]).await.code, 75);
    desk.shell.touch("go");
    assert_eq!(second.ends().await.code, 0);
    assert_eq!(desk.shell.run(line, &["true"]).await.code, 0);
    let alone = desk
        .shell
        .run("lock pool --max-holders 2 -- true", &[])
        .await;
    assert_eq!(alone.code, 2, "{alone:?}");
}

#[tokio::test]
async fn a_lock_outlives_its_lease_for_as_long_as_the_command_runs() {
    let desk = Desk::start().await;
    let going = desk
        .shell
        .start("lock nightly --lease 1s -- sh -c", &[WAITS]);
    desk.shell.written("pid").await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(desk.shell.run("lock nightly -- true", &[]).await.code, 75);
    desk.shell.touch("go");
    assert_eq!(going.ends().await, Ran::printing(0, "done\n"));
}

#[tokio::test]
async fn a_job_that_ends_quickly_holds_its_lock_for_as_long_as_it_was_told() {
    let desk = Desk::start().await;
    let line = "lock nightly --hold-at-least 1h -- echo";
    assert_eq!(
        desk.shell.run(line, &["ran"]).await,
        Ran::printing(0, "ran\n")
    );
    let again = desk.shell.run(line, &["ran"]).await;
    assert_eq!(again.code, 75);
    assert_eq!(
        again.stderr,
        "claimlock: nightly stays taken for a while after its last holder\n"
    );
}

#[tokio::test]
async fn a_command_that_cannot_be_run_leaves_the_lock_free() {
    let desk = Desk::start().await;
    let ran = desk.shell.run("lock nightly -- ./missing", &[]).await;
    assert_eq!(ran.code, 127);
    assert_eq!(
        ran.stderr,
        "claimlock: ./missing could not be started: No such file or directory\n"
    );
    assert_eq!(lock_info(&desk, "nightly").await, None);
}

#[tokio::test]
async fn a_value_that_the_service_refuses_is_a_wrong_command_line() {
    let desk = Desk::start().await;
    let long = "n".repeat(256);
    let ran = desk.shell.run("lock", &[&long, "--", "true"]).await;
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("resource"), "{ran:?}");
    for line in [
        "lock",
        "lock nightly",
        "lock nightly true",
        "lock nightly --wait 3 -- true",
    ] {
        assert_eq!(desk.shell.run(line, &[]).await.code, 2, "{line}");
    }
}
