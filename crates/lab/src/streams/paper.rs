//! Figures of the paper's text; most of its bars have no numbers beside them.

/// Fig. 10: the best set of features, against no streams, on every workload (%).
pub(super) const BEST_PERCENT: f64 = -20.0;
/// Fig. 10(a): Postmark (%).
pub(super) const POSTMARK_PERCENT: f64 = -70.0;
/// Fig. 13: the largest chunk up to which amplification rises slowly (sectors).
pub(super) const CHUNK_KNEE: u32 = 64;
/// Specification: how far the choice may be from the best of fifteen.
pub(super) const CHOICE_WITHIN: f64 = 1.05;

/// What the paper says of a workload's bars.
pub(super) fn of_workload(name: &str) -> &'static str {
    match name {
        "Postmark" => "below 0.30",
        "MSR-hm0" => "C best, 0.80 or less",
        "MSR-hm1" => "FC best, 0.80 or less",
        _ => "0.80 or less",
    }
}
