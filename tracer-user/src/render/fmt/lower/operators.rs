//! Operators: C's conversions, pointer arithmetic, and constant folding.

use super::types::joined;
use super::{Local, Lower, Result, Value};
use crate::render::fmt::ast::{Binary, Expr, Unary};
use crate::render::fmt::ctype::{CType, Type};
use crate::render::fmt::program::{Id, Node, RECORD, Run, UNKNOWN, apply};

impl Lower<'_> {
    pub(super) fn unary(&mut self, op: Unary, operand: &Expr) -> Result<Value> {
        if op == Unary::Address {
            return self.address(operand);
        }
        let value = self.expr(operand)?;
        if op == Unary::Deref {
            return self.deref(&value);
        }
        let ty = value.ty.scalar().promoted();
        let (node, ty) = match (op, self.program.constant(value.id)) {
            (Unary::Neg, Some(known)) => (Node::Const(ty.wrap(known.wrapping_neg())), ty),
            (Unary::Neg, None) => (Node::Neg { value: value.id, ty }, ty),
            (Unary::Invert, Some(known)) => (Node::Const(ty.wrap(!known)), ty),
            (Unary::Invert, None) => (Node::Invert { value: value.id, ty }, ty),
            (Unary::Not, Some(known)) => (Node::Const(u64::from(known == 0)), CType::INT),
            (Unary::Not, None) => (Node::Not(value.id), CType::INT),
            _ => return Ok(self.convert(&value, Type::Int(ty))),
        };
        Ok(self.value(node, Type::Int(ty)))
    }

    fn address(&mut self, operand: &Expr) -> Result<Value> {
        match operand {
            Expr::Field(name) => {
                let field = self.find(name)?;
                let ty = Self::field_type(&field);
                let node = Node::Const(RECORD + field.offset as u64);
                Ok(self.value(node, Type::Ptr(Box::new(ty))))
            }
            Expr::Index(base, index) => self.offset(base, index, Binary::Add),
            Expr::Unary(Unary::Deref, pointer) => self.expr(pointer),
            _ => Err("takes the address of something outside the record".into()),
        }
    }

    /// `base + index` or `base - index`, in elements if the base is a pointer.
    pub(super) fn offset(&mut self, base: &Expr, index: &Expr, op: Binary) -> Result<Value> {
        let base = self.expr(base)?;
        let index = self.expr(index)?;
        self.pointer_step(base, index, op)
    }

    fn pointer_step(&mut self, base: Value, index: Value, op: Binary) -> Result<Value> {
        let (base, index) =
            if base.ty.target().is_none() && op == Binary::Add { (index, base) } else { (base, index) };
        let Some(target) = base.ty.target().cloned() else {
            return Err("indexes something that is not an array".into());
        };
        let size = self.size_of(&target)?;
        let size = self.push(Node::Const(size));
        let step = self.arithmetic(Binary::Mul, index.id, size, CType::ULONG);
        let id = self.arithmetic(op, base.id, step, CType::ULONG);
        Ok(Value { id, ty: Type::Ptr(Box::new(target)) })
    }

    /// An operator on operands of one type, folded if both are constants. A result of an unknown operand is unknown.
    pub(super) fn arithmetic(&mut self, op: Binary, a: Id, b: Id, ty: CType) -> Id {
        let node = match (self.program.constant(a), self.program.constant(b)) {
            (Some(UNKNOWN), _) | (_, Some(UNKNOWN)) => Node::Const(UNKNOWN),
            (Some(a), Some(b)) => Node::Const(apply(op, a, b, ty)),
            _ => Node::Binary { op, a, b, ty },
        };
        self.push(node)
    }

    pub(super) fn binary(&mut self, op: Binary, a: &Expr, b: &Expr) -> Result<Value> {
        let a = self.expr(a)?;
        if matches!(op, Binary::And | Binary::Or) {
            // A constant left operand can decide the result. The skipped operand may then be unknown.
            if let Some(known) =
                self.program.constant(a.id).filter(|known| (*known != 0) == (op == Binary::Or))
            {
                return Ok(self.number(u64::from(known != 0), CType::INT));
            }
            let b = self.expr(b)?;
            let id = self.arithmetic(op, a.id, b.id, CType::INT);
            return Ok(Value { id, ty: Type::Int(CType::INT) });
        }
        let b = self.expr(b)?;
        let pointers = (a.ty.target().is_some(), b.ty.target().is_some());
        match (op, pointers) {
            (Binary::Add, (true, _) | (_, true)) | (Binary::Sub, (true, false)) => {
                return self.pointer_step(a, b, op);
            }
            (Binary::Sub, (true, true)) => {
                let size = a.ty.target().cloned().map_or(Ok(1), |target| self.size_of(&target))?;
                let size = self.push(Node::Const(size));
                let bytes = self.arithmetic(Binary::Sub, a.id, b.id, CType::LONG);
                let id = self.arithmetic(Binary::Div, bytes, size, CType::LONG);
                return Ok(Value { id, ty: Type::Int(CType::LONG) });
            }
            _ => {}
        }
        if matches!(op, Binary::Shl | Binary::Shr) {
            // The shift count is not part of the conversions.
            let ty = a.ty.scalar().promoted();
            let a = self.convert(&a, Type::Int(ty));
            let id = self.arithmetic(op, a.id, b.id, ty);
            return Ok(Value { id, ty: Type::Int(ty) });
        }
        let ty = a.ty.scalar().common(b.ty.scalar());
        let a = self.convert(&a, Type::Int(ty));
        let b = self.convert(&b, Type::Int(ty));
        let id = self.arithmetic(op, a.id, b.id, ty);
        let compares =
            matches!(op, Binary::Lt | Binary::Gt | Binary::Le | Binary::Ge | Binary::Eq | Binary::Ne);
        Ok(Value { id, ty: Type::Int(if compares { CType::INT } else { ty }) })
    }

    pub(super) fn cond(&mut self, condition: &Expr, then: Option<&Expr>, otherwise: &Expr) -> Result<Value> {
        let condition = self.expr(condition)?;
        if let Some(known) = self.program.constant(condition.id) {
            // The branch not taken is compiled away; it may use names of another configuration.
            return match (known != 0, then) {
                (true, None) => Ok(condition),
                (true, Some(then)) => self.expr(then),
                (false, _) => self.expr(otherwise),
            };
        }
        let Some(then) = then else { return self.or_else(condition, otherwise) };
        let then = self.expr(then)?;
        let otherwise = self.expr(otherwise)?;
        Ok(self.choice(condition.id, &then, &otherwise))
    }

    fn choice(&mut self, condition: Id, then: &Value, otherwise: &Value) -> Value {
        let ty = joined(&then.ty, &otherwise.ty);
        let then = self.convert(then, ty.clone()).id;
        let otherwise = self.convert(otherwise, ty.clone()).id;
        self.value(Node::Cond { condition, then, otherwise }, ty)
    }

    /// `condition ?: otherwise`: the condition is evaluated once.
    fn or_else(&mut self, condition: Value, otherwise: &Expr) -> Result<Value> {
        let local = self.locals.len() as u32;
        self.locals.push(Local { name: String::new(), ty: condition.ty.clone() });
        let set = self.push(Node::Set { local, value: condition.id });
        let kept = self.value(Node::Local(local), condition.ty);
        let otherwise = self.expr(otherwise)?;
        let chosen = self.choice(kept.id, &kept, &otherwise);
        let body = Run::append(&mut self.program.lists, [set]);
        Ok(self.value(Node::Block { body, value: chosen.id }, chosen.ty))
    }

    /// Converts the value to another type. Values are stored extended, so only a narrower or differently signed type
    /// needs a node.
    pub(super) fn convert(&mut self, value: &Value, ty: Type) -> Value {
        let Type::Int(to) = ty else { return Value { id: value.id, ty } };
        let from = value.ty.scalar();
        if to.contains(from) || self.program.node(value.id).prints() {
            return Value { id: value.id, ty };
        }
        let node = match self.program.constant(value.id) {
            Some(known) => Node::Const(to.wrap(known)),
            None => Node::Wrap { value: value.id, ty: to },
        };
        self.value(node, ty)
    }
}
