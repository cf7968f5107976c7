//! Compiled handlers (x86-64, arm64, with their C code) and the origins that the analysis finds for their fields.
//!
//! They are at the addresses of their names, and call the functions of [`callees`].

use super::{
    InstructionSet::{Arm64, X86_64},
    *,
};

mod computed;

/// Instructions in memory, by the address of the first.
struct Text(u64, Vec<u8>);

impl KernelText for Text {
    fn at(&mut self, address: u64) -> Option<&[u8]> {
        self.1.get(usize::try_from(address.checked_sub(self.0)?).ok()?..).filter(|rest| !rest.is_empty())
    }
}

fn callees() -> Callees {
    Callees {
        reserve: 0x9000,
        commit: 0x9100,
        checks: vec![0x9200],
        copies: vec![0x9500],
        fills: vec![0x9600],
        ends: vec![0x9400],
    }
}

/// Follows a handler at an address.
fn followed(set: InstructionSet, (address, code): (u64, &str)) -> Result<Stores, Unfollowed> {
    let digits: Vec<u8> = code.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap();
    let mut bytes: Vec<u8> = digits.chunks(2).map(byte).collect();
    bytes.resize(bytes.len() + 15, 0xcc);
    follow(address, set, &callees(), &mut Text(address, bytes))
}

/// What a handler stores that copies from its arguments and from memory.
pub(crate) fn copies() -> Stores {
    followed(X86_64, COPIES[0]).unwrap()
}

fn load(value: Value, offset: i64, size: u8) -> Value {
    value.plus(offset).load(size)
}

// struct inner { u64 pad; u32 number; }; struct thing { u64 a; struct inner *in; char name[16]; int number; };
// struct rec { u64 head; char name[16]; u64 pointer; u32 arg; int number; long wide; u32 deep; u8 flag; u64 sum; };
// if ((f->flags & 0x2c0) && !(f->flags & 0x100) && check(f)) return;
// r = reserve(buffer, f, sizeof *r); if (!r) return;
// memcpy(r->name, t->name, 16); r->pointer = (u64)t; r->arg = n; r->number = t->number; r->wide = t->number;
// r->deep = t->in->number; r->flag = b; r->sum = t->a + n; commit(buffer);
const COPIES: [(u64, &str); 2] = [
    (
        0x1000,
        "f30f1efa415631c041554189cdb90600000041544989fc554889f55389d34883ec304989e64c89f7f348ab498b442448 \
     a9c00200007405f6c4017464ba400000004c89e64c89f7e8b47f00004885c07440488b55104c89f748895008488b5518 \
     89582048895010486355204889681889502448895028488b55088b52084488683448035d0089503048895838e86f8000 \
     004883c4305b5d415c415d415ec366904c89e7e85881000085c07490ebe3",
    ),
    (
        0x1000,
        "fd7bb9a9fd030091f35301a9f403022af30301aa022440f9f51300f9ff7f04a9751c0012e10300aaff7f05a9035880d2 \
         ff7f06a95f0003ea4000005442034036e0030191020880d2ee1f0094e30300aa200200b4600641a9608400a9620640f9 \
         e0030191612240b9420840b975d00039247c409374040429610240f9730c00f9641400f9623000b93440348b741c00f9 \
         1c200094f35341a9f51340f9fd7bc7a8c0035fd6e01f00f956200094e11f40f980fcff34f8ffff17",
    ),
];

// As above, and: r->arg = n; r->number = t ? t->number : -1; r->pointer = (u64)t;
const BRANCHES: [(u64, &str); 2] = [
    (
        0x10b0,
        "f30f1efa415531c0b90600000041544189d4554889fd534889f34883ec384989e54c89eff348ab488b4548a9c0020000 \
     7405f6c4017449ba400000004889ee4c89efe8097f00004885c0742044896020baffffffff4885db74038b5320895024 \
     4c89ef48895818e8e47f00004883c4385b5d415c415dc3660f1f8400000000004889efe8c880000085c074abebde",
    ),
    (
        0x10c0,
        "fd7bbaa9035880d2fd030091f35301a9f403022af30301aa022440f9ff7f03a9e10300aaff7f04a9ff7f05a95f0003ea \
         4000005422024036e0c30091020880d2c01f0094e30300aa200100b4142000b901008012530000b4612240b9730c00f9 \
         e0c30091612400b9f61f0094f35341a9fd7bc6a8c0035fd6e01700f931200094e11740f9a0fdff34f9ffff17",
    ),
];

// if (n == 7) return; r = reserve(buffer, f, sizeof *r); if (!r) return; r->arg = n; commit(buffer);
const DECIDES: [(u64, &str); 2] = [
    (
        0x1140,
        "f30f1efa83fa077437534889fe89d3ba400000004883ec304889e7e8a07e00004885c0740b8958204889e7e8907f0000 \
     4883c4305bc3662e0f1f840000000000c3",
    ),
    (
        0x1150,
        "5f1c007100020054fd7bbba9e10300aafd030091e0830091f30b00f9f303022a020880d2a31f0094800000b4132000b9 \
         e0830091df1f0094f30b40f9fd7bc5a8c0035fd6c0035fd6",
    ),
];

// (file, a, b, c, d, e, g, u32 h): r->pointer = g; r->arg = h; r->wide = a; r->deep = 7;
const MANY: [(u64, &str); 2] = [
    (
        0x1190,
        "f30f1efa53ba400000004889f34889fe4883ec304889e7e8547e00004885c07423488b542440488958284889e7c74030 \
     07000000488950188b542448895020e82c7f00004883c4305bc3",
    ),
    (
        0x11a0,
        "fd7bbaa9020880d2fd030091f35301a9f30301aaf403072ae10300aae0c30091f51300f9f50306aa8e1f0094200100b4 \
         e20300aae1008052e0c30091550c00f9542000b9531400f9413000b9c51f0094f35341a9f51340f9fd7bc6a8c0035fd6",
    ),
];

// r->pointer = other(t);
const CALLS: [(u64, &str); 2] = [
    (
        0x11e0,
        "f30f1efa55ba400000004889f54889fe534883ec384889e7e8037e00004885c074174889ef4889c3e8f38000004889e7 \
     48894318e8e77e00004883c4385b5dc3",
    ),
    (
        0x1200,
        "fd7bbba9020880d2fd030091f35301a9f40301aae10300aae0830091791f0094e00000b4f30300aae00314aa35200094 \
         600e00f9e0830091b21f0094f35341a9fd7bc5a8c0035fd6",
    ),
];

// count++; if (!((f->flags & 0x2c0) && !(f->flags & 0x100) && check(f))) { r = reserve(buffer, f, sizeof *r);
// if (r) { r->pointer = (u64)t; r->arg = n; commit(buffer); } } if (!--count) reschedule();
// The count is at %gs:0x21280, or 16 bytes after the address in sp_el0.
const PREEMPTION: [(u64, &str); 2] = [
    (
        0x1240,
        "f30f1efa5589d5534889f34883ec4865ff0514000200488b4730a9c0020000754f4889feba28000000488d7c2410e88d \
         7d00004885c0741148895818488d7c2410896820e8777e000065ff0d00000200740e4883c4485b5dc30f1f8000000000 \
         e85b8100004883c4485b5dc30f1f4000f6c40175ac48897c2408e8417f0000488b7c240885c07499ebbf",
    ),
    (
        0x1240,
        "fd7bbaa9044138d5fd030091831040b9f35301a9f40301aa63040011f303022ae10300aa831000b9021840f9035880d2 \
         5f0003eaa1020054e0c30091020580d2601f0094e30300aaa00000b4740c00f9e0c30091732000b99a1f0094014138d5 \
         200840f9000400d1201000b9600000b4200840f9400000b552200094f35341a9fd7bc6a8c0035fd682fd4737e01700f9 \
         cc1f0094e11740f900fdff34f0ffff17",
    ),
];

const SETS: [InstructionSet; 2] = [X86_64, Arm64];

#[test]
fn copies_of_arguments_and_memory_are_found() {
    for (set, code) in SETS.into_iter().zip(COPIES) {
        let stores = followed(set, code).unwrap();
        let (thing, number) = (Value::Arg(1), Value::Arg(2));
        assert_eq!(stores.origin(8, 16), Origin::Copy { from: thing.clone(), offset: 16 }, "{set:?}");
        assert_eq!(stores.origin(24, 8), Origin::Number(thing.clone()));
        assert_eq!(stores.origin(32, 4), Origin::Number(number.clone().low(4)));
        assert_eq!(stores.origin(36, 4), Origin::Number(load(thing.clone(), 32, 4)));
        assert_eq!(stores.origin(40, 8), Origin::Number(load(thing.clone(), 32, 4).signed(4, 8)));
        assert_eq!(stores.origin(48, 4), Origin::Number(load(load(thing.clone(), 8, 8), 8, 4)));
        assert_eq!(stores.origin(52, 1), Origin::Number(Value::Arg(3).low(1)));
        let sum = Value::computed(Operation::Add, 8, number.low(4), load(thing.clone(), 0, 8));
        let other = Value::computed(Operation::Add, 8, load(thing.clone(), 0, 8), Value::Arg(2).low(4));
        assert!([sum, other].map(Origin::Number).contains(&stores.origin(56, 8)));
        assert_eq!(stores.origin(64, 8), Origin::Missing);
        assert_eq!(stores.origin(52, 4), Origin::Missing, "one byte of four");
    }
}

#[test]
fn a_condition_decides_between_numbers() {
    for (set, code) in SETS.into_iter().zip(BRANCHES) {
        let stores = followed(set, code).unwrap();
        assert_eq!(stores.origin(32, 4), Origin::Number(Value::Arg(2).low(4)), "{set:?}");
        let condition = Condition::new(Comparison::Equal, true, 8, Value::Arg(1), Value::Const(0));
        let number = load(Value::Arg(1), 32, 4);
        let choice = Value::choice(condition, Value::Const(u64::from(u32::MAX)), number, false);
        assert_eq!(stores.origin(36, 4), Origin::Number(choice));
        assert_eq!(stores.origin(24, 8), Origin::Number(Value::Arg(1)));
    }
}

#[test]
fn arguments_that_decide_about_the_record_end_the_search() {
    for (set, code) in SETS.into_iter().zip(DECIDES) {
        assert_eq!(followed(set, code).unwrap_err(), Unfollowed::Conditional, "{set:?}");
    }
}

#[test]
fn arguments_on_the_stack_are_found() {
    for (set, code) in SETS.into_iter().zip(MANY) {
        let stores = followed(set, code).unwrap();
        assert_eq!(stores.origin(24, 8), Origin::Number(Value::Arg(6)), "{set:?}");
        assert_eq!(stores.origin(32, 4), Origin::Number(Value::Arg(7).low(4)));
        assert_eq!(stores.origin(40, 8), Origin::Number(Value::Arg(1)));
        assert_eq!(stores.origin(48, 4), Origin::Number(Value::Const(7)));
    }
}

#[test]
fn a_handler_may_count_preemption() {
    for (set, code) in SETS.into_iter().zip(PREEMPTION) {
        let stores = followed(set, code).unwrap();
        assert_eq!(stores.origin(24, 8), Origin::Number(Value::Arg(1)), "{set:?}");
        assert_eq!(stores.origin(32, 4), Origin::Number(Value::Arg(2).low(4)));
    }
    // incl %gs:0(%rax) counts; mov %eax,%gs:0(%rax) and xadd %eax,%gs:0(%rax) do not.
    let x86 = |code: &str| followed(X86_64, (0x1000, code)).unwrap_err();
    assert_eq!(x86("65ff00c3"), Unfollowed::NoRecord);
    assert_eq!(x86("658900"), Unfollowed::Store);
    assert!(matches!(x86("650fc100"), Unfollowed::Instruction(_)));
}

#[test]
fn other_functions_and_broken_code_end_the_search() {
    for (set, code) in SETS.into_iter().zip(CALLS) {
        assert_eq!(followed(set, code).unwrap_err(), Unfollowed::Call(0x9300), "{set:?}");
    }
    let x86 = |code: &str| followed(X86_64, (0x1000, code)).unwrap_err();
    assert_eq!(x86("c3"), Unfollowed::NoRecord);
    // int3, which may stand for the first byte of another instruction
    assert_eq!(x86("cc"), Unfollowed::Instruction("int3".into()));
    // stac
    assert_eq!(x86("0f01cb"), Unfollowed::Instruction("stac".into()));
    assert_eq!(x86("06"), Unfollowed::Invalid(0x1000));
    // jmp to itself
    assert_eq!(x86("ebfe"), Unfollowed::TooLong);
    // jmp *%rax, and a jump out of the memory
    assert_eq!(x86("ffe0"), Unfollowed::Indirect);
    assert_eq!(x86("e900000010"), Unfollowed::Unreadable(0x1000_1005));
    // mov %rax,(%rdi)
    assert_eq!(x86("488907"), Unfollowed::Store);
    // mov %rsp,%rdi; rep stos, as often as the fourth argument says
    assert_eq!(x86("4889e7f348ab"), Unfollowed::Size);
    // Five of nopl 0(%rax,%rax,1), and the last of five as xchg %ax,%ax
    assert_eq!(x86(&"0f1f440000".repeat(5)), Unfollowed::StaticKey);
    assert_eq!(x86(&("0f1f440000".repeat(4) + "6690")), Unfollowed::StaticKey);
    // A nop of 3 bytes
    assert_eq!(x86(&("0f1f440000".repeat(4) + "0f1f00c3")), Unfollowed::NoRecord);
    // movaps %xmm0,(%rsp)
    assert!(matches!(x86("0f290424"), Unfollowed::Instruction(_)));
    let arm = |code: &str| followed(Arm64, (0x1000, code)).unwrap_err();
    assert_eq!(arm("00000000"), Unfollowed::Invalid(0x1000));
    // b to itself, br x0, str x0, [x1]
    assert_eq!(arm("00000014"), Unfollowed::TooLong);
    assert_eq!(arm("00001fd6"), Unfollowed::Indirect);
    assert_eq!(arm("200000f9"), Unfollowed::Store);
    // nop
    assert_eq!(arm(&"1f2003d5".repeat(6)), Unfollowed::StaticKey);
    // str q0, [sp]
    assert!(matches!(arm("e003803d"), Unfollowed::Instruction(_)));
}

proptest::proptest! {
    /// Any bytes end the search.
    #[test]
    fn any_bytes_are_followed_to_an_end(bytes in proptest::collection::vec(0_u8.., 0..200)) {
        for set in SETS {
            let mut bytes = bytes.clone();
            bytes.resize(bytes.len() + 15, 0xcc);
            let _ = follow(0x1000, set, &callees(), &mut Text(0x1000, bytes));
        }
    }
}
