//! Sockets that only this user may open, by a name below an open directory: a path would be too long for a socket where a
//! repository lies deep.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{UnixCredentials, getsockopt};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// How many connections wait to be accepted.
const WAITING: i32 = 16;

fn address(dir: &OwnedFd, name: &Path) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new(Path::new(&format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name))?)
}

fn socket(kind: SocketType, flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | flags, None)?)
}

/// A socket of this name that only this user may open, in place of one that was left there. To accept does not wait.
pub fn listen(dir: &OwnedFd, name: &Path, kind: SocketType) -> io::Result<OwnedFd> {
    let _ = rustix::fs::unlinkat(dir, name, rustix::fs::AtFlags::empty());
    let socket = socket(kind, SocketFlags::NONBLOCK)?;
    // Before it has a name: no moment exists in which others may.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600))?;
    rustix::net::bind(&socket, &address(dir, name)?)?;
    rustix::net::listen(&socket, WAITING)?;
    Ok(socket)
}

/// The way to the process that listens at this name, if it is this user's.
pub fn connect(dir: &OwnedFd, name: &Path, kind: SocketType, flags: SocketFlags) -> io::Result<OwnedFd> {
    let socket = socket(kind, flags)?;
    rustix::net::connect(&socket, &address(dir, name)?)?;
    match peer(&socket) {
        Some(_) => Ok(socket),
        None => Err(io::ErrorKind::PermissionDenied.into()),
    }
}

/// The process at the other end, if it is of this user. Its pid is 0 where this process cannot see it, in a pid namespace that
/// is not below its own.
pub fn peer(socket: &impl AsFd) -> Option<UnixCredentials> {
    let peer = getsockopt(socket, PeerCredentials).ok()?;
    (peer.uid() == rustix::process::geteuid().as_raw()).then_some(peer)
}
