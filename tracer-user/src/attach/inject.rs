//! Injection: records of user space run through an event's program by `BPF_PROG_TEST_RUN`.

use tracer_abi::MAX_PAYLOAD;

use super::Cause;
use crate::sys::prog::Prog;

/// Runs the program with the record, common fields included, as its context.
pub(super) fn run(program: &Prog, record: &[u8]) -> Result<(), Cause> {
    // The context has one size, so that the verifier's bound holds for every record.
    let mut context = [0; MAX_PAYLOAD];
    let length = record.len().min(MAX_PAYLOAD);
    context[..length].copy_from_slice(&record[..length]);
    program
        .run(&mut context)
        .map(drop)
        .map_err(|errno| Cause::System("test run of the injection program", errno))
}
