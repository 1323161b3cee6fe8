//! One device's queue: descriptors mapped from the kernel, buffers, and a ring for tags.
//!
//! How: every tag is asked for with a command that names its buffer; its end says that a request
//! is there, with the bytes of a write in the buffer. The answer is the command that asks for the
//! tag's next request. Each end raises an event descriptor.
//! Invariant: a buffer is touched only between its tag's end and its answer; all commands come from
//! the thread that started, which the kernel knows as the queue's server. Where the value is
//! dropped while the kernel has tags, as when the process ends, it may still write to their
//! buffers, and so they are leaked.
//! Cost: no system call per request, one per `send`. Memory by what requests touched.
#![expect(unsafe_code, reason = "shares memory with the kernel")]

use super::{Device, READS_WRITES, encoded};
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

/// Bytes of `struct ublksrv_io_cmd`.
const COMMAND_BYTES: u32 = 16;
/// Bytes of `struct ublksrv_io_desc`.
const DESCRIPTOR_BYTES: usize = 24;
/// Asks for a tag's first request.
const FETCH: u32 = encoded(READS_WRITES, COMMAND_BYTES, 0x20);
/// Answers a request, and asks for the tag's next one.
const COMMIT_AND_FETCH: u32 = encoded(READS_WRITES, COMMAND_BYTES, 0x21);

/// Memory of its own.
struct Mapped {
    address: NonNull<u8>,
    length: usize,
}

impl Mapped {
    fn of_device(device: &OwnedFd, length: usize) -> Result<Mapped, Errno> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses an unused address; what lies there is read by copies only.
        let address =
            unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, flags, device, 0)? };
        Mapped::new(address.cast(), length)
    }

    fn anonymous(length: usize) -> Result<Mapped, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an unused address.
        let address =
            unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, MapFlags::PRIVATE)? };
        Mapped::new(address.cast(), length)
    }

    fn new(address: *mut u8, length: usize) -> Result<Mapped, Errno> {
        NonNull::new(address).map(|address| Mapped { address, length }).ok_or(Errno::NOMEM)
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by this object, with this length, and nobody holds a slice of it.
        let _ = unsafe { munmap(self.address.as_ptr().cast(), self.length) };
    }
}

/// See the file's header.
pub struct Channel {
    ring: IoUring,
    file: OwnedFd,
    descriptors: Mapped,
    buffers: ManuallyDrop<Mapped>,
    /// Tags that the kernel has.
    outside: usize,
    buffer_bytes: usize,
    kick: OwnedFd,
    /// Tags between their end and their answer.
    held: Vec<bool>,
}

// SAFETY: the memory belongs to this object alone, whichever thread holds it.
unsafe impl Send for Channel {}

impl Channel {
    /// The queue of a device that nobody serves.
    ///
    /// # Errors
    /// The system's error, such as [`Errno::BUSY`] where somebody serves it.
    pub fn open(device: &Device) -> Result<Channel, Errno> {
        let path = format!("/dev/ublkc{}", device.number);
        let file = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let depth = usize::from(device.depth);
        let page = rustix::param::page_size();
        let length = (depth * DESCRIPTOR_BYTES).next_multiple_of(page);
        let descriptors = Mapped::of_device(&file, length)?;
        let buffer_bytes = device.buffer_bytes as usize;
        let buffers = ManuallyDrop::new(Mapped::anonymous(depth * buffer_bytes)?);
        let io = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let entries = u32::from(device.depth).next_power_of_two();
        let ring = IoUring::builder().build(entries).map_err(io)?;
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        ring.submitter().register_eventfd(kick.as_raw_fd()).map_err(io)?;
        let held = vec![false; depth];
        Ok(Channel { ring, file, descriptors, buffers, outside: 0, buffer_bytes, kick, held })
    }

    /// The event descriptor that ends raise.
    ///
    /// # Errors
    /// The system's error where the process has too many descriptors.
    pub fn kick(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.kick, 0)
    }

    /// Asks for every tag; the calling thread serves the queue from now on.
    ///
    /// # Errors
    /// The system's error.
    pub fn start(&mut self) -> Result<(), Errno> {
        // What this thread allocates must not wait for a disk that it serves itself. Without the
        // right to say so it is as it was.
        let _ = rustix::process::configure_io_flusher_behavior(true);
        for tag in 0..self.held.len() as u16 {
            self.push(FETCH, tag, -1);
        }
        if self.send() { Ok(()) } else { Err(Errno::IO) }
    }

    /// The next tag that the kernel hands over, with what it says; zero for a request.
    pub fn next_tag(&mut self) -> Option<(u16, i32)> {
        let end = self.ring.completion().next()?;
        let tag = end.user_data() as u16;
        self.held[usize::from(tag)] = true;
        self.outside -= 1;
        Some((tag, end.result()))
    }

    /// Whether a tag has arrived that was not taken.
    pub fn has_more(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// The descriptor of a request in hand.
    #[must_use]
    pub fn descriptor(&self, tag: u16) -> [u8; DESCRIPTOR_BYTES] {
        assert!(self.held[usize::from(tag)], "a descriptor is the kernel's until its tag comes");
        let place = self.descriptors.address.as_ptr();
        let mut bytes = [0; DESCRIPTOR_BYTES];
        // SAFETY: in bounds, since the mapping has a descriptor per tag; the kernel does not write
        // it before the tag's answer.
        unsafe {
            place
                .add(usize::from(tag) * DESCRIPTOR_BYTES)
                .copy_to_nonoverlapping(bytes.as_mut_ptr(), DESCRIPTOR_BYTES);
        }
        bytes
    }

    /// The bytes of a request in hand.
    pub fn buffer(&mut self, tag: u16) -> &mut [u8] {
        assert!(self.held[usize::from(tag)], "a buffer is the kernel's until its tag comes");
        let place = self.address(tag);
        // SAFETY: in bounds, since there is a buffer per tag; the kernel touches it only after the
        // tag's answer, and `&mut self` excludes other slices.
        unsafe { std::slice::from_raw_parts_mut(place, self.buffer_bytes) }
    }

    fn address(&self, tag: u16) -> *mut u8 {
        let offset = usize::from(tag) * self.buffer_bytes;
        assert!(offset + self.buffer_bytes <= self.buffers.length, "a tag of this queue");
        // SAFETY: in bounds, as was just seen.
        unsafe { self.buffers.address.as_ptr().add(offset) }
    }

    /// Answers a request with its bytes done, or a negative error number, and asks for the next.
    pub fn answer(&mut self, tag: u16, result: i32) {
        let held = &mut self.held[usize::from(tag)];
        assert!(std::mem::take(held), "a request is answered once");
        self.push(COMMIT_AND_FETCH, tag, result);
    }

    /// Brings the answers to the kernel; false where it did not take all, to be repeated.
    pub fn send(&mut self) -> bool {
        // A signal or a lack of memory passes; an entry that was refused ends with an error.
        self.ring.submit().is_ok() && self.ring.submission().is_empty()
    }

    fn push(&mut self, code: u32, tag: u16, result: i32) {
        let mut command = [0; COMMAND_BYTES as usize];
        // Bytes 0 and 1 name the queue, of which there is one.
        command[2..4].copy_from_slice(&tag.to_ne_bytes());
        command[4..8].copy_from_slice(&result.to_ne_bytes());
        command[8..].copy_from_slice(&(self.address(tag) as u64).to_ne_bytes());
        let entry = opcode::UringCmd16::new(Fd(self.file.as_raw_fd()), code).cmd(command);
        let entry = entry.build().user_data(tag.into());
        // SAFETY: the entry names this tag's buffer, which lives until the kernel is done with it,
        // and which nobody here touches before the tag's end. There is an entry per tag, and a tag
        // is pushed once between two ends.
        unsafe { self.ring.submission().push(&entry) }.expect("the ring has an entry per tag");
        self.outside += 1;
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        while self.next_tag().is_some() {}
        if self.outside == 0 {
            // SAFETY: the kernel has no tag and so uses no buffer; this is the value's end.
            unsafe { ManuallyDrop::drop(&mut self.buffers) };
        }
    }
}
