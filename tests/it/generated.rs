//! The Rust client's generated code is that of the contract.

/// Says where they differ, as a whole file would fill the screen.
fn is_current(kept: &[u8], generated: &[u8]) {
    assert!(
        kept == generated,
        "the code in clients/rust/src/generated is not that of proto/: make generate"
    );
}

#[test]
fn the_rust_clients_code_is_what_the_contract_generates() {
    is_current(
        include_bytes!("../../clients/rust/src/generated/claimlock.v1.rs"),
        include_bytes!(concat!(env!("OUT_DIR"), "/client/claimlock.v1.rs")),
    );
    is_current(
        include_bytes!("../../clients/rust/src/generated/claimlock_descriptor.bin"),
        include_bytes!(concat!(env!("OUT_DIR"), "/client/claimlock_descriptor.bin")),
    );
}
