from __future__ import annotations

from pathlib import Path

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey

from fairway.engines.slurm.rest.client import LIFETIME_SECONDS, RENEW_SECONDS, Tokens
from fairway.model.errors import Refused
from fairway.model.fleet import SlurmConnection

KEY = bytes(range(200, 232))


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "jwt.key"
    file.write_bytes(KEY)
    return file


def signing(key_file: Path, clock: Clock | None = None) -> Tokens:
    return Tokens(SlurmConnection("http://x", user="fairway", jwt_key_file=str(key_file)), clock or Clock())


def test_says_who_and_for_how_long(key_file: Path) -> None:
    token = jwt.decode(signing(key_file).current(), OctKey.import_key(KEY), algorithms=["HS256"])

    assert token.header == {"alg": "HS256", "typ": "JWT"}
    assert token.claims == {"sun": "fairway", "iat": Clock.now, "exp": Clock.now + LIFETIME_SECONDS}


def test_is_kept_while_it_is_good_and_renewed_before_it_ends(key_file: Path) -> None:
    clock = Clock()
    tokens = signing(key_file, clock)
    first = tokens.current()

    clock.now += LIFETIME_SECONDS - RENEW_SECONDS
    assert tokens.current() == first
    clock.now += 1
    assert tokens.current() != first


def test_reads_the_key_again_only_when_told_that_it_did_not_fit(key_file: Path) -> None:
    tokens = signing(key_file)
    first = tokens.current()
    key_file.write_bytes(KEY[::-1])

    assert tokens.current() == first
    tokens.forget()
    assert tokens.current() != first


def test_a_token_file_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    tokens = Tokens(SlurmConnection("http://x", token_file=str(file)))
    for text in ("SLURM_JWT=one\n", "two\n"):
        file.write_text(text)
        assert tokens.current() == text.strip().removeprefix("SLURM_JWT=")


@pytest.mark.parametrize("content", [b"", b"  \n", b"two tokens", b"\xff\xfe", b"a\nb"])
def test_a_file_without_one_token_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)

    with pytest.raises(Refused) as said:
        Tokens(SlurmConnection("http://x", token_file=str(file))).current()

    assert said.value.code == "CredentialsUnusable"
    assert said.value.hint


def test_a_key_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Refused) as said:
        signing(tmp_path / "none.key").current()

    assert said.value.code == "CredentialsUnreadable"
    assert "none.key" in said.value.message
    assert "No such file" in said.value.message


def test_no_credentials_at_all_are_refused() -> None:
    with pytest.raises(Refused) as said:
        Tokens(SlurmConnection("http://x")).current()

    assert "jwt_key_file" in said.value.hint


@pytest.mark.parametrize("user", ["root", "Root", "slurm", "fairway", "munge", "0", "64030", "hpcadm"])
def test_no_token_is_signed_for_who_can_become_anybody(key_file: Path, user: str) -> None:
    tokens = signing(key_file)
    tokens.slurm_user = "hpcadm"
    tokens.current()

    with pytest.raises(Refused) as refused:
        tokens.of(user)

    assert refused.value.code == "SystemUser"
    assert tokens.of("alice")
