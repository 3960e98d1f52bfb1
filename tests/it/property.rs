//! Random sequences of calls, on the service and on the oracle written from the tables: every answer must be one that
//! the tables allow, expiry included.

use crate::model::Settings as ModelSettings;
use crate::model::check::{self, Subject, World};
use crate::model::coverage::Coverage;
use crate::model::ops::{self, Op};
use crate::support::redis::RedisServer;
use crate::support::service::{Admin, Coordination, Service};
use claimlock::config::Settings;
use claimlock::rpc::proto;
use futures_util::StreamExt;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, TestRunner};
use redis::aio::MultiplexedConnection;
use std::time::Duration;
use tonic::{Response, Status};

/// Most of a sequence is waiting for something to end.
const AT_ONCE: usize = 32;
/// Each takes seconds.
const SHRINKING_STEPS: usize = 60;
const MEMORY: Duration = Duration::from_millis(1_700);
const MAX_RETENTION: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_about_a_claim_is_one_that_the_tables_allow() {
    agrees_with_the_oracle("claims", ops::claims(20..=60)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_about_a_lock_is_one_that_the_tables_allow() {
    agrees_with_the_oracle("locks", ops::locks(20..=60)).await;
}

async fn agrees_with_the_oracle(what: &str, sequences: impl Strategy<Value = Vec<Op>>) {
    let redis = RedisServer::start().await;
    let settings = Settings {
        memory: MEMORY,
        max_retention: MAX_RETENTION,
        store_timeout: Duration::from_secs(20),
        ..Settings::default()
    };
    let service = Service::with(&redis, settings).await;
    let subject = RealService {
        coordination: service.coordination().await,
        admin: service.admin().await,
        redis: redis.connect().await,
    };

    let mut runner = TestRunner::default();
    let trees: Vec<_> = (0..Config::default().cases)
        .map(|_| sequences.new_tree(&mut runner).expect("a sequence"))
        .collect();
    let results: Vec<_> = futures_util::stream::iter(trees.into_iter().enumerate())
        .map(|(case, tree)| {
            let (subject, world) = (&subject, world(&format!("{what}-{case}")));
            async move {
                let result = check::run(subject, &world, &tree.current()).await;
                (tree, result)
            }
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;

    let mut coverage = Coverage::default();
    for (case, (mut tree, result)) in results.into_iter().enumerate() {
        match result {
            Ok(covered) => coverage.add(&covered),
            Err(disagreement) => {
                let smallest = shrink(&subject, &mut tree, &format!("{what}-again-{case}")).await;
                panic!("{}", smallest.unwrap_or(disagreement));
            }
        }
    }
    assert!(
        coverage.sequences_cut_short() < usize::try_from(Config::default().cases).expect("few") / 2,
        "the machine was too slow to tell: {coverage}"
    );
    assert!(redis.keys_without_expiry().await.is_empty());
}

/// The last disagreement on the way to a smaller sequence, if it shows again at all.
async fn shrink(
    subject: &RealService,
    tree: &mut impl ValueTree<Value = Vec<Op>>,
    prefix: &str,
) -> Option<Box<check::Disagreement>> {
    let mut smallest = None;
    for step in 0..SHRINKING_STEPS {
        let world = world(&format!("{prefix}-{step}"));
        let goes_on = match check::run(subject, &world, &tree.current()).await {
            Err(disagreement) => {
                smallest = Some(disagreement);
                tree.simplify()
            }
            Ok(_) => tree.complicate(),
        };
        if !goes_on {
            break;
        }
    }
    smallest
}

fn world(prefix: &str) -> World {
    let micros = |duration: Duration| i64::try_from(duration.as_micros()).expect("seconds");
    World {
        tenant: "property".to_owned(),
        prefix: prefix.to_owned(),
        settings: ModelSettings {
            memory_us: micros(MEMORY),
            max_retention_us: micros(MAX_RETENTION),
        },
        tolerance_us: 0,
    }
}

struct RealService {
    coordination: Coordination,
    admin: Admin,
    redis: MultiplexedConnection,
}

macro_rules! calls {
    ($($client:ident.$call:ident($request:ident) -> $response:ident;)*) => {
        $(async fn $call(&self, request: proto::$request) -> Result<proto::$response, Status> {
            self.$client.clone().$call(request).await.map(Response::into_inner)
        })*
    };
}

impl Subject for RealService {
    async fn now_us(&self) -> i64 {
        let mut redis = self.redis.clone();
        let time = redis::cmd("TIME").query_async(&mut redis).await;
        let (seconds, micros): (i64, i64) = time.expect("redis tells the time");
        seconds * 1_000_000 + micros
    }

    async fn lose_key(&self, tenant: &str, key: &str) -> bool {
        let mut redis = self.redis.clone();
        // No key of this test has a character that is encoded.
        let pattern = format!("cl:c:{{{tenant}/*{key}}}*");
        let keys = redis::cmd("KEYS")
            .arg(&pattern)
            .query_async(&mut redis)
            .await;
        let keys: Vec<String> = keys.expect("redis lists keys");
        for key in keys {
            let deleted = redis::cmd("DEL").arg(key).exec_async(&mut redis).await;
            deleted.expect("redis deletes keys");
        }
        true
    }

    calls! {
        coordination.claim(ClaimRequest) -> ClaimResponse;
        coordination.renew_claim(RenewClaimRequest) -> RenewClaimResponse;
        coordination.complete(CompleteRequest) -> CompleteResponse;
        coordination.abandon(AbandonRequest) -> AbandonResponse;
        coordination.acquire_lock(AcquireLockRequest) -> AcquireLockResponse;
        coordination.renew_lock(RenewLockRequest) -> RenewLockResponse;
        coordination.release_lock(ReleaseLockRequest) -> ReleaseLockResponse;
        admin.get_claim(GetClaimRequest) -> GetClaimResponse;
        admin.resolve_claim(ResolveClaimRequest) -> ResolveClaimResponse;
        admin.get_lock(GetLockRequest) -> GetLockResponse;
        admin.force_release_lock(ForceReleaseLockRequest) -> ForceReleaseLockResponse;
    }
}
