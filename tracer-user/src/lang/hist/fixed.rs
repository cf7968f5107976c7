//! A [`World`] from tables, for tests and fuzzing.

use std::sync::Arc;

use super::super::filter::{self, FilterError};
use super::super::synth;
use super::{Dialect, World};
use crate::event::{Format, synthetic};

/// Events, synthetic events and language features.
#[derive(Clone, Debug, Default)]
pub struct Fixed {
    /// Language features.
    pub dialect: Dialect,
    /// Existing events.
    pub events: Vec<Arc<Format>>,
    /// Existing synthetic events.
    pub synthetic: synth::Set,
}

impl Fixed {
    /// Two events with a field of each kind, for `onmatch()` tests.
    pub fn small() -> Self {
        let common = "name: NAME\nID: 1\nformat:\n\
            \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
            \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
            \tfield:char comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\
            \tfield:pid_t pid;\toffset:24;\tsize:4;\tsigned:1;\n\
            \tfield:u64 bytes;\toffset:32;\tsize:8;\tsigned:0;\n\
            \tfield:__data_loc char[] name;\toffset:40;\tsize:4;\tsigned:0;\n\
            \tfield:unsigned long args[6];\toffset:48;\tsize:48;\tsigned:0;\n\
            \tfield:const char * text;\toffset:96;\tsize:8;\tsigned:0;\n\
            \tfield:u8 prio;\toffset:104;\tsize:1;\tsigned:0;\n\n\
            print fmt: \"\"\n";
        let event = |name| Format::parse("test", &common.replace("NAME", name)).ok().map(Arc::new);
        let events = ["start", "end"].into_iter().filter_map(event).collect();
        let mut synthetic = synth::Set::default();
        let _ = synthetic.apply(b"lat u64 delta; pid_t pid; char comm[16]", synth::File::Synthetic);
        let _ = synthetic.apply(b"any char name[]", synth::File::Synthetic);
        Self { dialect: Dialect::newest(), events, synthetic }
    }
}

impl World for Fixed {
    fn dialect(&self) -> Dialect {
        self.dialect
    }

    fn event(&self, system: &str, name: &str) -> Option<Arc<Format>> {
        self.events.iter().find(|event| event.system == system && event.name == name).cloned()
    }

    fn synthetic(&self, name: &str) -> Option<Arc<synthetic::Event>> {
        self.synthetic.find(name).cloned()
    }

    fn has_clock(&self, name: &[u8]) -> bool {
        matches!(name, b"local" | b"global" | b"mono")
    }

    fn filter(&self, _event: &Format, text: &[u8]) -> Result<(), FilterError> {
        filter::parse(text, &filter::Dialect::newest()).map(|_| ())
    }
}
