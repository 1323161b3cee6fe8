//! The API's description, made from the handlers and types themselves.
//!
//! How: `utoipa` gathers paths and schemas at compile time. The same text is committed as
//! `docs/openapi.json`, for people and for other programs' generators; a test compares the two.
//! To renew the file: `LAYBY_WRITE_OPENAPI=1 cargo test -p layby-daemon openapi`.

use utoipa::OpenApi;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Layby control API",
        description = "Operates a Layby node over its unix socket or loopback HTTP. Sizes are \
                       written `64GiB`, times `5s`, shares `25%` or as a size.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
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
        super::snapshots::snapshots,
        super::snapshots::snapshot_create,
        super::snapshots::snapshot_delete,
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
    )
)]
struct Description;

/// The API's OpenAPI description, as JSON text that ends with a line break.
#[must_use]
pub fn openapi() -> String {
    let mut text = Description::openapi()
        .to_pretty_json()
        .expect("the description is made of strings and numbers");
    text.push('\n');
    text
}
