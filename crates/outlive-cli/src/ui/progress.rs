//! The progress bar of a call that takes long: at a terminal, on standard error, after half a second, and gone at the end.
//!
//! Where the call reports how much is done of how much, the bar has the count, the rate and the time that is left; else it
//! is a spinner. What is printed meanwhile by [`talk`](super::talk) stands above it.

use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A call that takes less shows nothing.
const AFTER: Duration = Duration::from_millis(500);
/// How often it is drawn.
const EVERY: Duration = Duration::from_millis(100);
/// With a total, and without.
const BAR: &str = "{spinner} {msg} [{bar:30}] {human_pos}/{human_len} {per_sec}, {eta} left";
const SPINNER: &str = "{spinner} {msg} {elapsed}";

/// The bar that is drawn now.
static DRAWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Makes a call, with a bar while it takes long. `far` answers how much is done and of how much, where that is known.
pub fn during<T>(message: &str, far: impl Fn() -> Option<(usize, usize)> + Send, call: impl FnOnce() -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return call();
    }
    let (calling, called) = channel::<()>();
    std::thread::scope(|scope| {
        // A machine that has no thread to spare has no bar either.
        let _ = std::thread::Builder::new().spawn_scoped(scope, move || draw(message, &far, &called));
        let answer = call();
        drop(calling);
        answer
    })
}

/// Prints while no bar is in the way.
pub(super) fn suspend(print: impl FnOnce()) {
    let drawn = DRAWN.lock().unwrap_or_else(PoisonError::into_inner);
    match &*drawn {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

/// Draws until the call has ended.
fn draw(message: &str, far: &dyn Fn() -> Option<(usize, usize)>, called: &Receiver<()>) {
    if !is_calling(called, AFTER) {
        return;
    }
    let bar = ProgressBar::new_spinner().with_style(style(SPINNER)).with_message(message.to_owned());
    show(Some(bar.clone()));
    loop {
        if let Some((done, total)) = far().map(|(done, total)| (done as u64, total as u64)) {
            if bar.length() != Some(total) {
                bar.set_style(style(BAR));
                bar.set_length(total);
            }
            bar.set_position(done);
        }
        bar.tick();
        if !is_calling(called, EVERY) {
            break;
        }
    }
    show(None);
    bar.finish_and_clear();
}

/// Waits this long for the end of the call, and answers whether it is still made.
fn is_calling(called: &Receiver<()>, time: Duration) -> bool {
    called.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
}

fn show(bar: Option<ProgressBar>) {
    *DRAWN.lock().unwrap_or_else(PoisonError::into_inner) = bar;
}

fn style(template: &str) -> ProgressStyle {
    // A template that is not understood is a defect that the test shows; the bar is then drawn in another style.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner()).progress_chars("=> ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_understood() {
        for template in [BAR, SPINNER] {
            ProgressStyle::with_template(template).unwrap();
        }
    }
}
