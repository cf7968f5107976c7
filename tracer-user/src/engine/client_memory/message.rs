//! Messages between the daemon and the process that accesses clients' memory: one packet of limited length each, in
//! postcard's format.
//!
//! Reading any packet gives a message or nothing. It never panics. For the length that a list states, it reserves
//! memory for at most as many elements as the packet has bytes left.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Maximum size of a packet in bytes.
pub(super) const PACKET_MAX: usize = 16 << 10;
/// Maximum number of writes in one message.
pub(super) const OPS_MAX: usize = 64;
/// Maximum number of words in one write.
const WORDS_MAX: usize = 2;

/// Location of the text of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Text {
    /// No text.
    None,
    /// At the address in the argument.
    Argument,
    /// At the address in the eight bytes at this offset of the structure.
    At(u16),
}

/// A request to read the arguments of a thread that waits in ioctl(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Look {
    /// The thread.
    pub thread: u32,
    /// The payer of the request.
    pub payer: u32,
    /// The number of the request that the thread waits in.
    pub number: u32,
    /// The address space that the thread had at its last request; 0 for none.
    pub known: u64,
    /// Bytes of the structure that the argument points to.
    pub structure: u16,
    /// The text.
    pub text: Text,
}

/// A bit of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Bit {
    /// Address of the byte.
    pub at: u64,
    /// The bit in it.
    pub mask: u8,
    /// Its new value.
    pub on: bool,
}

/// One write into an address space: a bit, then words if the bit succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Op {
    /// The address space.
    pub space: u64,
    /// The key: a later write with the same key replaces one that was not sent.
    pub key: u64,
    /// The bit.
    pub bit: Option<Bit>,
    /// Addresses and values.
    pub words: Vec<(u64, u32)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) enum Order {
    /// Look at a thread; its address space is known by `id` from then on.
    Look { id: u64, look: Look },
    /// Open the address space of a thread, and report its identity.
    Open { id: u64, payer: u32, thread: u32 },
    /// Write.
    Write { batch: u64, payer: u32, ops: Vec<Op> },
    /// Cancel a write of a batch.
    Cancel { batch: u64, key: u64 },
    /// Forget an address space.
    Forget { id: u64 },
    /// Reply, to show that the process is alive.
    Ping,
}

/// The result of a look.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Seen {
    /// The process that the thread belongs to.
    pub process: u32,
    /// Whether it has `CAP_PERFMON` or `CAP_SYS_ADMIN` in this process's user namespace.
    pub capable: bool,
    /// Whether the known address space is open here and still in use.
    pub alive: bool,
    /// The identity of its address space.
    pub identity: Vec<u8>,
    /// The address in the request's argument.
    pub argument: u64,
    /// The structure.
    #[serde(with = "result")]
    pub structure: Result<Vec<u8>, Errno>,
    /// The text, without its NUL.
    #[serde(with = "result")]
    pub text: Result<Vec<u8>, Errno>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) enum Report {
    Looked {
        id: u64,
        #[serde(with = "result")]
        seen: Result<Seen, Errno>,
    },
    Opened {
        id: u64,
        #[serde(with = "result")]
        identity: Result<Vec<u8>, Errno>,
    },
    Written {
        batch: u64,
        done: Vec<Done>,
    },
    Pong,
}

/// The result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct Done(#[serde(with = "result")] pub(super) Result<(), Errno>);

impl Order {
    pub(super) fn read(packet: &[u8]) -> Option<Self> {
        let order = read(packet)?;
        let is_short = |op: &Op| op.words.len() <= WORDS_MAX;
        let fits =
            !matches!(&order, Self::Write { ops, .. } if ops.len() > OPS_MAX || !ops.iter().all(is_short));
        fits.then_some(order)
    }
}

impl Report {
    pub(super) fn read(packet: &[u8]) -> Option<Self> {
        let report = read(packet)?;
        let fits = !matches!(&report, Self::Written { done, .. } if done.len() > OPS_MAX);
        fits.then_some(report)
    }
}

/// The packet of a message. Serialization into memory of any length does not fail: all lists state their lengths.
pub(super) fn packet(message: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(message).unwrap_or_default()
}

/// The message of a packet, if no bytes follow it.
fn read<'a, T: Deserialize<'a>>(packet: &'a [u8]) -> Option<T> {
    let (message, rest) = postcard::take_from_bytes(packet).ok()?;
    rest.is_empty().then_some(message)
}

/// A result in a message, with the number of its error.
mod result {
    use rustix::io::Errno;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<T: Serialize, S: Serializer>(
        result: &Result<T, Errno>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        result.as_ref().map_err(|errno| errno.raw_os_error()).serialize(to)
    }

    pub(super) fn deserialize<'a, T: Deserialize<'a>, D: Deserializer<'a>>(
        from: D,
    ) -> Result<Result<T, Errno>, D::Error> {
        match Result::deserialize(from)? {
            Ok(value) => Ok(Ok(value)),
            Err(number @ 1..4096) => Ok(Err(Errno::from_raw_os_error(number))),
            Err(_) => Err(D::Error::custom("not an error number")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orders() -> Vec<Order> {
        let look =
            |text| Look { thread: 7, payer: 65_534, number: 0xc008_2a00, known: 3, structure: 28, text };
        let op = |bit, words: &[(u64, u32)]| Op { space: 9, key: 10, bit, words: words.to_vec() };
        vec![
            Order::Look { id: 1, look: look(Text::None) },
            Order::Look { id: 1, look: look(Text::Argument) },
            Order::Look { id: u64::MAX, look: look(Text::At(16)) },
            Order::Open { id: 2, payer: 0, thread: u32::MAX },
            Order::Write {
                batch: 5,
                payer: 1,
                ops: vec![
                    op(Some(Bit { at: u64::MAX, mask: 0x80, on: true }), &[(16, 1), (20, 2)]),
                    op(None, &[]),
                ],
            },
            Order::Cancel { batch: 5, key: 10 },
            Order::Forget { id: 1 },
            Order::Ping,
        ]
    }

    fn reports() -> Vec<Report> {
        let seen = Seen {
            process: 7,
            capable: true,
            alive: false,
            identity: vec![1; 400],
            argument: 0x7fff_0000_0000,
            structure: Ok(vec![2; 4096]),
            text: Err(Errno::FAULT),
        };
        vec![
            Report::Looked { id: 1, seen: Ok(seen) },
            Report::Looked { id: 1, seen: Err(Errno::PERM) },
            Report::Opened { id: 2, identity: Ok(vec![3; 16]) },
            Report::Opened { id: 2, identity: Err(Errno::SRCH) },
            Report::Written { batch: 5, done: vec![Done(Ok(())), Done(Err(Errno::FAULT))] },
            Report::Pong,
        ]
    }

    #[test]
    fn messages_survive_encoding_and_decoding() {
        for order in orders() {
            let packet = packet(&order);
            assert!(packet.len() <= PACKET_MAX);
            assert_eq!(Order::read(&packet), Some(order));
        }
        for report in reports() {
            let packet = packet(&report);
            assert!(packet.len() <= PACKET_MAX);
            assert_eq!(Report::read(&packet), Some(report));
        }
        let most = u64::MAX;
        let op = Op {
            space: most,
            key: most,
            bit: Some(Bit { at: most, mask: u8::MAX, on: true }),
            words: vec![(most, u32::MAX); WORDS_MAX],
        };
        let longest = packet(&Order::Write { batch: most, payer: u32::MAX, ops: vec![op; OPS_MAX] });
        assert!(longest.len() <= PACKET_MAX && Order::read(&longest).is_some());
    }

    #[test]
    fn invalid_packets_are_no_messages() {
        let (orders, reports) = (orders(), reports());
        let packets = orders.iter().map(packet).chain(reports.iter().map(packet));
        let mut numbers = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            numbers ^= numbers << 13;
            numbers ^= numbers >> 7;
            numbers ^= numbers << 17;
            numbers
        };
        for bytes in packets {
            for length in 0..bytes.len() {
                // A packet of one kind may parse as a message of the other kind, but must not panic.
                let _ = (Order::read(&bytes[..length]), Report::read(&bytes[..length]));
            }
            assert_eq!(Order::read(&[&bytes[..], &[0]].concat()), None);
            for _ in 0..2000 {
                let mut other = bytes.clone();
                let at = next() as usize % other.len();
                other[at] = next() as u8;
                if let Some(order) = Order::read(&other) {
                    assert_eq!(Order::read(&packet(&order)), Some(order));
                }
                if let Some(report) = Report::read(&other) {
                    assert_eq!(Report::read(&packet(&report)), Some(report));
                }
            }
        }
        assert_eq!((Order::read(&[]), Report::read(&[])), (None, None));
    }
}
