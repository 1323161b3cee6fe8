//! Sizes of a cache as people write them: `64GiB`, `5%` of the footprint, `1000blocks`.
//!
//! Invariant: a size that is read is not zero; it may still come to no block of a given trace.

use layby_daemon::config::Size;
use layby_daemon::error::{Report, ReportKind};
use layby_daemon::types::BlockSize;
use layby_sim::single::SLOTS_MAX;
use layby_trace::Unit;

/// Slots beyond which the footprint bounds a level, since slots that stay empty cost memory too.
const SLOTS_UNBOUNDED_MAX: u64 = 1 << 24;

/// A size and how it was written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CacheSize {
    pub(crate) text: String,
    amount: Amount,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Amount {
    Bytes(u64),
    Blocks(u64),
    /// Of the footprint.
    Percent(f64),
}

impl std::str::FromStr for CacheSize {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let trimmed = text.trim();
        let amount = if let Some(number) = trimmed.strip_suffix('%') {
            number.trim().parse().ok().map(Amount::Percent)
        } else if let Some(number) = trimmed.strip_suffix("blocks") {
            number.trim().parse().ok().map(Amount::Blocks)
        } else {
            trimmed.parse::<Size>().ok().map(|size| Amount::Bytes(size.0))
        };
        let fits = |amount: &Amount| match amount {
            Amount::Bytes(count) | Amount::Blocks(count) => *count > 0,
            Amount::Percent(part) => *part > 0.0 && *part <= 100.0,
        };
        amount.filter(fits).map(|amount| CacheSize { text: trimmed.to_owned(), amount }).ok_or_else(
            || {
                let forms = "write 64GiB, 1000blocks, or a share of the footprint up to 100%";
                format!("`{text}` is no size of a cache; {forms}")
            },
        )
    }
}

impl CacheSize {
    /// Blocks, where the trace need not be known for that.
    fn blocks(&self, block_size: BlockSize) -> Option<u64> {
        match self.amount {
            Amount::Bytes(bytes) => Some(bytes / u64::from(block_size.bytes())),
            Amount::Blocks(blocks) => Some(blocks),
            Amount::Percent(_) => None,
        }
    }

    /// Whether the footprint has to be known.
    pub(crate) fn needs_footprint(&self, block_size: BlockSize) -> bool {
        self.blocks(block_size).is_none_or(|blocks| blocks > SLOTS_UNBOUNDED_MAX)
    }

    /// Slots of a cache of one level. `footprint` is known where it is needed; a level beyond it
    /// hits no more than one as large as it, and need not be larger.
    pub(crate) fn slots(
        &self,
        unit: Unit,
        block_size: BlockSize,
        footprint: Option<u32>,
    ) -> Result<u32, Report> {
        self.slots_within(unit, block_size, footprint, footprint.map(u64::from))
    }

    /// Slots of one of several levels. Watermarks are shares of its size: one of twice the
    /// footprint reaches none of them, as no larger one does, whereas one as large as the footprint
    /// may.
    pub(crate) fn level_slots(
        &self,
        unit: Unit,
        block_size: BlockSize,
        footprint: Option<u32>,
    ) -> Result<u32, Report> {
        let most = footprint.map(|blocks| (2 * u64::from(blocks)).min(u64::from(SLOTS_MAX)));
        self.slots_within(unit, block_size, footprint, most)
    }

    fn slots_within(
        &self,
        unit: Unit,
        block_size: BlockSize,
        footprint: Option<u32>,
        most: Option<u64>,
    ) -> Result<u32, Report> {
        if unit == Unit::Objects && matches!(self.amount, Amount::Bytes(_)) {
            return Err(self.refused(
                "this trace has objects without a place on a device; each counts as one block",
                format!("write 5% or 1000blocks in place of {}", self.text),
            ));
        }
        let whole = f64::from(footprint.unwrap_or(0));
        let blocks = match self.amount {
            // What is lost by rounding must not turn ten blocks into nine.
            Amount::Percent(part) => (whole * part / 100.0 + 1e-9) as u64,
            _ => self.blocks(block_size).unwrap_or(0),
        };
        let bounded = most.map_or(blocks, |most| blocks.min(most));
        match u32::try_from(bounded) {
            Ok(0) => Err(self.refused(&self.why_empty(block_size, footprint), LARGER.to_owned())),
            Ok(slots) if slots <= SLOTS_MAX => Ok(slots),
            _ => Err(self.refused("a level has at most 2^32 - 2 blocks", "write less".to_owned())),
        }
    }

    fn why_empty(&self, block_size: BlockSize, footprint: Option<u32>) -> String {
        match (self.amount, footprint) {
            (Amount::Percent(_), Some(blocks)) => {
                format!("the trace touches {blocks} blocks, and {} of that is none", self.text)
            }
            _ => format!("a block has {} bytes, and less than one is none", block_size.bytes()),
        }
    }

    fn refused(&self, cause: &str, hint: String) -> Report {
        Report::new(ReportKind::Invalid, format!("a cache of {} cannot be replayed", self.text))
            .cause(cause)
            .state("nothing was replayed")
            .hint(hint)
    }
}

const LARGER: &str = "write a larger size, such as 10% or 1000blocks";

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(text: &str, unit: Unit, footprint: Option<u32>) -> Result<u32, u8> {
        let size: CacheSize = text.parse().map_err(|_| 0)?;
        size.slots(unit, BlockSize::DEFAULT, footprint).map_err(|report| report.kind.exit_code())
    }

    /// Goal: sizes come to the blocks that a person expects. Method: one of each form.
    #[test]
    fn sizes_come_to_blocks() {
        let bytes = Unit::Bytes;
        assert_eq!(slots("1MiB", bytes, None), Ok(256));
        assert_eq!(slots("1000blocks", Unit::Objects, None), Ok(1000));
        assert_eq!(slots("1%", bytes, Some(186_880)), Ok(1868));
        assert_eq!(slots("10%", bytes, Some(186_880)), Ok(18_688));
        assert_eq!(slots("0.1%", bytes, Some(30_000)), Ok(30));
        assert_eq!(slots("1TiB", bytes, Some(500)), Ok(500));
        assert_eq!(slots("9000000000blocks", bytes, Some(7)), Ok(7));
    }

    /// Goal: what is no size is refused, by word or by trace. Method: one of each mistake.
    #[test]
    fn nonsense_is_refused() {
        for text in ["", "0", "0%", "0blocks", "-1%", "101%", "nan%", "5 apples", "1.3B"] {
            assert_eq!(slots(text, Unit::Bytes, Some(9)), Err(0), "{text}");
        }
        assert_eq!(slots("1KiB", Unit::Bytes, None), Err(2));
        assert_eq!(slots("1%", Unit::Bytes, Some(99)), Err(2));
        assert_eq!(slots("1MiB", Unit::Objects, None), Err(2));
        assert!("1TiB".parse().is_ok_and(|s: CacheSize| s.needs_footprint(BlockSize::DEFAULT)));
        assert!("1GiB".parse().is_ok_and(|s: CacheSize| !s.needs_footprint(BlockSize::DEFAULT)));
    }
}
