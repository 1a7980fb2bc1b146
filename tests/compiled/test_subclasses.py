"""A copy of an object has what its compiled classes know of: an interpreted subclass loses what it keeps itself."""

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = (REPOSITORY / "core" / "ebbtide_core", REPOSITORY / "simulator" / "ebbtide_sim")


def classes() -> Iterator[tuple[Path, ast.ClassDef]]:
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    yield path, node


def keeps_something(node: ast.ClassDef) -> bool:
    return any(
        isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and ast.unparse(inner.value) == "self"
        for inner in ast.walk(node)
    )


def test_no_interpreted_class_keeps_something_beside_a_compiled_base() -> None:
    listed = runpy.run_path(str(REPOSITORY / "scripts" / "compile_core.py"))["COMPILED"]
    files = {
        package / path.partition("/")[2] for path in listed for package in PACKAGES if path.startswith(package.name)
    }
    native = {node.name for path, node in classes() if path in files and "native_class=False" not in decorators(node)}
    assert "DemandQueue" in native
    wrong = [
        f"{path.name}: {node.name}"
        for path, node in classes()
        if path not in files and bases(node) & native and keeps_something(node)
    ]
    assert wrong == []


def decorators(node: ast.ClassDef) -> str:
    return " ".join(map(ast.unparse, node.decorator_list))


def bases(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
