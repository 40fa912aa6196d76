"""What the files of all machines share: how sorts are declared, and relations cleared."""

from kvfence.spec.language import Elem, Expr, Machine, Sort, State


def declare_sorts(m: Machine, *sorts: Sort) -> Machine:
    """The machine with a file's sorts, which functions of the file name without being given them."""
    m.sorts.update({sort.name: sort for sort in sorts})
    return m


def remove(s: State, x: Elem, *relations: str) -> None:
    """Remove ``x`` from these relations, all of whose tuples begin with an element of its sort."""
    for name in relations:
        field = getattr(s, name)
        field.update(lambda y, *rest, field=field: field[(y, *rest)] & (y != x))


def assign(s: State, element: Expr | tuple[Expr, ...], **values: object) -> None:
    """Give fields of one element, or of one tuple of elements, new values, in the order of the arguments."""
    for field, value in values.items():
        getattr(s, field)[element] = value
