"""Compare rendered files with those that are installed. Pure but for `read_installed`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import unified_diff
from pathlib import Path
from typing import Final

from fairway.model.errors import PermanentError

PARTITION: Final = "partitionname"
MODULE, SCRIPT = "fairway.lua", "job_submit.lua"


def read_installed(folder: Path) -> dict[str, str]:
    """Read the .conf and .lua files of a folder."""
    try:
        paths = sorted(p for p in folder.iterdir() if p.suffix in (".conf", ".lua") and p.is_file())
        return {path.name: path.read_text(encoding="utf-8", errors="replace") for path in paths}
    except OSError as error:
        raise PermanentError(
            "InstalledUnreadable",
            f"cannot read {error.filename or folder}: {error.strerror or error}",
            "name the folder of slurm.conf:  fairway render slurm --check --installed /etc/slurm",
        ) from error


def differences(rendered: Mapping[str, str], installed: Mapping[str, str]) -> list[str]:
    """Return a unified diff from the installed files to what is rendered; empty if nothing is missing.

    Lines count as installed in slurm.conf and in any file of the folder that it includes, and a line may have
    more than is needed. Of the two Lua files one is enough: the script, or the module that a script of the
    site calls.
    """
    lines: list[str] = []
    slurm, accounting = (
        _settings(_with_included(name, installed)) for name in ("slurm.conf", "slurmdbd.conf")
    )
    for name, text in rendered.items():
        if name.endswith(".conf"):
            lines += _missing_lines(name, text, accounting if name == "slurmdbd.conf" else slurm, rendered)
    lua = MODULE if MODULE in installed else SCRIPT
    if lua in rendered and rendered[lua] != installed.get(lua):
        lines += [
            line.rstrip("\n")
            for line in unified_diff(
                installed.get(lua, "").splitlines(),
                rendered[lua].splitlines(),
                f"{lua} (installed)",
                f"{lua} (rendered)",
                lineterm="",
            )
        ]
    return lines


def _with_included(name: str, installed: Mapping[str, str], including: tuple[str, ...] = ()) -> str:
    """Return the text of a file with the files of its folder that it includes."""
    lines = []
    for line in installed.get(name, "").splitlines():
        file = Path(_included(line)).name
        is_here = file in installed and file not in (*including, name)
        lines.append(_with_included(file, installed, (*including, name)) if is_here else line)
    return "\n".join(lines)


def _included(line: str) -> str:
    """Return the file that a line includes, or nothing."""
    word, _, file = line.split("#", 1)[0].strip().partition(" ")
    return file.strip() if word.lower() == "include" else ""


def _missing_lines(
    name: str, text: str, there: Mapping[str, Mapping[str, str]], rendered: Mapping[str, str]
) -> list[str]:
    missing = []
    for key, (wanted, line) in _lines(text).items():
        have = there.get(key)
        if have is None:
            missing.append(f"+{line}")
        elif not all(_covers(have.get(word), value) for word, value in wanted.items()):
            missing += [f"-{_shown(have)}", f"+{line}"]
    for file in filter(None, map(_included, text.splitlines())):
        if _missing_lines(file, rendered.get(file, ""), there, rendered):  # lines may be in slurm.conf itself
            missing.append(f"+Include {file}")
    return [f"--- {name} (installed)", f"+++ {name} (rendered)", *missing] if missing else []


def _lines(text: str) -> dict[str, tuple[dict[str, str], str]]:
    """Return each line's words by what it sets: a parameter, or a partition by its name."""
    found: dict[str, tuple[dict[str, str], str]] = {}
    for line in text.splitlines():
        code = line.split("#", 1)[0].strip()
        words = {key.lower(): value.strip('"') for key, _, value in _words(code)}
        if words:
            first = next(iter(words))
            found[f"{first} {words[first].lower()}" if first == PARTITION else first] = (words, code)
    return found


def _words(code: str) -> Iterator[tuple[str, str, str]]:
    for word in code.split():
        if "=" in word:
            yield word.partition("=")


def _settings(text: str) -> dict[str, dict[str, str]]:
    return {key: words for key, (words, _) in _lines(text.replace("\\\n", " ")).items()}


def _covers(have: str | None, wanted: str) -> bool:
    """Return whether an installed value is the wanted one, or a list that has all of it."""
    if have is None:
        return False
    return {w.lower() for w in wanted.split(",")} <= {h.lower() for h in have.split(",")}


def _shown(words: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in words.items())
