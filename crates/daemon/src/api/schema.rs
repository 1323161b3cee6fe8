//! The API's description, made from the handlers and types themselves.
//!
//! How: `utoipa` gathers paths and schemas at compile time, and [`Responses`] says what answers of
//! a status mean. The same text is committed as `docs/openapi.json`, for people and for other
//! programs' generators; a test compares the two, and `tests/tests/all/description.rs` has it
//! validated by a public validator and a client generated from it.
//! Invariant: each response has a description, and each reference leads somewhere.
//! To renew the file: `LAYBY_WRITE_OPENAPI=1 cargo test -p layby-daemon openapi`.

use crate::control::DeleteData;
use utoipa::openapi::{OpenApi as Document, RefOr};
use utoipa::{Modify, OpenApi};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Layby control API",
        description = "Operates a Layby node over its unix socket or loopback HTTP. Sizes are \
                       written `64GiB`, times `5s`, shares `25%` or as a size.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    modifiers(&Responses),
    // What only a query names is not gathered by itself.
    components(schemas(DeleteData)),
    paths(
        super::status,
        super::node_drain,
        super::volumes,
        super::volume_create,
        super::volume,
        super::volume_set,
        super::volume_delete,
        super::volume_drain,
        super::deletion::deleted_volumes,
        super::deletion::volume_undelete,
        super::deletion::volume_accept_loss,
        super::snapshots::snapshots,
        super::snapshots::snapshot_create,
        super::snapshots::snapshot_delete,
        super::clients::clients,
        super::clients::client_disconnect,
        super::classes,
        super::class_create,
        super::class,
        super::class_set,
        super::class_delete,
        super::levels,
        super::level_set,
        super::writeback,
        super::writeback_set,
        super::uplink,
        super::uplink_set,
        super::recording,
        super::recording_start,
        super::recording_stop,
        super::recording_take,
        super::sizing,
        super::schema,
        super::metrics,
        super::health::healthz,
        super::health::readyz,
    )
)]
struct Description;

/// Describes each response that its handler leaves undescribed, which the format does not allow.
struct Responses;

impl Modify for Responses {
    fn modify(&self, document: &mut Document) {
        let items = document.paths.paths.values_mut();
        let operations = items.flat_map(|item| {
            let all = [&mut item.get, &mut item.post, &mut item.patch, &mut item.delete];
            all.into_iter().flatten()
        });
        for (status, response) in operations.flat_map(|o| &mut o.responses.responses) {
            if let RefOr::T(response) = response
                && response.description.is_empty()
            {
                response.description = meaning(status).to_owned();
            }
        }
    }
}

/// What an answer of a status means.
fn meaning(status: &str) -> &'static str {
    match status {
        "200" => "What is there, after the change where one was asked for.",
        "201" => "It was made.",
        "204" => "It is done.",
        "default" => "It is refused or failed: what, why, in which state, and what to do.",
        _ => unreachable!("this API has no such status: {status}"),
    }
}

/// The API's OpenAPI description, as JSON text that ends with a line break.
#[must_use]
pub fn openapi() -> String {
    let mut text = Description::openapi()
        .to_pretty_json()
        .expect("the description is made of strings and numbers");
    text.push('\n');
    text
}
