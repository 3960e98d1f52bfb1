//! Compiles the wire contract without `protoc`: the service's code, its descriptor set for reflection, and the code that
//! the Rust client has in its repository, for a test to compare.

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
    println!("cargo::rerun-if-env-changed=CLAIMLOCK_GENERATE");

    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(
        out.join("claimlock_descriptor.bin"),
        descriptors.encode_to_vec(),
    )?;

    // With the variable, as `make generate` sets it, over the client's own; else beside ours, for a test to compare.
    let client = match std::env::var_os("CLAIMLOCK_GENERATE") {
        Some(_) => PathBuf::from("clients/rust/src/generated"),
        None => out.join("client"),
    };
    std::fs::create_dir_all(&client)?;
    std::fs::write(
        client.join("claimlock_descriptor.bin"),
        descriptors.encode_to_vec(),
    )?;
    tonic_prost_build::configure()
        .bytes(".")
        .build_server(false)
        .build_transport(false)
        .out_dir(client)
        .compile_fds(descriptors.clone())?;
    tonic_prost_build::configure()
        .bytes(".")
        .build_transport(false)
        .compile_fds(descriptors)?;
    Ok(())
}
