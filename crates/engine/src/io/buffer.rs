//! Memory for I/O: owned, 4 KiB aligned, in size classes, carved from one arena a ring can pin.
//!
//! How: the pool maps one arena and carves buffers from it on first demand; a recycled buffer waits
//! in its class's list. Middle classes are a page larger than a power of two, so that a payload of
//! that length and its head fit into one. When the arena is used up, or a buffer is larger than the
//! largest class, the memory comes from the allocator instead. Memory is zeroed when it enters the
//! process, so a buffer may show older contents of this process but never of another.
//! Invariant: each arena byte belongs to at most one [`Buffer`]; the arena outlives its buffers.
//! Cost: a pop and a push per buffer; no system call once warm.
//! Not for: small objects; the smallest class is 4 KiB.
#![expect(unsafe_code, reason = "owns raw memory that the kernel fills")]

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Alignment of every buffer: what `O_DIRECT` wants of any device in use.
pub const BUFFER_ALIGN: usize = 4096;
/// Capacity of the smallest class.
pub const BUFFER_CLASS_MIN: usize = 4096;
/// What classes between these have beyond a power of two: room for a message's head.
const SLACK_BYTES: usize = 4096;
/// The smallest class with slack; smaller ones would grow by too large a part.
const SLACKED_MIN: usize = 64 << 10;
/// Capacity of the largest class; larger buffers are allocated and freed one by one.
pub const BUFFER_CLASS_MAX: usize = 4 << 20;
/// Arena bytes per pool unless told otherwise: 32 MiB pinned per shard.
pub const ARENA_BYTES_DEFAULT: usize = 32 << 20;
/// Fewest arena bytes; a smaller wish means no arena at all.
pub const ARENA_BYTES_MIN: usize = BUFFER_CLASS_MAX;
/// Most arena bytes: the kernel's limit for one registered buffer.
pub const ARENA_BYTES_MAX: usize = 1 << 30;
/// Bytes from the allocator that one class keeps for reuse.
pub const SPARE_BYTES_MAX: usize = 8 << 20;

const CLASSES: usize =
    (BUFFER_CLASS_MAX.trailing_zeros() - BUFFER_CLASS_MIN.trailing_zeros()) as usize + 1;

/// Owned bytes, 4 KiB aligned, of an exact length.
pub struct Buffer {
    address: NonNull<u8>,
    length: usize,
    capacity: usize,
    home: Home,
}

/// Where a buffer's memory belongs.
enum Home {
    /// The allocator.
    Plain,
    /// The arena, which stays mapped for as long as one of its buffers lives.
    Arena(Arc<Arena>),
}

// SAFETY: a buffer owns its bytes alone; nothing in it is tied to a thread.
unsafe impl Send for Buffer {}
// SAFETY: through a shared reference the bytes can only be read.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates zeroed memory outside any pool.
    #[must_use]
    pub fn zeroed(length: usize) -> Self {
        Buffer::try_zeroed(length)
            .unwrap_or_else(|| handle_alloc_error(plain_layout(capacity_for(length))))
    }

    /// The same, or none where there is not so much memory.
    #[must_use]
    pub fn try_zeroed(length: usize) -> Option<Self> {
        let capacity = capacity_for(length);
        // SAFETY: `capacity_for` never returns zero, so the layout has a size.
        let address = unsafe { alloc_zeroed(plain_layout(capacity)) };
        Some(Buffer { address: NonNull::new(address)?, length, capacity, home: Home::Plain })
    }

    /// Bytes this buffer could hold without new memory.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes the length in place. Panics past the capacity.
    pub fn set_length(&mut self, length: usize) {
        assert!(length <= self.capacity, "a buffer grew past its memory");
        self.length = length;
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `address` owns `capacity >= length` bytes, initialised when they were obtained.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.length) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `&mut self` proves that nobody else looks.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.length) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let home = if matches!(self.home, Home::Arena(_)) { "arena" } else { "plain" };
        write!(f, "Buffer({} of {} bytes, {home})", self.length, self.capacity)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if matches!(self.home, Home::Plain) {
            // SAFETY: plain memory came from `alloc_zeroed` with this very layout.
            unsafe { dealloc(self.address.as_ptr(), plain_layout(self.capacity)) }
        }
    }
}

/// One anonymous mapping, unmapped when the pool and all its buffers are gone.
struct Arena {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: the arena itself never touches its bytes; each belongs to one buffer.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    fn map(length: usize) -> Option<Arc<Self>> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice harms nobody.
        let address = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, flags) };
        let address = NonNull::new(address.ok()?.cast::<u8>())?;
        // SAFETY: the range was mapped just above. Refusal only costs speed.
        let _ = unsafe { madvise(address.as_ptr().cast(), length, Advice::LinuxHugepage) };
        Some(Arc::new(Arena { address, length }))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`; every buffer held a reference, so none is left.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.length) };
    }
}

/// Hands out buffers and takes them back.
pub struct BufferPool {
    arena: Option<Arc<Arena>>,
    /// Arena bytes handed out at least once.
    carved: usize,
    free: [Vec<Buffer>; CLASSES],
    /// Plain bytes waiting in each class.
    spare_bytes: [usize; CLASSES],
}

impl BufferPool {
    /// A pool over an arena of about `arena_bytes`; below [`ARENA_BYTES_MIN`] it has none.
    #[must_use]
    pub fn new(arena_bytes: usize) -> Self {
        let length = arena_bytes.min(ARENA_BYTES_MAX) / BUFFER_CLASS_MAX * BUFFER_CLASS_MAX;
        let arena = if length < ARENA_BYTES_MIN { None } else { Arena::map(length) };
        let free = std::array::from_fn(|_| Vec::new());
        BufferPool { arena, carved: 0, free, spare_bytes: [0; CLASSES] }
    }

    /// A buffer of exactly `length` bytes with unspecified contents.
    pub fn take(&mut self, length: usize) -> Buffer {
        let capacity = capacity_for(length);
        let Some(class) = class_of(capacity) else { return Buffer::zeroed(length) };
        let mut buffer = match self.free[class].pop() {
            Some(buffer) => {
                if matches!(buffer.home, Home::Plain) {
                    self.spare_bytes[class] -= capacity;
                }
                buffer
            }
            None => self.carve(capacity).unwrap_or_else(|| Buffer::zeroed(length)),
        };
        buffer.set_length(length);
        buffer
    }

    /// Takes a buffer back; one that belongs elsewhere is kept or freed, whichever fits.
    pub fn recycle(&mut self, buffer: Buffer) {
        let Some(class) = class_of(buffer.capacity) else { return };
        if matches!(buffer.home, Home::Plain) {
            if self.spare_bytes[class] + buffer.capacity > SPARE_BYTES_MAX {
                return;
            }
            self.spare_bytes[class] += buffer.capacity;
        } else if !self.owns(&buffer) {
            return;
        }
        self.free[class].push(buffer);
    }

    /// The arena as address and length, to be registered with a ring.
    pub(crate) fn arena(&self) -> Option<(*mut u8, usize)> {
        self.arena.as_ref().map(|arena| (arena.address.as_ptr(), arena.length))
    }

    /// Whether a buffer lies in this pool's arena, so that its registration covers it.
    pub(crate) fn owns(&self, buffer: &Buffer) -> bool {
        match (&buffer.home, &self.arena) {
            (Home::Arena(home), Some(arena)) => Arc::ptr_eq(home, arena),
            _ => false,
        }
    }

    /// Cuts new memory off the arena.
    fn carve(&mut self, capacity: usize) -> Option<Buffer> {
        let arena = self.arena.as_ref()?;
        if self.carved + capacity > arena.length {
            return None;
        }
        // SAFETY: `carved + capacity` lies within the mapping, as was just checked.
        let address = unsafe { arena.address.add(self.carved) };
        self.carved += capacity;
        Some(Buffer { address, length: 0, capacity, home: Home::Arena(arena.clone()) })
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arena = self.arena.as_ref().map_or(0, |arena| arena.length);
        write!(f, "BufferPool({} of {arena} arena bytes carved)", self.carved)
    }
}

/// The class's capacity, or whole pages above the largest class.
fn capacity_for(length: usize) -> usize {
    if length > BUFFER_CLASS_MAX {
        return length.next_multiple_of(BUFFER_ALIGN);
    }
    let power = length.max(BUFFER_CLASS_MIN).next_power_of_two();
    let smaller = with_slack(power / 2);
    if power > BUFFER_CLASS_MIN && length <= smaller { smaller } else { with_slack(power) }
}

/// The capacity of the class with this power of two.
fn with_slack(power: usize) -> usize {
    let has_slack = (SLACKED_MIN..BUFFER_CLASS_MAX).contains(&power);
    if has_slack { power + SLACK_BYTES } else { power }
}

/// The index of the class with this capacity, if there is one.
fn class_of(capacity: usize) -> Option<usize> {
    let power = 1 << capacity.ilog2();
    let fits = capacity <= BUFFER_CLASS_MAX && capacity == with_slack(power);
    fits.then(|| (power.trailing_zeros() - BUFFER_CLASS_MIN.trailing_zeros()) as usize)
}

fn plain_layout(capacity: usize) -> Layout {
    Layout::from_size_align(capacity, BUFFER_ALIGN).expect("capacities are far below isize::MAX")
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Rng;

    /// Goal: buffers are exact, aligned, zero when new, and never overlap. Method: seeded takes
    /// and recycles, each live buffer filled with its own mark and checked before it goes back.
    #[test]
    fn buffers_never_overlap() {
        let mut rng = Rng::new(7);
        let mut pool = BufferPool::new(ARENA_BYTES_MIN);
        let mut live: Vec<(u8, Buffer)> = Vec::new();
        for step in 0..2000u32 {
            if rng.chance(1, 2) && !live.is_empty() {
                let (mark, buffer) = live.swap_remove(rng.below(live.len() as u64) as usize);
                assert!(buffer.iter().all(|byte| *byte == mark), "step {step}");
                pool.recycle(buffer);
            } else if live.len() < 100 {
                let magnitude = rng.below(18);
                let length = rng.below(1 << magnitude) as usize;
                let mut buffer = pool.take(length);
                assert_eq!(buffer.len(), length);
                assert_eq!(buffer.as_ptr() as usize % BUFFER_ALIGN, 0);
                buffer.fill(step as u8);
                live.push((step as u8, buffer));
            }
        }
        drop(pool);
        assert!(live.iter().all(|(mark, buffer)| buffer.iter().all(|byte| byte == mark)));
    }

    /// Goal: a buffer has the capacity of the smallest class that holds it, and finds that class
    /// again. Method: lengths about every power of two.
    #[test]
    fn a_payload_and_its_head_share_a_class() {
        assert_eq!(capacity_for((256 << 10) + 28), (256 << 10) + SLACK_BYTES);
        assert_eq!(capacity_for((256 << 10) + SLACK_BYTES + 1), (512 << 10) + SLACK_BYTES);
        assert_eq!((capacity_for(0), capacity_for(4097)), (BUFFER_CLASS_MIN, 8192));
        for magnitude in 12..=22 {
            for length in [(1usize << magnitude) - 1, 1 << magnitude, (1 << magnitude) + 1] {
                let capacity = capacity_for(length);
                assert!(capacity >= length && capacity.is_multiple_of(BUFFER_ALIGN));
                let class = class_of(capacity);
                assert_eq!(class.is_some(), length <= BUFFER_CLASS_MAX, "{length}");
                assert!(class.is_none_or(|class| class < CLASSES));
            }
        }
    }

    /// Goal: the arena is used first, then the allocator, and both come back zeroed. Method: takes
    /// one buffer more than the arena holds, and one larger than any class.
    #[test]
    fn an_exhausted_arena_falls_back() {
        let mut pool = BufferPool::new(ARENA_BYTES_MIN);
        let inside = pool.take(BUFFER_CLASS_MAX);
        let outside = pool.take(4096);
        let large = pool.take(BUFFER_CLASS_MAX + 1);
        assert!(pool.owns(&inside) && !pool.owns(&outside) && !pool.owns(&large));
        for buffer in [&inside, &outside, &large] {
            assert!(buffer.iter().all(|byte| *byte == 0));
        }
        assert_eq!(large.len(), BUFFER_CLASS_MAX + 1);
        pool.recycle(inside);
        assert!(pool.owns(&pool.free[CLASSES - 1][0]));
    }
}
