"""The benchmark machine in Murphi, for Rumur: breadth first, without symmetry (its types are ranges)."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

from peers import Found, Unusable, output

FLAGS = ("-std=c11", "-O3", "-march=native", "-w", "-mcx16", "-pthread")

MODEL = """
const BLOCKS: {blocks}; REQUESTS: {requests};
type
  Block: 0 .. BLOCKS - 1;
  Held: 0 .. BLOCKS;        -- BLOCKS stands for none
  Request: 0 .. REQUESTS - 1;
  Stage: enum {{ free, filling, cached, evicting }};
  Phase: enum {{ idle, matched, allocated, loading, finished }};
var
  stage: array [Block] of Stage;
  refs: array [Block] of 0 .. 2;
  storing: array [Block] of boolean;
  position: array [Block] of Block;
  phase: array [Request] of Phase;
  held: array [Request] of Held;

function idle_block(b: Block): boolean;
begin return stage[b] = cached & refs[b] = 0 & !storing[b]; end;

procedure touch(b: Block);
var was: Block;
begin
  was := position[b];
  for c: Block do if position[c] > was then position[c] := position[c] - 1; end; end;
  position[b] := BLOCKS - 1;
end;

procedure drop(r: Request);
begin
  refs[held[r]] := refs[held[r]] - 1;
  held[r] := BLOCKS;
  phase[r] := idle;
end;

startstate begin
  for b: Block do
    stage[b] := free; refs[b] := 0; storing[b] := false; position[b] := b;
  end;
  for r: Request do phase[r] := idle; held[r] := BLOCKS; end;
end;

ruleset r: Request do
  ruleset b: Block do
    rule "match" phase[r] = idle & stage[b] = cached & refs[b] < 2 ==> begin
      touch(b); phase[r] := matched; held[r] := b; refs[b] := refs[b] + 1;
    end;
    rule "allocate" phase[r] = idle & stage[b] = free ==> begin
      touch(b); phase[r] := allocated; held[r] := b; refs[b] := 1; stage[b] := filling;
    end;
  end;
  rule "start load" (phase[r] = matched | phase[r] = allocated) & !storing[held[r]] ==> begin
    phase[r] := loading;
  end;
  rule "finish" phase[r] = loading ==> begin
    if stage[held[r]] = filling then stage[held[r]] := cached; end;
    phase[r] := finished;
  end;
  rule "release" phase[r] = finished ==> begin drop(r); end;
  rule "cancel" phase[r] = matched | phase[r] = allocated ==> begin
    if stage[held[r]] = filling then stage[held[r]] := free; end;
    drop(r);
  end;
end;

ruleset b: Block do
  rule "store begins" stage[b] = cached & !storing[b] ==> begin storing[b] := true; end;
  rule "store is done" storing[b] ==> begin storing[b] := false; end;
  rule "evict the oldest"
    idle_block(b) & forall c: Block do c = b | !idle_block(c) | position[c] > position[b] end
  ==> begin stage[b] := evicting; end;
  rule "evicted" stage[b] = evicting ==> begin stage[b] := free; end;
end;

function holders(b: Block): 0 .. REQUESTS;
var n: 0 .. REQUESTS;
begin
  n := 0;
  for r: Request do if held[r] = b then n := n + 1; end; end;
  return n;
end;

invariant "a reference count is the number of holders" forall b: Block do refs[b] = holders(b) end;
invariant "free blocks are untouched"
  forall b: Block do (stage[b] = free | stage[b] = evicting) -> (refs[b] = 0 & !storing[b]) end;
invariant "idle requests hold nothing"
  forall r: Request do (phase[r] = idle) = (held[r] = BLOCKS) end;
invariant "positions differ"
  forall b: Block do forall c: Block do b != c -> position[b] != position[c] end end;
invariant "a block being filled has one holder" forall b: Block do stage[b] = filling -> refs[b] = 1 end;
"""


def version() -> str:
    """Rumur's own words. Unusable when it is not installed."""
    if shutil.which("rumur") is None:
        raise Unusable("rumur is not installed (Debian package rumur)")
    return output(["rumur", "--version"], Path.cwd()).strip()


def run(blocks: int, requests: int, folder: Path, expected: int) -> Found:  # noqa: ARG001
    """Search once, one thread. Rumur sizes its table itself."""
    program = folder / f"rumur-{blocks}-{requests}"
    if not program.exists():
        (folder / "kvlife.m").write_text(MODEL.format(blocks=blocks, requests=requests))
        output(
            ["rumur", "--threads", "1", "--deadlock-detection", "off", "--output", "kvlife.c", "kvlife.m"],
            folder,
        )
        output(["cc", *FLAGS, "-o", str(program), "kvlife.c"], folder)
    start = time.perf_counter()
    text = output([str(program)], folder)
    seconds = time.perf_counter() - start
    summary = re.search(r"(\d+) states, (\d+) rules fired", text)
    if summary is None or "No error found" not in text:
        raise Unusable(f"rumur did not finish: {text[-300:]}")
    return Found(int(summary[1]), int(summary[2]), None, seconds)
