//! `events/header_event`: how a record's head looks.

use crate::fs::entry::{Entry, Shows};

/// `ring_buffer_print_entry_header()`, in the kernel's form, which tools parse.
const TEXT: &str = "# compressed entry header\n\
    \ttype_len    :    5 bits\n\
    \ttime_delta  :   27 bits\n\
    \tarray       :   32 bits\n\n\
    \tpadding     : type == 29\n\
    \ttime_extend : type == 30\n\
    \ttime_stamp : type == 31\n\
    \tdata max type_len  == 28\n";

pub(super) const FILE: Entry = Entry::read("header_event", Shows::Once(|_, _| Ok(TEXT.as_bytes().to_vec())));
