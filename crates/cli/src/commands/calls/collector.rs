//! Sends recorded calls to an OpenTelemetry collector: one POST of OTLP over plain HTTP.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, bail};

/// The path that collectors listen on for spans.
const DEFAULT_PATH: &str = "/v1/traces";
const TIMEOUT: Duration = Duration::from_secs(10);

/// `http://HOST[:PORT][/PATH]`
#[derive(Debug, PartialEq, Eq)]
pub struct Address {
    host: String,
    port: u16,
    path: String,
}

impl Address {
    pub fn parse(text: &str) -> anyhow::Result<Address> {
        let Some(rest) = text.strip_prefix("http://") else {
            bail!(
                "'{text}' is no address of a collector: write http://HOST:4318 (TLS is not spoken here)"
            );
        };
        let (authority, path) = match rest.split_once('/') {
            Some((authority, "")) => (authority, DEFAULT_PATH.to_string()),
            Some((authority, path)) => (authority, format!("/{path}")),
            None => (rest, DEFAULT_PATH.to_string()),
        };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                let port = port.parse();
                (
                    host,
                    port.with_context(|| format!("'{text}' has no port number"))?,
                )
            }
            _ => (authority, 4318),
        };
        if host.is_empty() || path.contains(char::is_whitespace) {
            bail!("'{text}' is no address of a collector");
        }
        Ok(Address {
            host: host.trim_matches(['[', ']']).to_string(),
            port,
            path,
        })
    }

    /// Sends `body` and waits until the collector has taken it.
    pub fn send(&self, body: &[u8]) -> anyhow::Result<()> {
        let Address { host, port, path } = self;
        let there = format!("the collector at {host}:{port}");
        let address = (host.as_str(), *port).to_socket_addrs();
        let address = address
            .with_context(|| format!("{there} is not known"))?
            .next();
        let address = address.with_context(|| format!("{there} is not known"))?;
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)
            .with_context(|| format!("{there} does not answer"))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/x-protobuf\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        )
        .and_then(|()| stream.write_all(body))
        .with_context(|| format!("{there} takes nothing"))?;
        let mut status = String::new();
        BufReader::new(stream)
            .read_line(&mut status)
            .with_context(|| format!("{there} says nothing"))?;
        match status.split_whitespace().nth(1) {
            Some(code) if code.starts_with('2') => Ok(()),
            _ => bail!("{there} refuses the calls: {}", status.trim()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_collectors_have_a_port_and_a_path_or_get_the_usual_ones() {
        let address = |text: &str| {
            let Address { host, port, path } = Address::parse(text).unwrap();
            (host, port, path)
        };
        let of = |host: &str, port, path: &str| (host.to_string(), port, path.to_string());
        assert_eq!(
            address("http://collector"),
            of("collector", 4318, "/v1/traces")
        );
        assert_eq!(address("http://[::1]:9/x"), of("::1", 9, "/x"));
        assert_eq!(address("http://a:80/"), of("a", 80, "/v1/traces"));
        for wrong in ["https://a", "a:4318", "http://", "http://a:b"] {
            assert!(Address::parse(wrong).is_err(), "{wrong}");
        }
    }
}
