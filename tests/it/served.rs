//! What is served beside the calls themselves, and what is not.

use crate::support::failures::told;
use crate::support::raw::{Raw, Sent, framed, framed_message};
use crate::support::redis::RedisServer;
use crate::support::reflection::reflected;
use crate::support::service::Service;
use crate::support::{BOUND, eventually};
use claimlock::config::Settings;
use claimlock::rpc::proto::*;
use prost::Message as _;
use prost_types::FileDescriptorProto;
use std::collections::BTreeSet;
use tokio_stream::StreamExt as _;
use tonic::{Code, Streaming};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1alpha;

const COORDINATION: &str = "claimlock.v1.CoordinationService";
const ADMIN: &str = "claimlock.v1.AdminService";
const HEALTH: &str = "grpc.health.v1.Health";

async fn world() -> (RedisServer, Service) {
    let redis = RedisServer::start().await;
    let service = Service::start(&redis).await;
    (redis, service)
}

#[tokio::test]
async fn pipeline_is_unimplemented() {
    let (redis, service) = world().await;
    let mut client = service.coordination().await;
    let before = redis.dump().await;
    let request = PipelineRequest {
        request_id: 1,
        call: Some(pipeline_request::Call::Claim(
            crate::support::requests::claim("k", "a"),
        )),
        ..PipelineRequest::default()
    };
    let answer = client.pipeline(tokio_stream::once(request)).await;
    assert_eq!(answer.expect_err("not yet").code(), Code::Unimplemented);
    // Not even where nothing that could be read comes.
    let raw = Raw::to(&service).await;
    for sent in [
        Sent::nothing(),
        Sent::all(framed(b"\xff")),
        Sent::without_end(vec![]),
    ] {
        let status = raw.call("Pipeline", &[], sent).await;
        assert_eq!(status.code(), Code::Unimplemented, "{status:?}");
    }
    assert_eq!(redis.dump().await, before);
}

#[tokio::test]
async fn unknown_methods_and_services_are_unimplemented() {
    let (_redis, service) = world().await;
    let raw = Raw::to(&service).await;
    let claim = crate::support::requests::claim("k", "a");
    for path in [
        "/claimlock.v1.CoordinationService/Unclaim",
        "/claimlock.v1.CoordinationService/claim",
        "/claimlock.v1.CoordinationService/Claim/",
        "/claimlock.v1.CoordinationService/",
        "/claimlock.v1.CoordinationService/GetClaim",
        "/claimlock.v1.AdminService/Claim",
        "/claimlock.v2.CoordinationService/Claim",
        "/CoordinationService/Claim",
        "/",
    ] {
        let status = raw
            .call_path(path, &[], Sent::all(framed_message(&claim)))
            .await;
        assert_eq!(status.code(), Code::Unimplemented, "{path}: {status:?}");
    }
}

#[tokio::test]
async fn reflection_lists_every_service_in_both_versions() {
    let (_redis, service) = world().await;
    let question = MessageRequest::ListServices(String::new());
    let MessageResponse::ListServicesResponse(listed) = reflected(&service, question).await else {
        panic!("services are listed");
    };
    let v1: BTreeSet<String> = listed.service.into_iter().map(|s| s.name).collect();

    use v1alpha::server_reflection_request::MessageRequest as Asked;
    use v1alpha::server_reflection_response::MessageResponse as Answered;
    let request = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(Asked::ListServices(String::new())),
    };
    let channel = service.channel().await;
    let answer = v1alpha::server_reflection_client::ServerReflectionClient::new(channel)
        .server_reflection_info(tokio_stream::once(request))
        .await
        .expect("reflection is served");
    let answer = answer
        .into_inner()
        .next()
        .await
        .expect("an answer")
        .expect("an answer");
    let Some(Answered::ListServicesResponse(listed)) = answer.message_response else {
        panic!("services are listed");
    };
    let v1alpha: BTreeSet<String> = listed.service.into_iter().map(|s| s.name).collect();

    for name in [COORDINATION, ADMIN, HEALTH] {
        assert!(v1.contains(name), "{name} in {v1:?}");
        assert!(v1alpha.contains(name), "{name} in {v1alpha:?}");
    }
}

/// What grpcurl does before it can describe or call anything.
#[tokio::test]
async fn reflection_has_every_file_that_the_services_need() {
    let (_redis, service) = world().await;
    let mut needed: Vec<MessageRequest> = [COORDINATION, ADMIN, HEALTH]
        .map(|name| MessageRequest::FileContainingSymbol(name.to_owned()))
        .to_vec();
    let mut files = BTreeSet::new();
    while let Some(question) = needed.pop() {
        let what = format!("{question:?}");
        let MessageResponse::FileDescriptorResponse(answer) = reflected(&service, question).await
        else {
            panic!("{what} is not reflected");
        };
        for bytes in answer.file_descriptor_proto {
            let file = FileDescriptorProto::decode(bytes.as_slice()).expect("a descriptor");
            if files.insert(file.name().to_owned()) {
                needed.extend(
                    file.dependency
                        .into_iter()
                        .map(MessageRequest::FileByFilename),
                );
            }
        }
    }
    for name in [
        "google/protobuf/duration.proto",
        "google/protobuf/timestamp.proto",
    ] {
        assert!(files.contains(name), "{name} in {files:?}");
    }
}

struct Health(HealthClient<tonic::transport::Channel>);

impl Health {
    async fn of(service: &Service) -> Self {
        Self(HealthClient::new(service.channel().await))
    }

    async fn check(&mut self, name: &str) -> Result<ServingStatus, Code> {
        let service = name.to_owned();
        match self.0.check(HealthCheckRequest { service }).await {
            Ok(answer) => Ok(answer.into_inner().status()),
            Err(status) => Err(status.code()),
        }
    }

    async fn watch(&mut self, name: &str) -> Result<Streaming<HealthCheckResponse>, Code> {
        let service = name.to_owned();
        match self.0.watch(HealthCheckRequest { service }).await {
            Ok(answer) => Ok(answer.into_inner()),
            Err(status) => Err(status.code()),
        }
    }
}

const FOLLOW_THE_STORE: [&str; 3] = ["", COORDINATION, ADMIN];

async fn next(watched: &mut Streaming<HealthCheckResponse>) -> ServingStatus {
    let next = tokio::time::timeout(crate::support::BOUND, watched.next());
    let answer = next
        .await
        .expect("a change is told")
        .expect("the stream goes on");
    answer.expect("no failure").status()
}

#[tokio::test]
async fn health_follows_the_store_and_liveness_the_process() {
    let (redis, service) = world().await;
    let mut health = Health::of(&service).await;
    let mut watched = Vec::new();
    for name in FOLLOW_THE_STORE {
        assert_eq!(
            health.check(name).await,
            Ok(ServingStatus::Serving),
            "{name}"
        );
        let mut stream = health.watch(name).await.expect("a known service");
        assert_eq!(next(&mut stream).await, ServingStatus::Serving, "{name}");
        watched.push((name, stream));
    }
    let mut liveness = health.watch("liveness").await.expect("a known service");
    assert_eq!(next(&mut liveness).await, ServingStatus::Serving);

    redis.stop_process();
    for (name, stream) in &mut watched {
        assert_eq!(next(stream).await, ServingStatus::NotServing, "{name}");
        assert_eq!(
            health.check(name).await,
            Ok(ServingStatus::NotServing),
            "{name}"
        );
    }
    assert_eq!(health.check("liveness").await, Ok(ServingStatus::Serving));

    redis.resume_process();
    for (name, stream) in &mut watched {
        assert_eq!(next(stream).await, ServingStatus::Serving, "{name}");
        assert_eq!(
            health.check(name).await,
            Ok(ServingStatus::Serving),
            "{name}"
        );
    }
    // All the while nothing was told of it.
    let told = tokio::time::timeout(std::time::Duration::ZERO, liveness.next()).await;
    assert!(told.is_err(), "{told:?}");
}

#[tokio::test]
async fn a_service_that_never_reached_its_store_is_alive_and_does_not_serve() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let url = format!("unix://{}", folder.path().join("none.sock").display());
    let service = Service::at(&url, claimlock::config::Settings::default()).await;
    let mut health = Health::of(&service).await;
    for name in FOLLOW_THE_STORE {
        assert_eq!(
            health.check(name).await,
            Ok(ServingStatus::NotServing),
            "{name}"
        );
    }
    assert_eq!(health.check("liveness").await, Ok(ServingStatus::Serving));
}

#[tokio::test]
async fn the_health_of_an_unknown_service_is_not_found() {
    let (_redis, service) = world().await;
    let mut health = Health::of(&service).await;
    for name in [
        "CoordinationService",
        "claimlock.v2.CoordinationService",
        "Liveness",
        "*",
    ] {
        assert_eq!(health.check(name).await, Err(Code::NotFound), "{name}");
        let watched = health.watch(name).await.map(|_| ());
        assert_eq!(watched, Err(Code::NotFound), "{name}");
    }
}

#[tokio::test]
async fn a_drain_ends_an_open_watch_of_health_and_does_not_wait_for_it() {
    let redis = RedisServer::start().await;
    let patient = Settings {
        drain_grace: 10 * BOUND,
        ..Settings::default()
    };
    let service = Service::with(&redis, patient).await;
    let mut health = Health::of(&service).await;
    let mut stream = health.watch("").await.expect("a known service");
    assert_eq!(next(&mut stream).await, ServingStatus::Serving);
    let stopping = tokio::spawn(service.stop());
    assert_eq!(next(&mut stream).await, ServingStatus::NotServing);

    let ended = stream.message().await.expect_err("the stream ends");
    assert_eq!(told(&ended).reason, "DRAINING");
    assert_eq!(ended.code(), Code::Unavailable);
    eventually("the service to end", async || {
        stopping.is_finished().then_some(())
    })
    .await;
    stopping
        .await
        .expect("no panic")
        .expect("a service that ends well");
}
