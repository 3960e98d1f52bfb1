//! What docs/what-stays-readable.md says of Redis, its file, and the log: each field has a mark of its own, looked for there.

use crate::support::eventually;
use crate::support::program::Program;
use crate::support::redis::{RedisOptions, RedisServer};
use crate::support::shell::Shell;
use claimlock::rpc::proto::admin_service_client::AdminServiceClient;
use claimlock::rpc::proto::resolve_claim_request::Resolution;
use claimlock::rpc::proto::{
    ForceReleaseLockRequest, Forget, GetClaimRequest, ResolveClaimRequest,
};
use std::fs;

const REQUEST: &str = "requestmark";
const RESPONSE: [&str; 2] = ["bodymark", "headermark"];
const CHECKPOINT: &str = "checkpointmark";
const ABANDON: &str = "abandonmark";
const OPERATOR: &str = "operatormark";
const CLAIM: [&str; 5] = [
    "scopemark",
    "keymark",
    "operationmark",
    "claimholdermark",
    "claimtokenmark",
];
const LOCK: [&str; 3] = ["resourcemark", "lockholdermark", "locktokenmark"];
/// What an operator's act on them puts into the log, with its reason.
const AUDITED: [&str; 6] = [
    "scopemark",
    "keymark",
    "operationmark",
    "claimholdermark",
    "resourcemark",
    "lockholdermark",
];
/// The claim and the lock that are made of the marks.
const WHICH: &str = "keymark --scope scopemark --tenant tenantmark --token claimtokenmark-0";

struct Place {
    redis: RedisServer,
    program: Program,
    shell: Shell,
}

impl Place {
    async fn start() -> Self {
        let redis = RedisServer::with(RedisOptions {
            appendonly: true,
            // What is packed would hide the marks.
            args: ["--rdbcompression", "no"].map(str::to_owned).to_vec(),
            ..RedisOptions::default()
        })
        .await;
        let program = Program::serve(&redis.url(), &["--log-level", "trace"]).await;
        program.is_ready().await;
        let shell = Shell::new(program.grpc);
        for (name, text) in [
            ("request", REQUEST),
            ("checkpoint", CHECKPOINT),
            ("body", RESPONSE[0]),
        ] {
            fs::write(shell.path(name), text).expect("the folder can be written to");
        }
        Self {
            redis,
            program,
            shell,
        }
    }

    async fn does(&self, line: &str) {
        let ran = self.shell.run(line, &[]).await;
        assert_eq!(ran.code, 0, "{line}: {ran:?}");
    }

    async fn claims(&self) {
        let flags = "--operation operationmark --holder claimholdermark --body request";
        self.does(&format!("claim {WHICH} {flags}")).await;
    }

    async fn is_in_redis(&self, mark: &str) -> bool {
        let dump = self.redis.dump().await;
        let has = |bytes: &[u8]| String::from_utf8_lossy(bytes).contains(mark);
        dump.iter().any(|(key, (value, _))| has(key) || has(value))
    }

    async fn are_in_redis(&self, marks: &[&str]) {
        for mark in marks {
            assert!(self.is_in_redis(mark).await, "{mark} is not there");
        }
    }

    async fn are_not_in_redis(&self, marks: &[&str]) {
        for mark in marks {
            assert!(!self.is_in_redis(mark).await, "{mark} is there");
        }
    }

    fn is_in_the_file(&self, mark: &str) -> bool {
        String::from_utf8_lossy(&self.redis.append_only_file()).contains(mark)
    }

    fn are_not_in_the_log(&self, marks: &[&str]) {
        let log = self.program.log();
        for mark in marks {
            let line = log.lines().find(|line| line.contains(mark));
            assert_eq!(line, None, "{mark} is in the log");
        }
    }
}

#[tokio::test]
async fn what_callers_hand_over_is_stored_but_for_requests_and_is_not_logged() {
    let place = Place::start().await;
    place.claims().await;
    place
        .does(&format!("renew claim {WHICH} --checkpoint checkpoint"))
        .await;
    place
        .does("acquire resourcemark --holder lockholdermark --token locktokenmark-00")
        .await;
    place.are_in_redis(&CLAIM).await;
    place.are_in_redis(&["tenantmark", CHECKPOINT]).await;
    place.are_in_redis(&LOCK).await;

    let flags = "--body body --header x:headermark --response-retention 1ms";
    place.does(&format!("complete {WHICH} {flags}")).await;
    eventually("the response to go", async || {
        (!place.is_in_redis(RESPONSE[0]).await).then_some(())
    })
    .await;
    place
        .are_not_in_redis(&[RESPONSE[0], RESPONSE[1], CHECKPOINT, REQUEST])
        .await;
    place.are_in_redis(&CLAIM).await;
    // What is gone from memory is in the file until that is rewritten; requests never were.
    for mark in [RESPONSE[0], RESPONSE[1], CHECKPOINT] {
        assert!(place.is_in_the_file(mark), "{mark}");
    }
    assert!(!place.is_in_the_file(REQUEST));
    place.redis.rewrite_append_only_file().await;
    for mark in [RESPONSE[0], RESPONSE[1], CHECKPOINT] {
        assert!(!place.is_in_the_file(mark), "{mark}");
    }
    assert!(place.is_in_the_file("keymark"));

    // Nor are those that are refused.
    for refused in [
        "complete keymark --token claimtokenmark-1",
        "claim keymark --lease 9h",
    ] {
        let ran = place.shell.run(refused, &[]).await;
        assert_ne!(ran.code, 0, "{ran:?}");
    }
    place.are_not_in_the_log(&[&CLAIM[..], &LOCK, &RESPONSE, &[CHECKPOINT, REQUEST]].concat());
}

#[tokio::test]
async fn an_operators_act_puts_names_and_reason_in_the_log_and_forgetting_leaves_the_key_and_its_tokens()
 {
    let place = Place::start().await;
    place.claims().await;
    place
        .does(&format!("renew claim {WHICH} --checkpoint checkpoint"))
        .await;
    place
        .does(&format!(
            "abandon {WHICH} --effect unknown --reason {ABANDON}"
        ))
        .await;
    place
        .does("acquire resourcemark --holder lockholdermark --token locktokenmark-00")
        .await;
    place.are_in_redis(&CLAIM).await;
    place.are_in_redis(&[ABANDON, CHECKPOINT]).await;

    let mut admin = AdminServiceClient::new(place.program.channel().await);
    let [tenant, scope, key] = ["tenantmark", "scopemark", "keymark"].map(str::to_owned);
    let get = GetClaimRequest {
        tenant: tenant.clone(),
        scope: scope.clone(),
        key: key.clone(),
    };
    let seen = admin
        .get_claim(get)
        .await
        .expect("it is answered")
        .into_inner();
    let seen = seen.claim.expect("it is there");
    let said = format!("{seen:?}");
    assert!(
        said.contains(ABANDON) && !said.contains(CHECKPOINT) && !said.contains("tokenmark"),
        "{said}"
    );
    let resolve = ResolveClaimRequest {
        tenant,
        scope,
        key,
        fencing_token: seen.fencing_token,
        reason: OPERATOR.to_owned(),
        resolution: Some(Resolution::Forget(Forget {})),
    };
    let answer = admin.resolve_claim(resolve).await.expect("it is answered");
    assert!(answer.into_inner().resolved);
    let release = ForceReleaseLockRequest {
        resource: "resourcemark".to_owned(),
        reason: OPERATOR.to_owned(),
        ..Default::default()
    };
    let answer = admin
        .force_release_lock(release)
        .await
        .expect("it is answered");
    assert_eq!(answer.into_inner().released_holders, 1);

    place
        .are_in_redis(&["keymark", "claimtokenmark", "resourcemark", "locktokenmark"])
        .await;
    let gone = [
        "operationmark",
        "claimholdermark",
        "lockholdermark",
        CHECKPOINT,
        ABANDON,
        OPERATOR,
    ];
    place.are_not_in_redis(&gone).await;
    let log = place.program.log();
    for mark in AUDITED.iter().chain(&[OPERATOR]) {
        let lines = log.lines().filter(|line| line.contains(mark));
        let mut lines = lines.peekable();
        assert!(lines.peek().is_some(), "{mark} is not in the log");
        assert!(
            lines.all(|line| line.contains("claimlock::audit")),
            "{mark}"
        );
    }
    place.are_not_in_the_log(&["tokenmark", CHECKPOINT, ABANDON, REQUEST]);
}
