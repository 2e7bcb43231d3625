"""A page of the docs, read as whoever follows it would: files to write, commands to type, what they show.

Comments in the Markdown say what the reader's eye takes from the prose, before the block they are for:

    <!-- not run: REASON -->       nobody can type this here; tests bound how many there are
    <!-- runs: WHERE -->           typed elsewhere: tutorial, slurm-lab, kubernetes-lab, wheel
    <!-- exits: 1 -->              the last command of the block ends so
    <!-- first: COMMAND -->        typed before it, out of sight
    <!-- job: 8f3k = COMMAND -->   submits a job that the page calls 8f3k
    <!-- output: as it may be -->  what is shown depends on the cluster; only the exit code counts
    <!-- output: first line -->    of what is shown only how the first line begins counts
    <!-- stage: empty -->          anywhere on the page: a home with nothing in it instead of a running server
    <!-- stage: ledger -->         the same, with FAIRWAY_DATABASE_URL of a ledger
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
_COMMENT = re.compile(r"<!-- ([a-z ]+): (.*?) -->", re.DOTALL)
_FENCE = re.compile(r"^( *)```(\w*)(.*)$")
STARTS = re.compile(r"^fairway (server|demo)(?! tour| -h| --help)\b")
"""What goes on until somebody ends it."""
INSTALLS = re.compile(r"\bpip3? install\b|-m venv\b")
"""What the CI's stage with the wheel does."""
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True, slots=True)
class Typed:
    """A command, and the lines shown below it."""

    command: str
    shown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block with what was said before it."""

    page: Path
    line: int
    language: str
    title: str
    text: str
    said: tuple[tuple[str, str], ...]

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def says(self, key: str) -> str:
        """What the last comment of this key says; empty if there is none."""
        return next((value for name, value in reversed(self.said) if name == key), "")

    @property
    def typed(self) -> bool:
        """Whether its commands are typed where its page is."""
        return not self.says("not run") and not self.says("runs")

    @property
    def commands(self) -> list[Typed]:
        found: list[Typed] = []
        for part in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            lines = part.rstrip("\n").split("\n")
            command = lines.pop(0)
            while command.endswith("\\") and lines:
                command = command[:-1] + lines.pop(0).lstrip("> ")
            found.append(Typed(command, tuple(lines)))
        return found


@dataclass(slots=True)
class _Open:
    line: int
    indent: int
    language: str
    title: str
    text: list[str] = field(default_factory=list)


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page in their order."""
    said: list[tuple[str, str]] = []
    comment = ""
    now: _Open | None = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if now is not None:
            if fence and not fence[2] and len(fence[1]) == now.indent:
                text = "\n".join(now.text) + "\n"
                yield Block(page, now.line, now.language, now.title, text, tuple(said))
                now, said = None, []
            else:
                now.text.append(line[now.indent :])
        elif fence:
            title = _TITLE.search(fence[3])
            now = _Open(number, len(fence[1]), fence[2], title[1] if title else "")
        elif line.startswith("<!--") or comment:
            comment += line + "\n"
            if "-->" in line:
                said += [(key, value.strip().replace("\n", " ")) for key, value in _COMMENT.findall(comment)]
                comment = ""
        elif line.startswith("#"):
            said = []


def stage(page: Path) -> str:
    """What must be there: a server of the fleet acme, unless the page says otherwise or starts one itself."""
    if found := re.search(r"<!-- stage: ([a-z-]+) -->", page.read_text(encoding="utf-8")):
        return found[1]
    if page.name.startswith("deploy-"):  # typed where the chart and the units are tried
        return "deploy"
    typed = [one.command for block in blocks(page) if block.language == "console" for one in block.commands]
    return "empty" if any(STARTS.match(command) for command in typed) else "acme"


def pages() -> list[Path]:
    """Every page that somebody may follow; what is generated has no commands to type."""
    docs = [
        page
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if "reference" not in page.relative_to(ROOT / "docs").parts and "adr" not in page.parts
    ]
    return [ROOT / "README.md", *docs]


def console(page: Path) -> list[Block]:
    """The blocks of a page that show commands."""
    return [block for block in blocks(page) if block.language == "console"]


def typed_pages(*stages: str) -> list[Path]:
    """The pages with commands that are typed on one of these stages."""
    return [page for page in pages() if stage(page) in stages and any(block.typed for block in console(page))]
