//! Clients that send rubbish, or do not read: the service and all other streams go on.

use super::*;
use crate::support::BOUND;
use crate::support::failures::{invalid, told};
use crate::support::raw::{Raw, Sent, framed, framed_message};
use crate::support::service::store_timeout;
use crate::support::stream::keep;
use claimlock::rpc::proto::lease_ref::Kind;
use claimlock::rpc::proto::{KeepAliveRequest, LockRef};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio_stream::StreamExt as _;
use tonic::Code;
use tonic::transport::Endpoint;

/// Bytes that look like nothing, the same on every run.
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn with_resource(resource: String) -> KeepAliveRequest {
    KeepAliveRequest {
        request_id: 1,
        lease_ref: Some(LeaseRef {
            tenant: String::new(),
            kind: Some(Kind::Lock(LockRef {
                resource,
                lock_token: crate::support::requests::token("a"),
            })),
        }),
        ..KeepAliveRequest::default()
    }
}

#[tokio::test]
async fn bytes_that_are_no_message_end_their_stream_and_no_other() {
    let world = World::start().await;
    let lease = world.hold_lock("r", "a").await;
    let mut stream = world.stream().await;
    let raw = Raw::to(&world.service).await;
    let good = framed_message(&KeepAliveRequest {
        request_id: 1,
        ..keep(&lease)
    });
    let field_7_of_type_7 = vec![0x3f];
    let cut_short = vec![0x12, 0xff, 0x01, 0x00];
    let not_utf_8 = vec![0x12, 0x03, 0x0a, 0x01, 0xff];
    for (what, bytes) in [
        ("a type of no field", framed(&field_7_of_type_7)),
        ("a field that is cut short", framed(&cut_short)),
        ("text that is not UTF-8", framed(&not_utf_8)),
        ("a frame of no known kind", [vec![9], noise(1, 40)].concat()),
        (
            "a frame without its end",
            framed(&noise(2, 500))[..300].to_vec(),
        ),
        (
            "a compressed frame",
            [vec![1], framed(b"xyz")[1..].to_vec()].concat(),
        ),
    ] {
        let sent = Sent::all([good.clone(), bytes].concat());
        let status = raw.call("KeepAlive", &[], sent).await;
        let told = told(&status);
        assert_eq!(
            told.code,
            tonic::Code::InvalidArgument,
            "{what}: {status:?}"
        );
        assert_eq!(told.reason, "INVALID_FIELD", "{what}");
        stream.ask(keep(&lease)).await.renewed();
    }
    for seed in 0..300 {
        let length = 1 + usize::try_from(seed % 97).expect("it is small");
        let sent = Sent::all(framed(&noise(seed, length)));
        // Some are messages, with fields that nobody knows.
        let status = raw.call("KeepAlive", &[], sent).await;
        let expected = [tonic::Code::InvalidArgument, tonic::Code::Ok];
        assert!(expected.contains(&status.code()), "{seed}: {status:?}");
    }
    stream.ask(keep(&lease)).await.renewed();
    world.finish().await;
}

#[tokio::test]
async fn a_message_over_the_limit_ends_its_stream_and_one_below_it_gets_an_error() {
    let world = World::start().await;
    let lease = world.hold_lock("r", "a").await;
    let mut stream = world.stream().await;
    let raw = Raw::to(&world.service).await;
    let huge = framed_message(&with_resource("r".repeat(32 << 20)));
    let status = raw.call("KeepAlive", &[], Sent::all(huge)).await;
    assert_eq!(told(&status), invalid("TOO_LARGE", &[]));
    stream.ask(keep(&lease)).await.renewed();

    // It is not sent back.
    for _ in 0..20 {
        stream.send(with_resource("r".repeat(4 << 20))).await;
    }
    for _ in 0..20 {
        let answer = stream.next().await;
        assert_eq!(answer.lease_ref, None);
        let error = answer.outcome.expect("an outcome").error();
        assert!(error.message.len() < 200, "{}", error.message.len());
    }
    stream.ask(keep(&lease)).await.renewed();
    world.finish().await;
}

#[tokio::test]
async fn a_thousand_malformed_messages_get_an_error_each_while_others_go_on() {
    const MESSAGES: usize = 1000;
    let world = World::start().await;
    let lease = world.hold_lock("r", "a").await;
    let client = world.client().await;
    let mut stream = Stream::open(&client).await;
    let bad = (0..MESSAGES).map(|number| KeepAliveRequest {
        request_id: i64::try_from(number).expect("it is small") % 2,
        ..with_resource(String::new())
    });
    let answers = client.clone().keep_alive(tokio_stream::iter(bad)).await;
    let mut answers = answers.expect("a stream").into_inner();
    let mut errors = 0;
    while let Some(answer) = answers.message().await.expect("it ends well") {
        answer.outcome.expect("an outcome").error();
        errors += 1;
        if errors % 100 == 0 {
            stream.ask(keep(&lease)).await.renewed();
        }
    }
    assert_eq!(errors, MESSAGES);
    world.finish().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_not_read_from_any_more() {
    /// What it wants to send: far more than lies in buffers on the way.
    const MESSAGES: usize = 100_000;
    const MORE_THAN_IN_FLIGHT: usize = 3000;
    let world = World::start().await;
    let lease = world.hold_lock("r", "a").await;
    let sent = Arc::new(AtomicUsize::new(0));
    let messages = tokio_stream::iter(1..=MESSAGES).map({
        let (sent, lease) = (sent.clone(), lease.clone());
        move |number| {
            sent.store(number, Ordering::Relaxed);
            KeepAliveRequest {
                request_id: i64::try_from(number).expect("it is small"),
                ..keep(&lease)
            }
        }
    });
    // What the client itself takes in unread is no matter of the service's.
    let channel = Endpoint::from_shared(format!("http://{}", world.service.grpc))
        .expect("an address")
        .initial_stream_window_size(16_384)
        .connect()
        .await
        .expect("the service takes connections");
    let answers = Coordination::new(channel).keep_alive(messages).await;
    let mut answers = answers.expect("a stream").into_inner();
    // It stops once it was not let send for a while.
    let mut before = 0;
    let stuck_at = eventually("the client to be held up", async || {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = sent.load(Ordering::Relaxed);
        (std::mem::replace(&mut before, now) == now).then_some(now)
    })
    .await;
    eprintln!("a client that does not read was let send {stuck_at} messages");
    assert!(stuck_at < MESSAGES / 2, "{stuck_at}");

    // Others are not held up, and neither is it once it reads.
    let mut stream = world.stream().await;
    stream.ask(keep(&lease)).await.renewed();
    for _ in 0..MORE_THAN_IN_FLIGHT {
        let answer = tokio::time::timeout(BOUND, answers.message()).await;
        let answer = answer.expect("an answer in time").expect("it goes on");
        answer.expect("an answer").outcome.expect("one").renewed();
    }
    drop(answers);
    world.finish().await;
}

#[tokio::test]
async fn a_burst_of_messages_in_a_frame_each_cuts_no_connection() {
    /// As of a process that has many leases, and renews them all at once.
    const MESSAGES: usize = 30_000;
    let world = World::with(store_timeout(LONG)).await;
    let lease = world.hold_lock("r", "a").await;
    let message = framed_message(&KeepAliveRequest {
        request_id: 1,
        ..keep(&lease)
    });
    let raw = Raw::to(&world.service).await;
    // None is answered for now, so that most of them lie unread.
    world.redis.stop_process();
    let burst = Sent::in_frames(std::iter::repeat_n(message, MESSAGES));
    let burst = tokio::spawn({
        let raw = raw.clone();
        async move { raw.call("KeepAlive", &[], burst).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.redis.resume_process();
    let status = burst.await.expect("the connection stands");
    assert_eq!(status.code(), Code::Ok, "{status:?}");
    world.finish().await;
}

#[tokio::test]
async fn a_stream_that_says_nothing_at_all_is_left_alone() {
    let world = World::start().await;
    let lease = world.hold_lock("r", "a").await;
    let mut stream = world.stream().await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    stream.ask(keep(&lease)).await.renewed();
    world.finish().await;
}
