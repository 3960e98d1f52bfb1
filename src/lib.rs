//! Claimlock: idempotency keys and locks over gRPC, for services in any language.

pub mod config;
pub mod coordinator;
pub mod domain;
pub mod rpc;
pub mod store;
pub mod telemetry;
