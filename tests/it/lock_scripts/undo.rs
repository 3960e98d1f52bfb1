//! What the undo of an acquisition leaves.

use super::{Ask, GET, RELEASE, RENEW, UNDO, ask, lock_scripts, shared};

#[tokio::test]
async fn undo_lock_answers_as_its_header_says() {
    let mut scripts = lock_scripts().await;
    let nothing = scripts.call(UNDO, &["a", "first call of a"]).await;
    assert_eq!(nothing.answer(), "kept");

    let lingering = Ask {
        hold_at_least: 50_000,
        lock_delay: 50_000,
        max_holders: 1,
        ..shared("a")
    };
    // Far ahead of the time, so that only the record can keep the next one above it.
    let seen = 1 << 52;
    let grant = scripts.acquire_having_seen(seen, &lingering).await;
    assert_eq!(grant.number(1), seen + 1);
    scripts.assert_late(UNDO, &["a", "first call of a"]).await;
    let another = scripts.call(UNDO, &["a", "later call of a"]).await;
    assert_eq!(another.answer(), "kept");
    let undone = scripts.call(UNDO, &["a", "first call of a"]).await;
    assert_eq!(undone.answer(), "undone");
    let again = scripts.call(UNDO, &["a", "first call of a"]).await;
    assert_eq!(again.answer(), "kept");

    // Neither the grant nor what would have outlasted it is left, save its fencing token.
    assert_eq!(scripts.call(GET, &["10"]).await.answer(), "free");
    let next = scripts.granted(&ask("a")).await;
    assert_eq!((next.number(0), next.number(1)), (0, seen + 2));
    scripts.finish(UNDO).await;
}

#[tokio::test]
async fn a_grant_is_undone_after_its_own_call_was_sent_again_or_its_lease_ended() {
    let mut scripts = lock_scripts().await;
    for _ in 0..2 {
        scripts.granted(&ask("a")).await;
    }
    let undone = scripts.call(UNDO, &["a", "first call of a"]).await;
    assert_eq!(undone.answer(), "undone");

    let delayed = Ask {
        lock_delay: 50_000,
        ..ask("b")
    };
    scripts.left_behind(&delayed).await;
    let undone = scripts.call(UNDO, &["b", "first call of b"]).await;
    assert_eq!(undone.answer(), "undone");
    scripts.granted(&ask("b")).await;
}

#[tokio::test]
async fn a_grant_that_somebody_has_heard_of_is_kept() {
    let mut scripts = lock_scripts().await;
    for heard in ["repeated", "renewed", "released"] {
        let token = format!("token {heard}");
        let holding = Ask {
            hold_at_least: 50_000,
            ..shared(&token)
        };
        scripts.granted(&holding).await;
        match heard {
            "repeated" => scripts.granted(&holding.repeated()).await,
            "renewed" => scripts.call(RENEW, &[&token, "", "", "0"]).await,
            _ => scripts.call(RELEASE, &[&token]).await,
        };
        for nonce in [&holding.nonce, &holding.repeated().nonce] {
            let before = scripts.redis.server.dump().await;
            let undone = scripts.call(UNDO, &[&token, nonce]).await;
            assert_eq!(undone.answer(), "kept", "{heard}");
            assert_eq!(scripts.redis.server.dump().await, before, "{heard}");
        }
    }
}

#[tokio::test]
async fn whose_lease_ended_was_not_taken_over_by_an_acquisition_that_was_undone() {
    let mut scripts = lock_scripts().await;
    let gone = ["b", "first call of b"];
    scripts.left_behind(&shared("a")).await;
    for (acquired, undone, told) in [
        ("b", true, "lost LEASE_OVER"),
        ("c", false, "lost TAKEN_OVER"),
        ("b", true, "lost TAKEN_OVER"),
    ] {
        scripts.granted(&shared(acquired)).await;
        let late = scripts.call(RENEW, &["a", "", "", "0"]).await;
        assert_eq!(late.answer(), "lost TAKEN_OVER");
        if undone {
            assert_eq!(scripts.call(UNDO, &gone).await.answer(), "undone");
        }
        let late = scripts.call(RENEW, &["a", "", "", "0"]).await;
        assert_eq!(late.answer(), told, "after {acquired}");
    }
    // One that came after the undone one stands.
    scripts.left_behind(&shared("d")).await;
    scripts.granted(&shared("b")).await;
    scripts.granted(&shared("e")).await;
    assert_eq!(scripts.call(UNDO, &gone).await.answer(), "undone");
    let late = scripts.call(RENEW, &["d", "", "", "0"]).await;
    assert_eq!(late.answer(), "lost TAKEN_OVER");
}

#[tokio::test]
async fn undoing_one_of_many_grants_leaves_the_others() {
    let mut scripts = lock_scripts().await;
    for token in ["a", "b", "c"] {
        scripts.granted(&shared(token)).await;
    }
    scripts.call(UNDO, &["b", "first call of b"]).await;
    let lock = scripts.call(GET, &["10"]).await;
    let mut names: Vec<String> = lock.holders(3).into_iter().map(|h| h.0).collect();
    names.sort_unstable();
    assert_eq!(names, ["holder a", "holder c"]);
}
