"""Draw who imports whom in src/diti, room by room, and print how far down the verbs reach.

A room is a folder or file of src/diti; those of representation are rooms of their own. `--write CONTRIBUTING.md`
puts the diagram between two marker comments. Imports that only type checkers see do not count.
"""

import argparse
import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "diti"
SPLIT = "representation"  # drawn with its own rooms
BEGIN, END = "<!-- import graph: begin -->\n", "<!-- import graph: end -->\n"
Trees = dict[str, ast.Module]  # core.rng → its syntax tree


def parse(package: Path) -> Trees:
    paths = {".".join(p.relative_to(package).with_suffix("").parts): p for p in sorted(package.rglob("*.py"))}
    return {name.removesuffix(".__init__"): ast.parse(p.read_text("utf-8")) for name, p in paths.items()}


def imports(trees: Trees, code: ast.AST, inside_functions: bool) -> set[str]:
    """The modules that a piece of code imports; diti writes `from ... import` for its own."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(code):
        for_types = isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        if isinstance(node, ast.ImportFrom):  # from diti.core import rng, or from diti.core.rng import generator
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
        elif not for_types and not isinstance(node, ast.expr if inside_functions else ast.expr | ast.FunctionDef):
            found |= imports(trees, node, inside_functions)
    return {name.removeprefix("diti.") for name in found} & trees.keys()


def between_rooms(trees: Trees, inside_functions: bool) -> set[tuple[str, str]]:
    def room(module: str) -> str:  # core.rng → core; representation.solve.run → representation.solve
        return ".".join(module.split(".")[: 2 if module.startswith(SPLIT) else 1])

    edges = {(room(a), room(b)) for a, tree in trees.items() for b in imports(trees, tree, inside_functions)}
    return {(a, b) for a, b in edges if a != b and not {a, b} & {"__init__", "__main__"}}


def without_detours(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Without the arrows that follow from others: a → c where a → b → c."""
    kept = set(edges)
    for edge in sorted(edges):
        reached = {edge[0]}
        while new := {b for a, b in kept - {edge} if a in reached} - reached:
            reached |= new
        kept -= {edge} if edge[1] in reached else set()
    return kept


def diagram(trees: Trees) -> str:
    """A mermaid flowchart of the arrows that say more than others, with the split room in a frame."""
    edges = between_rooms(trees, inside_functions=True)
    inner = {(a, b) for a, b in edges if a.startswith(SPLIT) and b.startswith(SPLIT)}
    outer = {(a.split(".")[0], b.split(".")[0]) for a, b in edges - inner}
    loaded = {(a.split(".")[0], b.split(".")[0]) for a, b in between_rooms(trees, inside_functions=False)}
    calls_up = {(a, b) for a, b in outer - loaded if (b, a) in loaded}
    lines = [f"  {a} --> {b}" for a, b in sorted(without_detours(outer - calls_up))]
    lines += [f"  {a} -. when called .-> {b}" for a, b in sorted(calls_up)]
    drawn = {(a.partition(".")[2], b.partition(".")[2]) for a, b in without_detours(inner)}
    lines += [f"  subgraph {SPLIT}", *(f"    {a} --> {b}" for a, b in sorted(drawn))]
    return "\n".join(["```mermaid", "flowchart TD", *lines, "  end", "```", ""])


def longest_chain(trees: Trees, verb: str) -> list[str]:
    """From what the verb imports when it runs, along the imports at the top of files."""

    @cache
    def chain(module: str) -> list[str]:
        below = sorted(imports(trees, trees[module], inside_functions=False) - {module})
        return [module, *max(map(chain, below), key=len, default=[])]

    nodes = [node for name, tree in trees.items() if name.startswith("verbs") for node in ast.walk(tree)]
    record = next(node for node in nodes if isinstance(node, ast.ClassDef) and node.name == verb.title())
    return max(map(chain, sorted(imports(trees, record, inside_functions=True))), key=len)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--package", type=Path, default=PACKAGE, help="folder of diti's source")
    parser.add_argument("--write", type=Path, help="file to put the diagram into, which has the marker comments")
    options = parser.parse_args()
    trees = parse(options.package)
    if options.write:
        text = options.write.read_text("utf-8")
        if text.find(END) < text.find(BEGIN) or BEGIN not in text:
            parser.error(f"{options.write} lacks the two lines between which the diagram goes:\n{BEGIN}{END}")
        options.write.write_text(text.split(BEGIN)[0] + BEGIN + diagram(trees) + END + text.split(END)[1], "utf-8")
    else:
        print(diagram(trees))
        for verb in ("train", "probe", "report", "demo"):
            found = longest_chain(trees, verb)
            print(f"diti {verb}: {len(found)} hops, {' → '.join(found)}")
