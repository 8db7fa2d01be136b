//! The server of the page: loopback, one secret, queries in, responses out.
//!
//! ```text
//! browser -> guard (host, secret, headers) -> query -> page (response) -> browser
//!                                          -> live: switch, checkpoint, detach
//! ```

mod guard;
mod live;
mod redirect;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use crate::live::Interrupts;
use crate::page::{self, ProfileView, Query};
use guard::Guard;
pub use live::Watched;
pub use redirect::Redirect;

/// What all requests share.
#[derive(Clone)]
struct Served {
    view: Arc<RwLock<Arc<ProfileView>>>,
    watched: Option<Arc<Watched>>,
    guard: Arc<Guard>,
    /// By which the browser finds the page; of no more use when it has.
    redirect: Arc<Mutex<Option<Redirect>>>,
}

impl Served {
    fn forget_redirect(&self) {
        let redirect = self.redirect.lock();
        redirect.unwrap_or_else(PoisonError::into_inner).take();
    }

    fn view(&self) -> Arc<ProfileView> {
        let view = self.view.read();
        view.unwrap_or_else(|poisoned| poisoned.into_inner())
            .clone()
    }
}

/// Serves until a signal asks to end. `announce` tells the address, and how a browser was sent to it.
pub fn run(
    view: ProfileView,
    watched: Option<Watched>,
    port: u16,
    interrupts: &Interrupts,
    announce: impl Fn(&str) -> Option<Redirect>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the server's threads")?;
    let ended = runtime.block_on(async {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let listener = tokio::net::TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen on {address}: choose another --port"))?;
        let port = listener.local_addr()?.port();
        let served = Served {
            view: Arc::new(RwLock::new(Arc::new(view))),
            watched: watched.map(Arc::new),
            guard: Arc::new(Guard::new(port)?),
            redirect: Arc::default(),
        };
        let first = served.view();
        std::thread::spawn(move || warm_up(&first));
        if let Some(redirect) = announce(&served.guard.address()) {
            let held = served.redirect.lock();
            *held.unwrap_or_else(PoisonError::into_inner) = Some(redirect);
            let served = served.clone();
            tokio::spawn(async move {
                tokio::time::sleep(redirect::LIFETIME).await;
                served.forget_redirect();
            });
        }
        if let Some(watched) = served.watched.clone() {
            live::keep_reading(watched, served.view.clone(), interrupts.clone());
        }
        let serving = axum::serve(listener, router(served));
        tokio::select! {
            ended = serving.into_future() => ended.context("the server failed"),
            () = asked_to_end(interrupts) => Ok(()),
        }
    });
    // A response that is still being computed is nobody's any more.
    runtime.shutdown_background();
    ended
}

/// What every page asks first is computed while the browser starts, and then what the other views
/// ask, in the order of how long one would wait for it.
const ASKED_FIRST: [&[&str]; 2] = [
    &["meta", "functions", "summary"],
    &[
        "river",
        "river?dir=down",
        "tree?limit=12000",
        "tree?shape=inverted",
    ],
];

fn warm_up(view: &ProfileView) {
    std::thread::scope(|threads| {
        for queries in ASKED_FIRST {
            threads.spawn(move || {
                for query in queries {
                    let _ = view.kept_response(&Query::parse(query));
                }
            });
        }
    });
    // Whatever function is asked for first.
    view.prepare_functions();
}

async fn asked_to_end(interrupts: &Interrupts) {
    while !interrupts.any() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn router(served: Served) -> Router {
    Router::new()
        .route("/", get(document))
        .route("/page.js", get(script))
        .route("/page.css", get(style))
        .route("/icon.svg", get(icon))
        .route("/api/{what}", get(respond))
        .route("/api/do/{what}", post(act))
        .fallback(async || (StatusCode::NOT_FOUND, "there is nothing here\n"))
        .layer(middleware::from_fn_with_state(
            served.guard.clone(),
            guard::check,
        ))
        .with_state(served)
}

async fn document(State(served): State<Served>) -> Response {
    served.forget_redirect();
    let command = thalweg_views::command_line(&served.view().profile().meta.command);
    let head = "<link rel=\"icon\" href=\"icon.svg\">\n<link rel=\"stylesheet\" href=\"page.css\">\n\
                <script type=\"module\" src=\"page.js\"></script>\n";
    let secret = format!(
        "<meta name=\"thalweg-token\" content=\"{}\">\n",
        served.guard.token()
    );
    let text = page::page(&format!("thalweg: {command}"), &(secret + head), "");
    let mut response = typed("text/html; charset=utf-8", text);
    response
        .headers_mut()
        .insert(header::SET_COOKIE, served.guard.cookie());
    response
}

async fn script() -> Response {
    typed("text/javascript; charset=utf-8", page::SCRIPT)
}

async fn style() -> Response {
    typed("text/css; charset=utf-8", page::STYLE)
}

async fn icon() -> Response {
    typed("image/svg+xml", page::ICON)
}

async fn respond(
    State(served): State<Served>,
    Path(what): Path<String>,
    RawQuery(parameters): RawQuery,
) -> Response {
    if let Some(watched) = &served.watched {
        watched.someone_looks();
    }
    let view = served.view();
    let query = Query::new(&what, &parameters.unwrap_or_default());
    let responded = tokio::task::spawn_blocking(move || view.kept_response(&query)).await;
    match responded {
        Ok(Ok(json)) => typed("application/json", Bytes::from_owner(json)),
        Ok(Err(error)) => {
            let status = match error.kind {
                page::ApiErrorKind::BadQuery => StatusCode::BAD_REQUEST,
                page::ApiErrorKind::Missing => StatusCode::NOT_FOUND,
                page::ApiErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            };
            (status, error.reason).into_response()
        }
        Err(_) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "the response could not be computed; please report this",
        )
            .into_response(),
    }
}

/// What changes something: only of a live process.
async fn act(
    State(served): State<Served>,
    Path(what): Path<String>,
    RawQuery(parameters): RawQuery,
) -> Response {
    let Some(watched) = served.watched.clone() else {
        return (StatusCode::NOT_FOUND, "this is a file, not a process").into_response();
    };
    let query = Query::new(&what, &parameters.unwrap_or_default());
    let done = tokio::task::spawn_blocking(move || watched.act(&query)).await;
    match done {
        Ok(Ok(said)) => typed("text/plain; charset=utf-8", said),
        Ok(Err(error)) => (StatusCode::CONFLICT, format!("{error:#}")).into_response(),
        Err(_) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "this failed; please report it",
        )
            .into_response(),
    }
}

fn typed(kind: &'static str, body: impl Into<axum::body::Body>) -> Response {
    ([(header::CONTENT_TYPE, kind)], body.into()).into_response()
}
