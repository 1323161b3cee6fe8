//! A simulated disk whose writes and discards go to two devices of the flash model besides.
//!
//! How: one device is told the stream of each segment, as its header says, and one more for what is
//! in none; the other puts all into one. Invariant: both see the same writes in the same order.

use layby_device::flash::{Configuration, CopyPlacement, Flash, Geometry, LogicalPage};
use layby_engine::io::{Buffer, DiskId, Io, IoDone, IoError, IoOperation, Mapping, SimIo};
use layby_engine::io::{SocketId, Token};
use layby_engine::store::LogGeometry;
use layby_engine::store::log_layout::SegmentHeader;
use layby_types::Nanos;

pub(super) const BLOCK: usize = 4096;
/// Of what is written: superblock and checkpoints.
pub(super) const METADATA: u16 = 5;
/// Spare pages of the device, in a hundred of its logical ones.
const SPARE_PERCENT: u32 = 7;
/// Part of the device that the level takes (%); the rest is never written.
const DEVICE_PERCENT: u64 = 90;

/// The simulated disk, whose writes go to flash, too.
pub(super) struct Recorder {
    pub(super) io: SimIo,
    /// The disk of the level.
    pub(super) disk: DiskId,
    /// Of the log, as its superblock says; segments' headers repeat it.
    pub(super) instance: u64,
    pub(super) geometry: LogGeometry,
    pub(super) base: u64,
    /// The stream of each segment, as its header says.
    pub(super) streams: Vec<u16>,
    pub(super) devices: [Flash; 2],
    /// Bytes written to other disks.
    pub(super) bytes_elsewhere: u64,
}

impl Recorder {
    fn on_discard(&mut self, offset: u64, length: u64) {
        let first = LogicalPage(((offset - self.base) / BLOCK as u64) as u32);
        self.devices
            .iter_mut()
            .for_each(|device| device.trim(first, (length / BLOCK as u64) as u32));
    }

    fn on_write(&mut self, offset: u64, bytes: &[u8]) {
        let first = (offset - self.base) as usize / BLOCK;
        for (page, bytes) in (first as u32..).zip(bytes.chunks(BLOCK)) {
            if bytes.starts_with(b"LAYBYLOG") {
                let instance = bytes[40..48].try_into().expect("eight bytes of a superblock");
                self.instance = u64::from_le_bytes(instance);
            }
            let segment = self.geometry.segment_of(page);
            if let Some(index) = segment
                && let Some(header) = SegmentHeader::decode(bytes, self.instance, index)
            {
                self.streams[index as usize] = header.stream as u16;
            }
            let stream = segment.map_or(METADATA, |index| self.streams[index as usize]);
            for (device, stream) in self.devices.iter_mut().zip([stream, 0]) {
                let stream = layby_device::flash::Stream(stream);
                device.write(LogicalPage(page), stream).expect("a device that does not wear");
            }
        }
    }
}

impl Io for Recorder {
    fn now(&self) -> Nanos {
        self.io.now()
    }
    fn buffer(&mut self, length: usize) -> Buffer {
        self.io.buffer(length)
    }
    fn recycle(&mut self, buffer: Buffer) {
        self.io.recycle(buffer);
    }
    fn submit(&mut self, token: Token, operation: IoOperation) {
        match &operation {
            IoOperation::Write { disk, offset, buffer, .. } if *disk == self.disk => {
                let (offset, bytes) = (*offset, buffer.to_vec());
                self.on_write(offset, &bytes);
            }
            IoOperation::Write { buffer, .. } => self.bytes_elsewhere += buffer.len() as u64,
            // Told when it is asked for: nothing is written there before it has ended.
            IoOperation::Discard { disk, offset, length } if *disk == self.disk => {
                self.on_discard(*offset, *length);
            }
            _ => {}
        }
        self.io.submit(token, operation);
    }
    fn wait(&mut self, deadline: Nanos, done: &mut Vec<IoDone>) {
        self.io.wait(deadline, done);
    }
    fn disk_length(&self, disk: DiskId) -> u64 {
        self.io.disk_length(disk)
    }
    fn disk_name(&self, disk: DiskId) -> &str {
        self.io.disk_name(disk)
    }
    fn map(&mut self, disk: DiskId) -> Result<Box<dyn Mapping>, IoError> {
        self.io.map(disk)
    }
    fn detach_disk(&mut self, disk: DiskId) {
        self.io.detach_disk(disk);
    }
    fn close_socket(&mut self, socket: SocketId) {
        self.io.close_socket(socket);
    }
}

pub(super) fn device(blocks: u32, erase_pages: u32, streams: u16) -> Flash {
    let blocks = (u64::from(blocks) * 100 / DEVICE_PERCENT) as u32;
    let physical = u64::from(blocks) * u64::from(100 + SPARE_PERCENT) / 100;
    let geometry = Geometry {
        page_bytes: BLOCK as u32,
        pages_per_block: erase_pages,
        logical_pages: blocks,
        blocks: physical.div_ceil(erase_pages.into()) as u32,
        reserve_blocks: 10,
    };
    let geometry = Geometry { blocks: geometry.blocks + geometry.reserve_blocks, ..geometry };
    let configuration = Configuration {
        streams,
        copies: CopyPlacement::Together,
        // The same for both, or streams would cost the device its spare.
        free_blocks_min: 8,
        ..Configuration::plain(geometry)
    };
    Flash::new(&configuration).expect("constants make a device")
}
