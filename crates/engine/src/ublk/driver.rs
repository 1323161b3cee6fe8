//! Commands to the driver, by `/dev/ublk-control`.
//!
//! How: a command is an entry of 128 bytes on a ring that lives as long as the command, so that one
//! that the kernel does not end in time stands in nobody's way.
//! Invariant: a command's buffer is freed only when the kernel is done with it; where it is not in
//! time, the buffer is leaked.
//! Cost: a ring per command; commands are rare. Not for: requests.
#![expect(unsafe_code, reason = "hands memory to the kernel")]

use super::{COMMAND_TIME_MAX, READS, READS_WRITES, STOP_TIME_MAX, encoded, errno};
use io_uring::squeue::Entry128;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// Where the driver takes commands.
const CONTROL_PATH: &str = "/dev/ublk-control";
/// Bytes of `struct ublksrv_ctrl_cmd`.
const COMMAND_BYTES: u32 = 32;
/// Bytes of `struct ublksrv_ctrl_dev_info`.
const INFO_BYTES: usize = 64;

const GET_DEVICE_INFO: u32 = encoded(READS, COMMAND_BYTES, 0x02);
const ADD_DEVICE: u32 = encoded(READS_WRITES, COMMAND_BYTES, 0x04);
const DELETE_DEVICE: u32 = encoded(READS_WRITES, COMMAND_BYTES, 0x05);
const START_DEVICE: u32 = encoded(READS_WRITES, COMMAND_BYTES, 0x06);
const STOP_DEVICE: u32 = encoded(READS_WRITES, COMMAND_BYTES, 0x07);
const SET_PARAMETERS: u32 = encoded(READS_WRITES, COMMAND_BYTES, 0x08);
const START_RECOVERY: u32 = encoded(READS_WRITES, COMMAND_BYTES, 0x10);
const END_RECOVERY: u32 = encoded(READS_WRITES, COMMAND_BYTES, 0x11);
const GET_FEATURES: u32 = encoded(READS, COMMAND_BYTES, 0x13);

/// A device outlives its server and waits for the next one.
pub const FEATURE_RECOVERY: u64 = 1 << 3;
/// The next server gets what the last one did not answer.
pub const FEATURE_REISSUE: u64 = 1 << 4;
/// Without these there is no way to serve a device: commands are numbered as here.
pub const FEATURES_NEEDED: u64 = 1 << 6;
/// The number that stands for any free one.
const ANY_NUMBER: u32 = u32::MAX;

/// The kernel's ublk driver.
pub struct Driver {
    control: OwnedFd,
}

/// A device to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewDevice {
    /// Requests in its server's hands at most.
    pub depth: u16,
    /// Bytes of the longest read or write.
    pub buffer_bytes: u32,
    /// Bits of `FEATURE_…`.
    pub features: u64,
    /// What the kernel keeps with the device for its servers.
    pub mark: u64,
}

/// What a device is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// It has no disk.
    Dead,
    /// It is served.
    Live,
    /// It waits for its next server.
    Paused,
    /// It fails requests until its next server.
    Failing,
}

/// A device as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// The number of `/dev/ublkbN`.
    pub number: u32,
    /// What it is doing.
    pub state: DeviceState,
    /// Requests in its server's hands at most.
    pub depth: u16,
    /// Bytes of the longest read or write.
    pub buffer_bytes: u32,
    /// Bits of `FEATURE_…`.
    pub features: u64,
    /// What its maker had kept.
    pub mark: u64,
    /// Its server's process.
    pub server: i32,
}

impl Device {
    fn parse(bytes: &[u8]) -> Device {
        let short = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| {
            u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes of an answer"))
        };
        let long = |at: usize| {
            u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes of an answer"))
        };
        let state = match short(4) {
            0 => DeviceState::Dead,
            1 => DeviceState::Live,
            2 => DeviceState::Paused,
            _ => DeviceState::Failing,
        };
        let (depth, buffer_bytes, number, server) = (short(2), word(8), word(12), word(16) as i32);
        Device { number, state, depth, buffer_bytes, features: long(24), mark: long(32), server }
    }
}

impl NewDevice {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; INFO_BYTES];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &1u16.to_ne_bytes());
        put(2, &self.depth.to_ne_bytes());
        put(8, &self.buffer_bytes.to_ne_bytes());
        put(12, &ANY_NUMBER.to_ne_bytes());
        put(24, &self.features.to_ne_bytes());
        put(32, &self.mark.to_ne_bytes());
        bytes
    }
}

/// The part of a command that is not a buffer.
#[derive(Clone, Copy)]
struct Command {
    code: u32,
    number: u32,
    data: u64,
    time_max: Duration,
}

impl Driver {
    /// The driver, where the kernel has it.
    ///
    /// # Errors
    /// The system's error: there is no such file, or this user may not use it.
    pub fn open() -> Result<Driver, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        rustix::fs::open(CONTROL_PATH, flags, Mode::empty()).map(|control| Driver { control })
    }

    /// What the driver can do, in bits of `FEATURE_…`.
    ///
    /// # Errors
    /// The system's error; a driver that does not know the question is too old.
    pub fn features(&self) -> Result<u64, Errno> {
        let bytes = self.run(Command::new(GET_FEATURES, ANY_NUMBER), vec![0; 8])?;
        Ok(u64::from_ne_bytes(bytes.try_into().expect("the buffer has eight bytes")))
    }

    /// Makes a device without a disk.
    ///
    /// # Errors
    /// The system's error, such as a user without the right to do that.
    pub fn add(&self, device: &NewDevice) -> Result<Device, Errno> {
        self.run(Command::new(ADD_DEVICE, ANY_NUMBER), device.bytes()).map(|b| Device::parse(&b))
    }

    /// Describes a device.
    ///
    /// # Errors
    /// The system's error where there is none of that number.
    pub fn device(&self, number: u32) -> Result<Device, Errno> {
        let bytes = self.run(Command::new(GET_DEVICE_INFO, number), vec![0; INFO_BYTES])?;
        Ok(Device::parse(&bytes))
    }

    /// Says what disk a device will have.
    ///
    /// # Errors
    /// The system's error where it does not take them.
    pub fn set_parameters(&self, number: u32, parameters: &[u8]) -> Result<(), Errno> {
        self.run(Command::new(SET_PARAMETERS, number), parameters.to_vec()).map(drop)
    }

    /// Gives a device its disk; its queue must be served already.
    ///
    /// # Errors
    /// The system's error.
    pub fn start(&self, number: u32) -> Result<(), Errno> {
        let data = std::process::id().into();
        self.run(Command { data, ..Command::new(START_DEVICE, number) }, Vec::new()).map(drop)
    }

    /// Takes a device's disk away, when its requests have ended; its queue must be served
    /// meanwhile, where it is live.
    ///
    /// # Errors
    /// The system's error, such as a time that was up.
    pub fn stop(&self, number: u32) -> Result<(), Errno> {
        let time_max = STOP_TIME_MAX;
        self.run(Command { time_max, ..Command::new(STOP_DEVICE, number) }, Vec::new()).map(drop)
    }

    /// Removes a device; nobody may serve it any more.
    ///
    /// # Errors
    /// The system's error. A time that was up means that somebody has the device open: it goes when
    /// they close it.
    pub fn delete(&self, number: u32) -> Result<(), Errno> {
        self.run(Command::new(DELETE_DEVICE, number), Vec::new()).map(drop)
    }

    /// Begins to take over a paused device.
    ///
    /// # Errors
    /// [`Errno::BUSY`] while its last server has not gone, and others of the system.
    pub fn start_recovery(&self, number: u32) -> Result<(), Errno> {
        self.run(Command::new(START_RECOVERY, number), Vec::new()).map(drop)
    }

    /// Lets a device go on whose queue is served again.
    ///
    /// # Errors
    /// The system's error.
    pub fn end_recovery(&self, number: u32) -> Result<(), Errno> {
        let data = std::process::id().into();
        self.run(Command { data, ..Command::new(END_RECOVERY, number) }, Vec::new()).map(drop)
    }

    /// Runs a command and waits for its end; answers with its buffer.
    fn run(&self, command: Command, mut buffer: Vec<u8>) -> Result<Vec<u8>, Errno> {
        let mut ring = IoUring::<Entry128, cqueue::Entry>::builder()
            .build(1)
            .map_err(|error| io_errno(&error))?;
        let entry = opcode::UringCmd80::new(Fd(self.control.as_raw_fd()), command.code);
        let entry = entry.cmd(command.bytes(&mut buffer)).build();
        // SAFETY: the entry names `buffer`, which is kept below until the kernel has ended the
        // command, and for ever where it does not end it; nothing else touches it meanwhile.
        unsafe { ring.submission().push(&entry) }.expect("a ring that was just made has room");
        match wait(&mut ring, command.time_max) {
            Ok(result) => errno(result).map(|_| buffer),
            Err(errno) => {
                std::mem::forget(buffer);
                Err(errno)
            }
        }
    }
}

impl Command {
    fn new(code: u32, number: u32) -> Command {
        Command { code, number, data: 0, time_max: COMMAND_TIME_MAX }
    }

    /// As `struct ublksrv_ctrl_cmd` lays it out.
    fn bytes(&self, buffer: &mut [u8]) -> [u8; 80] {
        let mut bytes = [0; 80];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &self.number.to_ne_bytes());
        // No queue in particular.
        put(4, &u16::MAX.to_ne_bytes());
        put(6, &(buffer.len() as u16).to_ne_bytes());
        if !buffer.is_empty() {
            put(8, &(buffer.as_mut_ptr() as u64).to_ne_bytes());
        }
        put(16, &self.data.to_ne_bytes());
        bytes
    }
}

/// Waits for the one end of a ring.
fn wait(ring: &mut IoUring<Entry128, cqueue::Entry>, time_max: Duration) -> Result<i32, Errno> {
    let time = Timespec::from(time_max);
    loop {
        let waited = ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time));
        if let Some(end) = ring.completion().next() {
            return Ok(end.result());
        }
        match waited.map_err(|error| io_errno(&error)) {
            // A signal came; the entry is with the kernel already.
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

fn io_errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
