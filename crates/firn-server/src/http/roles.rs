//! Routes and their access. Every route is registered by [`Routes::route`], which takes its
//! [`Access`]: a route without one does not compile. `docs/security.md` lists the same table, and a
//! test compares both.

use std::sync::OnceLock;

use axum::Router;
use axum::body::Body;
use axum::handler::Handler;
use axum::http::{Method, Request};
use axum::middleware::{Next, from_fn};
use axum::routing::{MethodFilter, on};

use crate::http::auth::{self, Access};
use crate::http::{Face, Shared};

/// The methods of an endpoint. `GET` includes `HEAD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Methods {
    Get,
    Post,
    /// Parameters come from the URL or from a posted form.
    GetPost,
    PostPut,
}

impl Methods {
    fn filter(self) -> MethodFilter {
        match self {
            Methods::Get => MethodFilter::GET,
            Methods::Post => MethodFilter::POST,
            Methods::GetPost => MethodFilter::GET.or(MethodFilter::POST),
            Methods::PostPut => MethodFilter::POST.or(MethodFilter::PUT),
        }
    }
}

/// One row of the table.
pub(crate) type RouteRow = (&'static str, Methods, Access);

/// Routes in the making: a router, and the access of each path.
pub(crate) struct Routes {
    router: Router<Shared>,
    table: Vec<RouteRow>,
}

impl Routes {
    /// No routes.
    pub(crate) fn new() -> Routes {
        Routes { router: Router::new(), table: Vec::new() }
    }

    /// Adds the handler of `path` for some methods. Other methods of the same path may have another
    /// access.
    pub(crate) fn route<H, T>(
        mut self,
        access: Access,
        methods: Methods,
        path: &'static str,
        handler: H,
    ) -> Routes
    where
        H: Handler<T, Shared>,
        T: 'static,
    {
        let guard =
            from_fn(move |request: Request<Body>, next: Next| auth::permit(access, request, next));
        self.router = self.router.route(path, on(methods.filter(), handler).route_layer(guard));
        self.table.push((path, methods, access));
        self
    }

    /// Adds the routes of another file.
    pub(crate) fn merge(mut self, other: Routes) -> Routes {
        self.router = self.router.merge(other.router);
        self.table.extend(other.table);
        self
    }

    /// The router; its table is of interest to tests only.
    pub(crate) fn into_router(self) -> Router<Shared> {
        self.router
    }
}

/// The access to an endpoint of a database behind a proxy. Unknown ones need role `admin`.
pub(crate) fn access_of(method: &Method, path: &str) -> Access {
    static TABLE: OnceLock<Vec<RouteRow>> = OnceLock::new();
    let is_get = matches!(*method, Method::GET | Method::HEAD);
    // InfluxDB: the proxy demands more for statements that change data.
    let is_query = is_get || *method == Method::POST;
    match path {
        "/ping" if is_get => return Access::Read,
        "/query" if is_query => return Access::Read,
        "/write" => return Access::Write,
        _ => {}
    }
    let has_method = |methods: &Methods| match methods {
        Methods::Get => is_get,
        Methods::Post => *method == Method::POST,
        Methods::GetPost => is_get || *method == Method::POST,
        Methods::PostPut => matches!(*method, Method::POST | Method::PUT),
    };
    let is_path = |pattern: &str| {
        let mut given = path.split('/');
        let is_equal = pattern.split('/').all(|wanted| {
            given.next().is_some_and(|given| wanted == given || wanted.starts_with('{'))
        });
        is_equal && given.next().is_none()
    };
    let table = TABLE.get_or_init(|| crate::http::table(Face::Whole).table);
    let row = table.iter().find(|(pattern, methods, _)| has_method(methods) && is_path(pattern));
    row.map_or(Access::Admin, |(_, _, access)| *access)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_behind_a_proxy_has_the_access_of_the_table() {
        let f = |method: Method, path: &str| access_of(&method, path);
        assert_eq!(f(Method::GET, "/api/v1/query"), Access::Read);
        assert_eq!(f(Method::POST, "/api/v1/query_range"), Access::Read);
        assert_eq!(f(Method::GET, "/api/v1/label/a.b/values"), Access::Read);
        assert_eq!(f(Method::POST, "/api/v1/write"), Access::Write);
        assert_eq!(f(Method::HEAD, "/-/healthy"), Access::Open);
        assert_eq!(f(Method::POST, "/api/v1/admin/tsdb/delete_series"), Access::Admin);
        for (method, path) in [
            (Method::DELETE, "/api/v1/query"),
            (Method::GET, "/api/v1/query/"),
            (Method::GET, "/API/v1/query"),
            (Method::GET, "//api/v1/query"),
            (Method::GET, "/api/v1/label/a/b/values"),
            (Method::PUT, "/query"),
            (Method::DELETE, "/query"),
            (Method::GET, "/query/"),
            (Method::GET, "/anything"),
        ] {
            assert_eq!(f(method.clone(), path), Access::Admin, "{method} {path}");
        }
        assert_eq!(f(Method::GET, "/query"), Access::Read);
        assert_eq!(f(Method::POST, "/query"), Access::Read);
    }

    const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security.md");
    const BEGIN: &str = "| path | methods | needs |\n|---|---|---|\n";

    /// The table as the page shows it.
    fn page_table() -> String {
        let mut rows = crate::http::table(Face::Whole).table;
        rows.sort_unstable();
        let row = |(path, methods, access): (&str, Methods, Access)| {
            let methods = match methods {
                Methods::Get => "GET",
                Methods::Post => "POST",
                Methods::GetPost => "GET, POST",
                Methods::PostPut => "POST, PUT",
            };
            let needs = match access {
                Access::Open => "nothing",
                Access::Read => "`read`",
                Access::ReadServer => "`read`, no matchers",
                Access::Write => "`write`",
                Access::ReadWrite => "`read` and `write`",
                Access::Admin => "`admin`",
            };
            format!("| `{}` | {methods} | {needs} |\n", path.replace('{', "<").replace('}', ">"))
        };
        rows.into_iter().map(row).collect()
    }

    #[test]
    fn the_page_lists_every_route_with_its_role() {
        let page = std::fs::read_to_string(PATH).unwrap();
        let (before, rest) = page.split_once(BEGIN).expect("the table of docs/security.md");
        let listed: String =
            rest.split_inclusive('\n').take_while(|l| l.starts_with('|')).collect();
        let table = page_table();
        if std::env::var_os("FIRN_UPDATE_DOCS").is_some() {
            let after = &rest[listed.len()..];
            std::fs::write(PATH, format!("{before}{BEGIN}{table}{after}")).unwrap();
            return;
        }
        assert!(listed == table, "docs/security.md is out of date; run `make settings`:\n{table}");
    }
}
