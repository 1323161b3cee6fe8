//! The figures that the paper on wear levelling prints, and its traces.
//!
//! How: constants, read from the paper's text and its Table 3; its charts have no readable values.
//! Invariant: nothing here comes from a run. Not for: this project's own parameters; see `wear`.

/// GiB that the host sees.
pub(super) const LOGICAL_GIB: u32 = 256;
/// Erases that a block may have, in the lifetime study.
pub(super) const ENDURANCE: u32 = 500;
/// Drive writes of the synthetic study.
pub(super) const DRIVE_WRITES: u32 = 100;

/// Fig. 2: the largest write amplification, of PWL(50).
pub(super) const AMPLIFICATION_MOST: f64 = 11.49;
/// Fig. 2: the leveler's part of it.
pub(super) const AMPLIFICATION_LEVELING: f64 = 5.4;
/// Fig. 2: drive writes from which PWL writes much.
pub(super) const PROGRESSIVE_WAKES: u32 = 80;
/// Fig. 2: data written by Dual-Pool at a threshold of 5 to that at 10.
pub(super) const DUAL_POOL_RATIO: f64 = 1.6;
/// Fig. 3: data that DAGC writes beyond no levelling, in percent, under 0.9/0.1 and 0.5/0.5.
pub(super) const DAGC_PERCENT: [f64; 2] = [18.0, 15.0];
/// Fig. 5: mean gain of Fix_DP over Fix_NoWL, in percent.
pub(super) const FIXED_DUAL_POOL_PERCENT: f64 = 13.0;
/// Fig. 5: mean gain of Var_NoWL over Fix_NoWL, in percent.
pub(super) const VARIABLE_PERCENT: f64 = 86.0;
/// Fig. 5: the best lifetime of Var_NoWL, on RAD-BE, to the fixed device's.
pub(super) const VARIABLE_BEST: f64 = 2.94;
/// Section 1: the most that variance gives with a leveler.
pub(super) const VARIABLE_BEST_LEVELED: f64 = 1.84;
/// Fig. 5: MSN-BEFS, Var_NoWL to Fix_NoWL: "0.91x extension", read as so much more.
pub(super) const MSN_BEFS: f64 = 1.91;
/// Fig. 5: MSN-BEFS, drive writes of Var_NoWL.
pub(super) const MSN_BEFS_DRIVE_WRITES: f64 = 145.0;
/// Fig. 5: VDI, Fix_PWL to Var_NoWL.
pub(super) const VDI_PROGRESSIVE: f64 = 1.031;
/// Fig. 5: LM-TBE, Fix_DP to Var_NoWL.
pub(super) const LM_TBE_DUAL_POOL: f64 = 1.036;
/// Fig. 5: DTRS: Fix_NoWL to Fix_DP and to Fix_DAGC, Var_NoWL to Fix_DP, Var_PWL to Var_NoWL.
pub(super) const DTRS: [f64; 4] = [1.18, 1.07, 1.24, 1.03];
/// Fig. 6: mean write amplification without a leveler.
pub(super) const AMPLIFICATION_MEAN: f64 = 2.89;
/// Fig. 6: LM-TBE's write amplification.
pub(super) const LM_TBE_AMPLIFICATION: f64 = 1.26;
/// Fig. 6: the largest write amplification under Dual-Pool and DAGC.
pub(super) const AMPLIFICATION_TRACES_MOST: f64 = 6.9;

/// A trace as Table 3 describes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Described {
    pub(super) name: &'static str,
    pub(super) footprint_gib: f64,
    pub(super) write_kib: f64,
    /// So many percent of the writes go to the rest of a hundred percent of the footprint.
    pub(super) hot_percent: f64,
    pub(super) sequential: f64,
}

const fn described(
    name: &'static str,
    footprint_gib: f64,
    write_kib: f64,
    hot_percent: f64,
    sequential: f64,
) -> Described {
    Described { name, footprint_gib, write_kib, hot_percent, sequential }
}

/// Table 3.
pub(super) const TRACES: [Described; 9] = [
    described("YCSB-A", 89.99, 50.48, 64.69, 0.49),
    described("VDI", 255.99, 17.99, 64.45, 0.14),
    described("WBS", 56.05, 27.82, 60.34, 0.02),
    described("DTRS", 150.63, 31.85, 54.20, 0.12),
    described("DAP-PS", 36.06, 97.20, 55.02, 0.16),
    described("LM-TBE", 239.49, 61.90, 60.29, 0.94),
    described("MSN-CFS", 5.58, 12.92, 69.28, 0.25),
    described("MSN-BEFS", 31.42, 11.62, 70.18, 0.03),
    described("RAD-BE", 14.73, 13.02, 65.51, 0.33),
];
