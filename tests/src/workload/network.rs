//! Loopback traffic: TCP and UDP, including ports without a listener.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};

use super::provoked::Count::{AtLeast, Exactly};
use super::provoked::{Provoked, at_least, syscalls};
use super::site::Site;

/// One round.
pub(super) fn run(_: &Site) -> io::Result<()> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let mut buffer = [0_u8; 4096];

    let listener = TcpListener::bind(any)?;
    let address = listener.local_addr()?;
    let mut client = TcpStream::connect(address)?;
    let (mut server, _) = listener.accept()?;
    client.set_nodelay(true)?;
    client.write_all(&[0x42; 2000])?;
    server.read_exact(&mut buffer[..2000])?;
    server.write_all(b"answer")?;
    client.read_exact(&mut buffer[..6])?;
    client.shutdown(Shutdown::Write)?;
    assert_eq!(server.read(&mut buffer)?, 0, "bytes behind the end of the stream");
    drop((client, server, listener));
    assert!(TcpStream::connect(address).is_err(), "somebody listens on a port that was closed");

    let one = UdpSocket::bind(any)?;
    let two = UdpSocket::bind(any)?;
    one.send_to(b"datagram", two.local_addr()?)?;
    assert_eq!(two.recv_from(&mut buffer)?.0, 8, "length of the datagram");
    let nobody = two.local_addr()?;
    drop(two);
    one.connect(nobody)?;
    one.send(b"to nobody")?;
    assert!(one.recv(&mut buffer).is_err(), "an answer from nobody");
    Ok(())
}

/// The events that [`run`] provokes.
pub(super) fn events() -> Vec<Provoked> {
    let mut events = syscalls(&[
        ("socket", Exactly(5)),
        ("bind", Exactly(3)),
        ("listen", Exactly(1)),
        ("connect", Exactly(3)),
        ("accept4", Exactly(1)),
        ("getsockname", AtLeast(1)),
        ("setsockopt", AtLeast(1)),
        ("sendto", AtLeast(4)),
        ("recvfrom", AtLeast(4)),
        ("shutdown", Exactly(1)),
    ]);
    events.extend(at_least(&[
        ("net:net_dev_queue", 8),
        ("net:net_dev_start_xmit", 8),
        ("net:net_dev_xmit", 8),
        ("net:netif_rx", 8),
        ("net:netif_rx_entry", 8),
        ("net:netif_rx_exit", 8),
        ("net:netif_receive_skb", 8),
        ("napi:napi_poll", 1),
        ("irq:softirq_raise", 1),
        ("irq:softirq_entry", 1),
        ("irq:softirq_exit", 1),
        ("sock:inet_sock_set_state", 8),
        ("sock:inet_sk_error_report", 1),
        ("sock:sk_data_ready", 2),
        ("sock:sock_send_length", 3),
        ("sock:sock_recv_length", 3),
        ("tcp:tcp_probe", 1),
        ("tcp:tcp_destroy_sock", 2),
        // Kernels before 6.10 hit it only with a socket.
        ("tcp:tcp_send_reset", 0),
        ("tcp:tcp_receive_reset", 1),
        ("skb:consume_skb", 1),
        ("skb:kfree_skb", 1),
        ("skb:skb_copy_datagram_iovec", 3),
        ("fib:fib_table_lookup", 1),
        ("icmp:icmp_send", 1),
    ]));
    events
}
