//! Trial links, which show whether the kernel has a kind of link.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::{
    attach::program::load,
    sys::{
        Errno,
        bpf::{
            feature::{self, Trial},
            prog::ProgKind,
        },
    },
};

/// Whether `link` fails for a program of this attach type as on kernels that have such links.
pub(super) fn has_links(
    attach_type: u32,
    link: fn(BorrowedFd<'_>) -> Result<OwnedFd, Errno>,
    refusal: Errno,
) -> bool {
    let insns = load::nothing("trial").bytes();
    let trial =
        Trial { kind: ProgKind::Kprobe as u32, attach_type, attach_btf_id: 0, flags: 0, insns: &insns };
    feature::load(&trial).is_ok_and(|program| link(program.as_fd()).err() == Some(refusal))
}
