//! Checks the memory order of the ring's protocol with loom, on the functions that programs and the reader use.
//!
//! loom runs a model in every order of its threads, up to a number of preemptions, and lets a load return every value
//! that the memory model of C11 allows. The data words are cells, so an access that races with a write fails the model.
//!
//! C11 has no exchange that orders all accesses before it against all after it, as Linux requires of BPF's. A program's
//! exchange is therefore one between two fences. One that fails orders nothing: arm64 may leave out the barrier then.
//!
//! The last test runs the same models with one weaker access each. Every one of them must fail.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
};

use loom::{
    cell::Cell,
    model::Builder,
    sync::atomic::{
        AtomicU64,
        Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst},
        fence,
    },
    thread,
};
use tracer_abi::ring::{
    RingWords, STARTS, begin_reading, commit, committed, payload_of, record_head, record_words, reserve,
    reserved, start_overwriting, stop_overwriting, time_of, wants_reader, word,
};

/// Words of records in the ring, and in a ring that overwrites.
const CAPACITY: u64 = 4;
const LARGE: u64 = 8;
/// Words by which `COMMIT` may be behind: some records raise it, some do not.
const STEP: u64 = 1;
/// Words of the largest record.
const MAX_WORDS: u64 = 3;

/// The ring of a CPU. loom's threads are coroutines of one thread, so an [`Rc`] shares it.
struct Ring {
    words: [AtomicU64; 4],
    starts: Vec<AtomicU64>,
    capacity: u64,
    /// The last record needs up to `MAX_WORDS - 1` words after the end.
    data: Vec<Cell<u64>>,
}

impl Ring {
    fn new(woken: u64) -> Rc<Self> {
        Self::of(CAPACITY, 0, woken)
    }

    /// A ring of this many words that can overwrite.
    fn of(capacity: u64, starts: usize, woken: u64) -> Rc<Self> {
        Rc::new(Self {
            words: [0, 0, 0, woken].map(AtomicU64::new),
            starts: (0..starts).map(|_| AtomicU64::new(0)).collect(),
            capacity,
            data: (1..capacity + MAX_WORDS).map(|_| Cell::new(0)).collect(),
        })
    }

    /// Words by which `COMMIT` may be behind.
    fn step(&self) -> u64 {
        if self.starts.is_empty() { STEP } else { 3 }
    }

    /// A word of the protocol; `None` for a position of a record that the model does not keep.
    fn word(&self, word: usize) -> Option<&AtomicU64> {
        if word >= word::START {
            return self.starts.get((word - word::START) / 8);
        }
        let index =
            [word::HEAD, word::COMMIT, word::TAIL, word::WOKEN].iter().position(|&known| known == word);
        Some(&self.words[index.expect("a word of the protocol")])
    }

    /// A word of the record at a position.
    fn data(&self, position: u64, index: u64) -> &Cell<u64> {
        &self.data[(position % self.capacity + index) as usize]
    }
}

/// The order of a side's accesses.
#[derive(Clone, Copy)]
struct Access {
    load: Ordering,
    store: Ordering,
    /// The exchanges are fully ordered.
    full: bool,
    /// The reader has the fence of [`begin_reading`].
    fence: bool,
}

const PROGRAM: Access = Access { load: Relaxed, store: Relaxed, full: true, fence: false };
const READER: Access = Access { load: Acquire, store: Release, full: true, fence: true };

/// Both sides' accesses.
#[derive(Clone, Copy)]
struct Accesses {
    program: Access,
    reader: Access,
}

const DOCUMENTED: Accesses = Accesses { program: PROGRAM, reader: READER };

/// The ring as one side accesses it.
#[derive(Clone)]
struct Side {
    ring: Rc<Ring>,
    access: Access,
}

impl Side {
    fn barrier(&self) {
        if self.access.full {
            fence(SeqCst);
        }
    }
}

impl RingWords for Side {
    fn load(&self, word: usize) -> u64 {
        self.ring.word(word).map_or(0, |word| word.load(self.access.load))
    }

    fn store(&self, word: usize, value: u64) {
        if let Some(word) = self.ring.word(word) {
            word.store(value, self.access.store);
        }
    }

    fn compare_exchange(&self, word: usize, old: u64, new: u64) -> u64 {
        self.barrier();
        let word = self.ring.word(word).unwrap();
        match word.compare_exchange(old, new, AcqRel, Relaxed) {
            Ok(was) => {
                self.barrier();
                was
            }
            Err(was) => was,
        }
    }

    fn fetch_add(&self, word: usize, value: u64) -> u64 {
        self.barrier();
        let was = self.ring.word(word).unwrap().fetch_add(value, AcqRel);
        self.barrier();
        was
    }
}

/// A program.
#[derive(Clone)]
struct Writer(Side);

impl Writer {
    fn new(ring: &Rc<Ring>, accesses: Accesses) -> Self {
        Self(Side { ring: ring.clone(), access: accesses.program })
    }

    /// Reserves a record and writes its head, which has the record's number for a time.
    fn reserve(&self, number: u64, words: u64) -> Option<u64> {
        let position = reserve(&self.0, words, self.0.ring.capacity)?;
        self.0.ring.data(position, 0).set(record_head(number, (words - 1) * 8));
        Some(position)
    }

    /// Writes a record's payload, which is the record's number in every word.
    fn fill(&self, position: u64, number: u64, words: u64) {
        for index in 1..words {
            self.0.ring.data(position, index).set(number);
        }
    }

    /// Writes a whole record. Returns what it published, or `Err` if it is refused.
    fn write(&self, number: u64, words: u64) -> Result<Option<u64>, Refused> {
        let position = self.reserve(number, words).ok_or(Refused)?;
        self.fill(position, number, words);
        Ok(commit(&self.0, self.0.ring.step()))
    }
}

#[derive(Debug)]
struct Refused;

/// The reader, and the numbers of the records that it saw.
struct Reader {
    side: Side,
    position: u64,
    seen: Vec<u64>,
}

impl Reader {
    fn new(ring: &Rc<Ring>, accesses: Accesses) -> Self {
        let side = Side { ring: ring.clone(), access: accesses.reader };
        Self { side, position: 0, seen: Vec::new() }
    }

    /// Takes all records that are complete, and frees their space.
    fn drain(&mut self) {
        begin_reading(&self.side, || {
            if self.side.access.fence {
                fence(SeqCst);
            }
        });
        let (end, _) = committed(&self.side);
        while self.position < end {
            let head = self.side.ring.data(self.position, 0).get();
            let (number, words) = (time_of(head, 0), record_words(payload_of(head) as u64));
            for index in 1..words {
                assert_eq!(self.side.ring.data(self.position, index).get(), number, "an incomplete record");
            }
            self.seen.push(number);
            self.position += words;
            assert!(self.position <= end, "a record beyond the end");
        }
        self.side.store(word::TAIL, self.position);
    }

    /// Ends overwriting, and continues with the oldest records that are kept.
    fn stop_overwriting(&mut self, spare: u64) -> bool {
        let Self { side, position, .. } = self;
        let start = stop_overwriting(side, *position, side.ring.capacity, spare, || {
            if side.access.fence {
                fence(SeqCst);
            }
        });
        *position = start.unwrap_or(*position);
        start.is_some()
    }

    /// Drains this often on a thread of its own.
    fn spawn(mut self, times: u32) -> thread::JoinHandle<Self> {
        thread::spawn(move || {
            (0..times).for_each(|_| self.drain());
            self
        })
    }
}

fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Two writers on threads of their own, each with one record, beside a reader.
fn two_writers(accesses: Accesses, words: [u64; 2]) {
    let ring = Ring::new(0);
    let reader = Reader::new(&ring, accesses).spawn(1);
    let other = Writer::new(&ring, accesses);
    let other = thread::spawn(move || other.write(2, words[1]).map(drop));
    let first = Writer::new(&ring, accesses).write(1, words[0]).map(drop);
    first.and(other.join().unwrap()).expect("the ring has space for both");
    let mut reader = reader.join().unwrap();
    reader.drain();
    assert_eq!(
        (committed(&reader.side), reader.position),
        ((words[0] + words[1], false), words[0] + words[1])
    );
    reader.seen.sort_unstable();
    assert_eq!(reader.seen, [1, 2]);
}

/// One writer, which fills the ring and wraps, beside a reader.
fn full_ring(accesses: Accesses) {
    let ring = Ring::new(0);
    let reader = Reader::new(&ring, accesses).spawn(2);
    let writer = Writer::new(&ring, accesses);
    let (mut written, mut refused) = (Vec::new(), 0);
    let tried = [2, 1, MAX_WORDS, 2];
    for (number, words) in (0..).zip(tried) {
        match writer.write(number, words) {
            Ok(end) => {
                assert_eq!(end, Some(reserved(&writer.0)));
                written.push(number);
            }
            Err(Refused) => refused += 1,
        }
    }
    let mut reader = reader.join().unwrap();
    reader.drain();
    assert_eq!(reader.seen, written);
    assert_eq!(refused + reader.seen.len(), tried.len());
}

/// Writers with two words each beside a reader that looks once. The first writer runs on the model's own thread.
fn wake_up(accesses: Accesses, woken: u64, writers: u64, watermark: u64) {
    let ring = Ring::new(woken);
    let write = move |writer: &Writer, number| {
        let published = writer.write(number, 2).expect("the ring has space for all");
        published.is_some_and(|position| wants_reader(&writer.0, position, watermark))
    };
    let reader = Reader::new(&ring, accesses).spawn(1);
    let writer = Writer::new(&ring, accesses);
    let others: Vec<_> = (1..writers)
        .map(|number| {
            let writer = writer.clone();
            thread::spawn(move || write(&writer, number))
        })
        .collect();
    let mut wakes = u32::from(write(&writer, 0));
    wakes += others.into_iter().map(|other| u32::from(other.join().unwrap())).sum::<u32>();
    let reader = reader.join().unwrap();
    // A wake-up before the reader's last look does not count: it has reset the word.
    let pending = wakes > 0 && reader.side.load(word::WOKEN) == 1;
    assert!(writers * 2 - reader.position < watermark || pending, "a lost wake-up");
}

/// A writer that overwrites until the reader begins. `spare` is to be the words of a record.
fn overwriting(accesses: Accesses, spare: u64) {
    let ring = Ring::of(LARGE, 6, 0);
    let mut reader = Reader::new(&ring, accesses);
    start_overwriting(&reader.side, 0);
    let reader = thread::spawn(move || {
        let stopped = reader.stop_overwriting(spare);
        if stopped {
            reader.drain();
        }
        (reader, stopped)
    });
    let writer = Writer::new(&ring, accesses);
    let written: Vec<u64> = (1..6).filter(|number| writer.write(*number, 2).is_ok()).collect();
    let (mut reader, stopped) = reader.join().unwrap();
    assert!(stopped || reader.stop_overwriting(spare), "no writer is active");
    reader.drain();
    // The reader sees the youngest records, and none is missing between them.
    assert!(written.ends_with(&reader.seen), "{written:?} {:?}", reader.seen);
    assert_eq!(reader.position, 2 * written.len() as u64);
    assert!(!reader.seen.is_empty(), "all records are lost");
}

#[test]
fn a_reader_of_a_ring_that_overwrites_sees_the_youngest_records() {
    explore(2, || overwriting(DOCUMENTED, 2));
}

/// Before `COMMIT` is raised, nothing behind it is overwritten.
#[test]
fn a_record_that_is_being_written_is_not_overwritten() {
    explore(1, || {
        let ring = Ring::of(LARGE, STARTS, 0);
        let writer = Writer::new(&ring, DOCUMENTED);
        start_overwriting(&writer.0, 0);
        let outer = writer.reserve(1, 2).unwrap();
        let inner = (2..10).filter(|number| writer.write(*number, 2).is_ok()).count() as u64;
        assert_eq!(inner, LARGE / 2 - 1);
        writer.fill(outer, 1, 2);
        assert_eq!(commit(&writer.0, STEP), Some(LARGE));
        assert!(writer.write(10, 2).is_ok());
    });
}

#[test]
fn every_record_is_seen_once_and_complete() {
    explore(3, || two_writers(DOCUMENTED, [2, 2]));
}

/// The first record is longer than the second. So the reader may free more than the second writer's view of `HEAD` and
/// its words.
#[test]
fn a_writer_is_refused_only_without_space() {
    explore(3, || two_writers(DOCUMENTED, [2, 1]));
}

#[test]
fn nothing_is_published_while_a_writer_is_active() {
    explore(6, || {
        let ring = Ring::new(0);
        let mut reader = Reader::new(&ring, DOCUMENTED);
        let reader = thread::spawn(move || {
            for _ in 0..2 {
                reader.drain();
                assert!([0, 4].contains(&reader.position), "published at {}", reader.position);
            }
            reader
        });
        let writer = Writer::new(&ring, DOCUMENTED);
        let outer = writer.reserve(1, 2).unwrap();
        let inner = writer.reserve(2, 2).unwrap();
        writer.fill(inner, 2, 2);
        assert_eq!(commit(&writer.0, STEP), None);
        assert_eq!(committed(&writer.0), (0, true));
        writer.fill(outer, 1, 2);
        assert_eq!(commit(&writer.0, STEP), Some(4));
        let mut reader = reader.join().unwrap();
        reader.drain();
        assert_eq!(reader.seen, [1, 2]);
    });
}

#[test]
fn no_record_overwrites_one_that_is_read() {
    explore(3, || full_ring(DOCUMENTED));
}

#[test]
fn concurrent_commits_publish_all() {
    explore(6, || {
        let ring = Ring::new(0);
        let writer = Writer::new(&ring, DOCUMENTED);
        let other = writer.clone();
        let other = thread::spawn(move || other.write(2, 2).unwrap());
        let first = writer.write(1, 2).unwrap();
        let published = first.max(other.join().unwrap());
        assert_eq!(published, Some(4));
        assert_eq!((writer.0.load(word::COMMIT), committed(&writer.0)), (4, (4, false)));
    });
}

#[test]
fn no_wake_up_is_lost() {
    for woken in [0, 1] {
        explore(6, move || wake_up(DOCUMENTED, woken, 1, 1));
    }
}

#[test]
fn no_wake_up_of_two_writers_is_lost() {
    for watermark in [1, 4] {
        explore(2, move || wake_up(DOCUMENTED, 1, 2, watermark));
    }
}

/// Whether loom finds the error with this message.
fn finds(message: &str, model: impl Fn() + Send + Sync + 'static) -> bool {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| explore(3, model))) else { return false };
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.is_some_and(|text| text.contains(message))
}

#[test]
fn weaker_accesses_are_found() {
    let reader = |access| Accesses { program: PROGRAM, reader: access };
    let race = "Causality violation";

    let relaxed_loads = reader(Access { load: Relaxed, ..READER });
    assert!(finds(race, move || two_writers(relaxed_loads, [2, 2])));
    let relaxed_stores = reader(Access { store: Relaxed, ..READER });
    assert!(finds(race, move || full_ring(relaxed_stores)));
    let no_fence = reader(Access { fence: false, ..READER });
    assert!(finds("a lost wake-up", move || wake_up(no_fence, 1, 1, 1)));
    assert!(finds(race, move || overwriting(no_fence, 2)));
    assert!(finds(race, || overwriting(DOCUMENTED, 0)));

    let program = Accesses { program: Access { full: false, ..PROGRAM }, reader: READER };
    assert!(finds(race, move || full_ring(program)));
    assert!(finds("a lost wake-up", move || wake_up(program, 1, 1, 1)));
}
