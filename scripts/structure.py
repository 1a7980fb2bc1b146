"""Prints the figures of the code's structure, and keeps the table of them in CONTRIBUTING.md.

    python scripts/structure.py                     # of this tree, as a table
    python scripts/structure.py --json ../older     # of another tree
    python scripts/structure.py --write             # put those of this tree into CONTRIBUTING.md

Everything is read from the sources; nothing is imported.
"""

import argparse
import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOTS = {
    "core": "ebbtide_core",
    "master": "ebbtide_master",
    "agent": "ebbtide_agent",
    "simulator": "ebbtide_sim",
    "dashboard": "ebbtide_web",
    "client": "ebbtide_cli",
    "sdk": "ebbtide",
    "protos": "ebbtide_protos",
    "machine": "ebbtide_machine",
}
OF_A_SUBMIT = ("SubmitRequest", "JobSpec", "JobSubmitted", "Launch", "Intent")
"""The types that carry a job's request from `ebb submit` to the process: what names one of them is on the way."""
MARK = re.compile(r"(<!-- structure -->\n).*?(?=\n\n|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Module:
    """One module of the product: its dotted name, its file, and what is in it."""

    name: str
    path: Path
    is_package: bool
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """What Python's own parser makes of the text."""
        return ast.parse(self.text)


def modules(tree: Path) -> dict[str, Module]:
    """All modules of the product by name, without generated code."""
    found = {}
    for folder, package in ROOTS.items():
        for path in sorted((tree / folder / package).rglob("*.py")):
            if "_pb2" in path.name:
                continue
            parts = path.relative_to(tree / folder).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            found[name] = Module(name, path.relative_to(tree), is_package, path.read_text())
    return found


def loose(product: dict[str, Module], package: str) -> int:
    """How many modules lie in the package itself, and in no room of it."""
    return sum(name.rpartition(".")[0] == package and not one.is_package for name, one in product.items())


def imports(module: Module, product: dict[str, Module]) -> set[str]:
    """The modules of the product that one imports, wherever in it, also for types alone."""
    found = set()
    for node in ast.walk(module.tree):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(origin), names=names, level=0):
                for alias in names:
                    inner = f"{origin}.{alias.name}"
                    found.add(inner if inner in product else origin)
            case _:
                pass
    return (found & product.keys()) - {module.name}


def circles(product: dict[str, Module]) -> list[list[str]]:
    """Groups of modules each of which imports, directly or not, all others of its group."""
    edges = {name: imports(module, product) for name, module in product.items()}
    reached = {name: _reach(name, edges) for name in edges}
    found, seen = [], set[str]()
    for name in edges:
        if name not in seen and name in reached[name]:
            group = sorted(other for other in reached[name] if name in reached[other])
            seen.update(group)
            found.append(group)
    return found


def _reach(start: str, edges: dict[str, set[str]]) -> set[str]:
    """What is imported from there on; ``start`` itself only if it is come back to."""
    found, waiting = set[str](), [start]
    while waiting:
        for name in edges[waiting.pop()] - found:
            found.add(name)
            waiting.append(name)
    return found


def classes(product: dict[str, Module]) -> Iterator[tuple[str, ast.ClassDef]]:
    """Every class with the name of its module."""
    for name, module in product.items():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                yield name, node


def ambiguous(product: dict[str, Module]) -> dict[str, list[str]]:
    """The public names of classes that several modules define at their top, and these modules."""
    found = defaultdict(list)
    for name, module in product.items():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name)
    return {name: where for name, where in sorted(found.items()) if len(where) > 1}


def uses_of_any(product: dict[str, Module], package: str) -> int:
    """How often a module of the package uses `Any`; its import is no use."""
    return sum(
        isinstance(node, ast.Name) and node.id == "Any"
        for name, module in product.items()
        if name.partition(".")[0] == package
        for node in ast.walk(module.tree)
    )


def largest_record(product: dict[str, Module]) -> tuple[int, str]:
    """The most fields that a class declares, and which class that is."""
    sizes = (
        (sum(isinstance(entry, ast.AnnAssign) for entry in node.body), f"{name}.{node.name}")
        for name, node in classes(product)
    )
    return max(sizes, default=(0, ""))


def on_the_way_of_a_submit(product: dict[str, Module]) -> list[str]:
    """The modules that name a type which carries a job's request."""
    return [
        name
        for name, module in product.items()
        if any(
            (isinstance(node, ast.Name) and node.id in OF_A_SUBMIT)
            or (isinstance(node, ast.Attribute) and node.attr in OF_A_SUBMIT)
            or (isinstance(node, ast.ClassDef) and node.name in OF_A_SUBMIT)
            for node in ast.walk(module.tree)
        )
    ]


def figures(tree: Path) -> dict[str, int]:
    """Each figure by what it counts."""
    product = modules(tree)
    groups = circles(product)
    return {
        "modules loose in core": loose(product, "ebbtide_core"),
        "modules loose in master": loose(product, "ebbtide_master"),
        "modules loose in agent": loose(product, "ebbtide_agent"),
        "import circles, those of types included": len(groups),
        "modules in import circles": sum(map(len, groups)),
        "public class names with several definitions": len(ambiguous(product)),
        "uses of `Any` in core": uses_of_any(product, "ebbtide_core"),
        "fields of the largest record": largest_record(product)[0],
        "modules that name a type which carries a submit": len(on_the_way_of_a_submit(product)),
        "modules": len(product),
        "lines of product code": sum(module.text.count("\n") for module in product.values()),
    }


def table(now: dict[str, int], before: dict[str, str]) -> str:
    """The figures as a table, those of ``before`` beside them."""
    rows = [f"| {name} | {before.get(name, '–')} | {value:,} |" for name, value in now.items()]
    return "\n".join(["| figure | before the rooms | now |", "|---|---|---|", *rows])


def written(page: str, now: dict[str, int]) -> str:
    """The page with its table brought up to date; what it says of before stays. ValueError if it has none."""
    match = MARK.search(page)
    if match is None:
        raise ValueError("the page has no <!-- structure -->")
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in match[0].splitlines()[3:]]
    return page[: match.end(1)] + table(now, {row[0]: row[1] for row in rows}) + page[match.end() :]


def main() -> int:
    """Print the figures, or write them."""
    here = Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", nargs="?", type=Path, default=here, help="the tree to read (default: this one)")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print the figures as JSON, with the names behind them")
    output.add_argument("--write", action="store_true", help="put the figures into the CONTRIBUTING.md of the tree")
    options = parser.parse_args()
    if not (options.tree / "core" / "ebbtide_core").is_dir():
        parser.error(f"{options.tree} is no tree of Ebbtide: it has no core/ebbtide_core")
    now = figures(options.tree)
    if options.write:
        page = options.tree / "CONTRIBUTING.md"
        page.write_text(written(page.read_text(), now))
    elif options.json:
        product = modules(options.tree)
        behind = {
            "circles": circles(product),
            "ambiguous": ambiguous(product),
            "largest": largest_record(product)[1],
            "on the way": on_the_way_of_a_submit(product),
        }
        sys.stdout.write(json.dumps({"figures": now, "behind": behind}, indent=1) + "\n")
    else:
        sys.stdout.write(table(now, {}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
