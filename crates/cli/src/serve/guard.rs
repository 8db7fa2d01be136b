//! Who may ask: only who knows the secret, only by this machine's own name for itself, and the responses may go nowhere else.
//!
//! ```text
//! Host      must be 127.0.0.1, localhost or [::1] with our port: another name is a page that rebinds its name to us
//! secret    in the address (the first time), in a cookie (loading the page), or in a header (queries)
//! header    is the only way to change something: another site's page cannot set it
//! ```

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use anyhow::Context;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

const TOKEN_HEADER: &str = "x-thalweg-token";

/// Scripts and styles are our files, queries go to us alone, and text is never taken for code.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

pub struct Guard {
    port: u16,
    token: String,
}

impl Guard {
    pub fn new(port: u16) -> anyhow::Result<Guard> {
        let mut bytes = [0u8; 24];
        File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut bytes))
            .context("cannot read random bytes for the secret from /dev/urandom")?;
        let token = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Guard { port, token })
    }

    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}/?token={}", self.port, self.token)
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    /// Cookies are shared by all ports of a host, so the name has ours.
    fn cookie_name(&self) -> String {
        format!("thalweg-{}", self.port)
    }

    pub fn cookie(&self) -> HeaderValue {
        let cookie = format!(
            "{}={}; HttpOnly; SameSite=Strict; Path=/",
            self.cookie_name(),
            self.token
        );
        HeaderValue::try_from(cookie).expect("a cookie of plain letters")
    }

    fn is_our_host(&self, headers: &HeaderMap) -> bool {
        let host = headers
            .get(header::HOST)
            .and_then(|host| host.to_str().ok());
        let names = ["127.0.0.1", "localhost", "[::1]"];
        host.is_some_and(|host| {
            names
                .iter()
                .any(|name| host == format!("{name}:{}", self.port))
        })
    }

    /// Absent, or ours: a page of another site says so in this header.
    fn is_our_origin(&self, headers: &HeaderMap) -> bool {
        headers.get(header::ORIGIN).is_none_or(|origin| {
            let origin = origin.to_str().unwrap_or("");
            ["127.0.0.1", "localhost", "[::1]"]
                .iter()
                .any(|name| origin == format!("http://{name}:{}", self.port))
        })
    }

    fn knows_secret(&self, request: &Request) -> bool {
        let headers = request.headers();
        if let Some(given) = headers.get(TOKEN_HEADER) {
            return self.is_secret(given.as_bytes());
        }
        if request.method() != Method::GET {
            return false;
        }
        let in_address = request.uri().query().is_some_and(|query| {
            form_urlencoded::parse(query.as_bytes())
                .any(|(name, value)| name == "token" && self.is_secret(value.as_bytes()))
        });
        let name = self.cookie_name();
        let cookies = headers.get_all(header::COOKIE).iter();
        in_address
            || cookies
                .filter_map(|cookies| cookies.to_str().ok())
                .flat_map(|cookies| cookies.split(';'))
                .filter_map(|cookie| cookie.trim().split_once('='))
                .any(|(given, value)| given == name && self.is_secret(value.as_bytes()))
    }

    /// Takes as long wherever the first difference is.
    fn is_secret(&self, given: &[u8]) -> bool {
        let own = self.token.as_bytes();
        let differences = own.iter().zip(given).fold(0, |all, (a, b)| all | (a ^ b));
        given.len() == own.len() && differences == 0
    }
}

pub async fn check(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let mut response = if !guard.is_our_host(request.headers()) {
        (
            StatusCode::MISDIRECTED_REQUEST,
            "this server answers to 127.0.0.1 and localhost only\n",
        )
            .into_response()
    } else if !guard.knows_secret(&request) || !guard.is_our_origin(request.headers()) {
        (
            StatusCode::FORBIDDEN,
            "open the whole address that 'thalweg serve' printed: it holds a secret that this request lacks\n",
        )
            .into_response()
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
