//! Measures what a request over a unix socket costs through each `Io`, alone and in depth.
//!
//! How: a client thread with blocking calls sends 28-byte requests (NBD's size) and reads 4112-byte
//! replies; the server answers out of memory, so only the sockets and the waits count.
//! Run: `cargo run --release --example echo -- [rounds]`.
#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measurement for a terminal")]

use layby_engine::io::{Host, HostIo, Io, IoChoice, IoOperation, SocketId, Token};
use layby_types::Nanos;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

const REQUEST: usize = 28;
const REPLY: usize = 4112;
const RECEIVE: Token = Token(0);
const SEND: Token = Token(1);

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(200_000);
    for depth in [1, 32] {
        for run in 0..3 {
            for choice in [Some(IoChoice::Ring), Some(IoChoice::Pool), None] {
                let (ours, theirs) = UnixStream::pair().expect("a socket pair");
                let server = std::thread::spawn(move || match choice {
                    Some(choice) => serve(choice, ours),
                    None => serve_plainly(ours),
                });
                let nanos = client(theirs, rounds, depth);
                let (name, cpu) = server.join().expect("the server ends");
                let cpu = cpu / rounds as u64;
                println!("depth {depth:2} run {run}: {nanos:6} ns/request, {cpu:5} ns cpu, {name}");
            }
        }
    }
}

/// Keeps `depth` requests open; answers nanoseconds per request.
fn client(mut socket: UnixStream, rounds: usize, depth: usize) -> u64 {
    let mut reply = vec![0; REPLY * depth];
    let start = Instant::now();
    let (mut sent, mut received) = (0, 0);
    while received < rounds * REPLY {
        let room = (depth - (sent - received / REPLY)).min(rounds - sent);
        if room > 0 {
            socket.write_all(&vec![7; REQUEST * room]).expect("the server lives");
            sent += room;
        }
        received += socket.read(&mut reply).expect("the server lives");
    }
    (start.elapsed().as_nanos() / rounds as u128) as u64
}

fn thread_cpu() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The shape of a shard: one receive posted, replies gathered into one send at a time.
fn serve(choice: IoChoice, socket: UnixStream) -> (String, u64) {
    let (mut io, _, name) = HostIo::start(choice, 32 << 20).expect("this host grants it");
    let socket = io.attach_socket(socket.into()).expect("a socket");
    let (mut requests, mut sending, mut done) = (0, false, Vec::new());
    post_receive(&mut io, socket);
    loop {
        io.wait(Nanos::NEVER, &mut done);
        for end in done.drain(..) {
            if end.token == RECEIVE {
                let count = end.result.expect("the client lives");
                if count == 0 {
                    return (name, thread_cpu());
                }
                requests += count;
                post_receive(&mut io, socket);
            } else {
                sending = false;
            }
            io.recycle(end.buffer.expect("socket operations have buffers"));
        }
        if !sending && requests >= REQUEST {
            sending = true;
            let length = requests / REQUEST * REPLY;
            requests %= REQUEST;
            let buffer = io.buffer(length);
            io.submit(SEND, IoOperation::Send { socket, buffer, start: 0, end: length });
        }
    }
}

fn post_receive(io: &mut HostIo, socket: SocketId) {
    let buffer = io.buffer(64 << 10);
    let end = buffer.len();
    io.submit(RECEIVE, IoOperation::Receive { socket, buffer, filled: 0, end });
}

/// What a thread per connection would do.
fn serve_plainly(mut socket: UnixStream) -> (String, u64) {
    let (mut requests, mut input, reply) = (0, vec![0; 64 << 10], vec![0; REPLY * 64]);
    loop {
        match socket.read(&mut input).expect("the client lives") {
            0 => return ("blocking calls".to_owned(), thread_cpu()),
            count => requests += count,
        }
        let length = requests / REQUEST * REPLY;
        requests %= REQUEST;
        socket.write_all(&reply[..length]).expect("the client lives");
    }
}
