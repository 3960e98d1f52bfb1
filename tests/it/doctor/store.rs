//! Faults of the store.

use super::{Healthy, diagnose, diagnose_with, redis_with};
use crate::support::certificates::certificates;
use crate::support::eventually;
use crate::support::redis::{RedisOptions, RedisServer};
use crate::support::shell::run;
use crate::tls::redis_with_tls;
use std::time::{Duration, Instant};

#[tokio::test]
async fn nothing_is_wrong_with_a_healthy_pair_and_nothing_is_left_of_the_look() {
    let pair = Healthy::start().await;
    let before = pair.redis.dump().await;
    let found = diagnose(&pair.shell, &pair.redis.url()).await;
    assert_eq!(found.faults(), []);
    assert_eq!(found.ran.code, 0);
    let looked_at: Vec<_> = found.checks().map(|check| check["check"].clone()).collect();
    assert_eq!(
        looked_at,
        [
            "store",
            "version",
            "role",
            "persistence",
            "eviction",
            "memory",
            "clock",
            "rights",
            "writes",
            "scripts",
            "service",
            "health",
            "service version"
        ]
    );
    assert_eq!(pair.redis.dump().await, before);

    let strict = ["--strict", "--redis-url", &pair.redis.url()];
    let table = pair.shell.run("doctor", &strict).await;
    assert_eq!((table.code, table.stderr.as_str()), (0, ""), "{table:?}");
    assert!(
        table.stdout.lines().all(|line| line.starts_with("ok    ")),
        "{table:?}"
    );
    assert_eq!(table.stdout.lines().count(), 13, "{table:?}");
}

#[tokio::test]
async fn a_fault_is_one_line_and_what_to_do_is_the_next() {
    let pair = Healthy::start().await;
    let redis = RedisServer::start().await;
    let ran = pair.shell.run("doctor --redis-url", &[&redis.url()]).await;
    assert_eq!((ran.code, ran.stderr.as_str()), (83, ""), "{ran:?}");
    let lines: Vec<_> = ran.stdout.lines().collect();
    let at = lines.iter().position(|line| line.starts_with("FAIL"));
    let at = at.unwrap_or_else(|| panic!("no fault: {ran:?}"));
    assert!(
        lines[at].starts_with("FAIL  persistence: nothing is persisted"),
        "{ran:?}"
    );
    assert!(
        lines[at + 1].starts_with("      -> redis-cli CONFIG SET appendonly yes"),
        "{ran:?}"
    );
}

#[tokio::test]
async fn a_store_that_is_not_there_is_told_apart_by_why() {
    let pair = Healthy::start().await;
    let socket = pair.shell.path("none.sock");
    let socket = format!("unix://{}", socket.display());
    for (url, finding, advice) in [
        (
            "redis://127.0.0.1:1",
            "nobody listens",
            "systemctl start redis-server",
        ),
        (&socket, "the socket is not there", "unixsocket"),
        (
            "redis://no-such-host.invalid:6379",
            "name has no address",
            "DNS",
        ),
        (
            &format!("redis://{}", pair.service.http),
            "no Redis",
            "host and port in --redis-url",
        ),
    ] {
        let found = diagnose(&pair.shell, url).await;
        found.says("store", "fail", finding, advice);
        assert_eq!(found.faults(), [("store", "fail")], "{url}");
    }
}

#[tokio::test]
async fn a_store_that_hangs_is_waited_for_no_longer_than_the_timeout() {
    let pair = Healthy::start().await;
    let hangs = redis_with(&[]).await;
    hangs.stop_process();
    let start = Instant::now();
    let found = diagnose(&pair.shell, &hangs.url()).await;
    found.says("store", "fail", "no answer within 1s", "firewall");
    assert_eq!(found.faults(), [("store", "fail")]);
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn a_password_that_is_wanted_is_told_apart_from_a_wrong_one_and_neither_is_shown() {
    let pair = Healthy::start().await;
    let redis = redis_with(&[]).await;
    // Only now, as the test's own helpers have no password.
    let mut config = redis::cmd("CONFIG");
    config.arg("SET").arg("requirepass").arg("tr0ub4dor");
    config
        .exec_async(&mut redis.connect().await)
        .await
        .expect("redis takes the setting");
    let wanted = diagnose(&pair.shell, &redis.url()).await;
    wanted.says(
        "store",
        "fail",
        "none was given (NOAUTH)",
        "--redis-url-file",
    );
    let url = format!("{}?pass=guess-1", redis.url());
    let wrong = diagnose(&pair.shell, &url).await;
    wrong.says(
        "store",
        "fail",
        "refuses the user or the password",
        "ACL LIST",
    );
    assert!(!wrong.ran.stdout.contains("guess-1"), "{wrong:?}");
    let right = diagnose(&pair.shell, &format!("{}?pass=tr0ub4dor", redis.url())).await;
    assert_eq!(right.faults(), []);
    assert!(!right.ran.stdout.contains("tr0ub4dor"), "{right:?}");
    let hidden = diagnose(&pair.shell, &format!("{}?pass=***", redis.url())).await;
    hidden.says(
        "store",
        "fail",
        "hidden, as claimlock config prints it",
        "--redis-url-file",
    );
}

#[tokio::test]
async fn a_store_behind_tls_is_told_from_one_whose_authority_is_not_trusted() {
    let pair = Healthy::start().await;
    let certificates = certificates();
    let redis = redis_with_tls(&certificates).await;
    let distrusted = diagnose(&pair.shell, &redis.tls_url()).await;
    distrusted.says("store", "fail", "TLS fails", "SSL_CERT_FILE");
    let plain = redis.tls_url().replace("rediss://", "redis://");
    let plain = diagnose(&pair.shell, &plain).await;
    plain.says("store", "fail", "", "write rediss://");

    let mut command = pair
        .shell
        .command("doctor -o json --redis-url", &[&redis.tls_url()]);
    command.env("SSL_CERT_FILE", certificates.path().join("ca.pem"));
    let trusted = run(command).await;
    assert!(!trusted.stdout.contains("TLS fails"), "{trusted:?}");
    assert!(trusted.stdout.contains("answers in"), "{trusted:?}");
}

#[tokio::test]
async fn a_store_that_does_not_keep_what_it_has_is_a_fault() {
    let pair = Healthy::start().await;
    let forgets = RedisServer::start().await;
    let found = diagnose(&pair.shell, &forgets.url()).await;
    found.says(
        "persistence",
        "fail",
        "nothing is persisted",
        "CONFIG SET appendonly yes",
    );
    assert_eq!(found.faults(), [("persistence", "fail")]);

    let save = ["--save", "3600 1"].map(str::to_owned).to_vec();
    let snapshots = RedisServer::with(RedisOptions {
        args: save,
        ..RedisOptions::default()
    })
    .await;
    let found = diagnose(&pair.shell, &snapshots.url()).await;
    found.says(
        "persistence",
        "warn",
        "snapshots alone (save 3600 1)",
        "CONFIG SET appendonly yes",
    );
    assert_eq!(
        (found.faults(), found.ran.code),
        (vec![("persistence", "warn")], 0)
    );
    let strict = ["--strict", "--redis-url", &snapshots.url()];
    let strict = pair.shell.run("doctor", &strict).await;
    assert_eq!(strict.code, 83, "{strict:?}");

    let lazy = redis_with(&["--appendfsync", "no"]).await;
    let found = diagnose(&pair.shell, &lazy.url()).await;
    found.says(
        "persistence",
        "warn",
        "appendfsync no",
        "CONFIG SET appendfsync everysec",
    );
    let careful = redis_with(&["--appendfsync", "always"]).await;
    let found = diagnose(&pair.shell, &careful.url()).await;
    found.says("persistence", "ok", "before every answer", "");
    assert_eq!(found.faults(), []);
}

#[tokio::test]
async fn a_store_that_may_evict_keys_is_a_fault_where_its_memory_has_a_limit() {
    let pair = Healthy::start().await;
    let evicts = ["--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb"];
    let redis = redis_with(&evicts).await;
    let found = diagnose(&pair.shell, &redis.url()).await;
    found.says(
        "eviction",
        "fail",
        "allkeys-lru",
        "CONFIG SET maxmemory-policy noeviction",
    );
    assert_eq!(found.faults(), [("eviction", "fail")]);
    let redis = redis_with(&evicts[..2]).await;
    let found = diagnose(&pair.shell, &redis.url()).await;
    found.says(
        "eviction",
        "warn",
        "would be evicted",
        "CONFIG SET maxmemory-policy noeviction",
    );
    assert_eq!(found.faults(), [("eviction", "warn")]);
}

#[tokio::test]
async fn a_store_that_is_nearly_full_or_full_is_told_so() {
    let pair = Healthy::start().await;
    let redis = redis_with(&[]).await;
    let mut connection = redis.connect().await;
    let mut set = async |name: &str, value: &str| {
        let mut config = redis::cmd("CONFIG");
        config.arg("SET").arg(name).arg(value);
        let set = config.exec_async(&mut connection).await;
        set.expect("redis takes the setting");
    };
    // A value of 40 MB, and room for the scripts and what they write.
    set("maxmemory", "45mb").await;
    let mut filling = redis.connect().await;
    let mut fill = redis::cmd("SETRANGE");
    fill.arg("filling").arg(41_000_000).arg("end");
    fill.exec_async(&mut filling).await.expect("there is room");
    let found = diagnose(&pair.shell, &redis.url()).await;
    found.says(
        "memory",
        "warn",
        "no claim or lock is granted",
        "CONFIG SET maxmemory",
    );
    assert_eq!(found.faults(), [("memory", "warn")]);

    set("maxmemory", "1mb").await;
    let found = diagnose(&pair.shell, &redis.url()).await;
    found.says("writes", "fail", "(OOM)", "CONFIG SET maxmemory");
    found.says("scripts", "warn", "not run", "mend that");
    let faults = [("memory", "warn"), ("writes", "fail"), ("scripts", "warn")];
    assert_eq!(found.faults(), faults);
}

#[tokio::test]
async fn a_replica_is_a_fault_and_its_primary_is_named() {
    let pair = Healthy::start().await;
    let primary = RedisServer::with(RedisOptions {
        appendonly: true,
        tcp: true,
        ..RedisOptions::default()
    })
    .await;
    let address = primary.tcp_addr();
    let port = address.port().to_string();
    let replica = redis_with(&["--replicaof", "127.0.0.1", &port]).await;
    let advice = format!("--redis-url redis://{address}");
    let found = diagnose(&pair.shell, &replica.url()).await;
    found.says("role", "fail", "takes no writes", &advice);
    found.says("writes", "fail", "(READONLY)", "name its primary");
    let at_primary = diagnose(&pair.shell, &primary.tcp_url()).await;
    assert_eq!(at_primary.faults(), []);
}

#[tokio::test]
async fn a_node_of_a_cluster_is_a_fault() {
    let pair = Healthy::start().await;
    let redis = redis_with(&["--cluster-enabled", "yes"]).await;
    let found = diagnose(&pair.shell, &redis.url()).await;
    found.says("role", "fail", "Cluster", "--redis-url");
}

#[tokio::test]
async fn writes_that_are_refused_are_told_with_the_reason() {
    let pair = Healthy::start().await;
    let lonely = redis_with(&["--min-replicas-to-write", "1"]).await;
    let found = diagnose(&pair.shell, &lonely.url()).await;
    found.says("writes", "fail", "(NOREPLICAS)", "min-replicas-to-write 0");

    let args = [
        "--enable-protected-configs",
        "yes",
        "--save",
        "3600 1000000",
    ];
    let redis = redis_with(&args).await;
    let mut connection = redis.connect().await;
    let mut config = redis::cmd("CONFIG");
    // Nobody can write a file there, not even root.
    config.arg("SET").arg("dir").arg("/proc");
    config
        .exec_async(&mut connection)
        .await
        .expect("redis takes the setting");
    redis::cmd("BGSAVE")
        .exec_async(&mut connection)
        .await
        .expect("it is tried");
    eventually("the snapshot to fail", async || {
        let mut info = redis::cmd("INFO");
        let info: String = info
            .arg("persistence")
            .query_async(&mut connection)
            .await
            .ok()?;
        info.contains("rdb_last_bgsave_status:err").then_some(())
    })
    .await;
    let found = diagnose(&pair.shell, &redis.url()).await;
    found.says("persistence", "fail", "a snapshot failed", "df -h");
    found.says("writes", "fail", "(MISCONF)", "df -h");
}

#[tokio::test]
async fn a_clock_that_is_off_is_warned_of_and_one_that_jumps_is_a_fault() {
    let pair = Healthy::start().await;
    let redis = RedisServer::with(RedisOptions {
        appendonly: true,
        movable_clock: true,
        ..RedisOptions::default()
    })
    .await;
    for (offset, finding) in [
        (3600.0, "3600.0 s ahead of this machine's"),
        (-86_400.0, "86400.0 s behind this machine's"),
    ] {
        redis.set_clock_offset(offset);
        let found = diagnose(&pair.shell, &redis.url()).await;
        found.says("clock", "warn", finding, "NTP");
        assert_eq!(found.faults(), [("clock", "warn")], "{offset}");
    }

    let mut jumping = tokio::time::interval(Duration::from_millis(70));
    let mut ahead = 0.0;
    let url = redis.url();
    let diagnosis = diagnose(&pair.shell, &url);
    let mut diagnosis = std::pin::pin!(diagnosis);
    let found = loop {
        tokio::select! {
            found = &mut diagnosis => break found,
            _ = jumping.tick() => {
                ahead += 1000.0;
                redis.set_clock_offset(ahead);
            }
        }
    };
    found.says("clock", "fail", "jumped forward", "never step it");
}

#[tokio::test]
async fn one_file_holds_what_both_sides_need_and_a_misspelt_variable_is_warned_of() {
    let pair = Healthy::start().await;
    let text = format!(
        "redis-url = \"{}\"\n[client]\nendpoint = \"http://{}\"\n",
        pair.redis.url(),
        pair.service.grpc
    );
    std::fs::write(pair.shell.path("claimlock.toml"), text).expect("it can be written");
    let mut command = pair.shell.command("doctor --config claimlock.toml", &[]);
    command.env_remove("CLAIMLOCK_ENDPOINT");
    let ran = run(command).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("answers in"), "{ran:?}");

    let flags = ["-o", "json", "--redis-url", &pair.redis.url()];
    let mut command = pair.shell.command("doctor", &flags);
    command.env("CLAIMLOCK_REDIS_ULR", "redis://x");
    let ran = run(command).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(
        ran.json()["checks"][0]["finding"],
        "CLAIMLOCK_REDIS_ULR",
        "{ran:?}"
    );

    let wrong = pair.shell.run("doctor --redis-url ftp://x", &[]).await;
    assert_eq!(wrong.code, 2, "{wrong:?}");
    let found = diagnose_with(&pair.shell, &["--redis-url", &pair.redis.url()]).await;
    assert_eq!(found.faults(), []);
}
