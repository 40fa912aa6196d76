"""The specification language: machines over sorts, written in Python, and the expressions of conditions.

``__all__`` has what a machine file needs; the other names of ``kvfence.spec.language`` serve engines, and are
private. SpecError is raised for a machine that cannot mean what it says, with the file and line of the fault.

>>> machine = Machine("tier")
>>> Block = machine.sort("Block", default=2)
>>> cached = machine.relation("cached", Block)
>>> @machine.action(b=Block)
... def store(s: State, b: Elem) -> None:
...     s.require(Not(s.cached[b]))
...     s.cached[b] = True
>>> @machine.invariant("ROOM")
... def one_block_at_most(s: State) -> Expr:
...     return Count(Block, lambda b: s.cached[b]) <= 1
>>> machine.invariants["one_block_at_most"].expr
(Count(Block, lambda b: s.cached[b]) <= 1)
>>> import kvfence
>>> found = kvfence.verify(machine=machine)
>>> found.verdict == "violated", [step.action for step in found.counterexamples[0].steps]
(True, ['store', 'store'])
"""

from kvfence.spec.language import *  # noqa: F403

__all__ = [  # noqa: F405
    "And",
    "Bool",
    "Count",
    "Elem",
    "Enum",
    "Exists",
    "Expr",
    "ForAll",
    "Function",
    "If",
    "Iff",
    "Implies",
    "Index",
    "Int",
    "IsIn",
    "Machine",
    "Not",
    "Or",
    "Sort",
    "SpecError",
    "State",
    "Type",
    "View",
    "changes",
    "flat",
]
