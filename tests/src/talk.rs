//! Who is there? Servers that tell a name, clients that ask for it, and conversations over TCP.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

use crate::{netns::Netns, wait::eventually};

/// How long to wait for an answer that need not come; who waits for one that must has
/// [`wait::PATIENCE`](crate::wait::PATIENCE). Below the second after which TCP tries again: the caller
/// does that.
pub const SOON: Duration = Duration::from_millis(500);

/// Has `netns` tell `name` to each who asks at `port`, over TCP and UDP.
///
/// # Panics
///
/// If the port is in use.
pub fn serve(netns: &Netns, port: u16, name: &str) {
    let (listening, ready) = mpsc::channel();
    let (tcp_name, tcp_listening) = (name.to_owned(), listening.clone());
    netns.within(move || {
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap();
        tcp_listening.send(()).unwrap();
        for stream in listener.incoming() {
            if let Ok(mut stream) = stream
                && stream.write_all(tcp_name.as_bytes()).is_err()
            {
                // The client went away again.
            }
        }
    });
    let name = name.to_owned();
    netns.within(move || {
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap();
        listening.send(()).unwrap();
        while let Ok((_, client)) = socket.recv_from(&mut [0; 16]) {
            if socket.send_to(name.as_bytes(), client).is_err() {
                // The client went away again.
            }
        }
    });
    for _ in 0..2 {
        ready.recv().unwrap();
    }
}

/// Asks over TCP; `None` if nobody answers within `patience`.
///
/// # Panics
///
/// If the namespace cannot be entered.
#[must_use]
pub fn ask(from: &Netns, address: IpAddr, port: u16, patience: Duration) -> Option<String> {
    let ask = move || {
        let to = SocketAddr::new(address, port);
        let mut stream = TcpStream::connect_timeout(&to, patience)?;
        stream.set_read_timeout(Some(patience))?;
        let mut name = String::new();
        stream.read_to_string(&mut name)?;
        Ok::<_, io::Error>(name)
    };
    from.within(ask).join().unwrap().ok()
}

/// Asks over UDP.
///
/// # Errors
///
/// If nobody answers within `patience`, or the port is not open.
///
/// # Panics
///
/// If the namespace cannot be entered.
pub fn ask_udp(from: &Netns, address: IpAddr, port: u16, patience: Duration) -> io::Result<String> {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let ask = move || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((address, port))?;
        socket.set_read_timeout(Some(patience))?;
        socket.send(b"?")?;
        let mut answer = [0; 64];
        let len = socket.recv(&mut answer)?;
        let answer = answer.get(..len).unwrap_or_default();
        Ok(String::from_utf8_lossy(answer).into_owned())
    };
    from.within(ask).join().unwrap()
}

/// A conversation over one TCP connection: a number each 10 ms, which comes back.
#[derive(Debug)]
pub struct Talk {
    rounds: Arc<AtomicUsize>,
    stop: mpsc::Sender<()>,
    client: JoinHandle<io::Result<TcpStream>>,
    netns: Netns,
}

/// What came of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// How many numbers came back, in order.
    pub rounds: usize,
    /// How many segments the client's side sent more than once, less those of which it was told that
    /// both came: a slow machine makes it impatient.
    pub resent: usize,
}

impl Talk {
    /// Has `from` talk with `to` at `address`, and waits for the first answer.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[must_use]
    pub fn start(from: &Netns, to: &Netns, address: IpAddr) -> Self {
        let (listening, ready) = mpsc::channel();
        to.within(move || {
            let listener = TcpListener::bind((address, 0)).unwrap();
            listening.send(listener.local_addr().unwrap()).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = stream.try_clone().unwrap();
            io::copy(&mut reader, &mut stream)
        });
        let server = ready.recv().unwrap();
        let rounds = Arc::new(AtomicUsize::new(0));
        let (stop, stopped) = mpsc::channel();
        let count = Arc::clone(&rounds);
        let client = from.within(move || {
            let mut stream = TcpStream::connect_timeout(&server, crate::wait::PATIENCE)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(crate::wait::PATIENCE))?;
            let pause = Duration::from_millis(10);
            for number in 1_u64.. {
                stream.write_all(&number.to_be_bytes())?;
                let mut answer = [0; 8];
                stream.read_exact(&mut answer)?;
                if u64::from_be_bytes(answer) != number {
                    return Err(io::Error::other(format!(
                        "{number} came back as {answer:?}"
                    )));
                }
                count.fetch_add(1, Ordering::Relaxed);
                if stopped.recv_timeout(pause) != Err(mpsc::RecvTimeoutError::Timeout) {
                    break;
                }
            }
            Ok(stream)
        });
        let talk = Self {
            rounds,
            stop,
            client,
            netns: from.clone(),
        };
        talk.wait_for(1);
        talk
    }

    fn wait_for(&self, rounds: usize) {
        eventually("answers over TCP", || {
            match self.rounds.load(Ordering::Relaxed) {
                done if done >= rounds => Ok(()),
                done => Err(format!("{done} of {rounds} came")),
            }
        });
    }

    /// Ends it after some more rounds, and tells what came of it.
    ///
    /// # Errors
    ///
    /// If the connection broke, or something else came back than was said.
    ///
    /// # Panics
    ///
    /// If no answers come any more.
    pub fn stop(self) -> Result<Heard, String> {
        self.wait_for(self.rounds.load(Ordering::Relaxed) + 10);
        if self.stop.send(()).is_err() {
            // It has ended by itself, with an error.
        }
        let stream = self
            .client
            .join()
            .unwrap()
            .map_err(|error| error.to_string())?;
        let port = stream.local_addr().unwrap().port();
        let told = self.netns.run(&format!("ss -tinH sport = :{port}"));
        let word = |name: &str| {
            let mut words = told.split_whitespace();
            words.find_map(|word| word.strip_prefix(name))
        };
        let again = word("retrans:").and_then(|counts| counts.split_once('/')?.1.parse().ok());
        let twice = word("dsack_dups:").and_then(|count| count.parse().ok());
        let resent = again.unwrap_or(0_usize).checked_sub(twice.unwrap_or(0));
        Ok(Heard {
            rounds: self.rounds.load(Ordering::Relaxed),
            resent: resent.unwrap_or(0),
        })
    }
}
