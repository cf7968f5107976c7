//! Text of records: the print-fmt engine and trace lines.
