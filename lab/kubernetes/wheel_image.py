"""The image that `deploy/Containerfile` describes, made without a container engine: the wheel on Python.

The layers are Debian's root with Python, what Fairway needs (kept by its lock), and the wheel itself.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lab import apt, folders
from lab.kubernetes import images
from lab.kubernetes.builds import tool
from lab.progress import step

LOCK = Path(__file__).parents[2] / "requirements" / "container.txt"
PYTHON = "3.13"  # what versions.NODE_IMAGE_SUITE carries
SITE = "opt/fairway/site"
USER = 10001
MADE = b"1"  # raise it when what goes into the layer beside the lock changes
SCRIPT = b"#!/usr/bin/python3\nfrom fairway.cli import main\n\nmain()\n"
SETTINGS = {
    "User": f"{USER}:{USER}",
    "Entrypoint": ["fairway"],
    "Cmd": ["--help"],
    "WorkingDir": "/tmp",
    "Env": [
        "PATH=/usr/local/bin:/usr/bin:/bin",
        f"PYTHONPATH=/{SITE}",
        "PYTHONDONTWRITEBYTECODE=1",
        "PYTHONUNBUFFERED=1",
    ],
}


def write_wheel_image(name: str, wheel: Path, out: Path, added: Mapping[str, bytes] | None = None) -> None:
    """An image of the wheel called `name`; `added` are files below site-packages, for a release to come."""
    with step(f"image {name}"), tempfile.TemporaryDirectory() as scratch:
        site = Path(scratch) / "site"
        _install(site, "--no-deps", str(wheel))
        for path, content in (added or {}).items():
            (site / path).write_bytes(content)
        _compile(site)
        layers = [_python_layer(), _needed_layer(), _tar(site, {"usr/local/bin/fairway": SCRIPT})]
        images.write_image(name, layers, out, SETTINGS)


def _needed_layer() -> bytes:
    digest = hashlib.sha256(LOCK.read_bytes() + MADE).hexdigest()[:12]
    return (folders.built("fairway-needs", digest, _make_needed) / "layer.tar").read_bytes()


def _make_needed(folder: Path) -> None:
    with step("what Fairway needs, for its image"):
        site, root = folder / "site", folder / "root"
        _install(site, "--require-hashes", "-r", str(LOCK))
        _compile(site)
        root.mkdir()
        apt.unpack(["libstdc++6"], root)  # of greenlet; Debian's smallest root has no program in C++
        (library,) = root.glob("usr/lib/*/libstdc++.so.6")
        named = {str(library.relative_to(root)): library.resolve().read_bytes()}
        (folder / "layer.tar").write_bytes(_tar(site, named))
        for done in (site, root):
            shutil.rmtree(done)


def _install(site: Path, *what: str) -> None:
    machine = {"amd64": "x86_64", "arm64": "aarch64"}[images.architecture()]
    where = ["--python-version", PYTHON, "--python-platform", f"{machine}-manylinux_2_28", "--target", site]
    tool("uv", "pip", "install", "--quiet", "--only-binary", ":all:", *where, *what)


def _compile(site: Path) -> None:
    """As pip does: else every start of a container, whose root is read-only, compiles everything anew."""
    with tempfile.TemporaryDirectory(dir=site.parent) as scratch:
        root = Path(scratch)
        with tarfile.open(fileobj=io.BytesIO(_python_layer())) as layer:
            layer.extractall(root, filter="tar")
        (root / SITE).parent.mkdir(parents=True)
        site.rename(root / SITE)
        words = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", f"/{SITE}"]
        tool("chroot", root, "python3", *words)
        (root / SITE).rename(site)


def _python_layer() -> bytes:
    """The root of the lab's own Python image."""
    archive = next(path for path in images.images() if path.name == "python.tar")
    with tarfile.open(archive) as image:

        def read(name: str) -> bytes:
            found = image.extractfile(name)
            assert found is not None
            return found.read()

        entry = json.loads(read("index.json"))["manifests"][0]["digest"]
        layer = json.loads(read(_blob(entry)))["layers"][0]["digest"]
        return read(_blob(layer))


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _tar(site: Path, others: Mapping[str, bytes]) -> bytes:
    """Owned by root and without times: the same content is the same layer."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in sorted(site.rglob("*")):
            info = archive.gettarinfo(path, f"{SITE}/{path.relative_to(site)}")
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = "root"
            if info.isreg():
                with path.open("rb") as content:
                    archive.addfile(info, content)
            else:
                archive.addfile(info)
        for name, text in others.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(text), 0o755
            archive.addfile(info, io.BytesIO(text))
    return packed.getvalue()
