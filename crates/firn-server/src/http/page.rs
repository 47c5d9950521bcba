//! The page at `/`: a query box, a table, a graph. One file, no build, no other server.

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};

use crate::answer::{Packing, Payload};

/// `/`.
pub(crate) async fn page(request: Request<Body>) -> Response<Body> {
    let packing = Packing::of(request.headers());
    let page = include_str!("page.html").replace("{{version}}", env!("CARGO_PKG_VERSION"));
    Payload::new(page.into_bytes(), packing, None)
        .answer(StatusCode::OK, "text/html; charset=utf-8")
}
