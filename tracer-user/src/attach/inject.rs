//! Injection: records of user space run through an event's program by `BPF_PROG_TEST_RUN`.

use tracer_abi::{INJECT_LENGTH, INJECT_SIZE, MAX_PAYLOAD};

use super::Cause;
use crate::sys::{Errno, prog::Prog};

/// Runs the program with the record, common fields included, and its length as its context. What it gives is what the
/// event's triggers ask for.
pub(super) fn run(program: &Prog, record: &[u8]) -> Result<u64, Cause> {
    let mut context = context(record).ok_or(Cause::System("a record of user space", Errno::TOOBIG))?;
    program
        .run(&mut context)
        .map(u64::from)
        .map_err(|errno| Cause::System("test run of the injection program", errno))
}

/// The context for a record; None when it is longer than any record may be. The context has one size, so that the
/// verifier's bound holds for every record, and zeroes behind the record end every string.
fn context(record: &[u8]) -> Option<[u8; INJECT_SIZE]> {
    let mut context = [0; INJECT_SIZE];
    context[..MAX_PAYLOAD].get_mut(..record.len())?.copy_from_slice(record);
    context[INJECT_LENGTH..INJECT_LENGTH + 4].copy_from_slice(&(record.len() as u32).to_ne_bytes());
    Some(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_stands_behind_the_room_for_the_record() {
        let context = context(&[7; 9]).unwrap();
        assert_eq!(context[..10], [7, 7, 7, 7, 7, 7, 7, 7, 7, 0]);
        assert_eq!(context[MAX_PAYLOAD..], [9_u32.to_ne_bytes(), [0; 4]].concat());
        assert!(super::context(&[1; MAX_PAYLOAD]).is_some());
        assert!(super::context(&[1; MAX_PAYLOAD + 1]).is_none());
    }
}
