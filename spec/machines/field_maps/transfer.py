"""What the steps of the transfer machine look like as events: its field map."""

from collections.abc import Mapping

from kvfence.spec import events as ev
from kvfence.spec.language import View
from kvfence.spec.machines.field_maps.relations import free, related

FULL = 2  # tokens of a block
KEY = 1  # the one content key


def header(sizes: Mapping[str, int]) -> ev.Header:
    """The header of a path's trace."""
    return ev.Header(
        producer="kvfence machine transfer",
        pools=(ev.Pool("gpu", sizes["Block"]), ev.Pool("cpu", sizes["Host"])),
        groups=(ev.Group("gpu", block_size=FULL),),
        ranks=sizes["Rank"],
        depth=2,
    )


class Names:
    """What a state is called in traces: the field map of the events below."""

    def __init__(self, view: View) -> None:
        self.view = view

    def req(self, r: int) -> str:
        """Holder of the request's table."""
        return f"req:{r}.{self.view.gen[r]}"

    def old(self, r: int) -> str:
        """Holder of the fence: the table of the generation before."""
        return f"req:{r}.{self.view.gen[r] - 1}"

    def gen(self, o: int) -> int:
        """Generation of the operation's current use."""
        return int(self.view.uses[o]) - 1

    def op(self, o: int) -> str:
        """Holder of the operation's slots."""
        return f"op:{o}.{self.gen(o)}"

    def of(self, relation: str, i: int) -> list[int]:
        """All x with relation(i, x)."""
        return related(self.view, relation, i)

    def all(self, relation: str) -> list[int]:
        """All x with relation(x)."""
        return [x for x, yes in getattr(self.view, relation).items() if yes]

    def releases(self, o: int) -> list[ev.Event]:
        """The operation lets go of what it holds."""
        pins = (("gpu", "op_pin"), ("cpu", "host_pin"))
        return [event for pool, pin in pins for event in free(pool, self.op(o), self.of(pin, o))]


def admitted(r: int, pre: View, local: int, external: int) -> ev.Admit:
    """Admission with so many local and external tokens."""
    return ev.Admit(f"{r}", pre.gen[r], local, external, FULL - local - external, FULL)


def drop_reason(pre: View) -> ev.DropReason:
    """Why the block of a finished request is not stored."""
    if Names(pre).all("resident"):
        return "resident"
    if any(v != "idle" and not pre.load[o] for o, v in pre.state.items()):
        return "in_flight"
    return "lazy"


def admit(pre: View, post: View, r: int, b: int) -> list[ev.Event]:
    """A fresh block, and admission."""
    return [ev.Alloc("gpu", Names(pre).req(r), [b]), admitted(r, pre, 0, 0)]


def admit_by_prefix_hit(pre: View, post: View, r: int, b: int) -> list[ev.Event]:
    """A block that is shared, and admission."""
    return [ev.Touch("gpu", Names(pre).req(r), [b]), admitted(r, pre, FULL, 0)]


def drop(pre: View, post: View, r: int) -> list[ev.Event]:
    """The block is counted as dropped, and the cursor passes it."""
    return [ev.Drop(f"{r}", pre.gen[r], 0, 1, drop_reason(pre)), ev.Cursor(f"{r}", pre.gen[r], 1)]


def load(pre: View, post: View, r: int, b: int, h: int, o: int) -> list[ev.Event]:
    """A promise, admission, and the load that consumes the promise."""
    was, now, hit = Names(pre), Names(post), f"hit:{r}.{pre.gen[r]}"
    return [
        ev.Touch("cpu", hit, [h]),
        ev.Lookup(f"{r}", pre.gen[r], 0, FULL, "cpu", [h]),
        ev.Alloc("gpu", was.req(r), [b]),
        admitted(r, pre, 0, FULL),
        ev.Touch("gpu", now.op(o), [b]),
        ev.Touch("cpu", now.op(o), [h]),
        ev.Queue(o, now.gen(o), "load", "cpu", [h], "gpu", [b], [KEY], f"{r}", pre.gen[r], [0]),
        ev.Free("cpu", hit, [h]),
        *([ev.Label("gpu", [b], [KEY], op=o, gen=now.gen(o))] if post.label[b] else []),
    ]


def process(pre: View, post: View, r: int) -> list[ev.Event]:
    """The output of a step, a label for a full block, and the end of a fence."""
    was = Names(pre)
    filled = [b for b in was.of("table", r) if post.label[b] and not pre.label[b]]
    unfenced = sorted(set(was.of("fence", r)) - set(Names(post).of("fence", r)))
    over: list[ev.Event] = []
    if unfenced:
        over = [ev.Free("gpu", was.old(r), unfenced), ev.Retire(f"{r}", pre.gen[r] - 1)]
    label = [ev.Label("gpu", filled, [KEY])] if filled else []
    return [ev.Process(ev.UNNUMBERED), *label, *over]


def store(pre: View, post: View, b: int, h: int, o: int, r: int = -1) -> list[ev.Event]:
    """A store, for a request or lazy."""
    now = Names(post)
    req, rgen, at = (f"{r}", pre.gen[r], [0]) if r >= 0 else ("", 0, [])
    return [
        *([ev.Touch("gpu", now.op(o), [b])] if post.op_pin[o, b] else []),
        *([ev.Alloc("cpu", now.op(o), [h])] if post.host_pin[o, h] else []),
        ev.Queue(o, now.gen(o), "store", "gpu", [b], "cpu", [h], [KEY], req, rgen, at),
        *([ev.Cursor(req, rgen, 1)] if r >= 0 else []),
    ]


def late(pre: View, post: View, o: int, k: int) -> list[ev.Event]:
    """A repeated report, which is stale unless the design counts it."""
    gen = int(pre.late_uses[o, k]) - 1
    taken = post.reported[o, k] and not pre.reported[o, k]
    return [ev.Report(o, gen, k) if taken else ev.Stale(o, gen, k)]


def complete(pre: View, post: View, o: int) -> list[ev.Event]:
    """The end of a transfer, whose destination gets its key."""
    was, gen = Names(pre), Names(pre).gen(o)
    blocks, hosts = was.of("block", o), was.of("host", o)
    gpu = [b for b in blocks if post.label[b] and not pre.label[b]]
    cpu = [h for h in hosts if post.resident[h] and not pre.resident[h]]
    return [
        ev.Complete(o, gen),
        *([ev.Label("gpu", gpu, [KEY], op=o, gen=gen)] if gpu else []),
        *([ev.Label("cpu", cpu, [KEY], op=o, gen=gen)] if cpu else []),
        *was.releases(o),
    ]


def failure(pre: View, post: View, o: int) -> list[ev.Event]:
    """The end of a failed transfer, and who computes again."""
    was, gen = Names(pre), Names(pre).gen(o)
    wrong = [b for b in was.of("block", o) if post.label[b]]
    lost = [h for h in was.of("host", o) if pre.resident[h] and not post.resident[h]]
    back = [r for r in was.of("of", o) if pre.status[r] == "loading" and post.computed[r] == 0]
    return [
        ev.Complete(o, gen, ok=False),
        *(ev.Rollback(f"{r}", pre.gen[r], 0) for r in back),
        *([ev.Unlabel("cpu", lost, "a load from it failed")] if lost else []),
        *([ev.Label("gpu", wrong, [KEY], op=o, gen=gen)] if wrong else []),
        *was.releases(o),
    ]


def preempt(pre: View, post: View, r: int) -> list[ev.Event]:
    """The blocks come free at once if no step in flight uses them."""
    was, now = Names(pre), Names(post)
    table, kept = was.of("table", r), now.of("fence", r)
    ops = [o for o in was.all("uses") if set(was.of("op_pin", o)) - set(now.of("op_pin", o))]
    return [
        ev.Preempt(f"{r}", pre.gen[r]),
        *([] if kept else [ev.Free("gpu", was.req(r), table)]),
        *(ev.Free("gpu", was.op(o), was.of("op_pin", o)) for o in ops),
        *([] if kept else [ev.Retire(f"{r}", pre.gen[r])]),
        *([ev.Cursor(f"{r}", post.gen[r], 1)] if post.cursor[r] else []),
    ]


def finish(pre: View, post: View, r: int) -> list[ev.Event]:
    """The last token, and what the design frees with it."""
    was = Names(pre)
    freed = sorted(set(was.of("table", r)) - set(Names(post).of("table", r)))
    return [ev.Finish(f"{r}", pre.gen[r], "stop", pre.confirmed[r]), *free("gpu", was.req(r), freed)]


def abort(pre: View, post: View, r: int) -> list[ev.Event]:
    """The end of a request by its client."""
    was, now, gen = Names(pre), Names(post), pre.gen[r]
    freed = sorted(set(was.of("table", r)) - set(now.of("table", r)))
    ops = [o for o in was.all("uses") if set(was.of("op_pin", o)) - set(now.of("op_pin", o))]
    uncovered = pre.confirmed[r] == FULL and not pre.covered[r]
    return [
        ev.Finish(f"{r}", gen, "abort", pre.confirmed[r]),
        *([ev.Drop(f"{r}", gen, 0, 1, "aborted")] if uncovered else []),
        *free("gpu", was.req(r), freed),
        *(ev.Free("gpu", was.op(o), was.of("op_pin", o)) for o in ops),
        *([ev.Retire(f"{r}", gen)] if post.status[r] == "gone" else []),
    ]


def retire(pre: View, post: View, r: int) -> list[ev.Event]:
    """The request is gone, with what it still held."""
    table = Names(pre).of("table", r)
    return [*free("gpu", Names(pre).req(r), table), ev.Retire(f"{r}", pre.gen[r])]
