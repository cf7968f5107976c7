//! A histogram as JSON: its command, its entries in their order, and totals.

use serde_json::{Map, Value as Json, json};

use super::{SHOWN_BEFORE_STACKS, Shower, Table, order};
use crate::{
    lang::hist::{Flags, Trigger, Value},
    plan::hist::{Layout, word},
    render::{hist::HistEnv, printf::pointer},
};

/// Converts one histogram. A key with a modifier that changes its form (a symbol or a range) is the text of the `hist`
/// file. Sums are always numbers.
pub fn object(trigger: &Trigger, table: &Table, env: &dyn HistEnv) -> Json {
    let shower = Shower::new(&trigger.hist, table, env);
    let rows = order::sorted(&trigger.hist, &shower.layout, &table.rows);
    let rows: Vec<Json> = rows.into_iter().map(|row| shower.object(row)).collect();
    json!({
        "event": trigger.event.full_name(),
        "trigger": text(trigger.read_back().trim_ascii_end()),
        "rows": rows,
        "hits": table.hits,
        "entries": table.rows.len(),
        "dropped": table.drops,
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Shower<'_> {
    fn object(&self, (key, entry): &(Vec<u8>, Vec<u8>)) -> Json {
        let comm = self.layout.comm_of(entry);
        let keys = self.hist.keys().iter().zip(&self.layout.keys);
        let keys: Map<String, Json> = keys
            .map(|(value, part)| (text(&value.shown_name()), self.key_json(value, part.of_key(key), comm)))
            .collect();
        let mut row = Map::new();
        row.insert("key".to_owned(), keys.into());
        if !self.hist.no_hitcount {
            row.insert("hitcount".to_owned(), Layout::sum(entry, 0).into());
        }
        let values = self.hist.fields.iter().take(self.layout.sums).enumerate().skip(1);
        let values: Map<String, Json> = values
            .filter(|(_, value)| !value.flags.has(Flags::EXPR))
            .map(|(at, value)| (text(&value.shown_name()), Layout::sum(entry, at).into()))
            .collect();
        if !values.is_empty() {
            row.insert("values".to_owned(), values.into());
        }
        for (name, tracked) in self.tracked() {
            row.insert(name.to_owned(), self.layout.variable(entry, tracked.slot).into());
            let saved: Map<String, Json> = self
                .hist
                .saved
                .iter()
                .map(|(variable, value)| {
                    let name = text(variable.variable.as_deref().unwrap_or_default());
                    let number = self.layout.variable(entry, variable.slot.at);
                    let is_text = value.flags.has(Flags::STRING);
                    let known = self.layout.text(entry, variable.slot.at).filter(|_| is_text);
                    (name, known.map_or_else(|| number.into(), |known| text(known).into()))
                })
                .collect();
            row.insert("saved".to_owned(), saved.into());
        }
        row.into()
    }

    fn key_json(&self, value: &Value, part: &[u8], comm: &[u8]) -> Json {
        let is = |flags| value.flags.has(flags);
        if is(Flags::STACKTRACE) && !is(SHOWN_BEFORE_STACKS) {
            let mut out = Vec::new();
            self.stack(&mut out, value, part);
            let lines = text(&out);
            // The name precedes the first line.
            return lines.lines().skip(1).map(|line| Json::from(line.trim())).collect();
        }
        let formed = SHOWN_BEFORE_STACKS.and(Flags::LOG2).and(Flags::BUCKET);
        if is(Flags::STRING) {
            return text(pointer::until_nul(part)).into();
        }
        let shown = word(part, 0);
        if !is(formed) {
            return shown.into();
        }
        let mut out = Vec::new();
        self.key_part(&mut out, value, part, comm);
        let lead = value.shown_name().len() + 2;
        text(out.get(lead..).unwrap_or_default()).trim().into()
    }
}
