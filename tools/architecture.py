"""Architecture: a picture and a page of the source, drawn from its real imports.

    python tools/architecture.py            # write docs/architecture.svg and docs/ARCHITECTURE.md
    python tools/architecture.py --check    # exit with 1 if these files are out of date

A room is a package or module directly under ``shoal``. The imports are read from the syntax trees,
at any depth of a file; nothing is imported. The descriptions are first lines of docstrings.
"""

import argparse
import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from pathlib import Path
from textwrap import wrap

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCE = REPOSITORY / "src" / "shoal"
PICTURE = REPOSITORY / "docs" / "architecture.svg"
PAGE = REPOSITORY / "docs" / "ARCHITECTURE.md"

# The package itself, whose __init__ holds the public names.
FACE = "shoal"
# Shown in the band at the bottom: any room can use them, so arrows would only hide the others.
TOOLS = (
    "catalogue",
    "choices",
    "checks",
    "documents",
    "escapes",
    "files",
    "storage",
    "tensor_files",
    "randomness",
    "distributed",
    "replay",
    "scalars",
    "notebook",
)
# Neither boxes nor tools: a version number, and a file that calls the command line.
NOT_DRAWN = ("_version", "__main__")

Graph = Mapping[str, set[str]]


# The source


@dataclass
class Room:
    """A package or module under ``shoal``: its first line, its modules, and what it imports."""

    name: str
    summary: str = ""
    modules: dict[str, str] = field(default_factory=dict)
    imports: set[str] = field(default_factory=set)
    uses_torch: bool = False


def read_rooms(source: Path) -> dict[str, Room]:
    """Return all rooms of the package at ``source`` by name."""
    rooms: dict[str, Room] = {}
    names = {path.stem for path in source.iterdir() if path.suffix == ".py" or path.is_dir()}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        inside = parts[:-1] if is_package else parts
        room = rooms.setdefault(inside[0] if inside else FACE, Room(inside[0] if inside else FACE))
        tree = ast.parse(path.read_text("utf-8"), filename=str(path))
        first_line = (ast.get_docstring(tree) or "").partition("\n")[0]
        if len(inside) > 1:
            room.modules[".".join(inside[1:])] = first_line
        else:
            room.summary = first_line
        for name in imported_names(tree, ("shoal", *parts[:-1])):
            package, _, rest = name.partition(".")
            room.uses_torch |= package == "torch"
            if package == "shoal":
                target = rest.partition(".")[0]
                room.imports.add(target if target in names else FACE)
        room.imports.discard(room.name)
    return rooms


def imported_names(tree: ast.AST, package: Sequence[str]) -> Iterator[str]:
    """Yield the absolute names that a module of ``package`` imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *filter(None, [node.module])))
            yield from (f"{base}.{alias.name}" for alias in node.names)


def reachable(start: str, graph: Graph) -> set[str]:
    """Return all rooms that ``start`` imports, directly or through others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for target in graph[waiting.pop()] - found:
            found.add(target)
            waiting.append(target)
    return found


def reduced(graph: Graph) -> dict[str, set[str]]:
    """Return the graph without arrows that a longer way implies: the transitive reduction."""
    below = {room: reachable(room, graph) for room in graph}
    return {
        room: {to for to in targets if not any(to in below[other] for other in targets - {to})}
        for room, targets in graph.items()
    }


def depths(graph: Graph) -> dict[str, int]:
    """Return the layer of every room: one below the lowest room that imports it.

    A room with as many arrows down as up or more is then lowered, which shortens its arrows.
    """
    found: dict[str, int] = {}

    def depth(room: str) -> int:
        if room not in found:
            above = [depth(other) for other in graph if room in graph[other]]
            found[room] = 1 + max(above, default=-1)
        return found[room]

    for room in graph:
        depth(room)
    for room in sorted(graph, key=lambda name: -found[name]):
        arrows_up = sum(room in targets for targets in graph.values())
        if graph[room] and arrows_up <= len(graph[room]):
            found[room] = min(found[target] for target in graph[room]) - 1
    return found


# The layout: layers from top to bottom, few crossings, short arrows

WIDTH, HEIGHT = 244, 78  # of a box
GAP, LANE = 34, 26  # between boxes, and what an arrow takes that passes a layer
PITCH = 116  # from layer to layer
MARGIN = 36
LINES = 3  # of description in a box


@dataclass
class Node:
    """A box, or the point at which an arrow passes a layer (``room`` is None)."""

    layer: int
    room: str | None
    x: float = 0.0
    above: list["Node"] = field(default_factory=list)
    below: list["Node"] = field(default_factory=list)

    @property
    def width(self) -> int:
        return WIDTH if self.room else LANE

    def centre(self, side: str) -> float:
        """Return the mean x of the neighbours above or below; its own without any."""
        near = self.above if side == "above" else self.below
        return sum(node.x for node in near) / len(near) if near else self.x


def layout(graph: Graph) -> tuple[dict[str, Node], list[list[Node]]]:
    """Return the boxes with their places, and the nodes along every arrow."""
    layer_of = depths(graph)
    boxes = {room: Node(layer_of[room], room) for room in sorted(graph)}
    layers: list[list[Node]] = [[] for _ in range(1 + max(layer_of.values()))]
    for box in boxes.values():
        layers[box.layer].append(box)
    arrows = []
    for room in sorted(graph):
        for target in sorted(graph[room]):
            passed = [Node(k, None) for k in range(layer_of[room] + 1, layer_of[target])]
            arrow = [boxes[room], *passed, boxes[target]]
            for node in passed:
                layers[node.layer].append(node)
            for upper, lower in pairwise(arrow):
                upper.below.append(lower)
                lower.above.append(upper)
            arrows.append(arrow)
    _order(layers)
    _place(layers)
    return boxes, arrows


def _order(layers: list[list[Node]]) -> None:
    """Order every layer by the mean place of its neighbours, with as few crossings as found."""
    best = [list(layer) for layer in layers]
    fewest = _crossings(layers)
    for sweep in range(40):
        side = "above" if sweep % 2 == 0 else "below"
        for layer in layers if side == "above" else reversed(layers):
            layer.sort(key=lambda node: node.centre(side))
            _number(layer)
        if (count := _crossings(layers)) < fewest:
            best, fewest = [list(layer) for layer in layers], count
    for layer, order in zip(layers, best, strict=True):
        layer[:] = order


def _number(layer: list[Node]) -> None:
    for place, node in enumerate(layer):
        node.x = float(place)


def _crossings(layers: list[list[Node]]) -> int:
    for layer in layers:
        _number(layer)
    return sum(
        (upper.x - other.x) * (lower.x - end.x) < 0
        for layer in layers
        for k, upper in enumerate(layer)
        for other in layer[:k]
        for lower in upper.below
        for end in other.below
    )


def _place(layers: list[list[Node]]) -> None:
    """Move every node towards its neighbours, in order and without overlap."""
    for layer in layers:
        at = 0.0
        for node in layer:
            node.x = at + node.width / 2
            at += node.width + GAP
    for sweep in range(200):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            _separate(layer, [_wanted(node) for node in layer])
    left = min(node.x - node.width / 2 for layer in layers for node in layer)
    for layer in layers:
        for node in layer:
            node.x = round(node.x - left + MARGIN, 1)


def _wanted(node: Node) -> float:
    """Return the x between a node's neighbours; arrows that pass layers are pulled straight."""
    near = [
        (8 if node.room is None and other.room is None else 1, other)
        for other in (*node.above, *node.below)
    ]
    weight = sum(pull for pull, _ in near)
    return sum(pull * other.x for pull, other in near) / weight if near else node.x


def _separate(layer: list[Node], wanted: list[float]) -> None:
    """Set x as near to ``wanted`` as order and gaps allow: least squares by pooling neighbours."""
    offsets = [0.0]
    for left, right in pairwise(layer):
        offsets.append(offsets[-1] + (left.width + right.width) / 2 + GAP)
    pools: list[list[float]] = []
    for wish, offset in zip(wanted, offsets, strict=True):
        pools.append([wish - offset])
        while len(pools) > 1 and _mean(pools[-2]) > _mean(pools[-1]):
            last = pools.pop()
            pools[-1] += last
    shifts = [_mean(pool) for pool in pools for _ in pool]
    for node, shift, offset in zip(layer, shifts, offsets, strict=True):
        node.x = shift + offset


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


# The picture

STYLE = """
  .paper { fill: #ffffff; stroke: #d8dee4; }
  .band { fill: #f6f8fa; stroke: #d8dee4; }
  .box { fill: #eef4fb; stroke: #7aa2cc; }
  .free { fill: #edf7ee; stroke: #7ab583; }
  .name { font: 600 15px system-ui, sans-serif; fill: #1f2328; }
  .text { font: 11px system-ui, sans-serif; fill: #57606a; }
  .arrow { fill: none; stroke: #8c959f; stroke-width: 1.5; }
  .head { fill: #8c959f; }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117; stroke: #30363d; }
    .band { fill: #161b22; stroke: #30363d; }
    .box { fill: #14243a; stroke: #3d6fa5; }
    .free { fill: #14291a; stroke: #3f8f4f; }
    .name { fill: #f0f6fc; }
    .text { fill: #9ea7b3; }
    .arrow { stroke: #6e7681; }
    .head { fill: #6e7681; }
  }
"""


def draw(rooms: Mapping[str, Room]) -> str:
    """Return the picture as SVG: boxes in layers, arrows from the reduced imports."""
    graph = {
        name: {to for to in room.imports if to not in (*TOOLS, *NOT_DRAWN)}
        for name, room in rooms.items()
        if name not in (*TOOLS, *NOT_DRAWN)
    }
    boxes, arrows = layout(reduced(graph))
    free = rooms_without_torch(rooms)
    columns = 4
    width = max(node.x + node.width / 2 for arrow in arrows for node in arrow) + MARGIN
    width = max(width, columns * (WIDTH + 12) + 2 * MARGIN)
    shift = (width - MARGIN - max(node.x + WIDTH / 2 for node in boxes.values())) / 2
    for node in {id(node): node for arrow in arrows for node in arrow}.values():
        node.x += shift
    top = MARGIN
    band = top + PITCH * max(node.layer for node in boxes.values()) + HEIGHT + 44
    rows = -(-len(TOOLS) // columns)
    height = band + 40 + rows * (HEIGHT + 12) + 46
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" '
        'aria-label="Rooms of shoal and their imports, from the command line to the small tools">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" '
        'rx="12"/>',
    ]
    parts += [_arrow(arrow, arrows, top) for arrow in arrows]
    parts += [
        _box(rooms[name], node.x - WIDTH / 2, top + PITCH * node.layer, WIDTH, name in free)
        for name, node in boxes.items()
    ]
    parts.append(
        f'<rect class="band" x="{MARGIN - 12}" y="{band}" width="{width - 2 * MARGIN + 24:g}" '
        f'height="{36 + rows * (HEIGHT + 12):g}" rx="10"/>'
    )
    parts.append(
        f'<text class="text" x="{MARGIN}" y="{band + 20}">Small tools: any room above can import '
        "them, so no arrows are drawn to them.</text>"
    )
    across = (width - 2 * MARGIN + 12) / columns
    for number, name in enumerate(TOOLS):
        row, column = divmod(number, columns)
        x, y = MARGIN + column * across, band + 32 + row * (HEIGHT + 12)
        parts.append(_box(rooms[name], x, y, across - 12, name in free))
    parts.append(
        f'<text class="text" x="{MARGIN}" y="{height - 14:g}">An arrow means “imports”; arrows '
        "that follow from others are left out. Green: free of torch.</text>"
    )
    return "\n".join([*parts, "</svg>", ""])


def rooms_without_torch(rooms: Mapping[str, Room]) -> set[str]:
    """Return the rooms that never import torch, nor a room that does."""
    graph = {name: room.imports for name, room in rooms.items()}
    return {
        name
        for name in rooms
        if not any(rooms[other].uses_torch for other in {name, *reachable(name, graph)})
    }


def _box(room: Room, x: float, y: float, width: float, is_free: bool) -> str:
    title = "import shoal" if room.name == FACE else room.name
    lines = wrap(_description(room), int((width - 20) / 5.9))
    if len(lines) > LINES:
        lines[LINES - 1 :] = [lines[LINES - 1].rstrip(".,;: ") + " …"]
    text = [
        f'<rect class="{"free" if is_free else "box"}" x="{x:g}" y="{y:g}" width="{width:g}" '
        f'height="{HEIGHT}" rx="8"/>',
        f'<text class="name" x="{x + 12:g}" y="{y + 21:g}">{escape(title)}</text>',
    ]
    for number, line in enumerate(lines):
        text.append(
            f'<text class="text" x="{x + 12:g}" y="{y + 38 + 14 * number:g}">{escape(line)}</text>'
        )
    return "\n".join(text)


def _description(room: Room) -> str:
    """Return the first line of a room without its name, backticks and full stop."""
    line = room.summary.replace("``", "").rstrip(".")
    before, colon, after = line.partition(": ")
    return after if colon and before.lower().replace(" ", "_") == room.name else line


def _arrow(arrow: list[Node], arrows: list[list[Node]], top: float) -> str:
    """Return a smooth line through the nodes of an arrow, with a head."""
    first, last = arrow[0], arrow[-1]
    out = sorted((one for one in arrows if one[0] is first), key=lambda one: one[1].x)
    into = sorted((one for one in arrows if one[-1] is last), key=lambda one: one[-2].x)
    points = [(_port(first, arrow, out), top + PITCH * first.layer + HEIGHT)]
    for node in arrow[1:-1]:
        points += [(node.x, top + PITCH * node.layer), (node.x, top + PITCH * node.layer + HEIGHT)]
    end = top + PITCH * last.layer
    points.append((_port(last, arrow, into), end - 8))
    path = [f"M {points[0][0]:g} {points[0][1]:g}"]
    for (x, y), (to_x, to_y) in pairwise(points):
        bend = (to_y - y) / 2
        path.append(f"C {x:g} {y + bend:g} {to_x:g} {to_y - bend:g} {to_x:g} {to_y:g}")
    x = points[-1][0]
    head = f"M {x - 5:g} {end - 9:g} L {x + 5:g} {end - 9:g} L {x:g} {end:g} Z"
    return f'<path class="arrow" d="{" ".join(path)}"/>\n<path class="head" d="{head}"/>'


def _port(box: Node, arrow: list[Node], arrows: list[list[Node]]) -> float:
    """Return where an arrow leaves or enters a box: side by side with its other arrows."""
    place = next(k for k, one in enumerate(arrows) if one is arrow)
    return box.x + (place - (len(arrows) - 1) / 2) * 28


# The page

HEADER = """\
# Architecture

The rooms of `src/shoal` and their imports, from the commands at the top to the small tools at the
bottom. An arrow means “imports”; arrows that follow from others are left out.
[`tests/test_rooms.py`](../tests/test_rooms.py) states which room may import which.

![Rooms of shoal and their imports](architecture.svg)

This page and the picture are written by `python tools/architecture.py`, from the imports and the
first lines of the docstrings.
"""


def write_page(rooms: Mapping[str, Room]) -> str:
    """Return the page as Markdown: the picture, then every room with its modules."""
    graph = {name: room.imports for name, room in rooms.items()}
    drawn = [name for name in rooms if name not in (*TOOLS, *NOT_DRAWN)]
    layer_of = depths({name: graph[name] & set(drawn) for name in drawn})
    ordered = sorted(drawn, key=lambda name: (layer_of[name], name))
    parts = [HEADER]
    for name in ordered:
        if rooms[name].modules:
            parts.append(_section(rooms[name]))
    alone = [name for name in (*ordered, *TOOLS, *NOT_DRAWN) if not rooms[name].modules]
    parts.append("## Single modules\n\n| module | contains | imports |\n| --- | --- | --- |")
    parts += [
        f"| {_file(name, '__init__' if name == FACE else name)} | {_cell(rooms[name].summary)} | "
        f"{_names(rooms[name].imports)} |"
        for name in alone
    ]
    return "\n".join(parts) + "\n"


def _section(room: Room) -> str:
    lines = [
        f"## {room.name}",
        "",
        f"{_cell(room.summary)} Imports {_names(room.imports)}.",
        "",
        "| module | contains |",
        "| --- | --- |",
    ]
    for module, first_line in room.modules.items():
        path = f"{room.name}/{module.replace('.', '/')}"
        lines.append(f"| {_file(module, path)} | {_cell(first_line)} |")
    return "\n".join([*lines, ""])


def _file(name: str, path: str) -> str:
    return f"[`{name}`](../src/shoal/{path}.py)"


def _names(rooms: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(rooms)) or "no other room"


def _cell(line: str) -> str:
    """Return a docstring's line as Markdown."""
    return line.replace("``", "`").replace("|", "\\|")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write both files, or compare them with the source; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if a file is out of date"
    )
    options = parser.parse_args(arguments)
    rooms = read_rooms(SOURCE)
    status = 0
    for path, content in ((PICTURE, draw(rooms)), (PAGE, write_page(rooms))):
        current = path.read_text("utf-8") if path.exists() else None
        if content == current:
            continue
        if options.check:
            print(f"{path.relative_to(REPOSITORY)} is out of date: python tools/architecture.py")
            status = 1
        else:
            path.write_text(content, "utf-8")
            print(f"Written: {path.relative_to(REPOSITORY)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
