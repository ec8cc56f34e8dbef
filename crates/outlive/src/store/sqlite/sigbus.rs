//! The memory that SQLite shares between processes, a map of `registry.db-shm`, and what happens when that file is cut.
//!
//! A process that touches a part of a map that its file has no more is killed by the kernel, and a command's result with it. So
//! a program may have cuts survived: the file is given its length back on the spot, and what it said is marked as not to
//! be relied on, which makes SQLite put it together again from the log. What was being read or written meanwhile was
//! read from half an index: the caller learns of it by [`cuts`] and repeats its read. See ADR 0009.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How the map is named.
const NAME: &[u8] = b"/registry.db-shm";
/// The second copy of the index's head. One that differs from the first has the index made again, by the next reader.
const SECOND_HEAD: std::ops::Range<usize> = 48..96;
/// How often a fault may come from a file that is long enough: another thread may have been faster, or the disk is full.
const IN_VAIN: u64 = 1_000;
/// A line of the kernel's list of maps with the longest path there is.
const LINE: usize = 8 << 10;

static SURVIVED: AtomicBool = AtomicBool::new(false);
static CUTS: AtomicU64 = AtomicU64::new(0);
static VAIN: AtomicU64 = AtomicU64::new(0);
/// A thread of this process blocks the signal, to read it when it is sent.
static IS_READ: AtomicBool = AtomicBool::new(false);

/// Has this process survive it when the shared memory of a registry is cut. To be called by a program, not by a library:
/// it takes SIGBUS for the whole process, unless its caller had that ignored. Commands that are started inherit nothing
/// of it.
pub fn install_sigbus_handler() {
    if act(None).is_some_and(|found| found.sa_sigaction == libc::SIG_DFL) {
        let handler = on_fault as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
        SURVIVED.store(act(Some((handler as usize, libc::SA_SIGINFO | libc::SA_NODEFER))).is_some(), Ordering::Relaxed);
    }
}

/// How often a cut was survived. What was read while this changed is not to be relied on.
pub(super) fn cuts() -> u64 {
    CUTS.load(Ordering::SeqCst)
}

/// Has the index of the database in `dir` made again by its next reader. To be called by a process that has a turn to
/// write and a connection, which keeps the map where it is.
#[allow(unsafe_code, reason = "no other code writes into the map of SQLite")]
pub(super) fn distrust(dir: &Path) {
    let path = dir.join("registry.db-shm");
    let Ok(maps) = std::fs::read("/proc/self/maps") else { return };
    let lines = maps.split(|byte| *byte == b'\n').filter_map(Map::parse);
    for map in lines.filter(|map| map.offset == 0 && map.path == path.as_os_str().as_encoded_bytes()) {
        // SAFETY: the caller's connection has it mapped, and SQLite takes any content for what it is.
        unsafe { map.forget_head() };
    }
}

/// While it lives, faults of this thread reach the handler. The kernel kills a process that has them blocked.
pub(super) struct Unblocked {
    was_blocked: bool,
}

impl Unblocked {
    pub(super) fn new() -> Self {
        let was_blocked = SURVIVED.load(Ordering::Relaxed) && mask(libc::SIG_UNBLOCK);
        if was_blocked {
            IS_READ.store(true, Ordering::Relaxed);
        }
        Self { was_blocked }
    }
}

impl Drop for Unblocked {
    fn drop(&mut self) {
        if self.was_blocked {
            mask(libc::SIG_BLOCK);
        }
    }
}

/// Blocks SIGBUS in this thread, or does not. Answers whether it was.
#[allow(unsafe_code, reason = "there is no safe wrapper among our dependencies that asks and changes at once")]
fn mask(how: c_int) -> bool {
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: both sets are ours; `before` is looked at only where the call has filled it.
    unsafe {
        let changed = libc::pthread_sigmask(how, &bus(), before.as_mut_ptr()) == 0;
        changed && libc::sigismember(before.as_ptr(), libc::SIGBUS) == 1
    }
}

#[allow(unsafe_code, reason = "sets of signals are the C library's")]
fn bus() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call fills the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGBUS);
        set.assume_init()
    }
}

/// What is done at SIGBUS, and has another thing done.
#[allow(unsafe_code, reason = "there is no safe way to change an action")]
fn act(new: Option<(usize, c_int)>) -> Option<libc::sigaction> {
    let mut before = MaybeUninit::uninit();
    let new = new.map(|(action, flags)| {
        // SAFETY: all of it is numbers, and zeros are none of them.
        let mut new: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        (new.sa_sigaction, new.sa_flags) = (action, flags);
        new
    });
    let new = new.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the handler does only what may be done in one; `before` is looked at only where the call has filled it.
    unsafe { (libc::sigaction(libc::SIGBUS, new, before.as_mut_ptr()) == 0).then(|| before.assume_init()) }
}

/// Anything may have been interrupted: it calls the kernel and nothing else, and takes no memory.
#[allow(unsafe_code, reason = "the kernel hands over pointers")]
extern "C" fn on_fault(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a handler its signal and what it interrupted, to be read and changed.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        if (*info).si_code > 0 {
            // Before a reader can see what it is mended with.
            CUTS.fetch_add(1, Ordering::SeqCst);
            if !mend((*info).si_addr() as usize) {
                // It happens again at once, and ends us.
                act(Some((libc::SIG_DFL, 0)));
            }
        } else {
            // A process sent it. It is sent on, to be read or to end us; the kernel lets one thread say for another only
            // that it was queued.
            mask(libc::SIG_BLOCK);
            if IS_READ.load(Ordering::Relaxed) {
                libc::sigaddset(&mut (*context.cast::<libc::ucontext_t>()).uc_sigmask, libc::SIGBUS);
            } else {
                act(Some((libc::SIG_DFL, 0)));
            }
            (*info).si_code = libc::SI_QUEUE;
            libc::syscall(libc::SYS_rt_sigqueueinfo, libc::getpid(), libc::SIGBUS, info);
        }
        *errno = before;
    }
}

/// Gives the file behind `address` its length back. False where that is none of ours, or in vain.
#[allow(unsafe_code, reason = "the C library is asked from a handler")]
fn mend(address: usize) -> bool {
    let mut line = [0; LINE];
    let Some(length) = find(&mut line, |map| map.start <= address && address < map.end) else { return false };
    let Some(cut) = Map::parse(&line[..length]).filter(|map| map.path.ends_with(NAME)) else { return false };
    let mut name = [0; LINE];
    name[..cut.path.len()].copy_from_slice(cut.path);
    let whole = cut.offset + (cut.end - cut.start);
    // SAFETY: the name ends with a zero, and the kernel fills what it is asked for.
    let grown = unsafe {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        if libc::stat(name.as_ptr().cast(), stat.as_mut_ptr()) != 0 {
            return false;
        }
        let is_long_enough = stat.assume_init().st_size as usize >= whole;
        match is_long_enough {
            true => VAIN.fetch_add(1, Ordering::Relaxed) < IN_VAIN,
            false => libc::truncate(name.as_ptr().cast(), whole as libc::off_t) == 0,
        }
    };
    let mut first = [0; LINE];
    let head = find(&mut first, |map| map.offset == 0 && map.path == cut.path);
    if let Some(head) = head.and_then(|length| Map::parse(&first[..length])).filter(|_| grown) {
        // SAFETY: it is mapped, and its file is long enough.
        unsafe { head.forget_head() };
    }
    grown
}

/// Looks for one of the maps of this process. Answers with the length of its line.
#[allow(unsafe_code, reason = "the C library is asked from a handler")]
fn find(line: &mut [u8; LINE], is_it: impl Fn(&Map<'_>) -> bool) -> Option<usize> {
    // SAFETY: the name ends with a zero, and the kernel fills no more than there is room for.
    unsafe {
        let maps = libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if maps < 0 {
            return None;
        }
        let (mut filled, mut found) = (0, None);
        'reading: while filled < LINE {
            let read = libc::read(maps, line[filled..].as_mut_ptr().cast(), LINE - filled);
            let Some(read) = usize::try_from(read).ok().filter(|read| *read > 0) else { break };
            filled += read;
            let mut from = 0;
            while let Some(length) = line[from..filled].iter().position(|byte| *byte == b'\n') {
                if Map::parse(&line[from..from + length]).is_some_and(|map| is_it(&map)) {
                    line.copy_within(from..from + length, 0);
                    found = Some(length);
                    break 'reading;
                }
                from += length + 1;
            }
            line.copy_within(from..filled, 0);
            filled -= from;
        }
        libc::close(maps);
        found
    }
}

/// A map of a file, as the kernel lists it.
struct Map<'a> {
    start: usize,
    end: usize,
    offset: usize,
    path: &'a [u8],
}

impl<'a> Map<'a> {
    /// `7f12-7f34 rw-s 00000000 fe:01 1234      /path`
    fn parse(line: &'a [u8]) -> Option<Self> {
        let number = |text: &[u8]| std::str::from_utf8(text).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
        let mut words = line.splitn(6, |byte| *byte == b' ');
        let range = words.next()?;
        let dash = range.iter().position(|byte| *byte == b'-')?;
        let offset = number(words.nth(1)?)?;
        let path = words.nth(2)?.trim_ascii_start();
        Some(Self { start: number(&range[..dash])?, end: number(&range[dash + 1..])?, offset, path })
    }

    /// Makes the two heads of the index in it differ.
    ///
    /// # Safety
    /// It is mapped, to be written, and its file has this part.
    #[allow(unsafe_code, reason = "it is a place in memory")]
    unsafe fn forget_head(&self) {
        for at in SECOND_HEAD {
            // SAFETY: as the caller promised.
            unsafe { ptr::write_volatile((self.start + at) as *mut u8, 0) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_kernels_list_is_understood() {
        let line = b"7f0a1c000000-7f0a1c008000 rw-s 00008000 fe:01 1234                       /a b/registry.db-shm";
        let map = Map::parse(line).unwrap();
        assert_eq!((map.start, map.end, map.offset), (0x7f0a_1c00_0000, 0x7f0a_1c00_8000, 0x8000));
        assert_eq!(map.path, b"/a b/registry.db-shm");
        assert!(Map::parse(b"").is_none());
    }
}
