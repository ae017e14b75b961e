//! A broker that stores nothing: answers every request at once with success. What the harness measures against it is the limit of harness,
//! sockets and kernel together, beside which a real broker's figures can be read.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use bytes::BytesMut;
use ringmq_net::frame::{FRAME_BYTES_MAX, Peek, peek};
use ringmq_net::header::HeaderDecoder;
use ringmq_net::reply::{StoredReplies, StoredReply};

use crate::error::LoadError;

/// What one receive brings at most.
const RECEIVE_BYTES: usize = 256 << 10;

/// Serves on `address` until the process ends: a thread for each connection. `ready` gets the address that was bound.
///
/// # Errors
/// The address cannot be bound.
pub fn serve(address: SocketAddr, ready: impl FnOnce(SocketAddr)) -> Result<(), LoadError> {
    let error = |source| LoadError::Listen { address, source };
    let listener = TcpListener::bind(address).map_err(error)?;
    ready(listener.local_addr().map_err(error)?);
    loop {
        let (stream, _) = listener.accept().map_err(error)?;
        // An end with an error is that client's affair.
        std::thread::spawn(move || drop(answer_all(stream)));
    }
}

fn answer_all(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let replies = StoredReplies::new("DefaultRegion", true);
    let mut decoder = HeaderDecoder::new();
    let mut out = BytesMut::new();
    let mut received = vec![0; RECEIVE_BYTES];
    let (mut from, mut to) = (0, 0);
    let mut number = 0;
    loop {
        while let Ok(Peek::Frame(frame)) = peek(&received[from..to], FRAME_BYTES_MAX) {
            from += frame.len;
            let view = decoder.decode(frame.serialize, frame.header);
            let view = view.map_err(|e| std::io::Error::other(e.to_string()))?;
            if view.is_oneway() {
                continue;
            }
            number += 1;
            let reply = StoredReply {
                serialize: view.serialize(),
                opaque: view.opaque(),
                queue_id: 0,
                msg_id: "7F00000100002A9F0000000000000000",
                queue_offset: number,
                ack_level: "memory",
                ack_replicas: 0,
            };
            replies.encode(&mut out, &reply);
        }
        stream.write_all(&out)?;
        out.clear();
        received.copy_within(from..to, 0);
        (from, to) = (0, to - from);
        if to == received.len() {
            // A frame that does not fit: room for twice as much, up to what a frame may have.
            received.resize((2 * to).min(FRAME_BYTES_MAX), 0);
        }
        match stream.read(&mut received[to..])? {
            0 => return Ok(()),
            n => to += n,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use ringmq_net::code::{request, response};
    use ringmq_net::command::Command;

    use super::serve;
    use crate::call::call;

    #[test]
    fn every_request_is_answered_with_success_whatever_its_length() {
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let _ = serve(([127, 0, 0, 1], 0).into(), |address| {
                tell.send(address).expect("the test waits");
            });
        });
        let address = told.recv_timeout(Duration::from_secs(10)).expect("it listens");
        for body in [0, 1000, 3 << 20] {
            let command = Command::request(request::SEND_MESSAGE_V2).with_body(vec![7; body]);
            let reply = call(address, "an echo", &command).expect("an answer");
            assert_eq!((reply.code, reply.ext("ackLevel")), (response::SUCCESS, Some("memory")));
        }
    }
}
