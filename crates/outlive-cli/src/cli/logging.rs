//! `OUTLIVE_LOG` and `-v`: installs a subscriber that writes the library's events to stderr.
//!
//! Without either there is no subscriber, and an event costs one atomic read. A value that cannot be parsed is
//! reported and ignored: logging never keeps a run from starting.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The variable that turns logging on: a level, or directives such as `outlive::store=debug`.
const VARIABLE: &str = "OUTLIVE_LOG";
/// The targets that a bare level applies to.
const OWN_TARGETS: &str = "outlive";

/// Installs the subscriber that [`VARIABLE`] asks for, or that many `-v` where it says nothing. The first that is installed
/// stays.
pub fn install(verbosity: u8) {
    let level = match verbosity {
        0 => None,
        1 => Some("info".to_owned()),
        _ => Some("debug".to_owned()),
    };
    let Some(value) = std::env::var(VARIABLE).ok().filter(|value| !value.is_empty()).or(level) else { return };
    match filter(&value) {
        Some(filter) => {
            let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
            // Only this function installs a subscriber. A second one is refused.
            let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
        }
        None => crate::ui::talk(&format!(
            "warning: `{VARIABLE}={}` is ignored: use error, warn, info, debug, trace, off, or TARGET=LEVEL,…\n",
            crate::ui::plain(&value)
        )),
    }
}

fn filter(value: &str) -> Option<Targets> {
    match value.parse::<LevelFilter>() {
        Ok(level) => Some(Targets::new().with_target(OWN_TARGETS, level)),
        // A text without a level would otherwise name a target, and log everything of it.
        Err(_) => value.contains('=').then(|| value.parse().ok()).flatten(),
    }
}

#[cfg(test)]
mod tests {
    use super::filter;

    #[test]
    fn a_bare_level_applies_to_outlive_alone() {
        let bare = filter("info").unwrap();
        let debug = tracing_subscriber::filter::LevelFilter::DEBUG;
        assert_eq!(bare.to_string(), "outlive=info");
        assert!(bare.default_level().is_none_or(|level| level < debug));
        assert_eq!(filter("outlive::store=debug,hyper=info").unwrap().iter().count(), 2);
        assert!(filter("loud").is_none());
    }
}
