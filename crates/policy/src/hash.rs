//! The fixed mixing function of every table: same keys, same order, on every run.
//!
//! How: one multiplication and a fold (the high half carries the mixing). Cost: a nanosecond. Not
//! for keys that an adversary chooses to slow the node down.

/// Mixes 64 bits.
#[must_use]
#[inline]
pub const fn mix(value: u64) -> u64 {
    let wide = (value ^ 0x2545_f491_4f6c_dd1d) as u128 * 0x9e37_79b9_7f4a_7c15_u128;
    (wide as u64) ^ ((wide >> 64) as u64)
}
