"""Container images made here: nodes pull nothing from anywhere."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab import apt, folders, versions
from lab.kubernetes.builds import module, tool
from lab.progress import step

PAUSE = "localhost/pause:1"
PYTHON = "localhost/python:3"
OCI = "application/vnd.oci.image."
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
# Nobody reads manuals in a pod.
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*")


def architecture() -> str:
    return ARCHITECTURES[platform.machine()]


def images() -> list[Path]:
    """Archives with the images of every node."""
    version = f"{versions.NODE_IMAGE_SUITE}-{versions.NODE_IMAGES}"
    folder = folders.built("node-images", version, _make)
    return sorted(folder.glob("*.tar"))


def _make(folder: Path) -> None:
    with step(f"image {PAUSE}"):
        _pause(folder)
    with step(f"image {PYTHON}"):
        _python(folder)


def _pause(folder: Path) -> None:
    program = folder / "pause"
    source = module("k8s.io/kubernetes", versions.KUBERNETES) / "build/pause/linux/pause.c"
    tool("gcc", "-Os", "-static", "-o", program, source)
    root = io.BytesIO()
    with tarfile.open(fileobj=root, mode="w") as archive:
        archive.add(program, "pause")
    program.unlink()
    write_image(PAUSE, [root.getvalue()], folder / "pause.tar", {"Entrypoint": ["/pause"]})


def _python(folder: Path) -> None:
    apt.require("mmdebstrap", "mmdebstrap")
    root = folder / "root.tar"
    words = [
        "--quiet",
        "--variant=essential",
        "--include=python3",
        '--aptopt=APT::Install-Recommends "false"',
        *(f"--dpkgopt=path-exclude={path}" for path in LEFT_OUT),
    ]
    tool("mmdebstrap", *words, versions.NODE_IMAGE_SUITE, root, apt.mirror(), env={"TMPDIR": str(folder)})
    settings = {"Cmd": ["python3"], "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "PYTHONUNBUFFERED=1"]}
    write_image(PYTHON, [root.read_bytes()], folder / "python.tar", settings)
    root.unlink()


def write_image(name: str, layers: Sequence[bytes], out: Path, settings: dict[str, Any]) -> None:
    """An OCI archive with these tars as its layers, the lowest first."""
    blobs: dict[str, bytes] = {}

    def keep(blob: bytes, kind: str) -> dict[str, Any]:
        digest = _digest(blob)
        blobs[digest] = blob
        return {"mediaType": OCI + kind, "digest": digest, "size": len(blob)}

    config = {
        "architecture": architecture(),
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{OCI}manifest.v1+json",
        "config": keep(_encoded(config), "config.v1+json"),
        "layers": [keep(layer, "layer.v1.tar") for layer in layers],
    }
    entry = keep(_encoded(manifest), "manifest.v1+json")
    entry["annotations"] = {"io.containerd.image.name": name}
    files = {
        "oci-layout": _encoded({"imageLayoutVersion": "1.0.0"}),
        "index.json": _encoded({"schemaVersion": 2, "manifests": [entry]}),
        **{f"blobs/{digest.replace(':', '/')}": blob for digest, blob in blobs.items()},
    }
    with tarfile.open(out, "w") as archive:
        for path, content in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _encoded(value: object) -> bytes:
    return json.dumps(value).encode()
