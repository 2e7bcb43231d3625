"""Add to the docs site the files outside docs/ that pages link to, and the logo of the web pages.

Pages are written for whoever reads them in the repository, so they link to `../../examples/fleet.yaml` or to
`ARCHITECTURE.md`. The site takes such files along (Markdown of the root as pages under `project/`, everything
else as it is under `source/`), so that it is whole in a folder without a network.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LOGO = "src/fairway/web/static/icon.svg"
"""The logo of the web pages, which is the logo of the site."""
_FENCE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_ABSOLUTE = re.compile(r"^[a-z]+:|^/")


def _in_repository(page: str) -> str:
    """Where the source of a page of the site is, from the repository's root."""
    return page.removeprefix("project/") if page.startswith("project/") else f"docs/{page}"


def _in_site(path: str) -> str:
    """Where a file of the repository is in the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"project/{path}" if path.endswith(".md") and "/" not in path else f"source/{path}"


def linked(markdown: str, page: str) -> list[str]:
    """Files of the repository that a page links to."""
    folder = posixpath.dirname(_in_repository(page))
    prose = _FENCE.sub("", markdown)
    return [
        posixpath.normpath(posixpath.join(folder, target))
        for _, target, _ in _LINK.findall(prose)
        if not _ABSOLUTE.match(target)
    ]


def relinked(markdown: str, page: str) -> str:
    """The page with links that hold in the site."""
    folder = posixpath.dirname(_in_repository(page))

    def one(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        if _ABSOLUTE.match(target):
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        if path == "docs" or (ROOT / path).is_dir():
            path = posixpath.join(path, "README.md" if (ROOT / path / "README.md").exists() else "index.md")
        return before + posixpath.relpath(_in_site(path), posixpath.dirname(page) or ".") + after

    parts = _FENCE.split(markdown)
    return "".join(part if i % 2 else _LINK.sub(one, part) for i, part in enumerate(parts))


def on_files(files: Files, config: Any) -> Files:
    """Takes along what pages link to outside docs/, and what those pages link to."""
    files.append(File.generated(config, "assets/icon.svg", content=(ROOT / LOGO).read_text(encoding="utf-8")))
    waiting = [file for file in files if file.src_uri.endswith(".md")]
    while waiting:
        file = waiting.pop()
        for path in linked(file.content_string, file.src_uri):
            source = ROOT / path
            if path.startswith(("docs", "..")) or source.is_dir() or files.get_file_from_path(_in_site(path)):
                continue
            if not source.is_file():
                raise PluginError(f"{_in_repository(file.src_uri)} links to {path}, which does not exist")
            taken = File.generated(config, _in_site(path), content=source.read_text(encoding="utf-8"))
            files.append(taken)
            if taken.src_uri.endswith(".md"):
                waiting.append(taken)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return relinked(markdown, page.file.src_uri)
