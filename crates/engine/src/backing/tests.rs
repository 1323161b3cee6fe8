//! Homes whose volume ends in the middle of a block.
//!
//! How: a file's home alone, over a simulated disk.

use super::*;
use crate::io::SimIo;
use layby_types::Nanos;

const BLOCK: u64 = 4096;
/// Two blocks and five sectors.
const LENGTH: u64 = 2 * BLOCK + 5 * 512;

fn run(
    io: &mut SimIo,
    home: &mut HomeBacking,
    operation: BackingOperation<Buffer>,
) -> BackingDone<Buffer> {
    home.submit(io, 7, operation);
    loop {
        if let Some(done) = home.poll() {
            return done;
        }
        let mut ended = Vec::new();
        io.wait(Nanos::NEVER, &mut ended);
        ended.into_iter().for_each(|done| home.on_io(io, done));
    }
}

fn filled(io: &mut SimIo, blocks: u64, value: u8) -> Buffer {
    let mut buffer = io.buffer((blocks * BLOCK) as usize);
    buffer.fill(value);
    buffer
}

/// Goal: whole blocks can be written, zeroed and looked at where a volume and its home end in the
/// middle of the last one; nothing beyond the volume is touched where the home goes on. Method: a
/// home of the volume's length and a longer one, compared byte by byte.
#[test]
fn a_volume_may_end_in_the_middle_of_a_block() {
    for beyond in [0, BLOCK] {
        let mut io = SimIo::new(1);
        let disk = io.add_disk("home", LENGTH + beyond);
        let file = FileBacking::new(disk, "home".into(), 1, LENGTH);
        let mut home = HomeBacking::File(file);
        let buffer = filled(&mut io, 2, 3);
        let write = BackingOperation::Write { offset: BLOCK, buffer, durable: true };
        let done = run(&mut io, &mut home, write);
        assert_eq!(done.result, Ok(()));
        assert_eq!(done.buffer.expect("it comes back").len() as u64, 2 * BLOCK);
        let holds = |io: &SimIo, value: u8| {
            let bytes = io.peek(disk);
            assert!(bytes[BLOCK as usize..LENGTH as usize].iter().all(|byte| *byte == value));
            assert!(bytes[LENGTH as usize..].iter().all(|byte| *byte == 0), "untouched");
        };
        holds(&io, 3);
        let buffer = filled(&mut io, 1, 9);
        let done = run(&mut io, &mut home, BackingOperation::Read { offset: 2 * BLOCK, buffer });
        let bytes = done.buffer.expect("it comes back");
        assert!(bytes[..5 * 512].iter().all(|byte| *byte == 3));
        let (offset, length) = (BLOCK, 2 * BLOCK);
        let done = run(&mut io, &mut home, BackingOperation::Extents { offset, length });
        let covered: u64 = done.extents.iter().map(|(_, length, _)| length).sum();
        assert_eq!((done.result, covered), (Ok(()), length));
        let zero = BackingOperation::Zero { offset, length, keep_allocated: false };
        assert_eq!(run(&mut io, &mut home, zero).result, Ok(()));
        holds(&io, 0);
    }
}

/// Goal: a home that has become shorter than its volume loses nothing silently. Method: a write
/// and reads within the volume and beyond the home, and a read of what is left of it.
#[test]
fn a_home_that_shrank_refuses() {
    let mut io = SimIo::new(2);
    let disk = io.add_disk("home", LENGTH);
    let file = FileBacking::new(disk, "home".into(), 1, LENGTH + BLOCK);
    let mut home = HomeBacking::File(file);
    let buffer = filled(&mut io, 1, 3);
    let write = BackingOperation::Write { offset: 2 * BLOCK, buffer, durable: true };
    assert!(run(&mut io, &mut home, write).result.is_err());
    for (block, blocks, result) in [
        (0, 2, Ok(())),
        (2, 1, Err(ErrorKind::Corrupt)),
        (3, 1, Err(ErrorKind::Corrupt)),
        (1, 3, Err(ErrorKind::Corrupt)),
    ] {
        let buffer = filled(&mut io, blocks, 9);
        let read = BackingOperation::Read { offset: block * BLOCK, buffer };
        assert_eq!(run(&mut io, &mut home, read).result, result, "block {block}");
    }
}
