//! From a request to a loaded program: its parameters, linking, and building many at once.
//!
//! Events with the same code share a program in the dispatch table, which receives slot and kind at the hit. When many
//! events are enabled, several threads make their programs ahead, each program once ([`BulkBuilder`]). These
//! threads do not use the session, which stays free for other work.

use std::{
    collections::{HashMap, hash_map::Entry},
    num::NonZero,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tracer_abi::{Params, params};

use super::{
    companions::Companions,
    load,
    object::{self, Functions, Image, Memory},
};
use crate::{
    attach::{AttachError, AttachPoint, Context, Request, Threads, maps::SessionMaps},
    event::Slot,
    plan::source::ProgramContext,
    sys::bpf::{
        map::Map,
        prog::{Prog, ProgKind},
    },
};

/// Largest number of threads that make programs.
const BUILDERS: usize = 8;

/// The slot in the parameters of a program that counts nothing, or gets its slot at the hit.
pub(crate) const UNUSED: Slot = Slot::new(0);

/// Identifies a shareable program: the generated code and the parameters.
pub(crate) type Key = Vec<u8>;

/// A loaded program, and its own scratch memory, which the program that replaces it uses too.
#[derive(Debug)]
pub(crate) struct LoadedProgram {
    pub(crate) program: Arc<Prog>,
    pub(crate) scratch: Option<Arc<Map>>,
}

/// Receives a program from the thread that makes it.
pub(crate) type Place = Arc<OnceLock<Arc<LoadedProgram>>>;

/// Inputs of all programs of a session, apart from their requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramBuilder<'a> {
    pub(crate) maps: &'a SessionMaps,
    pub(crate) context: &'a Context,
}

/// A request with its generated code.
pub(crate) struct GeneratedRequest {
    functions: Functions,
    fixed: Params,
    /// Identifies its program; `None` if it shares the program with no other event.
    pub(crate) key: Option<Key>,
}

impl ProgramBuilder<'_> {
    /// Links the program of a request with these functions and parameters. Also returns the program's own scratch
    /// memory if it needs some and `known` has none.
    fn linked(
        &self,
        request: &Request<'_>,
        functions: &Functions,
        fixed: &Params,
        known: Option<&Map>,
        companions: &Companions,
    ) -> Result<(Image, Option<Map>), AttachError> {
        let point = request.point;
        let wants_scratch = wants_scratch(request, functions);
        let nests = self.context.nests(point);
        if nests && wants_scratch {
            self.maps.prepare_nesting().map_err(|cause| request.failed(cause))?;
        }
        let known = known.or(self.maps.nesting_scratch().filter(|_| nests));
        let known = match point.call() {
            Some((enter, _)) if wants_scratch && known.is_none() => {
                Some(self.maps.call_scratch(enter).map_err(|cause| request.failed(cause))?)
            }
            _ => known,
        };
        let scratch = if wants_scratch && !point.is_exclusive() && known.is_none() {
            Some(self.maps.scratch(&request.format.name)?)
        } else {
            None
        };
        let casts = matches!(point.kind(), ProgKind::Tracepoint | ProgKind::RawTracepoint);
        let cast = self.context.cast.filter(|_| casts && *point != AttachPoint::Emitted);
        let own = scratch.as_ref().or(known);
        let memory = Memory { maps: self.maps, scratch: own, entry_args: companions.entry_args() };
        let image = object::image(point.template(), functions, fixed, cast, &memory);
        let image = image.map_err(|cause| request.failed(cause))?;
        Ok((image, scratch))
    }

    /// Links the program of a request for this slot. Also returns the program's own scratch memory if it needs some
    /// and `known` has none.
    pub(crate) fn image(
        &self,
        request: &Request<'_>,
        slot: Slot,
        known: Option<&Map>,
        companions: &Companions,
    ) -> Result<(Image, Option<Map>), AttachError> {
        let functions = request.functions()?;
        let fixed = self.params(request, &functions, slot);
        self.linked(request, &functions, &fixed, known, companions)
    }

    /// Links and loads a program that no other event shares. `known` is the scratch memory of the program that it
    /// replaces.
    pub(crate) fn own(
        &self,
        request: &Request<'_>,
        slot: Slot,
        known: Option<&Arc<Map>>,
        companions: &Companions,
    ) -> Result<LoadedProgram, AttachError> {
        let (image, scratch) = self.image(request, slot, known.map(AsRef::as_ref), companions)?;
        let scratch = scratch.map(Arc::new).or_else(|| known.cloned());
        Ok(LoadedProgram { program: self.loaded(request, image)?, scratch })
    }

    /// The parameters that are constant once a request's program is loaded.
    fn params(&self, request: &Request<'_>, functions: &Functions, slot: Slot) -> Params {
        let options = self.maps.options();
        let mut fixed = Params {
            bits: 0,
            slot: slot.get(),
            cpus: options.cpus,
            size: functions.size,
            kind: u32::from(request.kind),
            watermark: self.maps.watermark(),
            ring_words: self.maps.ring_words(),
            own_tgid: match request.threads {
                Threads::Traced => self.maps.excluded_tgid(),
                Threads::Every => 0,
                Threads::Own => options.own_tgid,
            },
            ..Params::default()
        };
        let conditional = matches!(request.context, ProgramContext::Probe(plan) if plan.when.is_some());
        if request.filter.is_some() || conditional {
            fixed.bits |= params::FILTER;
        }
        if functions.needs.scratch {
            fixed.bits |= params::FILTER_SCRATCH;
        }
        if functions.needs.flags {
            fixed.bits |= params::FILTER_FLAGS;
        }
        let lists = options.pid_lists;
        if (options.pid_gate || lists) && request.threads == Threads::Traced {
            fixed.bits |= if lists { params::PID_LISTS } else { params::PIDS };
            request.set_other(&mut fixed);
        }
        if request.threads == Threads::Own {
            fixed.bits |= params::OWN_ONLY;
        }
        if request.irqs_off {
            fixed.bits |= params::IRQS_OFF;
        }
        if let AttachPoint::SysEnterAlone(number) = request.point {
            fixed.bits |= params::ONE_CALL;
            fixed.call = *number;
        }
        if self.context.nests(request.point) {
            fixed.bits |= params::NESTS;
            if wants_scratch(request, functions) {
                fixed.bits |= params::CLAIM;
            }
        }
        if self.maps.counters().is_one_value() {
            fixed.bits |= params::ONE_TABLE;
            fixed.rows = options.slots * options.cpus;
        }
        request.hit_actions.apply(&mut fixed, slot);
        // Triggers must not act on a hit that the definition's condition drops, and the condition is evaluated with
        // the record.
        if conditional && fixed.bits & params::TRIGGERS != 0 {
            fixed.bits |= params::SEES_RECORD;
        }
        self.context.apply(&mut fixed, request.point);
        if *request.point == AttachPoint::Emitted {
            fixed.preempt_bias = self.context.emission_bias(request.irqs_off);
        }
        if matches!(request.context, ProgramContext::Probe(_)) && self.context.tracepoint_bias() > 0 {
            fixed.preempt_bias = self.context.tracepoint_bias().wrapping_sub(request.point.kernels_depth());
        }
        if self.context.guard(request.point).is_some() {
            fixed.preempt_bias = fixed.preempt_bias.wrapping_add(1);
        }
        // For a hit that the filter drops, the program does not need the process id.
        let asked_before = params::PIDS
            | params::PID_LISTS
            | params::OWN_ONLY
            | params::COMPAT
            | params::NESTS
            | params::TRIGGERS
            | params::SOFT;
        if request.filter.is_some()
            && !functions.needs.more
            && !matches!(request.point, AttachPoint::Inject | AttachPoint::Emitted)
            && fixed.bits & asked_before == 0
        {
            fixed.bits |= params::OWN_LATE;
        }
        fixed
    }

    /// Generates a request's code and decides whether events can share its program.
    pub(crate) fn generate(
        &self,
        request: &Request<'_>,
        slot: Slot,
    ) -> Result<GeneratedRequest, AttachError> {
        let functions = request.functions()?;
        let reported = request.reported_at_hit();
        let mut fixed = self.params(request, &functions, if reported == 0 { slot } else { UNUSED });
        if reported == 0 {
            return Ok(GeneratedRequest { functions, fixed, key: None });
        }
        // The hit has slot and kind, so events with the same code share the program.
        fixed.kind = 0;
        fixed.bits |= reported;
        if let Some((false, _)) = request.point.call() {
            fixed.call = self.context.registers.map_or(0, |registers| registers.number);
        }
        let mut key = fixed.bytes().to_vec();
        functions.encode(&mut key);
        Ok(GeneratedRequest { functions, fixed, key: Some(key) })
    }

    pub(crate) fn make(
        &self,
        request: &Request<'_>,
        generated: &GeneratedRequest,
    ) -> Result<Arc<LoadedProgram>, AttachError> {
        let (image, scratch) =
            self.linked(request, &generated.functions, &generated.fixed, None, &Companions::default())?;
        Ok(Arc::new(LoadedProgram { program: self.loaded(request, image)?, scratch: scratch.map(Arc::new) }))
    }

    /// Loads a request's program. The image's maps are kept until then.
    fn loaded(&self, request: &Request<'_>, image: Image) -> Result<Arc<Prog>, AttachError> {
        let Image { insns, constants: _constants } = image;
        let guarded = self.context.guarded(request.point, insns);
        guarded
            .and_then(|insns| {
                load::load(request.point.kind(), request.purpose(), &insns, &request.format.name)
            })
            .map(Arc::new)
            .map_err(|cause| request.failed(cause))
    }
}

/// Makes programs ahead for a session.
pub struct BulkBuilder {
    pub(crate) maps: Arc<SessionMaps>,
    pub(crate) context: Context,
    /// Programs that events already use.
    pub(crate) known: HashMap<(u32, Key), Arc<LoadedProgram>>,
}

/// A program that was made ahead for an event.
pub struct Built {
    pub(crate) kind: u16,
    pub(crate) point: AttachPoint,
    /// Identifies the program; only set for the first of its events.
    pub(crate) key: Option<Key>,
    pub(crate) place: Place,
}

impl BulkBuilder {
    /// Makes the programs of these requests, until `stop` is set.
    pub fn build(&self, requests: &[Request<'_>], stop: &AtomicBool) -> Vec<Built> {
        let builder = ProgramBuilder { maps: &self.maps, context: &self.context };
        let made: Mutex<HashMap<(u32, Key), Place>> = Mutex::default();
        let next = AtomicUsize::new(0);
        // Each thread takes the next request. The first thread with a key makes the program.
        let work = || {
            let mut done = Vec::new();
            while let Some(request) = requests.get(next.fetch_add(1, Ordering::Relaxed)) {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let Ok(generated) = builder.generate(request, UNUSED) else { continue };
                let Some(key) = &generated.key else { continue };
                let of_kind = (request.point.kind() as u32, key.clone());
                let (place, is_first) = {
                    let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
                    match made.entry(of_kind.clone()) {
                        Entry::Occupied(known) => (Arc::clone(known.get()), false),
                        Entry::Vacant(new) => (Arc::clone(new.insert(Place::default())), true),
                    }
                };
                let make =
                    || self.known.get(&of_kind).cloned().or_else(|| builder.make(request, &generated).ok());
                if let Some(program) = is_first.then(make).flatten() {
                    let _ = place.set(program);
                }
                done.push(Built {
                    kind: request.kind,
                    point: request.point.clone(),
                    key: is_first.then(|| key.clone()),
                    place,
                });
            }
            done
        };
        let others = std::thread::available_parallelism().map_or(1, NonZero::get).min(BUILDERS) - 1;
        std::thread::scope(|scope| {
            let others: Vec<_> = (0..others).map(|_| scope.spawn(work)).collect();
            let own = work();
            others.into_iter().filter_map(|other| other.join().ok()).flatten().chain(own).collect()
        })
    }
}

fn wants_scratch(request: &Request<'_>, functions: &Functions) -> bool {
    functions.size == 0 || functions.needs.scratch || request.hit_actions.needs_stack()
}
