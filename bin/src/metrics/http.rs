//! The HTTP port: one plain thread with a small runtime of its own, bounded in connections, header bytes and time.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use futures_lite::future::or;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::prometheus_text;
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, oneshot};
use tokio::task::AbortHandle;
use tokio::time::timeout_at;

use super::scene::{Process, Scene, Shard};
use super::{Ask, Probe, Stage};
use crate::reactor::ReactorWatch;

/// How long a reactor may take to answer before it is told as down.
pub(super) const ANSWER_MAX: Duration = Duration::from_secs(1);
/// Connections at once; a further one ends the oldest, so that nobody can keep others out by holding them.
const CONNECTIONS_MAX: usize = 32;
/// Bytes of a request's head, and its header lines.
const HEAD_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
/// How long a request's head may take to come.
const HEAD_MAX: Duration = Duration::from_secs(2);
/// How long a connection may last, its answer included.
const CONNECTION_MAX: Duration = Duration::from_secs(10);
/// A scrape younger than this is told again: reactors are not asked more often, whoever asks.
const SCRAPE_AGE_MAX: Duration = Duration::from_millis(200);
/// Pause after a failed accept: without one, a process out of descriptors would spin.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Why metrics cannot be served.
#[derive(Debug, Error)]
pub enum MetricsError {
    /// The port cannot be opened.
    #[error(
        "metrics on {addr}: {error}: stop the program that uses the port or change metrics.listen"
    )]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// What the kernel said.
        error: io::Error,
    },
    /// The thread or its runtime did not start.
    #[error("the metrics thread did not start: {0}: check the limits on threads and open files")]
    Start(io::Error),
}

/// Serves until it is dropped.
pub struct MetricsServer {
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What every request looks at.
struct Shared {
    process: Process,
    /// There once the reactors run.
    watch: OnceLock<ReactorWatch>,
    /// The last scrape. Held while one is made, so that they come one after the other.
    last: Mutex<Option<(Instant, Bytes)>>,
}

impl MetricsServer {
    /// Opens the port and starts the thread.
    ///
    /// # Errors
    /// [`MetricsError`]; nothing runs then.
    pub fn start(addr: SocketAddr, process: Process) -> Result<MetricsServer, MetricsError> {
        let listen = |error| MetricsError::Listen { addr, error };
        let listener = std::net::TcpListener::bind(addr).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(MetricsError::Start)?;
        let shared = Arc::new(Shared { process, watch: OnceLock::new(), last: Mutex::new(None) });
        let (stop, stopped) = oneshot::channel();
        let own = Arc::clone(&shared);
        let thread = thread::Builder::new().name("metrics".to_owned()).spawn(move || {
            runtime.block_on(serve(listener, own, stopped));
            // A connection must not keep the process.
            runtime.shutdown_background();
        });
        let thread = thread.map_err(MetricsError::Start)?;
        tracing::info!(%addr, "metrics");
        Ok(MetricsServer { shared, stop: Some(stop), thread: Some(thread) })
    }

    /// Tells it of the reactors, once they run.
    pub fn watch(&self, watch: ReactorWatch) {
        let _ = self.shared.watch.set(watch);
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(
    listener: std::net::TcpListener,
    shared: Arc<Shared>,
    mut stopped: oneshot::Receiver<()>,
) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stop = async {
            let _ = (&mut stopped).await;
            None
        };
        let Some(accepted) = or(stop, async { Some(listener.accept().await) }).await else {
            return;
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_RETRY).await;
            continue;
        };
        open.retain(|conn| !conn.is_finished());
        if open.len() >= CONNECTIONS_MAX
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let task = tokio::spawn(connection(stream, Arc::clone(&shared)));
        open.push_back(task.abort_handle());
    }
}

/// One request, one answer.
async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let service = service_fn(|request: Request<Incoming>| {
        let shared = &shared;
        async move { Ok::<_, Infallible>(shared.answer(request.method(), request.uri().path()).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_MAX)
        .keep_alive(false)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    // What goes wrong with one connection is its client's matter.
    let _ = tokio::time::timeout(CONNECTION_MAX, connection).await;
}

impl Shared {
    async fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        // A body is left out of the answer to HEAD by hyper.
        if method != Method::GET && method != Method::HEAD {
            let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD only\n".into());
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        match path {
            "/metrics" => self.metrics().await,
            "/healthz" => verdict(self.unhealthy()),
            "/readyz" => verdict(self.unready().await),
            _ => text(StatusCode::NOT_FOUND, "/metrics, /healthz, /readyz\n".into()),
        }
    }

    async fn metrics(&self) -> Response<Full<Bytes>> {
        let mut last = self.last.lock().await;
        let young = last.as_ref().filter(|(at, _)| at.elapsed() < SCRAPE_AGE_MAX);
        let body = match young {
            Some((_, body)) => body.clone(),
            None => {
                let scene = Scene::new(&self.process, self.watch.get(), self.shards().await);
                let Ok(body) = scene.text() else {
                    let why = "metrics cannot be encoded\n".into();
                    return text(StatusCode::INTERNAL_SERVER_ERROR, why);
                };
                let body = Bytes::from(body);
                *last = Some((Instant::now(), body.clone()));
                body
            }
        };
        let mut response = Response::new(Full::new(body));
        let kind = HeaderValue::from_static(prometheus_text::CONTENT_TYPE);
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }

    /// Asks every shard at once; one that does not answer in time is there without numbers.
    async fn shards(&self) -> Vec<Shard> {
        let deadline = tokio::time::Instant::now() + ANSWER_MAX;
        let asked: Vec<_> =
            self.process.probes.iter().map(|probe| (probe, ask(probe, Ask::Snapshot))).collect();
        let mut shards = Vec::with_capacity(asked.len());
        for (probe, answer) in asked {
            let numbers = match answer {
                Some(answer) => timeout_at(deadline, answer).await.ok().and_then(Result::ok),
                None => None,
            };
            shards.push(Shard {
                index: probe.shard.to_string(),
                name: probe.name.clone(),
                numbers,
            });
        }
        shards
    }

    /// The reactors that have not turned for too long.
    fn unhealthy(&self) -> Vec<String> {
        let reactors = self.watch.get().map(ReactorWatch::reactors).unwrap_or_default();
        let silent = reactors.iter().filter(|reactor| reactor.silent >= self.process.unhealthy);
        silent
            .map(|reactor| {
                let (name, ms) = (&reactor.name, reactor.silent.as_millis());
                format!("{name}: its reactor has not turned for {ms} ms, doing: {}", reactor.doing)
            })
            .collect()
    }

    /// What is not ready.
    async fn unready(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if let Some(namesrv) = &self.process.namesrv
            && namesrv.stage() != Stage::Serving
        {
            reasons.push(format!("name server: {}", namesrv.stage().text()));
        }
        let deadline = tokio::time::Instant::now() + ANSWER_MAX;
        let asked: Vec<_> =
            self.process.probes.iter().map(|probe| (probe, ask(probe, Ask::Readiness))).collect();
        for (probe, answer) in asked {
            let why = match (probe.stage(), answer) {
                (Stage::Serving, Some(answer)) => match timeout_at(deadline, answer).await {
                    Ok(Ok(why)) => why,
                    _ => vec!["its reactor does not answer".to_owned()],
                },
                (Stage::Serving, None) => vec!["its reactor does not answer".to_owned()],
                (stage, _) => vec![stage.text().to_owned()],
            };
            reasons.extend(why.iter().map(|why| format!("{}: {why}", probe.name)));
        }
        reasons
    }
}

/// Puts a question to a shard's reactor; `None` if it takes none.
fn ask<T>(
    probe: &Probe,
    question: impl FnOnce(oneshot::Sender<T>) -> Ask,
) -> Option<oneshot::Receiver<T>> {
    // Before it serves, nobody would take the question out of the inbox.
    if matches!(probe.stage(), Stage::Starting | Stage::Recovering | Stage::Ended) {
        return None;
    }
    let (to, from) = oneshot::channel();
    probe.inbox()?.put(question(to)).ok()?;
    Some(from)
}

fn verdict(reasons: Vec<String>) -> Response<Full<Bytes>> {
    if reasons.is_empty() {
        return text(StatusCode::OK, "ok\n".into());
    }
    let mut body = String::new();
    for reason in reasons {
        let _ = writeln!(body, "{reason}");
    }
    text(StatusCode::SERVICE_UNAVAILABLE, body)
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
