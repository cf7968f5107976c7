//! Injection: runs records from user space through an event's program by `BPF_PROG_TEST_RUN`.

use tracer_abi::{INJECT_COMM, INJECT_CPU, INJECT_LENGTH, INJECT_SIZE, MAX_PAYLOAD};

use crate::{
    attach::Cause,
    sys::{Errno, bpf::prog::Prog},
};

/// The writer of a record, which filters can read in addition to the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writer {
    /// The CPU that the writer runs on.
    pub cpu: u32,
    /// The writer's name, padded with NULs.
    pub comm: [u8; 16],
}

/// Runs the program with a context that holds the record, common fields included, and its length and writer. Returns
/// the requests of the event's triggers.
pub(crate) fn run(program: &Prog, record: &[u8], writer: &Writer) -> Result<u64, Cause> {
    let mut context =
        context(record, writer).ok_or(Cause::System("a record of user space", Errno::TOOBIG))?;
    program
        .run(&mut context)
        .map(u64::from)
        .map_err(|errno| Cause::System("test run of the injection program", errno))
}

/// The context for a record; `None` if the record is longer than allowed. The context has a fixed size, so that the
/// verifier's bound holds for every record. Zeroes after the record end every string.
fn context(record: &[u8], writer: &Writer) -> Option<[u8; INJECT_SIZE]> {
    let mut context = [0; INJECT_SIZE];
    context[..MAX_PAYLOAD].get_mut(..record.len())?.copy_from_slice(record);
    context[INJECT_LENGTH..INJECT_CPU].copy_from_slice(&(record.len() as u32).to_ne_bytes());
    context[INJECT_CPU..INJECT_COMM].copy_from_slice(&writer.cpu.to_ne_bytes());
    context[INJECT_COMM..].copy_from_slice(&writer.comm);
    Some(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_and_writer_stand_behind_the_room_for_the_record() {
        let writer = Writer { cpu: 3, comm: [b'c'; 16] };
        let context = context(&[7; 9], &writer).unwrap();
        assert_eq!(context[..10], [7, 7, 7, 7, 7, 7, 7, 7, 7, 0]);
        assert_eq!(
            context[MAX_PAYLOAD..MAX_PAYLOAD + 8],
            [9_u32.to_ne_bytes(), 3_u32.to_ne_bytes()].concat()
        );
        assert_eq!(context[MAX_PAYLOAD + 8..], [b'c'; 16]);
        assert!(super::context(&[1; MAX_PAYLOAD], &writer).is_some());
        assert!(super::context(&[1; MAX_PAYLOAD + 1], &writer).is_none());
    }
}
