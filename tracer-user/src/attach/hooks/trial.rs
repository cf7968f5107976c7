//! Trial links, which show whether the kernel has a kind of link.

use std::os::fd::OwnedFd;

use crate::{
    attach::program::load,
    sys::{
        Errno,
        bpf::prog::{Prog, ProgKind, Purpose},
    },
};

/// Whether `link` fails for a program of this purpose as on kernels that have such links.
pub(super) fn has_links(
    kind: ProgKind,
    purpose: Purpose<'_>,
    link: impl FnOnce(&Prog) -> Result<OwnedFd, Errno>,
    refusal: Errno,
) -> bool {
    let program = Prog::load_for(kind, purpose, &load::nothing("trial").bytes(), "trial");
    program.is_ok_and(|program| link(&program).err() == Some(refusal))
}
