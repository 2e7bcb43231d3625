"""Define what of a job tells something about its run time, and the groups of jobs it is compared with."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple, NewType, Protocol

from fairway.model.names import TeamName, UserName

RunTimeKey = NewType("RunTimeKey", int)
"""A group of jobs: a signed 64-bit hash of what they have in common, by which its histogram is stored."""

_PATTERN_LENGTH: Final = 64
_NAME_LENGTH: Final = 256
"""The characters of a name that are read."""
_RANDOM_SUFFIX: Final = re.compile(r"-(?=[a-z]*[0-9])[bcdfghjklmnpqrstvwxz2456789]{5}$")
"""What Kubernetes appends to generated names."""
_HASH: Final = re.compile(r"(?<![0-9a-z])(?=[a-f]*[0-9])[0-9a-f]{6,}(?![0-9a-z])")
_DIGITS: Final = re.compile(r"[0-9]+(?:[._:-]?[0-9]+)*")
_LIMITS_PER_OCTAVE: Final = 4
_CACHED: Final = 20_000
"""Names and their parts whose patterns and hashes are kept."""
_MASK: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class JobTraits:
    """What of a job tells something about its run time."""

    user: UserName
    team: TeamName
    name: str
    devices: int
    limit_seconds: float | None = None


class RunTimeDistribution(Protocol):
    """The distribution of a job's whole run time, given that it has already run for some time."""

    @property
    def samples(self) -> int:
        """Return how many finished jobs it rests on; 0: only the time limit, or nothing, is known."""
        ...

    @property
    def source(self) -> str:
        """Return in words whose jobs these are: `jobs of alice named train-*`."""
        ...

    def quantile(self, part: float) -> float:
        """Return the run time in seconds that `part` (0 to 1) of such jobs do not exceed."""
        ...


class PredictsRunTimes(Protocol):
    """Predicts run times; implemented by `RunTimes`."""

    def predict(self, traits: JobTraits, elapsed: float = 0.0) -> RunTimeDistribution:
        """Return the distribution of the run time of a job that has already run for `elapsed` seconds.

        Every quantile exceeds `elapsed` and is at most the job's limit.
        """
        ...


class Level(IntEnum):
    """A kind of group of jobs, from wide to narrow: each is what is expected of the next until it has jobs.

    The numbers are part of the stored keys.
    """

    ALL = 0
    SIZE = 1
    LIMIT = 2
    TEAM = 3
    TEAM_SIZE = 4
    TEAM_NAME = 5
    USER = 6
    USER_LIMIT = 7
    USER_SIZE = 8
    USER_NAME = 9
    USER_NAME_SIZE = 10
    USER_LATELY = 11


class JobGroup(NamedTuple):
    """The traits of a job as far as run times are learnt by them: jobs with the same ones are alike."""

    user: UserName
    team: TeamName
    pattern: str
    size: int
    limit: int | None

    @classmethod
    def of(cls, traits: JobTraits) -> JobGroup:
        """Return the group of a job."""
        limit = traits.limit_seconds
        return cls(
            traits.user,
            traits.team,
            name_pattern(traits.name),
            size_class(traits.devices),
            round(_LIMITS_PER_OCTAVE * math.log2(max(1.0, limit))) if limit else None,
        )


@lru_cache(_CACHED)
def name_pattern(name: str) -> str:
    """Return a job's name with numbers, hashes and random suffixes as `*`: `train-*` for `train-17`."""
    plain = _RANDOM_SUFFIX.sub("-*", name[:_NAME_LENGTH].lower().strip())
    return _DIGITS.sub("*", _HASH.sub("*", plain))[:_PATTERN_LENGTH]


def size_class(devices: int) -> int:
    """Return the class of a size: 1, 2, 3 to 4, 5 to 8 devices and so on."""
    return max(0, devices - 1).bit_length()


def keys_of(group: JobGroup) -> tuple[tuple[Level, RunTimeKey], ...]:
    """Return the wider groups that a group is part of, from wide to narrow; none of what is not known."""
    user, team, pattern = _hash(group.user), _hash(group.team), _hash(group.pattern)
    size, limit = _hash(f"size {group.size}"), _hash(f"limit {group.limit}")
    found = [(Level.ALL, _key(Level.ALL)), (Level.SIZE, _key(Level.SIZE, size))]
    if group.limit is not None:
        found.append((Level.LIMIT, _key(Level.LIMIT, limit)))
    if group.team:
        found.append((Level.TEAM, _key(Level.TEAM, team)))
        found.append((Level.TEAM_SIZE, _key(Level.TEAM_SIZE, team, size)))
        if group.pattern:
            found.append((Level.TEAM_NAME, _key(Level.TEAM_NAME, team, pattern)))
    if group.user:
        found.append((Level.USER, _key(Level.USER, user)))
        if group.limit is not None:
            found.append((Level.USER_LIMIT, _key(Level.USER_LIMIT, user, limit)))
        found.append((Level.USER_SIZE, _key(Level.USER_SIZE, user, size)))
        if group.pattern:
            found.append((Level.USER_NAME, _key(Level.USER_NAME, user, pattern)))
            found.append((Level.USER_NAME_SIZE, _key(Level.USER_NAME_SIZE, user, pattern, size)))
        found.append((Level.USER_LATELY, _key(Level.USER_LATELY, user)))
    return tuple(found)


@lru_cache(_CACHED)
def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


_SALTS: Final = {level: _hash(f"level {int(level)}") for level in Level}


def _key(level: Level, *hashes: int) -> RunTimeKey:
    """Return a key made of hashes, each times another odd number: their order counts."""
    mixed = _SALTS[level]
    for number, value in enumerate(hashes):
        mixed += (2 * number + 3) * value
    mixed &= _MASK
    return RunTimeKey(mixed - 2**64 if mixed >> 63 else mixed)
