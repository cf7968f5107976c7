//! A handler that computes, and the expected values of its fields.

use proptest::prelude::*;

use super::*;

// struct thing { u64 a; struct inner *in; char name[16]; int number; u16 port; u8 kind; }; (struct inner as above)
// struct rec { u64 head; char name[16]; u64 pointer; u32 arg; int number; long wide; u32 deep; u8 flag; u16 port; u64 sum; };
// (file, struct thing *t, u32 n, u8 b, int s), the beginning as above, then
// r->pointer = n < 5 ? 1 : t->a; r->arg = (t->kind & 0xf0) >> 4; r->number = s < 0 ? -s : s + 7;
// r->wide = (long)t->number * 3; r->deep = t->in ? t->in->number : n; r->flag = !b;
// r->port = swap of t->port; r->sum = (t->a >> 20) | ((u64)n << 40);
const COMPUTES: [(u64, &str); 2] = [
    (
        0x1000,
        "415731c041564989fe41554189cdb90600000041544589c4554889f55389d34883ec384989e74c89fff348ab498b4648 \
     a9c00200007409f6c4010f84a0000000ba400000004c89f64c89ffe8b07f00004885c0747b488b550083fb04b9010000 \
     004489e6480f47caf7de488948180fb64d26c0e9044585e40fb6c9894820418d4c24070f48ce488b750889482448634d \
     20488d0c494889482889d94885f674038b4e084584ed8948304c89ff0f9440340fb74d2448c1ea1448c1e32866c1c108 \
     4809da6689483648895038e8308000004883c4385b5d415c415d415e415fc3904c89f7e81881000085c00f8450ffffff \
     ebde",
    ),
    (
        0x1000,
        "fd7bb9a9fd030091f35301a9f30301aaf403022a012440f9f55b02a9025880d2f71b00f9f60300aaff7f04a9f503042a \
     771c0012ff7f05a9ff7f06a93f0002ea4000005421054036e10316aae0030191020880d2eb1f0094e30300aac00300b4 \
     601640a99f120071612280b9a41e00112104018b02849f9a620c00f9bf020071629a403995a4955a752400b9e403142a \
     611400f9417c0453612000b9450000b4a40840b9ff020071945e58d3e1179f1a61d00039815240aae0030191624a4079 \
     611c00f94104c05a643000b9616c00790c200094f35341a9f55b42a9f71b40f9fd7bc7a8c0035fd646200094e0faff34 \
     f9ffff17",
    ),
];

/// Where the two structures are.
const THING: u64 = 0x5000_0000;
const INNER: u64 = 0x6000_0000;

/// What the handler gets.
#[derive(Clone, Copy, Debug)]
struct Input {
    a: u64,
    has_inner: bool,
    inner: u32,
    number: i32,
    port: u16,
    kind: u8,
    n: u32,
    b: u8,
    s: i32,
    /// Bits above the arguments.
    above: u64,
}

impl Input {
    fn argument(self, number: u8) -> u64 {
        match number {
            1 => THING,
            2 => u64::from(self.n) | self.above << 32,
            3 => u64::from(self.b) | self.above << 8,
            4 => u64::from(self.s.cast_unsigned()) | self.above << 32,
            _ => panic!("argument {number}"),
        }
    }

    fn memory(self, address: u64, size: u8) -> u64 {
        match (address, size) {
            (THING, 8) => self.a,
            (0x5000_0008, 8) => {
                if self.has_inner {
                    INNER
                } else {
                    0
                }
            }
            (0x5000_0020, 4) => u64::from(self.number.cast_unsigned()),
            (0x5000_0024, 2) => u64::from(self.port),
            (0x5000_0026, 1) => u64::from(self.kind),
            (0x6000_0008, 4) if self.has_inner => u64::from(self.inner),
            (0x0000_0008, 4) if !self.has_inner => 0,
            other => panic!("{other:?}"),
        }
    }

    /// What a value is worth.
    fn worth(self, value: &Value) -> u64 {
        let signed = |number: u64, size: u8| {
            let above = 64 - 8 * u32::from(size);
            (number << above).cast_signed() >> above
        };
        match value {
            Value::Const(number) => *number,
            Value::Arg(number) => self.argument(*number),
            Value::Sum { of, offset } => self.worth(of).wrapping_add_signed(*offset),
            Value::Load { from, offset, size } => {
                self.memory(self.worth(from).wrapping_add_signed(*offset), *size)
            }
            Value::Low { of, size } => self.worth(of) & value::mask(*size),
            Value::Signed { of, size, to } => {
                signed(self.worth(of), *size).cast_unsigned() & value::mask(*to)
            }
            Value::Computed { operation, size, operands } => {
                let (one, two) = (self.worth(&operands.0), self.worth(&operands.1));
                assert!(one <= value::mask(*size) && two <= value::mask(*size), "zeros above: {value:?}");
                let by = two as u32 % if *size == 8 { 64 } else { 32 };
                let result = match operation {
                    Operation::Add => one.wrapping_add(two),
                    Operation::Subtract => one.wrapping_sub(two),
                    Operation::Multiply => one.wrapping_mul(two),
                    Operation::And => one & two,
                    Operation::Or => one | two,
                    Operation::Xor => one ^ two,
                    Operation::ShiftLeft => one << by,
                    Operation::ShiftRight => one >> by,
                    Operation::ShiftRightSigned => (signed(one, *size) >> by).cast_unsigned(),
                };
                result & value::mask(*size)
            }
            Value::Choice { condition, numbers } => {
                let (one, two) = (self.worth(&condition.operands.0), self.worth(&condition.operands.1));
                let size = condition.size;
                let result = match condition.comparison {
                    Comparison::Equal => one == two,
                    Comparison::Less => one < two,
                    Comparison::LessOrEqual => one <= two,
                    Comparison::SignedLess => signed(one, size) < signed(two, size),
                    Comparison::SignedLessOrEqual => signed(one, size) <= signed(two, size),
                };
                self.worth(if result == condition.holds_if { &numbers.0 } else { &numbers.1 })
            }
            other => panic!("{other:?}"),
        }
    }
}

fn input() -> impl Strategy<Value = Input> {
    let number = || prop_oneof![any::<u64>(), 0_u64..9, Just(u64::MAX)];
    let numbers = (number(), number(), number(), number(), number(), number());
    (numbers, any::<bool>(), any::<u16>(), prop_oneof![Just(0), any::<u8>()], any::<u8>()).prop_map(
        |((a, inner, number, n, s, above), has_inner, port, b, kind)| Input {
            a,
            has_inner,
            inner: inner as u32,
            number: number as i32,
            port,
            kind,
            n: n as u32,
            b,
            s: s as i32,
            above,
        },
    )
}

proptest! {
    #[test]
    fn computed_fields_are_worth_what_the_handler_computes(input in input()) {
        for (set, code) in SETS.into_iter().zip(COMPUTES) {
            let stores = followed(set, code).unwrap();
            let field = |offset, size| match stores.origin(offset, size) {
                Origin::Number(value) => input.worth(&value),
                other => panic!("{set:?}, {offset}: {other:?}"),
            };
            let low = |number: i64| u64::from(number as u32);
            let s = i64::from(input.s);
            prop_assert_eq!(field(24, 8), if input.n < 5 { 1 } else { input.a });
            prop_assert_eq!(field(32, 4), u64::from(input.kind >> 4));
            prop_assert_eq!(field(36, 4), low(if s < 0 { -s } else { s + 7 }));
            prop_assert_eq!(field(40, 8), (i64::from(input.number) * 3).cast_unsigned());
            prop_assert_eq!(field(48, 4), u64::from(if input.has_inner { input.inner } else { input.n }));
            prop_assert_eq!(field(52, 1), u64::from(input.b == 0));
            prop_assert_eq!(field(54, 2), u64::from(input.port.swap_bytes()));
            prop_assert_eq!(field(56, 8), input.a >> 20 | u64::from(input.n) << 40);
        }
    }
}
