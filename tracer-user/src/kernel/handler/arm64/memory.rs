//! Loads and stores of arm64.

use super::Step;
use crate::kernel::handler::{
    text::Unfollowed,
    value::{Operation, Value},
};

impl Step<'_> {
    /// Loads and stores.
    pub(super) fn memory(&mut self) -> Result<(), Unfollowed> {
        // Registers for numbers with a fraction
        if self.is_set(26) {
            return Err(self.unknown());
        }
        match self.bits(29, 27) {
            0b101 => self.pair(),
            0b111 => self.single(),
            // LDR from near the instruction
            0b011 if self.bits(31, 30) < 0b10 && self.bits(25, 24) == 0 => {
                let size = if self.bits(31, 30) == 0 { 4 } else { 8 };
                let at = self.path.at.wrapping_add_signed(self.signed_bits(23, 5) << 2);
                let value = Value::Const(at).load(size);
                self.set(0, value);
                Ok(())
            }
            // LDAR
            0b001 if self.bits(25, 24) == 0 && self.bits(23, 21) == 0b110 && self.is_set(15) => {
                let value = self.path.load(self.base(5), 1 << self.bits(31, 30));
                self.set(0, value);
                Ok(())
            }
            _ => Err(self.unknown()),
        }
    }

    /// LDP and STP
    fn pair(&mut self) -> Result<(), Unfollowed> {
        let size = match self.bits(31, 30) {
            0b00 => 4,
            0b10 => 8,
            _ => return Err(self.unknown()),
        };
        let offset = self.signed_bits(21, 15) * i64::from(size);
        let base = self.base(5);
        let moved = base.clone().plus(offset);
        let (at, after) = match self.bits(24, 23) {
            0b01 => (base, Some(moved)),
            0b10 => (moved, None),
            0b11 => (moved.clone(), Some(moved)),
            _ => return Err(self.unknown()),
        };
        let second = at.clone().plus(i64::from(size));
        if self.is_set(22) {
            let (one, two) = (self.path.load(at, size), self.path.load(second, size));
            self.set(0, one);
            self.set(10, two);
        } else {
            let (one, two) = (self.value(0), self.value(10));
            self.path.store(&at, size, one)?;
            self.path.store(&second, size, two)?;
        }
        self.move_base(after);
        Ok(())
    }

    fn move_base(&mut self, to: Option<Value>) {
        if let Some(to) = to {
            let base = self.bits(9, 5) as usize;
            self.path.set(base, to);
        }
    }

    /// LDR, STR and their relatives
    fn single(&mut self) -> Result<(), Unfollowed> {
        let size = 1_u8 << self.bits(31, 30);
        let base = self.base(5);
        let (at, after) = match (self.bits(25, 24), self.is_set(21), self.bits(11, 10)) {
            (0b01, ..) => (base.plus(i64::from(self.bits(21, 10)) * i64::from(size)), None),
            (0b00, false, mode) => {
                let moved = base.clone().plus(self.signed_bits(20, 12));
                match mode {
                    0b00 => (moved, None),
                    0b01 => (base, Some(moved)),
                    0b11 => (moved.clone(), Some(moved)),
                    _ => return Err(self.unknown()),
                }
            }
            (0b00, true, 0b10) => {
                let index = match (self.bits(15, 13), self.value(16)) {
                    (0b010, index) => index.low(4),
                    (0b110, index) => index.signed(4, 8),
                    (_, index) => index,
                };
                let scale = if self.is_set(12) { u64::from(size) } else { 1 };
                let index = Value::computed(Operation::Multiply, 8, index, Value::Const(scale));
                (Value::computed(Operation::Add, 8, base, index), None)
            }
            _ => return Err(self.unknown()),
        };
        match self.bits(23, 22) {
            0b00 => {
                let value = self.value(0);
                self.path.store(&at, size, value)?;
            }
            0b01 => {
                let value = self.path.load(at, size);
                self.set(0, value);
            }
            // A hint to the cache
            0b10 if size == 8 => {}
            signed => {
                let value = self.path.load(at, size).signed(size, if signed == 0b10 { 8 } else { 4 });
                self.set(0, value);
            }
        }
        self.move_base(after);
        Ok(())
    }
}
