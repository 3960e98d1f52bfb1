//! gRPC: conversion, status, layers and thin handlers. The only place for `tonic` and `prost`.

mod admin;
mod connection;
mod convert;
mod coordination;
mod deadline;
mod ending;
mod health;
mod keep_alive;
mod layer;
mod lingering;
mod observe;
mod serve;
mod status;

pub use ending::Ending;
pub use health::Health;
pub use serve::{ServeSettings, serve};

/// The wire contract, generated.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod proto {
    tonic::include_proto!("claimlock.v1");
}

/// The contract as reflection shows it.
const DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/claimlock_descriptor.bin"));
