//! Compiles the wire contract without `protoc`, and keeps its descriptor set for server reflection.

use std::path::{Path, PathBuf};

const FILES: [&str; 2] = [
    "claimlock/v1/coordination.proto",
    "claimlock/v1/admin.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=lua");

    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    write_descriptors(&out.join("claimlock_descriptor.bin"), &descriptors)?;

    tonic_prost_build::configure()
        .bytes(".")
        .build_transport(false)
        .compile_fds(descriptors)?;
    Ok(())
}

fn write_descriptors(
    path: &Path,
    descriptors: &impl prost_message::Message,
) -> Result<(), Box<dyn std::error::Error>> {
    std::fs::write(path, descriptors.encode_to_vec())?;
    Ok(())
}

use protox::prost as prost_message;
