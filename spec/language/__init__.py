"""The specification language: machines over sorts, written in Python, traced once into a graph."""

from kvfence.spec.language.errors import SpecError
from kvfence.spec.language.expr import (
    And,
    Count,
    Elem,
    Exists,
    Expr,
    ForAll,
    If,
    Iff,
    Implies,
    Index,
    IsIn,
    Not,
    Or,
)
from kvfence.spec.language.ground import Cell, GroundCheck, Grounded, Instance, LivenessInstance, ground
from kvfence.spec.language.machine import LEMMA, Action, Function, LeadsTo, Machine, Property
from kvfence.spec.language.premises import PREMISE, Premise
from kvfence.spec.language.state import Check, Guard, State
from kvfence.spec.language.types import Bool, Enum, Int, Sort, Type
from kvfence.spec.language.view import View, changes, flat

__all__ = [
    "LEMMA",
    "PREMISE",
    "Action",
    "And",
    "Bool",
    "Cell",
    "Check",
    "Count",
    "Elem",
    "Enum",
    "Exists",
    "Expr",
    "ForAll",
    "Function",
    "GroundCheck",
    "Grounded",
    "Guard",
    "If",
    "Iff",
    "Implies",
    "Index",
    "Instance",
    "Int",
    "IsIn",
    "LeadsTo",
    "LivenessInstance",
    "Machine",
    "Not",
    "Or",
    "Premise",
    "Property",
    "Sort",
    "SpecError",
    "State",
    "Type",
    "View",
    "changes",
    "flat",
    "ground",
]
