//! XTS-AES-256: the cipher of a level's bytes, in place and of the same length.
//!
//! How: the device's bytes are sectors of [`SECTOR_BYTES`], whatever its own are; each block of 16
//! bytes is encrypted under a tweak that follows from its sector's number and its place therein. So
//! any range of whole blocks can be read or written alone, and what a torn write leaves of cipher
//! text is what it would have left of clear text, block by block.
//! A block of 16 zeros reads as zeros: never written, zeroed or discarded. A written block is such
//! a one with a probability of 2^-128.
//! Invariant: `decrypt(encrypt(x)) == x` at the same offset.
//! Cost: a pass of AES in batches of a sector, by the processor's instructions where it has them.
//! Not for: telling whether bytes were changed. There is no room for a tag, and whoever can write
//! the device can put back what an offset held before; checksums above find accidents, no intent.
//!
//! Source: IEEE Std 1619-2018, without its stealing of cipher text, since all lengths are whole.

use aes::Aes256;
use aes::cipher::{Array, Block, BlockCipherDecrypt as _, BlockCipherEncrypt as _, KeyInit as _};
use std::fmt;

/// Bytes of a key: one half for the data, the other for the tweaks.
pub const DATA_KEY_BYTES: usize = 64;
/// Bytes under one tweak's number.
const SECTOR_BYTES: usize = 4096;
/// What encrypts, by its usual name.
pub const SECTOR_CIPHER: &str = "XTS-AES-256";
/// Offsets and lengths are multiples of this.
pub const CIPHER_BLOCK_BYTES: usize = 16;
const SECTOR_BLOCKS: usize = SECTOR_BYTES / CIPHER_BLOCK_BYTES;
/// What a bit that leaves the tweak at its top comes back as: x^128 = x^7 + x^2 + x + 1.
const FEEDBACK: u128 = 0x87;

type Blocks = [Block<Aes256>];

/// A level's cipher, with its key.
pub struct SectorCipher {
    data: Aes256,
    tweak: Aes256,
}

impl fmt::Debug for SectorCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SectorCipher(hidden)")
    }
}

impl SectorCipher {
    /// With a key that was drawn at random. Panics where its halves are equal, since the cipher
    /// is none then.
    #[must_use]
    pub fn new(key: &[u8; DATA_KEY_BYTES]) -> Self {
        let (data, tweak) = key.split_at(DATA_KEY_BYTES / 2);
        assert!(data != tweak, "the halves of a key are drawn apart");
        let of = |half: &[u8]| Aes256::new_from_slice(half).expect("a half has 32 bytes");
        SectorCipher { data: of(data), tweak: of(tweak) }
    }

    /// Writes into `sealed` what the device gets at `offset` for `clear`.
    pub fn encrypt(&self, offset: u64, clear: &[u8], sealed: &mut [u8]) {
        assert_eq!(clear.len(), sealed.len(), "a cipher text is as long as its clear text");
        sealed.copy_from_slice(clear);
        self.for_each_sector(offset, sealed, |blocks, tweaks| {
            add(blocks, tweaks);
            self.data.encrypt_blocks(blocks);
            add(blocks, tweaks);
        });
    }

    /// Makes of what the device has at `offset` what was written there.
    pub fn decrypt(&self, offset: u64, bytes: &mut [u8]) {
        self.for_each_sector(offset, bytes, |blocks, tweaks| {
            let mut is_blank = [false; SECTOR_BLOCKS];
            for (is_blank, block) in is_blank.iter_mut().zip(&*blocks) {
                *is_blank = word(block) == 0;
            }
            add(blocks, tweaks);
            self.data.decrypt_blocks(blocks);
            add(blocks, tweaks);
            for (_, block) in is_blank.iter().zip(blocks).filter(|(is_blank, _)| **is_blank) {
                block.fill(0);
            }
        });
    }

    /// Calls `with` for what lies in each sector, with the tweaks of its blocks.
    fn for_each_sector(
        &self,
        offset: u64,
        mut bytes: &mut [u8],
        with: impl Fn(&mut Blocks, &[u128]),
    ) {
        let (start, length) = (offset as usize, bytes.len());
        let is_whole = |count: usize| count.is_multiple_of(CIPHER_BLOCK_BYTES);
        assert!(is_whole(start) && is_whole(length), "{length} bytes at {offset} are no blocks");
        let mut at = offset;
        while !bytes.is_empty() {
            let within = (at % SECTOR_BYTES as u64) as usize;
            let count = bytes.len().min(SECTOR_BYTES - within);
            let (piece, rest) = bytes.split_at_mut(count);
            let (blocks, _) = Array::slice_as_chunks_mut(piece);
            let mut tweaks = [0; SECTOR_BLOCKS];
            let tweaks = &mut tweaks[..blocks.len()];
            self.fill_tweaks(at / SECTOR_BYTES as u64, within / CIPHER_BLOCK_BYTES, tweaks);
            with(blocks, tweaks);
            (at, bytes) = (at + count as u64, rest);
        }
    }

    /// The tweaks of a sector's blocks, from one on.
    fn fill_tweaks(&self, sector: u64, first: usize, tweaks: &mut [u128]) {
        let mut number = Array::from(u128::from(sector).to_le_bytes());
        self.tweak.encrypt_block(&mut number);
        let mut tweak = (0..first).fold(word(&number), |tweak, _| next(tweak));
        for place in tweaks {
            *place = tweak;
            tweak = next(tweak);
        }
    }
}

/// The tweak of the next block: times x in the field of 2^128 elements.
fn next(tweak: u128) -> u128 {
    (tweak << 1) ^ (FEEDBACK & (tweak >> 127).wrapping_neg())
}

fn word(block: &Block<Aes256>) -> u128 {
    u128::from_le_bytes((*block).into())
}

fn add(blocks: &mut Blocks, tweaks: &[u128]) {
    for (block, tweak) in blocks.iter_mut().zip(tweaks) {
        *block = Array::from((word(block) ^ tweak).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Rng;

    /// The key of vectors 10 to 14 of IEEE Std 1619-2018, annex B.
    const KEY: &str = "2718281828459045235360287471352662497757247093699959574966967627\
                       3141592653589793238462643383279502884197169399375105820974944592";
    /// The cipher text of vector 10.
    const TENTH: &str = "\
        1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b\
        5d31e276f8fe4a8d66b317f9ac683f44680a86ac35adfc3345befecb4bb188fd\
        5776926c49a3095eb108fd1098baec70aaa66999a72a82f27d848b21d4a741b0\
        c5cd4d5fff9dac89aeba122961d03a757123e9870f8acf1000020887891429ca\
        2a3e7a7d7df7b10355165c8b9a6d0a7de8b062c4500dc4cd120c0f7418dae3d0\
        b5781c34803fa75421c790dfe1de1834f280d7667b327f6c8cd7557e12ac3a0f\
        93ec05c52e0493ef31a12d3d9260f79a289d6a379bc70c50841473d1a8cc81ec\
        583e9645e07b8d9670655ba5bbcfecc6dc3966380ad8fecb17b6ba02469a020a\
        84e18e8f84252070c13e9f1f289be54fbc481457778f616015e1327a02b140f1\
        505eb309326d68378f8374595c849d84f4c333ec4423885143cb47bd71c5edae\
        9be69a2ffeceb1bec9de244fbe15992b11b77c040f12bd8f6a975a44a0f90c29\
        a9abc3d4d893927284c58754cce294529f8614dcd2aba991925fedc4ae74ffac\
        6e333b93eb4aff0479da9a410e4450e0dd7ae4c6e2910900575da401fc07059f\
        645e8b7e9bfdef33943054ff84011493c27b3429eaedb4ed5376441a77ed4385\
        1ad77f16f541dfd269d50d6a5f14fb0aab1cbb4c1550be97f7ab4066193c4caa\
        773dad38014bd2092fa755c824bb5e54c4f36ffda9fcea70b9c6e693e148c151";
    /// Number of the sector, first 32 and last 16 bytes of the cipher text of vectors 11 to 14.
    const LATER: [(u64, &str, &str); 4] = [
        (
            0xffff,
            "77a31251618a15e6b92d1d66dffe7b50b50bad552305ba0217a610688eff7e11",
            "a4f9e27b42af8100cb9d59cef9645803",
        ),
        (
            0xff_ffff,
            "e387aaa58ba483afa7e8eb469778317ecf4cf573aa9d4eac23f2cdf914e4e200",
            "2263a1eef52dd6888c309f5a7d712826",
        ),
        (
            0xffff_ffff,
            "bf53d2dade78e822a4d949a9bc6766b01b06a8ef70d26748c6a7fc36d80ae4c5",
            "4c82f335abb152c4a93411373aaa8220",
        ),
        (
            0xff_ffff_ffff,
            "64497e5a831e4a932c09be3e5393376daa599548b816031d224bbf50a818ed23",
            "d609d273ad5b0d59631c531f6a0a57b9",
        ),
    ];

    fn bytes_of(digits: &str) -> Vec<u8> {
        let digit = |c: char| c.to_digit(16).expect("a hexadecimal digit") as u8;
        let digits: Vec<u8> = digits.chars().map(digit).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    fn cipher() -> SectorCipher {
        SectorCipher::new(&bytes_of(KEY).try_into().expect("64 bytes"))
    }

    fn sealed(cipher: &SectorCipher, offset: u64, clear: &[u8]) -> Vec<u8> {
        let mut sealed = vec![0; clear.len()];
        cipher.encrypt(offset, clear, &mut sealed);
        sealed
    }

    /// Goal: the cipher is the standard's. Method: the vectors of IEEE 1619 for keys of 256 bits,
    /// whose data units of 512 bytes are the beginning of sectors here; and the end of a sector of
    /// 4096 bytes as OpenSSL 3.0 encrypts it.
    #[test]
    fn the_standards_vectors_hold() {
        let sector = SECTOR_BYTES as u64;
        let clear: Vec<u8> = (0..512).map(|at| at as u8).collect();
        assert_eq!(sealed(&cipher(), 0xff * sector, &clear), bytes_of(TENTH));
        for (number, head, tail) in LATER {
            let sealed = sealed(&cipher(), number * sector, &clear);
            assert_eq!((&sealed[..32], &sealed[496..]), (&bytes_of(head)[..], &bytes_of(tail)[..]));
        }
        let clear: Vec<u8> = (0..4096).map(|at| at as u8).collect();
        let tail = bytes_of("fd08d653dc867941b350b7bf42d97afbcda0129b81b980c5859bf3201222cec2");
        assert_eq!(sealed(&cipher(), 7 * sector, &clear)[4064..], tail);
    }

    /// Goal: any range of blocks is read and written alone, as if with all around it; another key
    /// or offset gives other bytes. Method: ranges by seed across sectors, beside one long call.
    #[test]
    fn ranges_agree() {
        let (cipher, mut rng) = (cipher(), Rng::new(5));
        let base = 3 * SECTOR_BYTES as u64;
        let mut clear = vec![0; 5 * SECTOR_BYTES];
        rng.fill(&mut clear);
        let whole = sealed(&cipher, base, &clear);
        for _ in 0..500 {
            let start = 16 * rng.below(clear.len() as u64 / 16);
            let length = 16 * (1 + rng.below((clear.len() as u64 - start) / 16));
            let (range, at) = (start as usize..(start + length) as usize, base + start);
            let mut part = sealed(&cipher, at, &clear[range.clone()]);
            assert_eq!(part, whole[range.clone()], "{length} bytes at {at}");
            cipher.decrypt(at, &mut part);
            assert_eq!(part, clear[range], "{length} bytes at {at}");
        }
        let mut elsewhere = whole.clone();
        cipher.decrypt(base + SECTOR_BYTES as u64, &mut elsewhere);
        assert!(elsewhere.chunks(16).zip(clear.chunks(16)).all(|(read, was)| read != was));
        let other = SectorCipher::new(&std::array::from_fn(|at| at as u8));
        let mut misread = whole;
        other.decrypt(base, &mut misread);
        assert!(misread.chunks(16).zip(clear.chunks(16)).all(|(read, was)| read != was));
    }

    /// Goal: what was never written, was zeroed or was torn reads as it would without a cipher:
    /// zeros, and beside them what was written. Method: a sector of which a prefix was written over
    /// zeros; clear zeros that were written, which are no zeros on the device.
    #[test]
    fn blank_blocks_read_as_zeros() {
        let cipher = cipher();
        let mut blank = vec![0; 2 * SECTOR_BYTES];
        cipher.decrypt(SECTOR_BYTES as u64, &mut blank);
        assert!(blank.iter().all(|byte| *byte == 0));
        let mut torn = sealed(&cipher, 0, &[7; SECTOR_BYTES]);
        torn[512..].fill(0);
        cipher.decrypt(0, &mut torn);
        assert!(torn[..512].iter().all(|byte| *byte == 7));
        assert!(torn[512..].iter().all(|byte| *byte == 0));
        let mut zeros = sealed(&cipher, 0, &[0; SECTOR_BYTES]);
        assert!(zeros.chunks(16).all(|block| block != [0; 16]));
        cipher.decrypt(0, &mut zeros);
        assert!(zeros.iter().all(|byte| *byte == 0));
    }
}
