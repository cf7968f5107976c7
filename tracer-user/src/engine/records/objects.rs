//! The files that processes have mapped, for addresses in their stacks.
//!
//! `/proc/PID/maps` is read under the lock of that process's address space, which the process can hold indefinitely.
//! So a thread reads it, and the caller waits for a moment and tries again. If it is not read in time, addresses have
//! no names. The thread may keep waiting; a signal that ends the daemon ends it. The number of threads is limited per
//! payer and in total.
//!
//! Any file of a process in `/proc` can block like this: reading it can take the last reference to the address space
//! of a process that ends. So the payer is found without reading: the directory belongs to the process's effective
//! user. The payer is charged before the thread starts.

use crate::engine::{
    command::error::{CommandError, ErrorKind},
    payers::Payers,
    quota::Quotas,
};
use std::{
    collections::HashMap,
    fs::File,
    io::Read,
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError},
    time::{Duration, Instant},
};

use rustix::{
    fs::{Mode, OFlags, fstat, open, openat},
    io::Errno,
};

/// How long a caller waits at a time, and in total.
const MOMENT: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_millis(250);
/// How long an answer is valid.
const AGE: Duration = Duration::from_millis(500);
/// Maximum number of threads that read for processes of one payer, for all, and the part that is reserved for root.
const THREADS_PER_PAYER: usize = 4;
const THREADS: usize = 16;
const THREADS_OF_ROOT: usize = 4;
/// Size of a thread's stack in bytes.
const STACK: usize = 128 << 10;
/// Maximum bytes to read of a process's `maps`, and maximum bytes of all stored answers.
const TEXT_MAX: usize = 4 << 20;
const KEPT_MAX: usize = 16 << 20;
/// Maximum number of remembered processes.
const PROCESSES: usize = 64;
/// Nanoseconds of a tick of `/proc/PID/stat` (`USER_HZ`).
const TICK: u64 = 10_000_000;

/// The mappings of a process, sorted by address.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    /// The start time of the process, by `CLOCK_BOOTTIME`.
    pub(crate) started: u64,
    all: Vec<Mapping>,
    bytes: usize,
}

#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    /// Empty for memory without a file.
    path: Vec<u8>,
}

#[derive(Debug)]
struct MapsRequest {
    since: Instant,
    /// Whether a thread is reading.
    runs: bool,
    answer: Option<(Instant, Arc<Objects>)>,
}

#[derive(Debug, Default)]
struct State {
    processes: HashMap<u32, MapsRequest>,
    /// Number of threads, by payer of the processes that they read.
    threads: HashMap<u32, usize>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    answered: Condvar,
    /// Created at the first use, because it reads files.
    payers: OnceLock<Payers>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Maps(Arc<Shared>);

impl State {
    /// Drops old answers, and more if there are too many.
    fn forget(&mut self) {
        self.processes.retain(|_, request| {
            let since = request.answer.as_ref().map_or(request.since, |(at, _)| *at);
            request.runs || since.elapsed() < 2 * AGE
        });
        let bytes = |request: &MapsRequest| request.answer.as_ref().map_or(0, |(_, objects)| objects.bytes);
        let mut kept: usize = self.processes.values().map(bytes).sum();
        while kept > KEPT_MAX || self.processes.len() >= PROCESSES {
            let done = self.processes.iter().filter(|(_, request)| !request.runs);
            let Some(oldest) = done.min_by_key(|(_, request)| request.since).map(|(process, _)| *process)
            else {
                return;
            };
            kept -= self.processes.remove(&oldest).as_ref().map_or(0, bytes);
        }
    }

    /// Charges a payer for a thread; false if it or all have too many.
    fn take_thread(&mut self, payer: u32) -> bool {
        let all: usize = self.threads.values().sum();
        let [own, root] = [payer, 0].map(|payer| self.threads.get(&payer).copied().unwrap_or(0));
        let has_room = payer == 0 || own < THREADS_PER_PAYER && all - root < THREADS - THREADS_OF_ROOT;
        let taken = has_room && all < THREADS;
        if taken {
            self.threads.insert(payer, own + 1);
        }
        taken
    }

    /// Ends a charge of [`State::take_thread`].
    fn give_thread(&mut self, payer: u32) {
        let left = self.threads.remove(&payer).unwrap_or(0).saturating_sub(1);
        if left > 0 {
            self.threads.insert(payer, left);
        }
    }

    fn answer(&mut self, process: u32, objects: Objects) {
        if let Some(request) = self.processes.get_mut(&process) {
            request.runs = false;
            request.answer = Some((Instant::now(), Arc::new(objects)));
        }
    }
}

impl Maps {
    /// The mappings of a process, empty if it has ended or cannot be read; `None` if the caller must try again.
    pub(crate) fn of(&self, process: u32) -> Option<Arc<Objects>> {
        let mut state = self.0.lock();
        if !state.processes.contains_key(&process) {
            state.forget();
        }
        let request = state.processes.entry(process).or_insert_with(|| MapsRequest {
            since: Instant::now(),
            runs: false,
            answer: None,
        });
        if let Some((at, objects)) = &request.answer
            && at.elapsed() < AGE
        {
            return Some(Arc::clone(objects));
        }
        if !request.runs {
            if request.answer.take().is_some() {
                request.since = Instant::now();
            }
            self.begin(&mut state, process);
        }
        let until = Instant::now() + MOMENT;
        loop {
            let request = state.processes.get(&process)?;
            if let Some((_, objects)) = &request.answer {
                return Some(Arc::clone(objects));
            }
            if request.since.elapsed() >= PATIENCE {
                return Some(Arc::default());
            }
            let left = until.checked_duration_since(Instant::now())?;
            state = self.0.answered.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Begins to read for a process. Answers at once if it has ended, or if too many threads read for its payer.
    fn begin(&self, state: &mut State, process: u32) {
        let Some((dir, payer)) = self.find(process).filter(|(_, payer)| state.take_thread(*payer)) else {
            return state.answer(process, Objects::default());
        };
        if !self.start(process, dir, payer) {
            return state.give_thread(payer);
        }
        if let Some(request) = state.processes.get_mut(&process) {
            request.runs = true;
        }
    }

    /// The directory of a process in `/proc`, and the payer of its effective user. Reads no file of the process.
    fn find(&self, process: u32) -> Option<(OwnedFd, u32)> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // The descriptor stays bound to this process, even if its id is reused.
        let dir = open(format!("/proc/{process}"), flags, Mode::empty()).ok()?;
        let uid = fstat(&dir).ok()?.st_uid;
        Some((dir, self.0.payers.get_or_init(|| Payers::new(Quotas::default())).payer(uid, process)))
    }

    /// Starts a thread that reads for a process, whose payer is charged for it.
    fn start(&self, process: u32, dir: OwnedFd, payer: u32) -> bool {
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("maps".to_owned()).stack_size(STACK);
        let started = thread.spawn(move || {
            let objects = read(&dir).unwrap_or_default();
            let mut state = shared.lock();
            state.give_thread(payer);
            state.answer(process, objects);
            drop(state);
            shared.answered.notify_all();
        });
        started.inspect_err(|error| tracing::debug!("no thread: {error}")).is_ok()
    }
}

/// Reads the mappings of a process. This can wait indefinitely.
fn read(dir: &OwnedFd) -> Result<Objects, CommandError> {
    let started = started(&text(dir, "stat")?).ok_or(ErrorKind::Invalid)?;
    Ok(Objects { started, ..Objects::parse(&text(dir, "maps")?) })
}

/// The content of a file of a process, truncated if it is long.
fn text(dir: &OwnedFd, name: &str) -> Result<Vec<u8>, CommandError> {
    let file = File::from(openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?);
    let mut text = Vec::new();
    let read = file.take(TEXT_MAX as u64).read_to_end(&mut text);
    read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(text)
}

/// The start time of a process in nanoseconds, from its `stat`: the 22nd word. The second word can have any content.
fn started(stat: &[u8]) -> Option<u64> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    rest.split_whitespace().nth(19)?.parse::<u64>().ok()?.checked_mul(TICK)
}

impl Objects {
    /// Parses the text of `maps` (proc(5)).
    fn parse(text: &[u8]) -> Self {
        let mapping = |line: &[u8]| {
            let mut words = line.splitn(6, |byte| *byte == b' ');
            let range = std::str::from_utf8(words.next()?).ok()?;
            let (start, end) = range.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            let path = words.nth(4).unwrap_or_default().trim_ascii_start();
            let path = if path.starts_with(b"/") { path.to_vec() } else { Vec::new() };
            Some(Mapping { start: number(start)?, end: number(end)?, path })
        };
        // The last line may be truncated.
        let end = text.iter().rposition(|byte| *byte == b'\n');
        let whole = end.and_then(|end| text.get(..end)).unwrap_or_default();
        let all = whole.split(|byte| *byte == b'\n').filter_map(mapping).collect();
        Self { started: 0, all, bytes: text.len() }
    }

    /// The file of the mapping at or above an address, as in `find_vma()`, and the distance from the mapping's start.
    pub(crate) fn find(&self, address: u64) -> Option<(Vec<u8>, u64)> {
        let found = self.all.iter().find(|mapping| address < mapping.end)?;
        (!found.path.is_empty()).then(|| (found.path.clone(), address.wrapping_sub(found.start)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_by_an_address_inside() {
        let objects = Objects::parse(
            b"1000-2000 r-xp 00000000 fe:00 12                         /usr/bin/a b\n\
              3000-4000 rw-p 00000000 00:00 0 \n5000-6000 rw-p 00000000 00:00 0                [stack]\n",
        );
        assert_eq!(objects.find(0x1010), Some((b"/usr/bin/a b".to_vec(), 0x10)));
        assert_eq!(objects.find(0x3010), None);
        assert_eq!(objects.find(0x5010), None);
        assert_eq!(objects.find(0x9000), None);
        assert_eq!(objects.all.len(), 3);
    }

    #[test]
    fn mappings_of_a_process_are_read_and_an_ended_one_has_none() {
        let maps = Maps::default();
        let later = Instant::now() + Duration::from_secs(600);
        let maps_of = |process: u32| {
            let since = Instant::now();
            loop {
                // It is not given up, however long this thread is stopped.
                let mut state = maps.0.lock();
                let request = MapsRequest { since: later, runs: false, answer: None };
                state.processes.entry(process).or_insert(request).since = later;
                drop(state);
                match maps.of(process) {
                    Some(objects) => return objects,
                    None => assert!(since.elapsed() < Duration::from_secs(60)),
                }
            }
        };
        let id = std::process::id();
        let own = maps_of(id);
        let here = mappings_of_a_process_are_read_and_an_ended_one_has_none as *const () as u64;
        assert!(own.find(here).is_some() && own.started > 0);
        let answered_at = |at: Instant| {
            maps.0.lock().processes.get_mut(&id).unwrap().answer.as_mut().unwrap().0 = at;
        };
        answered_at(later);
        assert!(Arc::ptr_eq(&own, &maps_of(id)));
        assert!(maps_of(u32::MAX >> 1).all.is_empty());
        let state = maps.0.lock();
        assert!(state.threads.is_empty(), "{state:?}");
    }

    #[test]
    fn remembered_mappings_are_limited() {
        let maps = Maps::default();
        for process in 0..3 * PROCESSES as u32 {
            while maps.of((u32::MAX >> 1) - process).is_none() {}
        }
        assert!(maps.0.lock().processes.len() <= PROCESSES);
    }

    #[test]
    fn a_payer_has_few_threads_and_root_always_has_some() {
        let mut state = State::default();
        let mut take = |payer: u32| (0..=THREADS).take_while(|_| state.take_thread(payer)).count();
        assert_eq!([7, 7, 8, 9, 10].map(&mut take), [THREADS_PER_PAYER, 0, 4, 4, 0]);
        assert_eq!([0, 0].map(&mut take), [THREADS_OF_ROOT, 0]);
        state.give_thread(8);
        // Root may use what others leave, and clients never use root's part.
        assert!(state.take_thread(0) && !state.take_thread(10));
        state.give_thread(0);
        assert!(!state.take_thread(7) && state.take_thread(10));
        for payer in [7, 9, 8, 10, 0] {
            (0..4).for_each(|_| state.give_thread(payer));
        }
        assert!(state.threads.is_empty(), "{state:?}");
    }

    #[test]
    fn no_file_of_a_process_is_read_beyond_the_limit() {
        let maps = Maps::default();
        let own = std::process::id();
        let (_, payer) = maps.find(own).unwrap();
        assert_eq!(payer == 0, rustix::process::geteuid().is_root());
        let taken = (0..=THREADS).take_while(|_| maps.0.lock().take_thread(payer)).count();
        assert!(maps.of(own).unwrap().all.is_empty(), "answered at once");
        assert_eq!(maps.0.lock().threads.values().sum::<usize>(), taken);
    }

    #[test]
    fn lines_of_proc() {
        let stat = b"7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 123 0 0\n";
        assert_eq!(started(stat), Some(123 * TICK));
        assert_eq!(started(b"7"), None);
    }
}
