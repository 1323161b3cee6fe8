//! Every test of `layby-tests`, in one program: each program links the whole world anew.
//!
//! How: a file is a module, so that its name picks its tests: `cargo test -p layby-tests crash::`
//! runs those of `crash.rs`, `cargo test -p layby-tests crash::a_soak` one of them. The runner
//! starts them in order of their names, a file after another, on as many threads as processors.
//! Invariant: no test changes what others share: environment, current directory, fixed ports.
//! Cost: minutes, most of which tests wait, and one link.
//! Not for: tests of one room, which lie in its own crate.

mod access;
mod answers;
mod bad_input;
mod bounds;
mod clients;
mod cloud;
mod cloud_files;
mod conditions;
mod crash;
mod credentials;
mod cut_objects;
mod damage;
mod damaged_files;
mod defaults;
mod deletion;
mod description;
mod destroy;
mod discard;
mod door;
mod drains;
mod encrypted;
mod esi;
mod esi_cache;
mod esi_devices;
mod esi_load;
mod failed;
mod filesystem;
mod filtered;
mod flash;
mod fuse;
mod harness;
mod hints;
mod kept;
mod keys;
mod left;
mod leftovers;
mod lengths;
mod limits;
mod link;
mod log;
mod lost;
mod lost_pages;
mod machine;
mod memory_level;
mod metrics;
mod missing;
mod missing_devices;
mod moved;
mod new_files;
mod no_disks;
mod nvm_device;
mod older;
mod outage;
mod own_files;
mod owners;
mod parity;
mod protected;
mod protocol;
mod record;
mod replay;
mod rescue;
mod restart;
mod room;
mod sizing;
mod snapshots;
mod spellings;
mod start_lines;
mod store;
mod stores;
mod stuck;
mod swapped_devices;
mod takeover;
mod threads;
mod trace;
mod ublk;
mod unfinished;
mod unstored;
mod vhost;
mod wide;
