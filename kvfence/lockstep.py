"""Lockstep tests: an implementation and its machine take the same random steps and are compared.

A ``Driver`` performs the machine's actions on the implementation, a ``Lockstep`` takes single steps of both,
and ``state_machine`` makes a Hypothesis state machine that draws them. Where implementation and machine
differ, a subclass of LockstepError is raised.

>>> from kvfence.language import Int, Machine, State
>>> machine = Machine("blocks")
>>> _ = machine.function("free", value=Int(0, 3), init=3)
>>> @machine.action()
... def take(s: State) -> None:
...     s.require(s.free > 0)
...     s.free = s.free - 1
>>> class Leaky:
...     header, unobserved, events = None, (), []
...     free = 3
...     def perform(self, action, args):
...         self.free -= 1 if self.free == 3 else 2
...     def abstract(self):
...         return {"free": self.free}
...     def refusal(self, action, args):
...         return None
>>> both = Lockstep(Interpreter(machine), Leaky())
>>> both.play([("take", {})])
>>> both.play([("take", {})])
Traceback (most recent call last):
kvfence.checker.analysis.lockstep.StatesDifferError: after take(): the states differ
  field  specification  implementation
  free   1              0
"""

from kvfence.checker.analysis.lockstep import *  # noqa: F403
from kvfence.checker.engines.explicit.interpret import Interpreter

__all__ = [  # noqa: F405
    "Args",
    "CannotHere",
    "Coverage",
    "Driver",
    "Interpreter",
    "Lockstep",
    "LockstepError",
    "NotRefusedError",
    "Observed",
    "PropertyBrokenError",
    "StatesDifferError",
    "Step",
    "StepFailedError",
    "StepNotAllowedError",
    "TraceRefusedError",
    "state_machine",
]
