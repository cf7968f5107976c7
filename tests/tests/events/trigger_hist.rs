//! Histograms among other triggers, in the mirror and in the kernel's tracefs, during the same hits.

use tracer_tests::host;
use tracer_tests::triggers::{
    ENABLE, FILTER, ON, OTHER, OTHER_ENABLE, OTHER_NAME, Pair, Step, TRIGGER, play, play_last,
};

// One line per scenario.
#[rustfmt::skip]
#[test]
fn histograms_and_triggers_of_one_event_agree_with_the_kernel() {
    use Step::{Group, Session, To};
    host::as_root(|| {
        let pair = Pair::new("among")?;
        if !pair.hists {
            host::skip("own_hist", "the kernel has no histograms");
            return Ok(());
        }
        let switch = |on: &str, rest: &str| format!("{on}_hist:{OTHER_NAME}{rest}");
        let own = rustix::thread::gettid().as_raw_nonzero().to_string();
        // Several histograms of one event: paused, resumed, cleared and removed.
        play(&pair, &[To(TRIGGER, "hist:keys=pid:sort=pid"), To(TRIGGER, "hist:keys=pid:vals=pid:sort=pid.descending if pid > 2"),
            To(TRIGGER, "traceoff:0"), Group(1), Group(3), Group(3), To(TRIGGER, "hist:keys=pid:pause:sort=pid"), Group(4),
            To(TRIGGER, "hist:keys=pid:cont:sort=pid"), Group(5), To(TRIGGER, "hist:keys=pid:clear:sort=pid"), Group(6),
            To(TRIGGER, "!hist:keys=pid:sort=pid"), Group(7), To(TRIGGER, "hist:keys=pid:nohitcount:vals=pid:sort=pid"), Group(8),
            To(TRIGGER, "hist:keys=pid:sort=pid"), To(TRIGGER, "hist:keys=pid:continue:sort=pid"), To(TRIGGER, "!traceoff")]);
        // Enables and disables the event as well. Its filter and `tracing_on` do not affect histograms.
        play(&pair, &[To(TRIGGER, "hist:keys=pid.buckets=10:sort=pid"), To(ENABLE, "1"), Group(1), To(ENABLE, "0"), Group(2),
            To(FILTER, "pid > 9"), To(ENABLE, "1"), Group(3), Group(12), To(ON, "0"), Group(4), To(FILTER, "0"),
            To(TRIGGER, "hist:keys=pid.log2:vals=pid.percent:sort=pid"), To(ON, "1"), Group(5), Group(700), To(ENABLE, "0")]);
        // Histograms ignore untraced threads. Other triggers of the event then read the record too.
        play(&pair, &[To(TRIGGER, "hist:keys=pid:sort=pid"), To(OTHER_ENABLE, "1"), To(TRIGGER, &format!("disable_event:{OTHER_NAME}")),
            To("set_event_notrace_pid", &own), Group(1), Session(1), To("set_event_notrace_pid", ""), Group(2), Session(2)]);
        // Other events enable and pause histograms.
        play(&pair, &[To(OTHER, "hist:keys=pid:pause:sort=pid"), To(TRIGGER, &switch("enable", ":1")), Session(1), Group(1), Session(2),
            To(OTHER, "hist:keys=pid:pause:sort=pid"), Group(2), Session(3), To(TRIGGER, &switch("disable", ""))]);
        play(&pair, &[To(OTHER, "hist:keys=pid:sort=pid"), To(OTHER, "hist:keys=pid:vals=pid:pause:sort=pid"), To(TRIGGER,
            &switch("disable", ":2 if pid > 2")), Group(1), Session(1), Group(3), Session(2), To(OTHER, "hist:keys=pid:cont:sort=pid"),
            Session(3), To(OTHER, "hist:keys=pid.hex:sort=pid"), Session(4), Group(4), Session(5), Group(5), To(OTHER,
            "hist:keys=pid:cont:sort=pid"), Session(6), To(TRIGGER, &format!("!{}", switch("enable", "")))]);
        // The triggers refer to an event without histograms, and to the event itself.
        play(&pair, &[To(TRIGGER, &switch("disable", "")), To(OTHER_ENABLE, "1"), Group(1), Session(1), To(OTHER,
            "hist:keys=pid:sort=pid"), Session(2), Group(2), Session(3), To(OTHER_ENABLE, "0"), Session(4)]);
        play(&pair, &[To(OTHER, "hist:keys=pid:sort=pid"), To(OTHER, "hist:keys=pid:vals=pid:sort=pid"), To(TRIGGER, "traceoff"), Session(1),
            To(OTHER, "!hist:keys=pid:sort=pid"), To(OTHER, "!hist:keys=pid:vals=pid:sort=pid"), Session(2), Group(1)]);
        // Full tables, percentages, bars, powers of two, and no hit count.
        let many = |first: Step<'static>| -> Vec<Step<'static>> {
            [first].into_iter().chain((1..=150).map(Group)).chain([Group(1), Group(149)]).collect()
        };
        play_last(&pair, &many(To(TRIGGER, "hist:keys=pid:size=100:sort=pid")));
        play_last(&pair, &many(To(TRIGGER, "hist:keys=pid.log2:vals=pid.percent,pid.graph,hitcount.percent:sort=pid.descending")));
        play_last(&pair, &many(To(TRIGGER, "hist:keys=pid.buckets=32:vals=pid.graph,hitcount.graph:nohitcount:sort=pid")));
        play_last(&pair, &many(To(TRIGGER, "hist:keys=pid.hex,common_pid:vals=pid.hex:sort=pid:size=512 if pid & 1")));
        Ok(())
    });
}
