//! Opens the dashboard in a browser.
//!
//! The link to it has a key in it, and every user of the machine sees what a program is called with. So a browser is
//! called with a page that this user alone can read, which leads to the link.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use super::Server;
use crate::call::tokens;

/// How long a browser may take to come.
const COMES_WITHIN: Duration = Duration::from_secs(60);

/// Opens the link. The call does not wait for a browser, and one that is missing is no failure: the link is printed.
pub async fn open(server: Arc<Server>, link: String) {
    let Ok(page) = Page::make(server.authentication.home(), &server.authentication.cookie, &link) else { return };
    let mut browser = Command::new("xdg-open");
    let begun = browser.arg(&page.path).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let Ok(mut browser) = begun else { return };
    // Some are the browser itself, and stay for as long as it does.
    let _ = std::thread::Builder::new().spawn(move || browser.wait());
    let _ = tokio::time::timeout(COMES_WITHIN, server.authentication.session_begins()).await;
}

/// A page that leads to a link. It is gone when it is not needed any more, or the server has ended.
struct Page {
    path: PathBuf,
}

impl Page {
    fn make(home: &Path, name: &str, link: &str) -> std::io::Result<Self> {
        let path = home.join(format!("{name}.html"));
        let text = format!(
            "<!doctype html><meta charset=\"utf-8\"><meta name=\"referrer\" content=\"no-referrer\">\
             <meta http-equiv=\"refresh\" content=\"0; url={link}\"><title>outlive</title>\n"
        );
        tokens::write(&path, text.as_bytes())?;
        Ok(Self { path })
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
