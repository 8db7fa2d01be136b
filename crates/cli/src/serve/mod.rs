//! The server of the page: loopback, one secret, questions in, answers out.
//!
//! ```text
//! browser -> guard (host, secret, headers) -> question -> page (answer) -> browser
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
use axum::extract::{Path, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use crate::live::Interrupts;
use crate::page::{self, Question, Subject};
use guard::Guard;
pub use live::Watched;
pub use redirect::Redirect;

/// What all requests share.
#[derive(Clone)]
struct Served {
    subject: Arc<RwLock<Arc<Subject>>>,
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

    fn subject(&self) -> Arc<Subject> {
        let subject = self.subject.read();
        subject
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .clone()
    }
}

/// Serves until a signal asks to end. `announce` tells the address, and how a browser was sent to it.
pub fn run(
    subject: Subject,
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
            subject: Arc::new(RwLock::new(Arc::new(subject))),
            watched: watched.map(Arc::new),
            guard: Arc::new(Guard::new(port)?),
            redirect: Arc::default(),
        };
        let first = served.subject();
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
            live::keep_reading(watched, served.subject.clone(), interrupts.clone());
        }
        let serving = axum::serve(listener, router(served));
        tokio::select! {
            ended = serving.into_future() => ended.context("the server failed"),
            () = asked_to_end(interrupts) => Ok(()),
        }
    });
    // An answer that is still being computed is nobody's any more.
    runtime.shutdown_background();
    ended
}

/// What every page asks first is computed while the browser starts; what it derives from the profile stays.
fn warm_up(subject: &Subject) {
    for question in ["functions", "river", "meta"] {
        let _ = subject.answer(&Question::parse(question));
    }
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
        .route("/api/{what}", get(answer))
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
    let command = crate::report::command_line(&served.subject().profile().meta.command);
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

async fn answer(
    State(served): State<Served>,
    Path(what): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    if let Some(watched) = &served.watched {
        watched.someone_looks();
    }
    let subject = served.subject();
    let question = Question::new(&what, &query.unwrap_or_default());
    let answered = tokio::task::spawn_blocking(move || subject.answer(&question)).await;
    match answered {
        Ok(Ok(json)) => typed("application/json", json),
        Ok(Err(refusal)) => {
            let status = match refusal.kind {
                page::RefusalKind::Question => StatusCode::BAD_REQUEST,
                page::RefusalKind::Missing => StatusCode::NOT_FOUND,
                page::RefusalKind::Broken => StatusCode::INTERNAL_SERVER_ERROR,
            };
            (status, refusal.reason).into_response()
        }
        Err(_) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "the answer could not be computed; please report this",
        )
            .into_response(),
    }
}

/// What changes something: only of a live process.
async fn act(
    State(served): State<Served>,
    Path(what): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    let Some(watched) = served.watched.clone() else {
        return (StatusCode::NOT_FOUND, "this is a file, not a process").into_response();
    };
    let request = Question::new(&what, &query.unwrap_or_default());
    let done = tokio::task::spawn_blocking(move || watched.act(&request)).await;
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
