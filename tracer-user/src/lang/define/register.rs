//! Last step of a definition: resolves symbols to addresses, and checks that the kernel accepts a probe at the location
//! (`__register_trace_kprobe()`, `__register_trace_fprobe()`).

use rustix::io::Errno;

use super::super::ctype::split_run;
use super::super::facts::{Arch, Facts, Feature};
use super::super::fetch::Checked;
use super::super::number;
use super::probe::Probe;
use crate::event::dynamic::{Place, Target, latin1};

/// Minimum of the default `maxactive` of a kretprobe (`register_kretprobe()`).
const MAXACTIVE_MIN: u32 = 10;

/// Resolves `@SYMBOL` in the arguments.
pub(super) fn symbols(args: &mut [Checked], facts: &dyn Facts) -> Result<(), Errno> {
    args.iter_mut().try_for_each(|arg| arg.program.resolve(|text| address(text, facts)))
}

/// Splits `SYMBOL[+|-OFFSET]`.
pub(super) fn split_offset(text: &[u8]) -> (&[u8], Result<i64, Errno>) {
    let (symbol, offset) = split_run(text, |byte| !matches!(byte, b'+' | b'-'));
    (symbol, if offset.is_empty() { Ok(0) } else { number::read_signed(offset) })
}

/// Address of `SYMBOL[+|-OFFSET]`.
fn address(text: &[u8], facts: &dyn Facts) -> Result<u64, Errno> {
    let (symbol, offset) = split_offset(text);
    let offset = offset?;
    let address = facts.address(&latin1(symbol)).filter(|address| *address != 0).ok_or(Errno::NOENT)?;
    Ok(address.wrapping_add_signed(offset))
}

/// Checks that the probe can be registered at its location.
pub(super) fn register(probe: &mut Probe, facts: &dyn Facts) -> Result<(), Errno> {
    match &probe.event.target {
        Target::Kernel { place, exit } => {
            match kprobe(&mut probe.args, place, facts) {
                // A missing module may add the symbol later.
                Err(Errno::NOENT) if may_be_loaded_later(place, facts) => return Ok(()),
                checked => checked?,
            }
            if *exit && probe.event.maxactive as i32 <= 0 {
                probe.event.maxactive = MAXACTIVE_MIN.max(2 * facts.possible_cpus());
            }
            Ok(())
        }
        // These are looked up when the event is enabled.
        Target::Function { .. } | Target::Tracepoint { .. }
            if facts.language().has(Feature::RegistrationErrors) =>
        {
            for arg in &mut probe.args {
                let _ = symbols(std::slice::from_mut(arg), facts);
            }
            match &probe.event.target {
                Target::Function { symbol, .. } if !facts.is_traceable(symbol) => Err(Errno::NOENT),
                _ => Ok(()),
            }
        }
        Target::Function { symbol, .. } => {
            let fits = facts.is_traceable(symbol) && probe.event.maxactive as i32 >= 0;
            symbols(&mut probe.args, facts)?;
            if fits { Ok(()) } else { Err(Errno::INVAL) }
        }
        Target::Tracepoint { .. } => symbols(&mut probe.args, facts),
        // A file is probed when its event is enabled. The parser of event probes has already resolved their symbols.
        Target::File { .. } | Target::Event { .. } => Ok(()),
    }
}

fn kprobe(args: &mut [Checked], place: &Place, facts: &dyn Facts) -> Result<(), Errno> {
    symbols(args, facts)?;
    let address = match place {
        Place::Address(address) => *address,
        Place::Symbol { name, offset } => {
            facts.address(name).ok_or(Errno::NOENT)?.wrapping_add(u64::from(*offset))
        }
    };
    facts.probe(address)?;
    // Every arm64 instruction has four bytes (`arch_prepare_kprobe()`).
    if facts.arch() == Arch::Arm64 && !address.is_multiple_of(4) {
        return Err(Errno::INVAL);
    }
    Ok(())
}

fn may_be_loaded_later(place: &Place, facts: &dyn Facts) -> bool {
    match place {
        Place::Address(_) => true,
        Place::Symbol { name, .. } => {
            name.split_once(':').is_some_and(|(module, _)| !facts.has_module(module))
        }
    }
}
