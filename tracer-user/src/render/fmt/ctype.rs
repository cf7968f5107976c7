//! C types for print fmts, in the LP64 ABI of all 64-bit kernels.

/// A scalar type of a C expression's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CType {
    /// Bytes: 1, 2, 4 or 8.
    pub size: u8,
    /// Whether its sign extends.
    pub signed: bool,
}

impl CType {
    pub(super) const INT: Self = Self { size: 4, signed: true };
    pub(super) const UINT: Self = Self { size: 4, signed: false };
    pub(super) const LONG: Self = Self { size: 8, signed: true };
    pub(super) const ULONG: Self = Self { size: 8, signed: false };
    pub(super) const U8: Self = Self { size: 1, signed: false };

    /// The type after integer promotion.
    pub(super) fn promoted(self) -> Self {
        if self.size < 4 { Self::INT } else { self }
    }

    /// The common type of two operands (the usual arithmetic conversions).
    pub(super) fn common(self, other: Self) -> Self {
        let (a, b) = (self.promoted(), other.promoted());
        match a.size.cmp(&b.size) {
            std::cmp::Ordering::Greater => a,
            std::cmp::Ordering::Less => b,
            std::cmp::Ordering::Equal => Self { size: a.size, signed: a.signed && b.signed },
        }
    }

    /// Whether every value of another type is stored the same in this type.
    pub(super) fn contains(self, other: Self) -> bool {
        self.size == 8 || self == other || (other.size < self.size && (!other.signed || self.signed))
    }

    /// Truncates a value to the type and extends it to 64 bits by its sign; all values are stored this way.
    pub(crate) fn wrap(self, value: u64) -> u64 {
        match (self.size, self.signed) {
            (1, true) => i64::from(value as i8) as u64,
            (1, false) => u64::from(value as u8),
            (2, true) => i64::from(value as i16) as u64,
            (2, false) => u64::from(value as u16),
            (4, true) => i64::from(value as i32) as u64,
            (4, false) => u64::from(value as u32),
            _ => value,
        }
    }

    /// Reads a value of the type from the start of these bytes; `None` if there are too few.
    #[inline]
    pub(crate) fn load(self, bytes: &[u8]) -> Option<u64> {
        Some(match (self.size, self.signed) {
            (1, false) => u64::from(*bytes.first()?),
            (1, true) => i64::from(bytes.first()?.cast_signed()).cast_unsigned(),
            (2, false) => u64::from(u16::from_ne_bytes(*bytes.first_chunk()?)),
            (2, true) => i64::from(i16::from_ne_bytes(*bytes.first_chunk()?)).cast_unsigned(),
            (4, false) => u64::from(u32::from_ne_bytes(*bytes.first_chunk()?)),
            (4, true) => i64::from(i32::from_ne_bytes(*bytes.first_chunk()?)).cast_unsigned(),
            _ => u64::from_ne_bytes(*bytes.first_chunk()?),
        })
    }
}

/// The type of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Int(CType),
    Ptr(Box<Type>),
    /// Elements in memory; decays to a pointer to the first.
    Array(Box<Type>),
    /// `struct NAME` or `union NAME`.
    Aggregate(String),
    /// `void`, and unknown types.
    Void,
}

impl Type {
    /// `char *`
    pub(super) fn text() -> Self {
        Self::Ptr(Box::new(Self::Int(CType { size: 1, signed: true })))
    }

    /// The scalar type of a value; pointers count as `unsigned long`.
    pub(super) fn scalar(&self) -> CType {
        match self {
            Self::Int(ty) => *ty,
            _ => CType::ULONG,
        }
    }

    /// The target type of a pointer or an array.
    pub(super) fn target(&self) -> Option<&Type> {
        match self {
            Self::Ptr(target) | Self::Array(target) => Some(target),
            _ => None,
        }
    }
}

/// The basic type named by C keywords or a kernel typedef.
pub(super) fn named(name: &str) -> Option<CType> {
    let signed = |size| Some(CType { size, signed: true });
    let unsigned = |size| Some(CType { size, signed: false });
    // Leading underscores distinguish the exported header's name from the kernel's own name of the same type.
    match name.trim_start_matches('_') {
        "u8" | "uint8_t" | "be8" | "u_char" | "unchar" | "u_int8_t" | "Bool" | "bool" | "blk_status_t" => {
            unsigned(1)
        }
        "s8" | "int8_t" => signed(1),
        "u16" | "uint16_t" | "le16" | "be16" | "umode_t" | "ushort" | "sum16" | "u_int16_t" | "u_short" => {
            unsigned(2)
        }
        "s16" | "int16_t" => signed(2),
        "u32" | "uint32_t" | "le32" | "be32" | "uint" | "u_int" | "gfp_t" | "dev_t" | "fmode_t" | "wsum"
        | "blk_opf_t" | "slab_flags_t" | "uid_t" | "gid_t" | "projid_t" | "kernel_dev_t" | "poll_t"
        | "vm_fault_t" | "isolate_mode_t" | "qid_t" | "u_int32_t" | "req_flags_t" | "blk_mq_req_flags_t"
        | "rpc_authflavor_t" | "xfs_agnumber_t" | "xfs_agblock_t" | "xfs_extlen_t" => unsigned(4),
        "s32" | "int32_t" | "pid_t" | "kernel_rwf_t" | "rwf_t" | "key_serial_t" | "clockid_t" | "key_t"
        | "kernel_pid_t" | "mqd_t" | "timer_t" => signed(4),
        "u64" | "uint64_t" | "le64" | "be64" | "ulong" | "u_long" | "size_t" | "sector_t" | "ino_t"
        | "dma_addr_t" | "phys_addr_t" | "resource_size_t" | "pgoff_t" | "uintptr_t" | "blkcnt_t"
        | "netdev_features_t" | "kernel_size_t" | "pteval_t" | "gpa_t" | "gva_t" | "gfn_t" | "hpa_t"
        | "xfs_ino_t" | "xfs_fsblock_t" | "xfs_filblks_t" | "xfs_fileoff_t" | "vm_flags_t"
        | "kernel_ulong_t" | "cycles_t" | "u_int64_t" => unsigned(8),
        "s64" | "int64_t" | "ssize_t" | "loff_t" | "off_t" | "ktime_t" | "intptr_t" | "ptrdiff_t"
        | "time64_t" | "kernel_loff_t" | "kernel_long_t" | "clock_t" | "time_t" | "xfs_lsn_t"
        | "xfs_off_t" | "xfs_daddr_t" => signed(8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_follow_c() {
        let u16 = CType { size: 2, signed: false };
        assert_eq!(u16.common(u16), CType::INT);
        assert_eq!(CType::INT.common(CType::UINT), CType::UINT);
        assert_eq!(CType::UINT.common(CType::LONG), CType::LONG);
        assert_eq!(CType::LONG.common(CType::ULONG), CType::ULONG);
        assert_eq!(CType::INT.wrap(0x8000_0000), 0xffff_ffff_8000_0000);
        assert_eq!(CType::UINT.wrap(u64::MAX), 0xffff_ffff);
    }
}
