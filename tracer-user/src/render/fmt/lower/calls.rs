//! Helpers that print fmts call: the macros of `include/trace/stages/stage3_trace_output.h`, and the few kernel
//! functions that need only the record.

use super::{Lower, Result, Type, Value};
use crate::render::fmt::ast::{Binary, Expr};
use crate::render::fmt::ctype::CType;
use crate::render::fmt::program::{Dump, Entry, Id, Node, Run};

/// Nanoseconds per second, as the kernel's constant of this name.
const NSEC_PER_SEC: u64 = 1_000_000_000;

impl Lower<'_> {
    pub(super) fn call(&mut self, name: &str, args: &[Expr]) -> Result<Value> {
        match (name, args) {
            ("__print_flags" | "__print_flags_u64", [value, delimiter, items @ ..]) => {
                let value = self.expr(value)?.id;
                // With a null delimiter nothing separates the names.
                let delimiter = if let Expr::Text(text) = delimiter { text.as_slice() } else { &[] };
                let delimiter = self.text(delimiter);
                let table = self.entries(items)?;
                Ok(self.printed(Node::Flags { value, delimiter, table }))
            }
            ("__print_symbolic" | "__print_symbolic_u64", [value, items @ ..]) => {
                let value = self.expr(value)?.id;
                let table = self.entries(items)?;
                Ok(self.printed(Node::Symbolic { value, table, other: None }))
            }
            ("__get_str" | "__get_rel_str", [Expr::Name(field)]) => {
                let id = self.data(field)?;
                Ok(Value { id, ty: Type::text() })
            }
            (
                "__get_dynamic_array" | "__get_rel_dynamic_array" | "__get_sockaddr" | "__get_rel_sockaddr",
                [Expr::Name(field)],
            ) => {
                let id = self.data(field)?;
                Ok(Value { id, ty: Type::Ptr(Box::new(Type::Void)) })
            }
            ("__get_dynamic_array_len" | "__get_rel_dynamic_array_len", [Expr::Name(field)]) => {
                let id = self.data_length(field)?;
                Ok(Value { id, ty: Type::Int(CType::INT) })
            }
            (
                "__get_bitmask" | "__get_rel_bitmask" | "__get_cpumask" | "__get_rel_cpumask",
                [Expr::Name(field)],
            ) => {
                let address = self.data(field)?;
                let length = self.data_length(field)?;
                Ok(self.printed(Node::Bitmask { address, length }))
            }
            ("__print_hex" | "__print_hex_str", [address, length]) => {
                let (address, length) = (self.expr(address)?.id, self.expr(length)?.id);
                Ok(self.printed(Node::Hex { address, length, joined: name == "__print_hex_str" }))
            }
            ("__print_array", [address, count, size]) => {
                let (address, count, size) =
                    (self.expr(address)?.id, self.expr(count)?.id, self.expr(size)?.id);
                Ok(self.printed(Node::Array { address, count, size }))
            }
            ("__print_dynamic_array", [Expr::Name(field), size]) => {
                let address = self.data(field)?;
                let length = self.data_length(field)?;
                let size = self.expr(size)?.id;
                let count = self.arithmetic(Binary::Div, length, size, CType::ULONG);
                Ok(self.printed(Node::Array { address, count, size }))
            }
            ("__trace_print_untrusted_str", [_, text, length]) => {
                let (address, length) = (self.expr(text)?.id, self.expr(length)?.id);
                Ok(self.printed(Node::Escaped { address, length }))
            }
            ("__trace_landlock_print_layers", [_, Expr::Call(array, of), count, Expr::Name(names), _])
                if array == "__get_dynamic_array" =>
            {
                let [Expr::Name(field)] = of.as_slice() else { return Err("no array of masks".into()) };
                let (address, length) = (self.data(field)?, self.data_length(field)?);
                let count = self.expr(count)?.id;
                let table = self.tables.iter().rfind(|(name, _)| name == names).map(|(_, table)| *table);
                let table = table.ok_or_else(|| format!("there is no table {names}"))?;
                Ok(self.printed(Node::Layers { address, length, count, table }))
            }
            ("nvme_trace_disk_name", [_, name]) => {
                let address = self.expr(name)?.id;
                Ok(self.printed(Node::Disk { address }))
            }
            ("__print_hex_dump", [prefix, kind, row, group, address, length, ascii]) => {
                let dump = Dump {
                    prefix: self.expr(prefix)?.id,
                    kind: self.dump_kind(kind)?,
                    row: self.expr(row)?.id,
                    group: self.expr(group)?.id,
                    address: self.expr(address)?.id,
                    length: self.expr(length)?.id,
                    ascii: self.expr(ascii)?.id,
                };
                self.program.dumps.push(dump);
                Ok(self.printed(Node::HexDump((self.program.dumps.len() - 1) as u32)))
            }
            ("__print_ns_to_secs" | "__print_ns_without_secs", [value]) => {
                let value = self.expr(value)?.id;
                let second = self.push(Node::Const(NSEC_PER_SEC));
                let whole = name == "__print_ns_to_secs";
                let op = if whole { Binary::Div } else { Binary::Rem };
                let id = self.arithmetic(op, value, second, CType::ULONG);
                Ok(Value { id, ty: Type::Int(if whole { CType::ULONG } else { CType::UINT }) })
            }
            ("__builtin_expect", [value, _]) | ("PTR_ERR" | "ERR_PTR", [value]) => {
                let value = self.expr(value)?;
                Ok(self.convert(&value, Type::Int(CType::LONG)))
            }
            ("__builtin_choose_expr", [condition, then, otherwise]) => {
                self.cond(condition, Some(then), otherwise)
            }
            ("__builtin_constant_p", [_]) => Ok(self.number(0, CType::INT)),
            ("trace_seq_buffer_ptr", [_]) => Ok(self.value(Node::ScratchEnd, Type::text())),
            ("trace_seq_printf", [_, Expr::Text(format), args @ ..]) => self.print(format, args),
            ("trace_seq_putc", [_, byte]) => self.print(b"%c", std::slice::from_ref(byte)),
            ("jiffies_to_msecs" | "jiffies_to_usecs", [value]) => {
                let value = self.expr(value)?;
                self.jiffies_to(&value, if name == "jiffies_to_msecs" { 1000 } else { 1_000_000 })
            }
            ("mc_event_error_type", [value]) => self.error_type(value),
            (
                "ntohs" | "htons" | "__be16_to_cpu" | "be16_to_cpu" | "__builtin_bswap16" | "__fswab16"
                | "__swab16" | "__ntohs",
                [value],
            ) => self.swap(value, 2),
            (
                "ntohl" | "htonl" | "__be32_to_cpu" | "be32_to_cpu" | "__builtin_bswap32" | "__fswab32"
                | "__swab32" | "__ntohl",
                [value],
            ) => self.swap(value, 4),
            ("__be64_to_cpu" | "be64_to_cpu" | "__builtin_bswap64" | "__fswab64" | "__swab64", [value]) => {
                self.swap(value, 8)
            }
            // A page table entry is a struct of one word, which the record stores as that word.
            (
                "le16_to_cpu" | "le32_to_cpu" | "le64_to_cpu" | "pte_val" | "pmd_val" | "pud_val" | "p4d_val"
                | "pgd_val" | "native_make_pte" | "native_make_pmd" | "native_make_pud" | "native_make_p4d"
                | "native_make_pgd",
                [value],
            ) => self.expr(value),
            ("IS_ERR" | "IS_ERR_VALUE", [value]) => {
                let value = self.expr(value)?.id;
                let limit = self.push(Node::Const(0xffff_ffff_ffff_f001));
                let id = self.arithmetic(Binary::Ge, value, limit, CType::ULONG);
                Ok(Value { id, ty: Type::Int(CType::INT) })
            }
            _ => Err(format!("calls {name}(), which runs only in the kernel")),
        }
    }

    /// Adds to the text that a block prints.
    fn print(&mut self, format: &[u8], args: &[Expr]) -> Result<Value> {
        let segs = self.segs(format, args)?;
        let pieces = Run::append(&mut self.program.segs, segs);
        Ok(self.value(Node::Print(pieces), Type::Void))
    }

    /// A printing node, whose value is the printed text.
    fn printed(&mut self, node: Node) -> Value {
        self.value(node, Type::text())
    }

    fn data(&mut self, name: &str) -> Result<Id> {
        let field = self.find(name)?;
        if field.is_data_loc() || field.is_rel_loc() {
            return Ok(self.push(Node::Data { offset: field.offset as u32, relative: field.is_rel_loc() }));
        }
        Err(format!("the field {name} has no data after the record"))
    }

    fn data_length(&mut self, name: &str) -> Result<Id> {
        let field = self.find(name)?;
        Ok(self.push(Node::DataLength { offset: field.offset as u32 }))
    }

    fn dump_kind(&mut self, kind: &Expr) -> Result<Id> {
        // The enum of include/linux/printk.h; events use its constants by name.
        let value = match kind {
            Expr::Name(name) if name == "DUMP_PREFIX_NONE" => 0,
            Expr::Name(name) if name == "DUMP_PREFIX_ADDRESS" => 1,
            Expr::Name(name) if name == "DUMP_PREFIX_OFFSET" => 2,
            other => return Ok(self.expr(other)?.id),
        };
        Ok(self.push(Node::Const(value)))
    }

    fn jiffies_to(&mut self, value: &Value, units: u64) -> Result<Value> {
        let hz = self.facts.hz().filter(|hz| *hz > 0).map(u64::from).ok_or("the kernel's HZ is not known")?;
        let value = self.convert(value, Type::Int(CType::ULONG));
        let id = if units.is_multiple_of(hz) {
            let factor = self.push(Node::Const(units / hz));
            self.arithmetic(Binary::Mul, value.id, factor, CType::ULONG)
        } else {
            let units = self.push(Node::Const(units));
            let hz = self.push(Node::Const(hz));
            let product = self.arithmetic(Binary::Mul, value.id, units, CType::ULONG);
            self.arithmetic(Binary::Div, product, hz, CType::ULONG)
        };
        let value = Value { id, ty: Type::Int(CType::ULONG) };
        Ok(self.convert(&value, Type::Int(CType::UINT)))
    }

    /// `mc_event_error_type()`, include/linux/edac.h.
    fn error_type(&mut self, value: &Expr) -> Result<Value> {
        let value = self.expr(value)?.id;
        let names = ["Corrected", "Uncorrected", "Deferred", "Fatal"];
        let names = names.map(|name| self.text(name.as_bytes()));
        let entries = (0..).zip(names).map(|(value, name)| Entry { value, name });
        let table = Run::append(&mut self.program.entries, entries);
        let other = Some(self.text(b"Info"));
        Ok(self.printed(Node::Symbolic { value, table, other }))
    }

    fn swap(&mut self, value: &Expr, size: u8) -> Result<Value> {
        let value = self.expr(value)?.id;
        let ty = CType { size, signed: false };
        if cfg!(target_endian = "big") {
            return Ok(Value { id: value, ty: Type::Int(ty) });
        }
        Ok(self.value(Node::Swap { value, size }, Type::Int(ty)))
    }
}
