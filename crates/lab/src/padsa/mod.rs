//! PADSA's experiment: its workloads under four architectures, the paper's figures beside ours.

mod road;

pub use road::{Road, Side, Sums, run};
