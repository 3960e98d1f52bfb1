//! No field of the contract is without a case: a new one fails here until its bad values are written down.

use super::table::Table;
use super::{Seeds, World, admin, claims, locks};
use crate::support::calls::Call;
use crate::support::reflection::file_of;
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorProto};
use std::collections::{BTreeMap, BTreeSet};

/// Answered UNIMPLEMENTED, whatever it is sent.
const NOT_SERVED_YET: [&str; 1] = ["Pipeline"];
/// The messages of a stream get an error each and no status: `keep_alive::messages` has their cases.
const STREAMS: [&str; 1] = ["KeepAlive"];

struct Contract {
    files: Vec<FileDescriptorProto>,
}

impl Contract {
    fn message(&self, full_name: &str) -> Option<&DescriptorProto> {
        self.files.iter().find_map(|file| {
            let name = full_name.strip_prefix(&format!(".{}.", file.package()))?;
            file.message_type
                .iter()
                .find(|message| message.name() == name)
        })
    }

    /// The paths of a message's fields down to what has none of its own, and its oneofs.
    fn paths(
        &self,
        full_name: &str,
        prefix: &str,
        fields: &mut BTreeSet<String>,
    ) -> BTreeSet<String> {
        let message = self.message(full_name).expect("a message of the contract");
        for field in &message.field {
            let path = format!("{prefix}{}", field.name());
            let inner = (field.r#type() == Type::Message)
                .then(|| self.message(field.type_name()))
                .flatten()
                .filter(|inner| !inner.field.is_empty());
            match inner {
                Some(_) => {
                    let inner = format!("{path}.");
                    self.paths(field.type_name(), &inner, fields);
                }
                None => {
                    fields.insert(path);
                }
            }
        }
        message
            .oneof_decl
            .iter()
            .map(|oneof| oneof.name().to_owned())
            .collect()
    }

    /// What is wrong with a table that should have every field of a method's request.
    fn compare(&self, method: &str, covered: &BTreeSet<String>, wrong: &mut Vec<String>) {
        let request = format!(".claimlock.v1.{method}Request");
        let mut fields = BTreeSet::new();
        let oneofs = self.paths(&request, "", &mut fields);
        for missing in fields.difference(covered) {
            wrong.push(format!("{method}: no case for {missing}"));
        }
        for invented in covered.difference(&fields) {
            let is_whole = fields
                .iter()
                .any(|field| field.starts_with(&format!("{invented}.")));
            if !oneofs.contains(invented) && !is_whole {
                wrong.push(format!("{method}: {invented} is no field"));
            }
        }
    }
}

#[tokio::test]
async fn every_field_of_the_contract_has_a_case() {
    let world = World::start().await;
    let mut covered = BTreeMap::new();
    let mut add = |(method, fields)| covered.insert(method, fields);
    add(fields(claims::claim, &world.seeds));
    add(fields(claims::renew_claim, &world.seeds));
    add(fields(claims::complete, &world.seeds));
    add(fields(claims::abandon, &world.seeds));
    add(fields(locks::acquire_lock, &world.seeds));
    add(fields(locks::renew_lock, &world.seeds));
    add(fields(locks::release_lock, &world.seeds));
    add(fields(admin::get_claim, &world.seeds));
    add(fields(admin::list_claims, &world.seeds));
    add(fields(admin::resolve_claim, &world.seeds));
    add(fields(admin::get_lock, &world.seeds));
    add(fields(admin::list_locks, &world.seeds));
    add(fields(admin::force_release_lock, &world.seeds));

    let mut files = Vec::new();
    for name in ["CoordinationService", "AdminService"] {
        files.push(file_of(&world.service, &format!("claimlock.v1.{name}")).await);
    }
    let services = files.iter().flat_map(|file| file.service.clone());
    let methods: Vec<String> = services
        .flat_map(|service| service.method)
        .map(|method| method.name().to_owned())
        .collect();
    let contract = Contract { files };

    let mut wrong = Vec::new();
    for method in &methods {
        match covered.remove(method.as_str()) {
            Some(fields) => contract.compare(method, &fields, &mut wrong),
            None if NOT_SERVED_YET.contains(&method.as_str()) => {}
            None if STREAMS.contains(&method.as_str()) => {}
            None => wrong.push(format!("{method}: no table")),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(covered.is_empty(), "no such methods: {:?}", covered.keys());
    assert_eq!(methods.len(), 15, "{methods:?}");
}

fn fields<R: Call>(
    table: fn(&Seeds) -> Table<R>,
    seeds: &Seeds,
) -> (&'static str, BTreeSet<String>) {
    (R::METHOD, table(seeds).fields())
}
