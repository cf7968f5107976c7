//! Messages between the daemon and the process that accesses clients' memory: one packet each, little-endian, of
//! limited length.
//!
//! Reading any packet gives a message or nothing. It never panics, and never reserves more memory than a packet can
//! fill.

use rustix::io::Errno;

/// Maximum size of a packet in bytes.
pub(super) const PACKET_MAX: usize = 16 << 10;
/// Maximum number of writes in one message.
pub(super) const OPS_MAX: usize = 64;
/// Maximum number of words in one write.
const WORDS_MAX: usize = 2;

/// Location of the text of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text {
    /// No text.
    None,
    /// At the address in the argument.
    Argument,
    /// At the address in the eight bytes at this offset of the structure.
    At(u16),
}

/// A request to read the arguments of a thread that waits in ioctl(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bit {
    /// Address of the byte.
    pub at: u64,
    /// The bit in it.
    pub mask: u8,
    /// Its new value.
    pub on: bool,
}

/// One write into an address space: a bit, then words if the bit succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// An order to the process.
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Debug, PartialEq, Eq)]
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
    pub structure: Result<Vec<u8>, Errno>,
    /// The text, without its NUL.
    pub text: Result<Vec<u8>, Errno>,
}

/// A report from the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    Looked { id: u64, seen: Result<Seen, Errno> },
    Opened { id: u64, identity: Result<Vec<u8>, Errno> },
    Written { batch: u64, done: Vec<Result<(), Errno>> },
    Pong,
}

/// Writes a packet.
#[derive(Default)]
struct Put(Vec<u8>);

impl Put {
    fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    fn u16(mut self, value: u16) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(self, bytes: &[u8]) -> Self {
        let bytes = bytes.get(..usize::from(u16::MAX)).unwrap_or(bytes);
        let mut put = self.u16(bytes.len() as u16);
        put.0.extend_from_slice(bytes);
        put
    }

    fn errno(self, errno: Errno) -> Self {
        self.u32(errno.raw_os_error() as u32)
    }

    fn result(self, result: &Result<Vec<u8>, Errno>) -> Self {
        match result {
            Ok(bytes) => self.u8(0).bytes(bytes),
            Err(errno) => self.u8(1).errno(*errno),
        }
    }
}

/// Reads a packet.
struct Take<'a>(&'a [u8]);

impl<'a> Take<'a> {
    fn some<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (some, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*some)
    }

    fn u8(&mut self) -> Option<u8> {
        self.some::<1>().map(|[byte]| byte)
    }

    fn bool(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn u16(&mut self) -> Option<u16> {
        self.some().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.some().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.some().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(self.u16()?);
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn errno(&mut self) -> Option<Errno> {
        let number = self.u32()?;
        (1..4096).contains(&number).then(|| Errno::from_raw_os_error(number as i32))
    }

    fn result(&mut self) -> Option<Result<Vec<u8>, Errno>> {
        Some(if self.bool()? { Err(self.errno()?) } else { Ok(self.bytes()?.to_vec()) })
    }

    /// Accepts the message only if no bytes follow.
    fn end<T>(self, message: T) -> Option<T> {
        self.0.is_empty().then_some(message)
    }
}

impl Order {
    pub(super) fn packet(&self) -> Vec<u8> {
        let put = Put::default();
        let put = match self {
            Self::Look { id, look } => {
                let text = match look.text {
                    Text::None => u32::MAX,
                    Text::Argument => u32::MAX - 1,
                    Text::At(offset) => u32::from(offset),
                };
                let put = put.u8(1).u64(*id).u32(look.thread).u32(look.payer).u32(look.number);
                put.u64(look.known).u16(look.structure).u32(text)
            }
            Self::Open { id, payer, thread } => put.u8(2).u64(*id).u32(*payer).u32(*thread),
            Self::Write { batch, payer, ops } => {
                let mut put = put.u8(3).u64(*batch).u32(*payer).u16(ops.len() as u16);
                for op in ops {
                    put = put.u64(op.space).u64(op.key).u8(u8::from(op.bit.is_some()));
                    if let Some(bit) = op.bit {
                        put = put.u64(bit.at).u8(bit.mask).u8(u8::from(bit.on));
                    }
                    put = put.u8(op.words.len() as u8);
                    for (at, word) in &op.words {
                        put = put.u64(*at).u32(*word);
                    }
                }
                put
            }
            Self::Cancel { batch, key } => put.u8(4).u64(*batch).u64(*key),
            Self::Forget { id } => put.u8(5).u64(*id),
            Self::Ping => put.u8(6),
        };
        put.0
    }

    pub(super) fn read(packet: &[u8]) -> Option<Self> {
        let mut take = Take(packet);
        let order = match take.u8()? {
            1 => {
                let id = take.u64()?;
                let (thread, payer, number) = (take.u32()?, take.u32()?, take.u32()?);
                let (known, structure) = (take.u64()?, take.u16()?);
                let text = match take.u32()? {
                    u32::MAX => Text::None,
                    offset if offset == u32::MAX - 1 => Text::Argument,
                    offset => Text::At(u16::try_from(offset).ok()?),
                };
                Self::Look { id, look: Look { thread, payer, number, known, structure, text } }
            }
            2 => Self::Open { id: take.u64()?, payer: take.u32()?, thread: take.u32()? },
            3 => {
                let (batch, payer, count) = (take.u64()?, take.u32()?, usize::from(take.u16()?));
                if count > OPS_MAX {
                    return None;
                }
                let ops = (0..count).map(|_| take.op()).collect::<Option<_>>()?;
                Self::Write { batch, payer, ops }
            }
            4 => Self::Cancel { batch: take.u64()?, key: take.u64()? },
            5 => Self::Forget { id: take.u64()? },
            6 => Self::Ping,
            _ => return None,
        };
        take.end(order)
    }
}

impl Take<'_> {
    fn op(&mut self) -> Option<Op> {
        let (space, key) = (self.u64()?, self.u64()?);
        let bit = if self.bool()? {
            Some(Bit { at: self.u64()?, mask: self.u8()?, on: self.bool()? })
        } else {
            None
        };
        let count = usize::from(self.u8()?);
        if count > WORDS_MAX {
            return None;
        }
        let words = (0..count).map(|_| Some((self.u64()?, self.u32()?))).collect::<Option<_>>()?;
        Some(Op { space, key, bit, words })
    }
}

impl Report {
    pub(super) fn packet(&self) -> Vec<u8> {
        let put = Put::default();
        let put = match self {
            Self::Looked { id, seen: Err(errno) } => put.u8(1).u64(*id).u8(1).errno(*errno),
            Self::Looked { id, seen: Ok(seen) } => put
                .u8(1)
                .u64(*id)
                .u8(0)
                .u32(seen.process)
                .u8(u8::from(seen.capable))
                .u8(u8::from(seen.alive))
                .bytes(&seen.identity)
                .u64(seen.argument)
                .result(&seen.structure)
                .result(&seen.text),
            Self::Opened { id, identity } => put.u8(2).u64(*id).result(identity),
            Self::Written { batch, done } => {
                let put = put.u8(3).u64(*batch).u16(done.len() as u16);
                done.iter().fold(put, |put, done| match done {
                    Ok(()) => put.u32(0),
                    Err(errno) => put.errno(*errno),
                })
            }
            Self::Pong => put.u8(4),
        };
        put.0
    }

    pub(super) fn read(packet: &[u8]) -> Option<Self> {
        let mut take = Take(packet);
        let report = match take.u8()? {
            1 => {
                let id = take.u64()?;
                let seen = if take.bool()? {
                    Err(take.errno()?)
                } else {
                    Ok(Seen {
                        process: take.u32()?,
                        capable: take.bool()?,
                        alive: take.bool()?,
                        identity: take.bytes()?.to_vec(),
                        argument: take.u64()?,
                        structure: take.result()?,
                        text: take.result()?,
                    })
                };
                Self::Looked { id, seen }
            }
            2 => Self::Opened { id: take.u64()?, identity: take.result()? },
            3 => {
                let (batch, count) = (take.u64()?, usize::from(take.u16()?));
                if count > OPS_MAX {
                    return None;
                }
                let one = |_| match take.u32()? {
                    0 => Some(Ok(())),
                    number if number < 4096 => Some(Err(Errno::from_raw_os_error(number as i32))),
                    _ => None,
                };
                let done = (0..count).map(one).collect::<Option<_>>()?;
                Self::Written { batch, done }
            }
            4 => Self::Pong,
            _ => return None,
        };
        take.end(report)
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
            Report::Written { batch: 5, done: vec![Ok(()), Err(Errno::FAULT)] },
            Report::Pong,
        ]
    }

    #[test]
    fn messages_survive_encoding_and_decoding() {
        for order in orders() {
            let packet = order.packet();
            assert!(packet.len() <= PACKET_MAX);
            assert_eq!(Order::read(&packet), Some(order));
        }
        for report in reports() {
            let packet = report.packet();
            assert!(packet.len() <= PACKET_MAX);
            assert_eq!(Report::read(&packet), Some(report));
        }
        let op = Op {
            space: 1,
            key: 1,
            bit: Some(Bit { at: 1, mask: 1, on: true }),
            words: vec![(1, 1); WORDS_MAX],
        };
        let longest = Order::Write { batch: 1, payer: 1, ops: vec![op; OPS_MAX] }.packet();
        assert!(longest.len() <= PACKET_MAX && Order::read(&longest).is_some());
    }

    #[test]
    fn invalid_packets_are_no_messages() {
        let (orders, reports) = (orders(), reports());
        let packets = orders.iter().map(Order::packet).chain(reports.iter().map(Report::packet));
        let mut numbers = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            numbers ^= numbers << 13;
            numbers ^= numbers >> 7;
            numbers ^= numbers << 17;
            numbers
        };
        for packet in packets {
            for length in 0..packet.len() {
                // A packet of one kind may parse as a message of the other kind, but must not panic.
                let _ = (Order::read(&packet[..length]), Report::read(&packet[..length]));
            }
            assert_eq!(Order::read(&[&packet[..], &[0]].concat()), None);
            for _ in 0..2000 {
                let mut other = packet.clone();
                let at = next() as usize % other.len();
                other[at] = next() as u8;
                if let Some(order) = Order::read(&other) {
                    assert_eq!(Order::read(&order.packet()), Some(order));
                }
                if let Some(report) = Report::read(&other) {
                    assert_eq!(Report::read(&report.packet()), Some(report));
                }
            }
        }
        assert_eq!((Order::read(&[]), Report::read(&[])), (None, None));
    }
}
