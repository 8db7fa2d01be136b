//! The same on an S3 server: s3s-fs, on loopback, with keys.

use std::net::TcpListener;
use std::process::Command;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;

use crate::support::{Place, fleet, profile, push, recorded, refuse, run, succeed, totals};

pub const KEY: &str = "AKTEST";
pub const SECRET: &str = "not-to-be-told";

/// Runs until the tests end.
pub fn server(place: &Place) -> String {
    let folder = place.path("s3");
    std::fs::create_dir_all(folder.join("bucket")).expect("made");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("set");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async move {
            let mut builder =
                S3ServiceBuilder::new(s3s_fs::FileSystem::new(&folder).expect("a file system"));
            builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
            let service = builder.build();
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let _ = Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(socket), service)
                        .await;
                });
            }
        });
    });
    address
}

fn with<'a>(command: &'a mut Command, address: &str, secret: &str) -> &'a mut Command {
    command
        .env("AWS_ENDPOINT_URL", address)
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", KEY)
        .env("AWS_SECRET_ACCESS_KEY", secret)
}

pub const STORE: &str = "s3://bucket/some/prefix";

#[test]
fn a_bucket_is_a_store() {
    let place = Place::new();
    let address = server(&place);
    let mut killed = push(STORE, "a", recorded(500));
    let output = run(with(&mut killed, &address, SECRET).env("THALWEG_TEST_KILL_AFTER", "1"));
    assert!(output.status.code().is_none(), "it was killed: {output:?}");
    let ask = |sql: &str| {
        let mut query = fleet();
        succeed(with(
            query.args(["query", sql, "--from", STORE, "--format", "csv"]),
            &address,
            SECRET,
        ))
    };
    assert_eq!(
        ask("select count(*) as n from figures"),
        "n\n0\n",
        "no half profile"
    );
    for host in ["a", "b"] {
        succeed(with(
            &mut push(STORE, host, recorded(500)),
            &address,
            SECRET,
        ));
    }
    let calls: u64 = totals(profile(500)).values().map(|(calls, _)| calls).sum();
    assert_eq!(
        ask("select host, sum(calls) as n from figures group by host order by host"),
        format!("host,n\na,{calls}\nb,{calls}\n")
    );
}

#[test]
fn wrong_keys_are_refused_and_never_told() {
    let place = Place::new();
    let address = server(&place);
    let wrong = "another-secret";
    let message = refuse(with(&mut push(STORE, "a", recorded(500)), &address, wrong));
    assert!(message.contains("credentials"), "{message}");
    assert!(
        !message.contains(wrong) && !message.contains(KEY),
        "{message}"
    );
}

#[test]
fn keys_come_from_a_profile_file_too() {
    let place = Place::new();
    let address = server(&place);
    let (config, credentials) = (place.path("config"), place.path("credentials"));
    std::fs::write(
        &config,
        format!("[profile web]\nregion = us-east-1\nendpoint_url = {address}\n"),
    )
    .expect("written");
    std::fs::write(
        &credentials,
        format!("[web]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"),
    )
    .expect("written");
    let mut command = push(STORE, "a", recorded(500));
    command
        .env("AWS_PROFILE", "web")
        .env("AWS_ALLOW_HTTP", "true");
    command
        .env("AWS_CONFIG_FILE", config)
        .env("AWS_SHARED_CREDENTIALS_FILE", credentials);
    succeed(&mut command);
}

#[test]
fn a_store_that_is_away_is_an_error() {
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", nobody.local_addr().expect("an address"));
    drop(nobody);
    let message = refuse(with(&mut push(STORE, "a", recorded(500)), &address, SECRET));
    assert!(
        message.contains("cannot use the store s3://bucket"),
        "{message}"
    );
    assert!(!message.contains(SECRET), "{message}");
}
