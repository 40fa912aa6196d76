"""Each public name has an example that runs, and the page on the API lists exactly these names."""

import doctest
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import kvfence
from kvfence.language import Not, State

PAGE = (Path(__file__).parents[1] / "docs" / "api.md").read_text(encoding="utf-8")
SUBMODULES = {name: import_module(f"kvfence.{name}") for name in ("events", "language", "lockstep")}
PUBLIC = [(kvfence, name) for name in kvfence.__all__]
PUBLIC += [(SUBMODULES[name], word) for name in ("language", "lockstep") for word in SUBMODULES[name].__all__]
TYPE_ALIASES = {"Args", "Observed", "Step"}
NEEDS = {"audit": ("hypothesis", "torch"), "replay": ("torch",), "state_machine": ("hypothesis",)}
"""The names whose examples need more than kvfence's own dependencies."""


def run(examples: doctest.DocTest) -> None:
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples)
    assert results.attempted, f"{examples.name} has no example"
    assert not results.failed


def names_of(module: ModuleType) -> dict[str, object]:
    """What an example may use: the module's public names, and ``kvfence`` itself."""
    return {
        "kvfence": kvfence,
        **{name: getattr(module, name) for name in getattr(module, "__all__", dir(module))},
    }


@pytest.mark.parametrize(
    ("module", "name"), PUBLIC, ids=[f"{module.__name__}.{name}" for module, name in PUBLIC]
)
def test_the_example_of_a_public_name_runs(module: ModuleType, name: str) -> None:
    if name in TYPE_ALIASES:
        pytest.skip("a type alias has no docstring")
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package, reason=f"the example of {name} needs {package}")
    text = inspect.getdoc(getattr(module, name)) or ""
    run(doctest.DocTestParser().get_doctest(text, names_of(module), name, None, None))


@pytest.mark.parametrize("module", [kvfence, *SUBMODULES.values()], ids=lambda module: module.__name__)
def test_the_example_of_a_public_module_runs(module: ModuleType) -> None:
    run(
        doctest.DocTestParser().get_doctest(
            module.__doc__ or "", names_of(module), module.__name__, None, None
        )
    )


def test_the_page_lists_the_public_names() -> None:
    listed = set(re.findall(r"^### `kvfence\.(\w+)", PAGE, re.MULTILINE))
    assert listed == set(kvfence.__all__)
    for module in (SUBMODULES["language"], SUBMODULES["lockstep"]):
        section = PAGE.split(f"## `{module.__name__}`")[1].split("\n## ")[0]
        assert set(re.findall(r"`(\w+)`", section)) >= set(module.__all__)


def public_methods() -> Iterator[tuple[str, object]]:
    for module, name in PUBLIC:
        value = getattr(module, name)
        if inspect.isclass(value) and value.__module__.startswith("kvfence."):
            yield from (
                (f"{name}.{key}", part) for key, part in vars(value).items() if not key.startswith("_")
            )


def test_every_public_method_has_a_docstring() -> None:
    bare = [
        name
        for name, part in public_methods()
        if (inspect.isfunction(part) or isinstance(part, property)) and not inspect.getdoc(part)
    ]
    assert not bare


def test_a_machine_is_verified_as_it_is_and_takes_no_design_of_kvfences() -> None:
    m = kvfence.Machine("m", "One switch.")
    m.relation("on")

    @m.action()
    def turn(s: State) -> None:
        """The switch is turned on."""
        s.on = True

    m.invariant("OFF")(lambda s: Not(s.on))
    found = kvfence.verify(machine=m)
    assert (found.design, found.summary, found.verdict) == ("m", "One switch.", "violated")
    with pytest.raises(kvfence.CannotRun, match="is one of kvfence's own machines"):
        kvfence.verify("unpinned_lookup", machine=m)
    with pytest.raises(kvfence.CannotRun, match="there is no sort 'Block'"):
        kvfence.verify(machine=m, sizes={"Block": 2})


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("unpinned_lookups", "did you mean unpinned_lookup"),
        (Path("nowhere"), "nowhere"),
        ("vllm", "vLLM is not installed"),
    ],
)
def test_an_audit_of_what_does_not_exist_says_so(target: str | Path, says: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(kvfence.CannotRun, match=says):
        kvfence.audit(target, budget=1, processes=1)
