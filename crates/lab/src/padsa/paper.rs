//! The figures that PADSA's paper prints.
//!
//! How: constants, read from the paper's text; its charts have no readable values.
//! Invariant: nothing here comes from a run. Not for: this project's own parameters; see `padsa`.

use layby_trace::Workload;

/// The workloads, in the paper's order.
pub(super) const WORKLOADS: [Workload; 4] = [Workload::A, Workload::B, Workload::C, Workload::D];

/// Fig. 7: change of the safety-critical services' mean latency, in percent, by workload.
pub(super) const CRITICAL_PERCENT: [f64; 4] = [-47.0, -61.0, -70.0, -53.0];
/// Fig. 7: change of the other services' mean latency, in percent, by workload.
pub(super) const NORMAL_PERCENT: [f64; 4] = [0.0, 0.0, 0.0, 7.7];
/// Fig. 8: points of hit ratio that safety-critical services gain on average, in percent.
pub(super) const HITS_POINTS: f64 = 6.0;
/// Fig. 9: points of safety-critical reads that DRAM and NVM gain, in percent.
pub(super) const UPPER_HITS_POINTS: [f64; 2] = [8.0, 7.0];
/// Fig. 10: the best ratio of the baseline's block writes to PADSA's.
pub(super) const ENDURANCE_RATIO: f64 = 3.15;
/// Fig. 3: exponents of the workloads.
pub(super) const EXPONENTS: [f64; 4] = [1.01, 1.05, 1.1, 1.2];
