//! The process that opens user files for a daemon: those that `uprobe_events`, `dynamic_events` and `program_events`
//! name.
//!
//! A path lookup, an open or a read can block without a limit if a process serves the file system (FUSE), and a kill
//! does not end the blocked thread. So a thread of a separate process does this work. The daemon waits with a
//! deadline, and never while it holds the tree. The answer is a descriptor and the facts about the file.
//!
//! [`Kind::PendingFiles`] limits the writes of a payer that wait for files. A write counts until its answer arrives,
//! however late, so files that never answer use up only the quota of their payer.

use std::{
    collections::HashMap,
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::{OsStrExt, OsStringExt},
    },
    path::Path,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::{Duration, Instant},
};

use rustix::{
    fs::{Mode, OFlags, open},
    io::Errno,
    net::{SendFlags, send},
};
use serde::{Deserialize, Serialize};

use super::process::{begin, in_memory, receive, send_with};
use crate::{
    engine::{
        confine::{self, Role},
        quota::{Charge, Kind, Quotas},
    },
    event::program::{Notes, ProgramError},
    fs::threads::{lock, spawn},
    kernel::opened::{Identity, OpenedFile},
    lang::facts::{FileRequest, Files, Found},
    sys::process::landlock::FileAccess,
};

/// The hidden command of this program that runs as the opener.
pub const COMMAND: &str = "open-files";

/// How long all files of one write may take together.
const PATIENCE: Duration = Duration::from_secs(2);
/// Maximum bytes of a message: a path and a symbol, each of one line at most, as JSON.
const MESSAGE_MAX: usize = 64 * 1024;
/// Maximum number of threads that open files at a time; more than the total of [`Kind::PendingFiles`].
const THREADS_MAX: usize = 64;

#[derive(Serialize, Deserialize)]
struct OpenRequest {
    number: u64,
    wanted: FileRequest,
}

/// The answer of the process. The descriptor of the file is sent with it, and a second descriptor if there are notes.
#[derive(Serialize, Deserialize)]
struct OpenedReply {
    number: u64,
    answer: Result<Opened, i32>,
}

#[derive(Serialize, Deserialize)]
struct Opened {
    identity: Identity,
    symbol: Option<u64>,
    notes: NotesReply,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum NotesReply {
    NotRequested,
    Sent,
    NotElf,
    TooLarge,
    None,
}

type Answer = Result<Found, Errno>;

/// The receiver of an answer, and the charge that counts until the answer arrives.
struct Pending {
    to: Sender<Answer>,
    _place: Arc<Charge>,
}

#[derive(Default)]
struct Waiting {
    next: u64,
    by_number: HashMap<u64, Pending>,
    gone: bool,
}

impl Waiting {
    fn lose(&mut self) {
        self.gone = true;
        self.by_number.clear();
    }
}

/// The daemon's side of one such process.
struct Process {
    socket: Arc<OwnedFd>,
    waiting: Arc<Mutex<Waiting>>,
}

/// The daemon's side. Requests go to the first process that still runs.
pub(crate) struct Opener {
    processes: Vec<Process>,
    /// How long all files of a request may take.
    patience: Duration,
}

impl Process {
    fn new(socket: OwnedFd) -> Self {
        let (socket, waiting) = (Arc::new(socket), Arc::<Mutex<Waiting>>::default());
        let (its, all) = (Arc::clone(&socket), Arc::clone(&waiting));
        let listens = spawn("files", move || {
            let error = listen(its.as_fd(), &all);
            tracing::warn!("a process that opens files has ended: {error}");
            lock(&all).lose();
        });
        if let Err(error) = listens {
            tracing::warn!("no files can be named: {error}");
            lock(&waiting).gone = true;
        }
        Self { socket, waiting }
    }

    fn lose(&self) {
        lock(&self.waiting).lose();
    }

    /// Registers a request and returns its number; `None` if the process is gone.
    fn register_request(&self, place: &Arc<Charge>) -> Option<(u64, Receiver<Answer>)> {
        let mut waiting = lock(&self.waiting);
        if waiting.gone {
            return None;
        }
        let (to, answer) = channel();
        waiting.next += 1;
        let number = waiting.next;
        waiting.by_number.insert(number, Pending { to, _place: Arc::clone(place) });
        Some((number, answer))
    }
}

impl Opener {
    /// Creates the daemon's side of the processes that run [`run`] at the other ends of the sockets. Without a
    /// process, no file can be opened.
    pub(crate) fn new(sockets: Vec<OwnedFd>) -> Self {
        Self::with_patience(sockets, PATIENCE)
    }

    fn with_patience(sockets: Vec<OwnedFd>, patience: Duration) -> Self {
        Self { processes: sockets.into_iter().map(Process::new).collect(), patience }
    }

    /// Opens files for a client in a new thread, one after the other until its patience is over, and then calls
    /// `then`. Instead of that, returns `EAGAIN` if the payer has the maximum of pending files, or no thread can be
    /// started.
    pub(crate) fn look_then(
        self: &Arc<Self>,
        place: (&Quotas, u32),
        wanted: Vec<FileRequest>,
        then: impl FnOnce(Files) + Send + 'static,
    ) -> Result<(), Errno> {
        let (quotas, payer) = place;
        let place = Arc::new(quotas.charge(payer, Kind::PendingFiles, 1).map_err(|_| Errno::AGAIN)?);
        let own = Arc::clone(self);
        let work = move || {
            let until = Instant::now() + own.patience;
            then(Files::of(wanted, |one| own.look(one, until, &place)));
        };
        spawn("names", work).map(drop).map_err(|_| Errno::AGAIN)
    }

    /// Opens one file for the daemon itself and waits for it.
    pub(crate) fn look_now(&self, quotas: &Quotas, wanted: &FileRequest) -> Answer {
        let place = quotas.charge(0, Kind::PendingFiles, 1).map_err(|_| Errno::AGAIN)?;
        self.look(wanted, Instant::now() + self.patience, &Arc::new(place))
    }

    fn look(&self, wanted: &FileRequest, until: Instant, place: &Arc<Charge>) -> Answer {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Errno::TIMEDOUT);
        }
        let wanted = FileRequest { path: absolute(&wanted.path), what: wanted.what.clone() };
        let answer = loop {
            let asked =
                self.processes.iter().find_map(|process| Some((process, process.register_request(place)?)));
            let (process, (number, answer)) = asked.ok_or(Errno::IO)?;
            let message = serde_json::to_vec(&OpenRequest { number, wanted: wanted.clone() });
            let message = message.ok().filter(|message| message.len() <= MESSAGE_MAX);
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match message.ok_or(Errno::NAMETOOLONG).and_then(|message| send(&process.socket, &message, flags))
            {
                Ok(_) => break answer,
                // The process is gone, and the thread that listens to it has not noticed yet.
                Err(Errno::PIPE | Errno::CONNRESET) => process.lose(),
                Err(errno) => {
                    lock(&process.waiting).by_number.remove(&number);
                    return Err(errno);
                }
            }
        };
        match answer.recv_timeout(left) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!(
                    "{}: its file system did not answer within {:?}",
                    String::from_utf8_lossy(&wanted.path).escape_debug(),
                    self.patience
                );
                Err(Errno::TIMEDOUT)
            }
            Err(RecvTimeoutError::Disconnected) => Err(Errno::IO),
        }
    }
}

/// Makes a path absolute, because the current directory of the other process is the root.
fn absolute(path: &[u8]) -> Vec<u8> {
    match std::env::current_dir() {
        Ok(own) if !path.is_empty() => {
            own.join(Path::new(OsStr::from_bytes(path))).into_os_string().into_vec()
        }
        _ => path.to_vec(),
    }
}

/// Passes answers to their receivers until the socket fails, and returns the reason.
fn listen(socket: BorrowedFd<'_>, waiting: &Mutex<Waiting>) -> Errno {
    loop {
        let (message, fds) = match receive(socket, MESSAGE_MAX) {
            Ok(Some(received)) => received,
            Ok(None) => return Errno::PIPE,
            Err(errno) => return errno,
        };
        let Ok(reply) = serde_json::from_slice::<OpenedReply>(&message) else { return Errno::PROTO };
        // The entry stays after a timeout, because its charge counts until the answer arrives.
        if let Some(pending) = lock(waiting).by_number.remove(&reply.number) {
            let _ = pending.to.send(found(reply.answer, fds));
        }
    }
}

fn found(answer: Result<Opened, i32>, fds: Vec<OwnedFd>) -> Answer {
    let opened = answer.map_err(Errno::from_raw_os_error)?;
    let mut fds = fds.into_iter();
    let file = OpenedFile::received(fds.next().ok_or(Errno::IO)?, opened.identity)?;
    let notes = match opened.notes {
        NotesReply::NotRequested => None,
        NotesReply::NotElf => Some(Err(ProgramError::NotElf)),
        NotesReply::TooLarge => Some(Err(ProgramError::TooLarge)),
        NotesReply::None => Some(Err(ProgramError::NoEvents)),
        NotesReply::Sent => {
            let mut text = Vec::new();
            // The file is in memory, so reading it does not block.
            File::from(fds.next().ok_or(Errno::IO)?).read_to_end(&mut text).map_err(|_| Errno::IO)?;
            let notes: Notes = serde_json::from_slice(&text).map_err(|_| Errno::IO)?;
            Some(Ok(Arc::new(notes)))
        }
    };
    Ok(Found { file: Arc::new(file), symbol: opened.symbol, notes })
}

/// Runs in the opener: opens the requested files until the other end of the socket is closed. The process then ends,
/// even if its threads are blocked.
///
/// # Errors
/// When standard input is not a socket, or a message cannot be parsed.
pub fn run() -> io::Result<()> {
    begin(c"tracer-opener");
    // Clients name files everywhere.
    let root = open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    confine::confine_to(Role::Opener, &[(root.as_fd(), FileAccess::Read)]);
    serve(io::stdin().as_fd().try_clone_to_owned()?)
}

/// Answers the requests from a socket until its other end is closed.
fn serve(socket: OwnedFd) -> io::Result<()> {
    let socket = Arc::new(socket);
    while let Some((message, _)) = receive(socket.as_fd(), MESSAGE_MAX)? {
        let OpenRequest { number, wanted } = serde_json::from_slice(&message)?;
        // Each thread has a reference to the socket.
        let busy = Arc::strong_count(&socket) - 1;
        let to = Arc::clone(&socket);
        let work = move || answer(to.as_fd(), number, Found::open(&wanted));
        if busy >= THREADS_MAX || std::thread::Builder::new().spawn(work).is_err() {
            answer(socket.as_fd(), number, Err(Errno::AGAIN));
        }
    }
    Ok(())
}

fn answer(socket: BorrowedFd<'_>, number: u64, found: Answer) {
    if let Err(errno) = found.and_then(|found| send_found(socket, number, &found)) {
        let _ = send_reply(socket, &OpenedReply { number, answer: Err(errno.raw_os_error()) }, &[]);
    }
}

fn send_found(socket: BorrowedFd<'_>, number: u64, found: &Found) -> Result<(), Errno> {
    let mut fds = vec![found.file.as_fd()];
    let mut memory = None;
    let notes = match &found.notes {
        None => NotesReply::NotRequested,
        Some(Ok(notes)) => {
            memory = Some(in_memory(&serde_json::to_vec(notes.as_ref()).map_err(|_| Errno::IO)?)?);
            NotesReply::Sent
        }
        Some(Err(ProgramError::TooLarge)) => NotesReply::TooLarge,
        Some(Err(ProgramError::NoEvents)) => NotesReply::None,
        Some(Err(_)) => NotesReply::NotElf,
    };
    fds.extend(memory.as_ref().map(AsFd::as_fd));
    let opened = Opened { identity: found.file.identity(), symbol: found.symbol, notes };
    send_reply(socket, &OpenedReply { number, answer: Ok(opened) }, &fds)
}

fn send_reply(socket: BorrowedFd<'_>, reply: &OpenedReply, fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let message = serde_json::to_vec(reply).map_err(|_| Errno::IO)?;
    send_with(socket, &message, fds, SendFlags::NOSIGNAL)
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};

    use super::*;
    use crate::lang::facts::FileQuery;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn wanted(path: &[u8], what: FileQuery) -> FileRequest {
        FileRequest { path: path.to_vec(), what }
    }

    #[test]
    fn results_are_sent_through_the_socket() {
        let (ours, theirs) = pair();
        let server = std::thread::spawn(move || serve(theirs));
        let opener = Opener::with_patience(vec![ours], Duration::from_secs(60));
        let quotas = Quotas::default();
        let program = std::env::current_exe().unwrap();
        let program = program.as_os_str().as_bytes();
        for what in [FileQuery::Identity, FileQuery::Symbol("main".to_owned()), FileQuery::Events] {
            let wanted = wanted(program, what);
            let here = Found::open(&wanted).unwrap();
            let there = opener.look_now(&quotas, &wanted).unwrap();
            assert_eq!((&here.file, here.symbol, &here.notes), (&there.file, there.symbol, &there.notes));
            assert_eq!(there.file.check(), Ok(()));
        }
        for (path, errno) in [
            (&b"/no/such/file"[..], Errno::NOENT),
            (b"a\0b", Errno::INVAL),
            (&[b'x'; 5000], Errno::NAMETOOLONG),
            (&vec![0xff; 60_000], Errno::NAMETOOLONG),
        ] {
            let answer = opener.look_now(&quotas, &wanted(path, FileQuery::Identity));
            assert_eq!(answer.unwrap_err(), errno, "{} bytes", path.len());
        }
        let folder = opener.look_now(&quotas, &wanted(b"/", FileQuery::Events));
        assert_eq!(folder.unwrap_err(), Errno::INVAL);
        // The charge of a request is dropped after its answer.
        let since = Instant::now();
        while quotas.used(0, Kind::PendingFiles) > 0 {
            assert!(since.elapsed() < Duration::from_secs(10), "all were answered");
            std::thread::yield_now();
        }
        // The process ends when the socket is closed.
        rustix::net::shutdown(&opener.processes[0].socket, rustix::net::Shutdown::Both).unwrap();
        server.join().unwrap().unwrap();
        while !lock(&opener.processes[0].waiting).gone {
            std::thread::yield_now();
        }
        assert_eq!(opener.look_now(&quotas, &wanted(program, FileQuery::Identity)).unwrap_err(), Errno::IO);
    }

    #[test]
    fn a_request_without_an_answer_times_out_and_keeps_its_charge() {
        let most = Kind::PendingFiles.limits().per_payer;
        let one = wanted(b"/x", FileQuery::Identity);
        let both = vec![one.clone(), wanted(b"/y", FileQuery::Identity)];
        // The numbers of the requests that were sent. All files of a request have one deadline, so only the first one
        // is asked for.
        let asked = |theirs: &OwnedFd| {
            let mut numbers = Vec::new();
            while recv(theirs, &mut [0_u8; 1], RecvFlags::DONTWAIT | RecvFlags::PEEK).is_ok() {
                let (message, _) = receive(theirs.as_fd(), MESSAGE_MAX).unwrap().unwrap();
                let request: OpenRequest = serde_json::from_slice(&message).unwrap();
                assert_eq!(request.wanted.path, b"/x");
                numbers.push(request.number);
            }
            numbers
        };
        // A thread that is stopped for longer than the deadline asks for nothing, so the deadline grows.
        let mut patience = Duration::from_millis(10);
        let (opener, quotas, theirs, mut numbers) = loop {
            let (ours, theirs) = pair();
            let opener = Arc::new(Opener::with_patience(vec![ours], patience));
            let (quotas, (to, files)) = (Quotas::default(), channel());
            opener.look_then((&quotas, 7), both.clone(), move |files| to.send(files).unwrap()).unwrap();
            let files = files.recv().unwrap();
            assert!(both.iter().all(|file| files.get(file).unwrap_err() == Errno::TIMEDOUT));
            let numbers = asked(&theirs);
            if !numbers.is_empty() {
                break (opener, quotas, theirs, numbers);
            }
            patience *= 2;
            assert!(patience < Duration::from_secs(60), "nothing is asked for");
        };
        let until_used = |number: usize| {
            let since = Instant::now();
            while quotas.used(7, Kind::PendingFiles) != number {
                assert!(since.elapsed() < Duration::from_secs(60), "charges are released");
                std::thread::yield_now();
            }
        };
        let place = || Arc::new(quotas.charge(7, Kind::PendingFiles, 1).unwrap());
        while numbers.len() < 2 {
            assert!(patience < Duration::from_secs(60), "nothing is asked for");
            assert_eq!(opener.look(&one, Instant::now() + patience, &place()).unwrap_err(), Errno::TIMEDOUT);
            numbers.extend(asked(&theirs));
            patience *= 2;
        }
        until_used(2);
        let rest: Vec<u64> = (numbers.len()..most)
            .map(|_| opener.processes[0].register_request(&place()).unwrap().0)
            .collect();
        assert_eq!(quotas.used(7, Kind::PendingFiles), most);
        let refused = opener.look_then((&quotas, 7), vec![one], |_| panic!("there is no place"));
        assert_eq!(refused, Err(Errno::AGAIN));
        // Late answers release the charges.
        for number in numbers.into_iter().chain(rest) {
            answer(theirs.as_fd(), number, Err(Errno::NOENT));
        }
        until_used(0);
        drop(theirs);
    }
}
