//! Compiles the wire contract without `protoc`, and keeps its descriptor set for server reflection.

#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    reason = "cargo talks to build scripts by their standard output and environment"
)]

use protox::prost::Message as _;
use std::error::Error;
use std::path::PathBuf;

const FILES: [&str; 2] = [
    "claimlock/v1/coordination.proto",
    "claimlock/v1/admin.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");

    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(
        out.join("claimlock_descriptor.bin"),
        descriptors.encode_to_vec(),
    )?;

    tonic_prost_build::configure()
        .bytes(".")
        .build_transport(false)
        .compile_fds(descriptors)?;
    Ok(())
}
