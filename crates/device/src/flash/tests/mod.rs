//! Tests of the flash device: by hand, by closed forms, by random histories.

mod by_hand;
mod closed_forms;
mod life;
mod properties;
mod streams;
mod wear;
