//! Lives of a volume in a simulated world.

mod again;
mod around;
mod cleaning;
mod conditions;
mod cut;
mod denied;
mod discards;
mod fenced;
mod flipped;
mod hosted;
mod learned;
mod lives;
mod map_file;
mod past;
mod removal;
mod restores;
mod rot;
mod salvaged;
mod sizes;
mod snapshots;
mod space;
mod takes;
mod unnamed;
mod uploaded;
mod waits;
