//! What the other tests' servers can be made to do, proved once.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use redis::{AsyncTypedCommands, Script};

use crate::support::blackhole::{Mode, Proxy, Upstream};
use crate::support::eventually;
use crate::support::redis::{RedisOptions, RedisServer, connect};

const SHORT: Duration = Duration::from_millis(200);

#[expect(
    clippy::disallowed_methods,
    reason = "the machine's clock is what the server's is held against"
)]
fn seconds_now() -> i64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970");
    now.as_secs().try_into().expect("a sensible clock")
}

async fn seconds_by_time(connection: &mut MultiplexedConnection) -> i64 {
    let (seconds, _): (i64, i64) = redis::cmd("TIME")
        .query_async(connection)
        .await
        .expect("TIME");
    seconds
}

async fn seconds_by_script(connection: &mut MultiplexedConnection) -> i64 {
    let script = Script::new("return redis.call('TIME')[1]");
    script
        .invoke_async::<_, String>(connection)
        .await
        .expect("a script")
        .parse()
        .expect("seconds")
}

#[tokio::test]
async fn the_clock_of_a_server_can_be_moved_both_ways_while_it_runs() {
    let options = RedisOptions {
        movable_clock: true,
        ..RedisOptions::default()
    };
    let server = RedisServer::with(options).await;
    let mut connection = server.connect().await;
    connection
        .pset_ex("key", "value", 60_000)
        .await
        .expect("PSETEX");

    for offset in [0, -3600, 7200, -86_400, 0] {
        server.set_clock_offset(offset as f64);
        for told in [
            seconds_by_time(&mut connection).await,
            seconds_by_script(&mut connection).await,
        ] {
            let expected = seconds_now() + offset;
            assert!(
                (told - expected).abs() <= 2,
                "offset {offset}: told {told}, expected {expected}"
            );
        }
        let left: i64 = redis::cmd("PTTL")
            .arg("key")
            .query_async(&mut connection)
            .await
            .expect("PTTL");
        match offset {
            -3600 => assert!(
                left > 3_600_000,
                "expiries follow the clock: {left} ms left"
            ),
            7200 => assert_eq!(left, -2, "expiries follow the clock"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn a_killed_server_comes_back_with_its_data_if_it_keeps_a_file() {
    for appendonly in [true, false] {
        let options = RedisOptions {
            appendonly,
            tcp: true,
            ..RedisOptions::default()
        };
        let mut server = RedisServer::with(options).await;
        server
            .connect()
            .await
            .set("key", "value")
            .await
            .expect("SET");
        let before = server.dump().await;
        assert_eq!(server.keys_without_expiry().await, ["key"]);

        server.kill();
        assert!(connect(&server.url()).await.is_err());
        server.restart().await;

        assert_eq!(server.dump().await == before, appendonly);
        connect(&server.tcp_url())
            .await
            .expect("the port is the same");
    }
}

#[tokio::test]
async fn a_dump_tells_values_and_expiries_apart() {
    let server = RedisServer::start().await;
    let mut connection = server.connect().await;
    assert!(server.dump().await.is_empty());
    connection
        .pset_ex("key", "value", 60_000)
        .await
        .expect("PSETEX");
    let first = server.dump().await;
    assert_eq!(server.dump().await, first);
    assert!(server.keys_without_expiry().await.is_empty());

    connection.append("key", "s").await.expect("APPEND");
    let second = server.dump().await;
    assert_ne!(second, first);
    connection.pexpire("key", 90_000).await.expect("PEXPIRE");
    assert_ne!(server.dump().await, second);
}

#[tokio::test]
async fn a_stopped_server_does_what_it_was_sent_when_it_goes_on() {
    let server = RedisServer::start().await;
    let mut connection = server.connect().await;
    server.stop_process();
    let mut sender = connection.clone();
    let sent = tokio::spawn(async move { sender.set("key", "value").await });
    assert!(
        tokio::time::timeout(SHORT, connection.exists("key"))
            .await
            .is_err(),
        "answered while stopped"
    );
    server.resume_process();
    sent.await.expect("no panic").expect("SET");
    assert!(connection.exists("key").await.expect("EXISTS"));
}

async fn unanswered(connection: &mut MultiplexedConnection, key: &str) {
    let answer = tokio::time::timeout(SHORT, connection.set(key, "value")).await;
    assert!(answer.is_err(), "answered: {answer:?}");
}

/// What was lost closes its connection, so that its replies cannot be mixed up.
async fn is_closed(connection: &mut MultiplexedConnection) {
    eventually("the connection's end", async || {
        connection.exists("key").await.is_err().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_network_can_be_made_to_fail_in_each_way() {
    let server = RedisServer::with(RedisOptions {
        tcp: true,
        ..RedisOptions::default()
    })
    .await;
    for upstream in [
        Upstream::Unix(server.socket_path()),
        Upstream::Tcp(server.tcp_addr()),
    ] {
        let mut direct = server.connect().await;
        direct.flushall().await.expect("FLUSHALL");
        let proxy = Proxy::start(upstream);

        let mut connection = connect(&proxy.redis_url()).await.expect("passes");
        connection.set("passed", "value").await.expect("SET");
        assert!(direct.exists("passed").await.expect("EXISTS"));

        proxy.set(Mode::Hold).await;
        unanswered(&mut connection, "held").await;
        assert!(!direct.exists("held").await.expect("EXISTS"));
        proxy.set(Mode::Pass).await;
        eventually("what was held", async || {
            direct.exists("held").await.expect("EXISTS").then_some(())
        })
        .await;
        connection
            .set("passed", "again")
            .await
            .expect("the connection goes on");

        proxy.set(Mode::BlackHole).await;
        unanswered(&mut connection, "swallowed").await;
        let taken = tokio::net::TcpStream::connect(proxy.addr())
            .await
            .expect("connections are taken");
        proxy.set(Mode::Pass).await;
        is_closed(&mut connection).await;
        assert!(!direct.exists("swallowed").await.expect("EXISTS"));
        drop(taken);

        let mut connection = connect(&proxy.redis_url()).await.expect("passes again");
        proxy.set(Mode::SwallowReplies).await;
        unanswered(&mut connection, "unheard").await;
        eventually("the unheard", async || {
            direct
                .exists("unheard")
                .await
                .expect("EXISTS")
                .then_some(())
        })
        .await;
        proxy.set(Mode::Pass).await;
        is_closed(&mut connection).await;

        let mut connection = connect(&proxy.redis_url()).await.expect("passes again");
        proxy.set(Mode::Cut).await;
        let since = Instant::now();
        assert!(
            connection.exists("key").await.is_err(),
            "the connection is closed"
        );
        let refused = tokio::net::TcpStream::connect(proxy.addr())
            .await
            .expect_err("new ones are refused");
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        assert!(since.elapsed() < SHORT, "at once");
        proxy.set(Mode::Pass).await;
        connect(&proxy.redis_url()).await.expect("passes again");
    }
}
