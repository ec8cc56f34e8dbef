//! The dashboard: a page, a style and scripts, as they are in their files. Nothing in them is made anew for a client,
//! so there is nothing in them to be escaped; all that runs say comes as JSON and is put into text nodes.

use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::routing::get;

use super::Server;

/// The files: where each is found, what it is, and what is in it.
const FILES: [(&str, &str, &str); 12] = [
    ("/", "text/html; charset=utf-8", include_str!("dashboard/index.html")),
    ("/assets/style.css", "text/css; charset=utf-8", include_str!("dashboard/style.css")),
    ("/assets/icon.svg", "image/svg+xml", include_str!("dashboard/icon.svg")),
    ("/assets/ansi.js", SCRIPT, include_str!("dashboard/ansi.js")),
    ("/assets/app.js", SCRIPT, include_str!("dashboard/app.js")),
    ("/assets/charts.js", SCRIPT, include_str!("dashboard/charts.js")),
    ("/assets/dom.js", SCRIPT, include_str!("dashboard/dom.js")),
    ("/assets/live.js", SCRIPT, include_str!("dashboard/live.js")),
    ("/assets/pages.js", SCRIPT, include_str!("dashboard/pages.js")),
    ("/assets/run.js", SCRIPT, include_str!("dashboard/run.js")),
    ("/assets/runs.js", SCRIPT, include_str!("dashboard/runs.js")),
    ("/assets/steps.js", SCRIPT, include_str!("dashboard/steps.js")),
];

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The routes to all of them.
pub fn routes() -> Router<Arc<Server>> {
    FILES.iter().fold(Router::new(), |router, (path, kind, text)| {
        router.route(path, get(move || async move { ([(header::CONTENT_TYPE, *kind)], *text) }))
    })
}
