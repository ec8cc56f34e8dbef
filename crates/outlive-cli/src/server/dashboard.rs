//! The dashboard: a page, styles and scripts, as they are in their files. Nothing in them is made anew for a client, so there
//! is nothing in them to be escaped; all that runs say comes as JSON and is put into text nodes.
//!
//! A browser keeps the files and asks with their entity tag whether they are still the same.

use std::io::Write;
use std::sync::{Arc, LazyLock, OnceLock};

use axum::Router;
use axum::http::header::{self, HeaderMap, HeaderName};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

use super::Server;

/// The files in the directory `dashboard`, each with its text.
macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("dashboard/", $name)))),*]
    };
}

/// All files but the page itself, which is at `/`.
const FILES: [(&str, &str); 47] = files![
    "app.js",
    "icon.svg",
    "model/ansi.js",
    "model/compare.js",
    "model/cron.js",
    "model/graph.js",
    "model/lines.js",
    "model/query.js",
    "model/route.js",
    "model/run.js",
    "model/text.js",
    "net/changes.js",
    "net/live.js",
    "net/net.js",
    "net/output.js",
    "net/settings.js",
    "net/store.js",
    "net/stream.js",
    "pages.css",
    "pages/actions.js",
    "pages/all.js",
    "pages/api.js",
    "pages/compare.js",
    "pages/insights.js",
    "pages/keys.js",
    "pages/loaded.js",
    "pages/log.js",
    "pages/overview.js",
    "pages/queue.js",
    "pages/run.js",
    "pages/runs.js",
    "pages/schedules.js",
    "pages/sign_in.js",
    "pages/steps.js",
    "pages/timeline.js",
    "pages/usage.js",
    "pages/workers.js",
    "palette.js",
    "shell.js",
    "style.css",
    "view/charts.js",
    "view/dialogs.js",
    "view/graph.js",
    "view/histogram.js",
    "view/parts.js",
    "view/view.js",
    "view/virtual.js",
];

/// The page.
const PAGE: &str = include_str!("dashboard/index.html");

/// What the icon is drawn in, by what it says of the runs.
const ICONS: [(&str, &str); 5] =
    [("good", "#1a7f4b"), ("bad", "#c4303f"), ("busy", "#2f5bd0"), ("warn", "#9a6200"), ("quiet", "#7a8496")];

/// A file as it is sent.
struct Asset {
    kind: &'static str,
    text: String,
    /// Changes with the text. It is weak: the same for the packed text.
    tag: String,
    /// The text as gzip, made when the first client asks for it.
    packed: OnceLock<Vec<u8>>,
}

impl Asset {
    fn new(name: &str, text: String) -> Self {
        let kind = match name.rsplit('.').next() {
            Some("html") => "text/html; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "text/javascript; charset=utf-8",
        };
        let digest = Sha256::digest(text.as_bytes());
        let tag = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect::<String>();
        Self { kind, text, tag: format!("W/\"{tag}\""), packed: OnceLock::new() }
    }

    fn packed(&self) -> &[u8] {
        self.packed.get_or_init(|| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            // A vector takes whatever is written to it.
            let _ = encoder.write_all(self.text.as_bytes());
            encoder.finish().unwrap_or_default()
        })
    }

    /// The file, or that the client has it.
    fn answer(&'static self, headers: &HeaderMap) -> Response {
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let fixed =
            [(header::ETAG, self.tag.as_str()), (header::CACHE_CONTROL, "no-cache"), (header::VARY, "accept-encoding")];
        if text(header::IF_NONE_MATCH).split(',').any(|tag| tag.trim() == self.tag) {
            return (StatusCode::NOT_MODIFIED, fixed).into_response();
        }
        let takes_gzip = text(header::ACCEPT_ENCODING).split(',').any(|way| way.trim() == "gzip");
        let mut response = if takes_gzip {
            (fixed, [(header::CONTENT_ENCODING, "gzip")], self.packed()).into_response()
        } else {
            (fixed, self.text.as_str()).into_response()
        };
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(self.kind));
        response
    }
}

static ASSETS: LazyLock<Vec<(String, Asset)>> = LazyLock::new(|| {
    let mut assets = vec![("/".to_owned(), Asset::new("index.html", PAGE.into()))];
    for (name, text) in FILES {
        assets.push((format!("/assets/{name}"), Asset::new(name, text.into())));
    }
    let icon = FILES.iter().find(|(name, _)| *name == "icon.svg").map_or("", |(_, text)| *text);
    for (look, colour) in ICONS {
        let (name, text) = (format!("icon-{look}.svg"), icon.replace("#1f6f54", colour));
        assets.push((format!("/assets/{name}"), Asset::new(&name, text)));
    }
    assets
});

/// The routes to all of them.
pub fn routes() -> Router<Arc<Server>> {
    ASSETS.iter().fold(Router::new(), |router, (path, asset)| {
        router.route(path, get(move |headers: HeaderMap| async move { asset.answer(&headers) }))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn below(dir: &Path, names: &mut Vec<String>, root: &Path) {
        for entry in std::fs::read_dir(dir).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                below(&path, names, root);
            } else {
                names.push(path.strip_prefix(root).unwrap().display().to_string());
            }
        }
    }

    #[test]
    fn every_file_of_the_dashboard_is_served() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/server/dashboard");
        let mut found = Vec::new();
        below(&root, &mut found, &root);
        found.retain(|name| name != "index.html" && !name.ends_with(".json"));
        found.sort();
        let mut served: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        served.sort_unstable();
        assert_eq!(served, found);
    }

    #[test]
    fn a_file_that_the_browser_has_is_not_sent_again() {
        let (_, page) = &ASSETS[0];
        assert_eq!(page.answer(&HeaderMap::new()).status(), StatusCode::OK);
        for known in [page.tag.clone(), format!("\"other\", {}", page.tag)] {
            let headers = HeaderMap::from_iter([(header::IF_NONE_MATCH, HeaderValue::from_str(&known).unwrap())]);
            assert_eq!(page.answer(&headers).status(), StatusCode::NOT_MODIFIED, "{known}");
        }
    }

    #[test]
    fn files_are_packed_for_clients_that_unpack_them() {
        let (_, asset) = ASSETS.iter().find(|(path, _)| path == "/assets/style.css").unwrap();
        let takes = HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static("br, gzip"))]);
        assert_eq!(asset.answer(&takes).headers().get(header::CONTENT_ENCODING).unwrap(), "gzip");
        assert!(!asset.answer(&HeaderMap::new()).headers().contains_key(header::CONTENT_ENCODING));
        let mut text = String::new();
        std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(asset.packed()), &mut text).unwrap();
        assert_eq!(text, asset.text);
        assert!(asset.packed().len() * 2 < text.len());
    }
}
