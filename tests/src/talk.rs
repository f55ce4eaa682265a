//! Who is there? Servers that tell a name, and clients that ask for it.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::mpsc,
    time::Duration,
};

use crate::netns::Netns;

/// How long an answer may take. Below the second after which TCP tries again: the caller does that.
const PATIENCE: Duration = Duration::from_millis(500);

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

/// Asks over TCP; `None` if nobody answers soon.
///
/// # Panics
///
/// If the namespace cannot be entered.
#[must_use]
pub fn ask(from: &Netns, address: IpAddr, port: u16) -> Option<String> {
    let ask = move || {
        let to = SocketAddr::new(address, port);
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
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
/// If nobody answers soon, or the port is not open.
///
/// # Panics
///
/// If the namespace cannot be entered.
pub fn ask_udp(from: &Netns, address: IpAddr, port: u16) -> io::Result<String> {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let ask = move || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((address, port))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.send(b"?")?;
        let mut answer = [0; 64];
        let len = socket.recv(&mut answer)?;
        let answer = answer.get(..len).unwrap_or_default();
        Ok(String::from_utf8_lossy(answer).into_owned())
    };
    from.within(ask).join().unwrap()
}
