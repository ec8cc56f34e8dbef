//! The output of a run as one file, to be saved: streamed page by page, however long it is.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream::unfold;
use outlive::error::Code;
use serde_json::Value;

use super::Server;
use crate::call::calls::Who;
use crate::call::{Failure, from_query};
use crate::operations::TABLE;

/// The most bytes that are read at a time.
const PAGE: u64 = 1 << 20;

/// Sends the output of a run. The query has the fields of `output`; what is written meanwhile is sent up to the end that
/// is reached first.
pub async fn raw(
    State(server): State<Arc<Server>>,
    Extension(who): Extension<Who>,
    request: Request,
) -> Result<Response, Failure> {
    let output = TABLE.iter().find(|operation| operation.name == "output");
    let output = output.ok_or_else(|| Failure::new(Code::NotFound, "there is no such operation"))?;
    let pairs = form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes()).into_owned();
    let mut input = from_query(&(output.command)(), pairs).map_err(|why| Failure::new(Code::Invalid, &why))?;
    (input["limit"], input["text"]) = (PAGE.into(), Value::Null);
    let answer = server.calls.call(output, input.clone(), &who).await?;
    let first: Value = serde_json::from_str(&answer.text).unwrap_or_default();
    let name = format!("{}.{}.log", first["id"].as_str().unwrap_or_default(), first["attempt"]);
    let pages = unfold(Some((input, first)), move |state| {
        let (server, who) = (server.clone(), who.clone());
        async move {
            let (mut input, page) = state?;
            let bytes = written(&page);
            if bytes.is_empty() {
                return None;
            }
            (input["cursor"], input["lines"]) = (page["next"].clone(), Value::Null);
            // It continues with the attempt that it began with.
            input["attempt"] = page["attempt"].clone();
            // Where the next page cannot be had, what was sent is all there is.
            let answer = server.calls.call(output, input.clone(), &who).await.ok();
            let next = answer.and_then(|answer| serde_json::from_str(&answer.text).ok());
            Some((Ok::<_, Infallible>(Bytes::from(bytes)), next.map(|next| (input, next))))
        }
    });
    let headers = [
        (CONTENT_TYPE, "text/plain; charset=utf-8".to_owned()),
        (CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")),
    ];
    Ok((headers, Body::from_stream(pages)).into_response())
}

/// The bytes of a page.
fn written(page: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in page["pieces"].as_array().into_iter().flatten() {
        match (piece["text"].as_str(), piece["base64"].as_str(), piece["left_out"].as_u64()) {
            (Some(text), ..) => bytes.extend_from_slice(text.as_bytes()),
            (None, Some(base64), _) => bytes.extend(STANDARD.decode(base64).unwrap_or_default()),
            (None, None, left_out) => {
                bytes.extend(format!("[{} bytes are left out]\n", left_out.unwrap_or_default()).into_bytes());
            }
        }
    }
    bytes
}
