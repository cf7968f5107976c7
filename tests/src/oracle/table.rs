//! Parses `hist` files. Rows with equal sort keys may have any order.

/// A table: the trigger line, the rows with the lines below each, and the totals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The line with the trigger.
    pub info: String,
    /// The rows, each with the lines below it.
    pub rows: Vec<String>,
    /// The lines after the rows.
    pub totals: Vec<String>,
}

/// A text of the kernel in which each CPU key has its name once. From 7.2 on, the kernel shows `common_cpu` and then the
/// name as it was written (`hist_field_print()`), a text that it does not accept itself.
pub fn cpu_once(text: &str) -> String {
    ["common_cpu", "CPU", "cpu"]
        .iter()
        .fold(text.to_owned(), |text, name| text.replace(&format!("common_cpu{name}"), "common_cpu"))
}

/// The tables of a `hist` file.
pub fn tables(text: &str) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    let mut is_below = false;
    for line in text.lines() {
        if line == "# event histogram" {
            tables.push(Table::default());
            is_below = false;
        }
        let Some(table) = tables.last_mut() else { continue };
        is_below |= line == "Totals:" || line.starts_with("Snapshot");
        if line.starts_with("# trigger info") {
            line.clone_into(&mut table.info);
        } else if is_below {
            table.totals.push(line.to_owned());
        } else if line.starts_with('{') {
            table.rows.push(line.to_owned());
        } else if let (Some(row), false) = (table.rows.last_mut(), line.is_empty()) {
            row.extend(["\n", line]);
        }
    }
    tables
}

/// Whether two `hist` files show the same: the same number of tables, at least one, and pairwise equal tables.
pub fn same(left: &[Table], right: &[Table]) -> bool {
    !left.is_empty() && left.len() == right.len() && left.iter().zip(right).all(|(l, r)| l.is_as(r))
}

impl Table {
    /// The sort keys of each row. Rows with equal sort keys may have any order.
    fn order(&self) -> Vec<Vec<String>> {
        let sort = self.info.split(":sort=").nth(1).unwrap_or_default();
        let sort = sort.split([':', ' ']).next().unwrap_or_default();
        let names: Vec<&str> =
            sort.split(',').map(|name| name.split('.').next().unwrap_or_default()).collect();
        let of = |row: &String, name: &str| -> String {
            let row = row.lines().next().unwrap_or_default();
            // When a key and a value have the same name, the sort uses the value, which is last.
            let at = row.rfind(&format!(" {name}: ")).map(|at| &row[at + name.len() + 3..]);
            at.and_then(|rest| rest.split([',', '}']).next()).unwrap_or_default().trim_start().to_owned()
        };
        let first = |text: String| text.split("  ").next().unwrap_or_default().to_owned();
        self.rows.iter().map(|row| names.iter().map(|name| first(of(row, name))).collect()).collect()
    }

    /// Whether both tables show the same; rows with equal sort keys may have any order.
    pub fn is_as(&self, other: &Self) -> bool {
        let sorted = |table: &Self| {
            let mut rows = table.rows.clone();
            rows.sort_unstable();
            rows
        };
        self.info == other.info
            && self.totals == other.totals
            && sorted(self) == sorted(other)
            && self.order() == other.order()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_table_is_equal_to_no_table() {
        let text = "# event histogram\n#\n# trigger info: hist:keys=a [active]\n#\n\n{ a: 1 } hitcount: 3\n\nTotals:\n";
        let one = tables(text);
        let two = tables(&[text, text].concat());
        assert!(same(&one, &one) && same(&two, &two));
        assert!(!same(&one, &two) && !same(&two, &one), "one table more");
        assert!(!same(&[], &one) && !same(&one, &[]) && !same(&[], &[]), "nothing is shown by nothing");
    }

    #[test]
    fn tables_are_told_apart() {
        let text = "# event histogram\n#\n# trigger info: hist:keys=a,b:vals=hitcount:sort=b.descending,hitcount:size=128 \
                    [active]\n#\n\n{ a: x  y , b:         12 } hitcount:          3\n\tmax: 1\n{ a: z, b:          1 } \
                    hitcount:          4  c: 3\n\nTotals:\n    Hits: 7\n";
        let table = &tables(text)[0];
        assert_eq!(table.order(), [["12 ", "3"], ["1 ", "4"]]);
        assert_eq!((table.rows.len(), table.totals.len()), (2, 2));
        assert!(table.rows[0].ends_with("\tmax: 1"));
    }
}
