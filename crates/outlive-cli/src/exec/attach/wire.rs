//! The messages between the owner of a run that has a terminal and its attached viewers: of a kind, a length
//! and bytes, over a socket that only this user may open.

use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::net::{SocketFlags, SocketType};

use crate::exec::sockets;

/// What was typed, to the owner.
pub const KEYS: u8 = b'k';
/// How many rows and columns there are, to the owner.
pub const SIZE: u8 = b's';
/// What is shown, from the owner.
pub const SHOWN: u8 = b'o';
/// The input ends here, to the owner.
pub const END: u8 = b'e';
/// What was sent is taken, from the owner.
pub const TAKEN: u8 = b't';
/// The longest message. A longer one is none.
const LIMIT: usize = 64 << 10;
/// A kind and a length.
const HEAD: usize = 5;

/// A message, or several where it is long.
pub fn message(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let one = |bytes: &[u8]| {
        let length = u32::try_from(bytes.len()).unwrap_or(0).to_be_bytes();
        [&[kind], &length[..], bytes].concat()
    };
    bytes.chunks(LIMIT).flat_map(one).collect()
}

/// The size of a terminal, as a message.
pub fn size(rows: u16, columns: u16) -> Vec<u8> {
    message(SIZE, &[rows.to_be_bytes(), columns.to_be_bytes()].concat())
}

/// What such a message says.
pub fn read_size(bytes: &[u8]) -> Option<(u16, u16)> {
    let [a, b, c, d] = *bytes else { return None };
    Some((u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
}

/// What has arrived, and may not be whole.
#[derive(Default)]
pub struct Incoming(Vec<u8>);

impl Incoming {
    /// Takes what can be had. Nothing says that the peer is unknown any more.
    pub fn take(&mut self, mut from: &UnixStream) -> io::Result<usize> {
        let mut buffer = [0; 16 << 10];
        let read = from.read(&mut buffer)?;
        self.0.extend_from_slice(&buffer[..read]);
        Ok(read)
    }

    /// The next message that is whole.
    pub fn next(&mut self) -> io::Result<Option<(u8, Vec<u8>)>> {
        let [kind, a, b, c, d, ..] = self.0[..] else { return Ok(None) };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length > LIMIT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if self.0.len() < HEAD + length {
            return Ok(None);
        }
        let rest = self.0.split_off(HEAD + length);
        let whole = std::mem::replace(&mut self.0, rest);
        Ok(Some((kind, whole[HEAD..].to_vec())))
    }
}

/// The way to the process that listens at this name, if it is this user's.
pub fn connect(dir: &OwnedFd, name: &Path) -> io::Result<UnixStream> {
    Ok(sockets::connect(dir, name, SocketType::STREAM, SocketFlags::empty())?.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn messages_arrive_whole_however_cut_and_are_limited() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let long = vec![7; LIMIT + 3];
        let sent = [message(KEYS, b"ab"), size(24, 80), message(SHOWN, &long)].concat();
        let writing = std::thread::spawn(move || {
            for piece in sent.chunks(1021) {
                theirs.write_all(piece).unwrap();
            }
            theirs.write_all(&[SHOWN, 255, 255, 255, 255]).unwrap();
        });
        let (mut incoming, mut heard) = (Incoming::default(), Vec::new());
        let refused = loop {
            match incoming.next() {
                Ok(Some(message)) => heard.push(message),
                Ok(None) => assert_ne!(incoming.take(&ours).unwrap(), 0),
                Err(error) => break error,
            }
        };
        writing.join().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        assert_eq!(heard[0], (KEYS, b"ab".to_vec()));
        assert_eq!((heard[1].0, read_size(&heard[1].1)), (SIZE, Some((24, 80))));
        assert_eq!(heard[2..].iter().flat_map(|(_, bytes)| bytes.clone()).collect::<Vec<u8>>(), long);
    }
}
