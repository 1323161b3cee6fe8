//! Pages that survive the loss of any one sector: the last sector is the parity of the others.
//!
//! How: the exclusive or of all sectors is zero; a reader whose checksum fails rebuilds each sector
//! in turn, and the checksum tells which one was lost.
//! Invariant: a rebuilt page is taken only where the caller's checksum holds.
//! Cost: 4 KiB of exclusive or per page written; a checksum per sector where one is lost.
//! Not for: data of clients, which carries checksums alone.

use alloc::vec::Vec;

/// Bytes of a page with parity.
pub const PAGE_BYTES: usize = 4096;
/// The unit in which devices lose bytes.
pub const SECTOR_BYTES: usize = 512;
/// Bytes of a page before its parity.
pub const CONTENT_BYTES: usize = PAGE_BYTES - SECTOR_BYTES;

/// Writes the parity of a page whose content is complete, checksum included.
///
/// # Panics
/// Where the page is shorter than [`PAGE_BYTES`].
pub fn put_parity(page: &mut [u8]) {
    rebuild_sector(page, CONTENT_BYTES / SECTOR_BYTES);
}

/// Makes sector `lost` the exclusive or of all others, parity included.
fn rebuild_sector(page: &mut [u8], lost: usize) {
    let mut sum = [0; SECTOR_BYTES];
    for (index, sector) in page[..PAGE_BYTES].chunks_exact(SECTOR_BYTES).enumerate() {
        if index != lost {
            sum.iter_mut().zip(sector).for_each(|(sum, byte)| *sum ^= byte);
        }
    }
    page[lost * SECTOR_BYTES..][..SECTOR_BYTES].copy_from_slice(&sum);
}

/// A page that begins with `magic` and of which one sector is lost, as it was written; `None` where
/// `is_sound` accepts no rebuilt sector. For pages that are not sound as they are.
///
/// # Panics
/// Where the page is shorter than [`PAGE_BYTES`].
#[must_use]
pub fn rebuild(page: &[u8], magic: u64, is_sound: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let first = |sector: &[u8]| sector[..8].iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b));
    let sectors = page[..PAGE_BYTES].chunks_exact(SECTOR_BYTES);
    let behind = sectors.skip(1).fold(0, |sum, sector| sum ^ first(sector));
    let has_magic = |lost: usize| if lost == 0 { behind } else { first(page) } == magic;
    (0..CONTENT_BYTES / SECTOR_BYTES).filter(|lost| has_magic(*lost)).find_map(|lost| {
        let mut rebuilt = page[..PAGE_BYTES].to_vec();
        rebuild_sector(&mut rebuilt, lost);
        is_sound(&rebuilt).then_some(rebuilt)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: any one sector may be lost, two may not. Method: each sector zeroed, then each with
    /// its neighbour; soundness is equality with what was written.
    #[test]
    fn one_lost_sector_is_rebuilt() {
        let mut page: Vec<u8> = (0..PAGE_BYTES).map(|at| (at * 7 % 251) as u8).collect();
        page[..8].copy_from_slice(b"LAYBYTST");
        put_parity(&mut page);
        let magic = u64::from_le_bytes(*b"LAYBYTST");
        let zeroed = |sectors: &[usize]| {
            let mut bad = page.clone();
            sectors.iter().for_each(|at| bad[at * SECTOR_BYTES..][..SECTOR_BYTES].fill(0));
            rebuild(&bad, magic, |rebuilt| rebuilt == page)
        };
        let sectors = CONTENT_BYTES / SECTOR_BYTES;
        for sector in 0..sectors {
            assert_eq!(zeroed(&[sector]).as_ref(), Some(&page), "sector {sector}");
            assert_eq!(zeroed(&[sector, (sector + 1) % sectors]), None, "sector {sector}");
        }
    }
}
