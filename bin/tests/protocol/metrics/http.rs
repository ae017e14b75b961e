//! As much of an HTTP client as it takes to be watched, by hand.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Far above what a scrape takes: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Header lines, in lower case.
    pub head: String,
    pub body: String,
}

pub fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// One request; its whole answer, which has to be as long as it says.
pub fn request(to: SocketAddr, method: &str, path: &str) -> std::io::Result<Answer> {
    let mut stream = connect(to)?;
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all)?;
    let broken = |why: &str| std::io::Error::other(why.to_owned());
    let text = String::from_utf8(all).map_err(|_| broken("no text"))?;
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(|| broken("no end of the head"))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let head = head.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let expected = if method == "HEAD" { Some(0) } else { length };
    if expected != Some(body.len()) {
        return Err(broken("an answer of another length than it says"));
    }
    let status = status.ok_or_else(|| broken("no status"))?;
    Ok(Answer { status, head, body: body.to_owned() })
}

pub fn get(to: SocketAddr, path: &str) -> std::io::Result<Answer> {
    request(to, "GET", path)
}
