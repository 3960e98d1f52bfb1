//! Bad input of every field of every request is INVALID_ARGUMENT, names the field, and changes nothing.

mod admin;
mod claims;
mod contract;
mod locks;
mod table;

use crate::support::calls::{Call, Clients};
use crate::support::failures::{Told, invalid, told};
use crate::support::redis::RedisServer;
use crate::support::requests::{acquire, claim, complete};
use crate::support::service::{Service, patient};
use claimlock::rpc::proto::*;
use std::collections::BTreeSet;
use table::{Expected, Table};

/// A claim in flight, a completed one and a lock, for requests to act on.
struct World {
    redis: RedisServer,
    service: Service,
    clients: Clients,
    seeds: Seeds,
}

/// What the seeded claims and locks are called.
const IN_FLIGHT: &str = "in-flight";
const COMPLETED: &str = "completed";
const HELD: &str = "held";
const HOLDER: &str = "seed";

/// What requests have to know of the seeds.
#[derive(Clone)]
struct Seeds {
    /// Of the claim in flight.
    receipt: Vec<u8>,
    /// Of the completed claim.
    fencing_token: i64,
}

impl World {
    async fn start() -> Self {
        let redis = RedisServer::start().await;
        let service = Service::with(&redis, patient()).await;
        let mut clients = Clients::of(&service).await;
        let in_flight = claimed(&mut clients, IN_FLIGHT).await;
        let completed = claimed(&mut clients, COMPLETED).await;
        clients
            .coordination
            .complete(complete(COMPLETED, HOLDER, b"done"))
            .await
            .expect("the seed is completed");
        clients
            .coordination
            .acquire_lock(acquire(HELD, HOLDER))
            .await
            .expect("the seed is acquired");
        Self {
            redis,
            service,
            clients,
            seeds: Seeds {
                receipt: in_flight.receipt.to_vec(),
                fencing_token: completed.fencing_token,
            },
        }
    }
}

async fn claimed(clients: &mut Clients, key: &str) -> Claimed {
    let answer = clients.coordination.claim(claim(key, HOLDER)).await;
    match answer.expect("an answer").into_inner().outcome {
        Some(claim_response::Outcome::Claimed(claimed)) => claimed,
        other => panic!("a fresh key is claimed, not {other:?}"),
    }
}

/// Sends every case of a table, and holds each against what is expected of it.
async fn hold<R: Call>(table: fn(&Seeds) -> Table<R>) {
    let mut world = World::start().await;
    let table = table(&world.seeds);
    let before = world.redis.dump().await;
    let mut wrong = Vec::new();

    for case in table.bad() {
        let mut request = table.request.clone();
        (case.set)(&mut request);
        let Expected::Refused { reason } = case.expected else {
            unreachable!("a bad case is refused");
        };
        let what = format!("{} with {} {}", R::METHOD, case.field, case.what);
        match request.call(&mut world.clients, None).await {
            Ok(()) => wrong.push(format!("{what} is taken")),
            Err(status) => {
                let (is, expected) = (told(&status), invalid(reason, &[&case.field]));
                if is != expected {
                    wrong.push(format!("{what} is told {is:?}: {}", status.message()));
                }
                let repeated = case.value.as_ref().filter(|value| value.len() > 2);
                if repeated.is_some_and(|value| format!("{status:?}").contains(value)) {
                    wrong.push(format!("{what} repeats the value: {}", status.message()));
                }
            }
        }
        if world.redis.dump().await != before {
            panic!("{what} changed Redis; before that: {wrong:#?}");
        }
    }

    let (all, fields) = table.all_bad_at_once();
    let status = all
        .call(&mut world.clients, None)
        .await
        .expect_err("it is bad");
    let named: BTreeSet<String> = told(&status).fields.into_iter().collect();
    if named != fields {
        wrong.push(format!("{} names {named:?} of {fields:?}", R::METHOD));
    }
    assert_eq!(world.redis.dump().await, before);

    for (n, case) in table.good().enumerate() {
        let mut request = table.request.clone();
        (table.vary)(&mut request, n);
        (case.set)(&mut request);
        if let Err(status) = request.call(&mut world.clients, None).await {
            let what = format!("{} with {} {}", R::METHOD, case.field, case.what);
            wrong.push(format!("{what} is refused: {status:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(world.redis.keys_without_expiry().await.is_empty());
    world
        .service
        .stop()
        .await
        .expect("a service that ends well");
}

/// That the table's request would have changed something, had it not been for its bad field.
async fn hold_of_a_change<R: Call>(table: fn(&Seeds) -> Table<R>) {
    let mut world = World::start().await;
    let before = world.redis.dump().await;
    let request = table(&world.seeds).request;
    request
        .call(&mut world.clients, None)
        .await
        .expect("it is good");
    assert_ne!(world.redis.dump().await, before);
    drop(world);
    hold(table).await;
}

macro_rules! fields_of {
    ($($test:ident: $hold:ident($table:path);)*) => {
        $(#[tokio::test]
        async fn $test() {
            $hold($table).await;
        })*
    };
}

fields_of! {
    a_claim_names_its_bad_fields_and_changes_nothing: hold_of_a_change(claims::claim);
    a_renewal_of_a_claim_names_its_bad_fields_and_changes_nothing: hold_of_a_change(claims::renew_claim);
    a_completion_names_its_bad_fields_and_changes_nothing: hold_of_a_change(claims::complete);
    an_abandonment_names_its_bad_fields_and_changes_nothing: hold_of_a_change(claims::abandon);
    an_acquisition_names_its_bad_fields_and_changes_nothing: hold_of_a_change(locks::acquire_lock);
    a_renewal_of_a_lock_names_its_bad_fields_and_changes_nothing: hold_of_a_change(locks::renew_lock);
    a_release_names_its_bad_fields_and_changes_nothing: hold_of_a_change(locks::release_lock);
    a_look_at_a_claim_names_its_bad_fields: hold(admin::get_claim);
    a_listing_of_claims_names_its_bad_fields: hold(admin::list_claims);
    a_resolution_names_its_bad_fields_and_changes_nothing: hold_of_a_change(admin::resolve_claim);
    a_look_at_a_lock_names_its_bad_fields: hold(admin::get_lock);
    a_listing_of_locks_names_its_bad_fields: hold(admin::list_locks);
    a_forced_release_names_its_bad_fields_and_changes_nothing: hold_of_a_change(admin::force_release_lock);
}

/// A receipt is held against key and token, so it is named beside any other field than these.
#[tokio::test]
async fn a_bad_receipt_is_named_beside_another_bad_field() {
    let mut world = World::start().await;
    let mut request = claims::complete(&world.seeds).request;
    request.receipt = b"never issued".as_slice().into();
    request.retention = Some(prost_types::Duration::default());
    let status = request
        .call(&mut world.clients, None)
        .await
        .expect_err("it is bad");
    let told: Told = told(&status);
    assert_eq!(told, invalid("INVALID_FIELD", &["retention", "receipt"]));
}

#[tokio::test]
async fn a_repeat_in_another_mode_names_the_mode_and_changes_nothing() {
    let mut world = World::start().await;
    let before = world.redis.dump().await;
    let request = AcquireLockRequest {
        mode: LockMode::Shared.into(),
        ..acquire(HELD, HOLDER)
    };
    let status = request
        .call(&mut world.clients, None)
        .await
        .expect_err("it is bad");
    assert_eq!(told(&status), invalid("INVALID_FIELD", &["mode"]));
    assert_eq!(world.redis.dump().await, before);
}
