"""The four floors import downwards only, and the serving side stays free of torch."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = ["kernels", "models", "engine", "server"]  # lowest first


def imported_floors(path: Path) -> set[str]:
    """Floors that a module imports, seen from its place in the folder tree."""
    floors: set[str] = set()
    depth = len(path.relative_to(ROOT).parts) - 1  # folders between the root and the module
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.ImportFrom) and node.level == depth + 1:
            names = [f"surefoot.{node.module or ''}"]
            if not node.module:
                names = [f"surefoot.{alias.name}" for alias in node.names]
        floors |= {name.split(".")[1] for name in names if name.startswith("surefoot.")}
    return floors


def modules(floor: str) -> list[Path]:
    return sorted((ROOT / floor).rglob("*.py"))


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_point_down(floor: str) -> None:
    assert modules(floor), f"no modules in {floor}"
    higher = set(FLOORS[FLOORS.index(floor) + 1 :])
    offenders = {str(p.relative_to(ROOT)): bad for p in modules(floor) if (bad := imported_floors(p) & higher)}
    assert not offenders


@pytest.mark.parametrize("floor", FLOORS)
def test_torch_is_imported_by_the_reference_backend_only(floor: str) -> None:
    def imports_torch(path: Path) -> bool:
        tree = ast.walk(ast.parse(path.read_text()))
        return any(
            (isinstance(n, ast.Import) and any(a.name.split(".")[0] == "torch" for a in n.names))
            or (isinstance(n, ast.ImportFrom) and n.level == 0 and (n.module or "").split(".")[0] == "torch")
            for n in tree
        )

    offenders = [str(p.relative_to(ROOT)) for p in modules(floor) if imports_torch(p)]
    assert all(p.startswith("kernels/reference/") for p in offenders), offenders


def test_the_server_sees_no_kernels_but_their_errors() -> None:
    for path in modules("server"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kernels"):
                assert node.module == "kernels.errors", f"{path.relative_to(ROOT)} imports {node.module}"
