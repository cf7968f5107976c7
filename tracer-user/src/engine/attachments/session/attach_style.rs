//! How hits reach the programs of a session: through gates, so that programs can be replaced while events fire, or
//! directly.

use crate::attach::{AttachPoint, Dispatch};

/// How the programs of a session are attached.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AttachStyle {
    /// Whether programs are never replaced.
    fixed: bool,
    /// Whether events share programs although they are fixed, because there are many.
    shares: bool,
}

impl AttachStyle {
    pub(crate) fn new(fixed: bool) -> Self {
        Self { fixed, shares: false }
    }

    pub(crate) fn share(&mut self) {
        self.shares = true;
    }

    /// How hits reach the program of an event at a hook.
    pub(super) fn event(self, point: &AttachPoint) -> Dispatch {
        let shares = self.shares && point.shares();
        // The events of a program share one gate for all places.
        if !self.fixed || shares || matches!(point, AttachPoint::Uprobe(_)) {
            Dispatch::Table
        } else {
            Dispatch::Direct
        }
    }

    /// How hits reach the program of a probe.
    pub(super) fn probe(self) -> Dispatch {
        if self.fixed { Dispatch::Direct } else { Dispatch::Gate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_programs_need_no_gate() {
        let (perf, raw) = (AttachPoint::Tracepoint(1), AttachPoint::RawTracepoint("x".to_owned()));
        let changing = AttachStyle::new(false);
        assert_eq!((changing.event(&raw), changing.probe()), (Dispatch::Table, Dispatch::Gate));
        let mut fixed = AttachStyle::new(true);
        assert_eq!((fixed.event(&perf), fixed.probe()), (Dispatch::Direct, Dispatch::Direct));
        fixed.share();
        assert_eq!((fixed.event(&perf), fixed.event(&raw)), (Dispatch::Table, Dispatch::Direct));
    }
}
