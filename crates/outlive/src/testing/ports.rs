//! Ports of the loopback for servers that are given theirs.

use std::net::TcpListener;

use crate::model::id::{Entropy, SystemEntropy};

/// A port that is free together with those at these distances behind it. It lies below the ports that the kernel gives to
/// connecting clients, one of which could be taken again before the server has it.
pub fn free_port(behind: &[u16]) -> u16 {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let all_free = |port: &u16| is_free(*port) && behind.iter().all(|distance| is_free(port + distance));
    let drawn = || 10_000 + (SystemEntropy.draw() % 12_000) as u16;
    std::iter::repeat_with(drawn).take(100).find(all_free).expect("free ports")
}
