//! Messages as JSON, in the form that proto3 gives them: names in lowerCamelCase, 64-bit integers as strings, bytes in
//! base64, durations like `"29.5s"`, unset fields left out.

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage};
use serde_json::Value;
use std::sync::LazyLock;

static CONTRACT: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let descriptors = include_bytes!("generated/claimlock_descriptor.bin");
    DescriptorPool::decode(&descriptors[..]).expect("it was made from the contract")
});

/// A message of the contract as JSON; `name` is its own, such as `ClaimResponse`.
///
/// # Panics
///
/// Where the contract has no message of this name and shape.
#[must_use]
pub fn to_value(name: &str, message: &impl Message) -> Value {
    let descriptor = CONTRACT
        .get_message_by_name(&format!("claimlock.v1.{name}"))
        .expect("the contract has the message");
    let dynamic = DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice())
        .expect("the message has the shape that its name says");
    serde_json::to_value(&dynamic).expect("a message of the contract has a form in JSON")
}
