"""Where a server's settings come from, and how it says what is wrong with them."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from fairway.settings import SETTINGS, InvalidSettings, Settings, read_settings, redacted

URL = "postgresql://fairway:s3cret@db.example:5432/fairway"


def read(
    tmp_path: Path, file: str = "", flags: dict[str, object] | None = None, **variables: str
) -> Settings:
    path = tmp_path / "server.yaml"
    path.write_text(file)
    return read_settings(flags, {"FAIRWAY_CONFIG": str(path), "XDG_STATE_HOME": str(tmp_path), **variables})


def faults(tmp_path: Path, file: str = "", flags: dict[str, object] | None = None, **variables: str) -> str:
    with pytest.raises(InvalidSettings) as caught:
        read(tmp_path, file, flags, **variables)
    assert caught.value.hint
    return caught.value.message


def test_defaults(tmp_path: Path) -> None:
    settings = read(tmp_path)
    assert settings == Settings(
        database_url=None,
        listen_host="127.0.0.1",
        listen_port=8470,
        state_dir=tmp_path / "fairway",
        lease_seconds=15,
        observe_seconds=10,
        drift_seconds=30,
        intervention_seconds=5,
        budget_seconds=10,
        starts_seconds=60,
        log_level="info",
        log_format="text",
    )
    # Written out here, because the two sides above share their defaults.
    assert settings.shown() == {
        "database_url": None,
        "listen_host": "127.0.0.1",
        "listen_port": 8470,
        "state_dir": tmp_path / "fairway",
        "lease_seconds": 15,
        "observe_seconds": 10,
        "drift_seconds": 30,
        "intervention_seconds": 5,
        "budget_seconds": 10,
        "starts_seconds": 60,
        "archive_url": None,
        "keep_usage_months": 13,
        "max_open_jobs_user": 20_000,
        "max_open_jobs_team": 100_000,
        "public_url": None,
        "session_hours": 12,
        "oidc_issuer": None,
        "oidc_client_id": None,
        "oidc_client_secret_file": None,
        "oidc_user_claim": "preferred_username",
        "oidc_groups_claim": "groups",
        "oidc_roles": (),
        "oidc_default_role": "member",
        "smtp_url": None,
        "smtp_from": "fairway@localhost",
        "smtp_user": None,
        "smtp_password_file": None,
        "mail_domain": None,
        "serve": "all",
        "engine_server": None,
        "engine_server_ca": None,
        "migrate": True,
        "log_level": "info",
        "log_format": "text",
    }


def test_flag_before_variable_before_file(tmp_path: Path) -> None:
    file = "listen_port: 1\nlease_seconds: 2\nobserve_seconds: 3\n"
    settings = read(
        tmp_path,
        file,
        {"listen_port": 100, "log_level": None},
        FAIRWAY_LISTEN_PORT="10",
        FAIRWAY_LEASE_SECONDS="20",
        FAIRWAY_LOG_LEVEL="DEBUG",
    )
    assert (settings.listen_port, settings.lease_seconds, settings.observe_seconds) == (100, 20, 3)
    assert settings.log_level == "debug"


def test_where_old_usage_goes(tmp_path: Path) -> None:
    assert (read(tmp_path).archive_url, read(tmp_path).keep_usage_months) == (None, 13)
    settings = read(tmp_path, FAIRWAY_ARCHIVE_URL="s3://bucket/fairway", FAIRWAY_KEEP_USAGE_MONTHS="3")
    assert (settings.archive_url, settings.keep_usage_months) == ("s3://bucket/fairway", 3)
    assert "s3://BUCKET" in faults(tmp_path, FAIRWAY_ARCHIVE_URL="bucket")
    assert "whole number" in faults(tmp_path, FAIRWAY_KEEP_USAGE_MONTHS="1.5")


def test_a_missing_default_file_is_fine(tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    assert read_settings({}, environment).listen_port == 8470
    (tmp_path / "fairway").mkdir()
    (tmp_path / "fairway" / "server.yaml").write_text("listen_port: 9000")
    assert read_settings({}, environment).listen_port == 9000


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    assert "does not exist" in faults(tmp_path, FAIRWAY_CONFIG=str(tmp_path / "none.yaml"))


def test_the_url_may_be_in_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text(URL + "\n")
    assert read(tmp_path, FAIRWAY_DATABASE_URL_FILE=str(secret)).database_url == URL
    assert read(tmp_path, flags={"database_url_file": str(secret)}).database_url == URL
    # The first place that says anything about it decides.
    other = read(tmp_path, f"database_url: {URL}/file", FAIRWAY_DATABASE_URL_FILE=str(secret))
    assert other.database_url == URL


def test_every_fault_at_once(tmp_path: Path) -> None:
    said = faults(
        tmp_path,
        "listen_prot: 1\nlease_seconds: true\n",
        FAIRWAY_LISTEN_PORT="many",
        FAIRWAY_LOG_FORMAT="xml",
        FAIRWAY_OBSERVE_SECONDS="0",
    )
    assert "no setting listen_prot; did you mean listen_port?" in said
    assert "FAIRWAY_LISTEN_PORT must be a number from 0 to 65535, not 'many'" in said
    assert "FAIRWAY_LOG_FORMAT must be one of text, json, not 'xml'" in said
    assert "FAIRWAY_OBSERVE_SECONDS must be a number from 1 to 3600" in said
    assert "lease_seconds (" in said


@pytest.mark.parametrize("file", ["[", "- a\n- b", "text", "a: b: c", "\x00"])
def test_a_file_that_is_no_mapping(tmp_path: Path, file: str) -> None:
    assert "server.yaml" in faults(tmp_path, file)


def test_faults_of_the_url_do_not_show_it(tmp_path: Path) -> None:
    bad = "mysql://u:s3cret@h/d"
    secret = tmp_path / "url"
    secret.write_text(bad)
    for said in (
        faults(tmp_path, FAIRWAY_DATABASE_URL=bad),
        faults(tmp_path, FAIRWAY_DATABASE_URL_FILE=str(secret)),
        faults(tmp_path, FAIRWAY_DATABASE_URL_FILE=str(tmp_path / "none")),
        faults(tmp_path, f"database_url: {bad}"),
        faults(tmp_path, flags={"database_url": URL}),
        faults(tmp_path, FAIRWAY_DATABASE_URL=URL, FAIRWAY_DATABASE_URL_FILE=str(secret)),
    ):
        assert "s3cret" not in said


def test_secrets_are_not_printed(tmp_path: Path) -> None:
    settings = read(tmp_path, FAIRWAY_DATABASE_URL=URL + "?sslpassword=s3cret&x=1")
    for text in (repr(settings), str(settings), f"{settings}", str(settings.shown())):
        assert "s3cret" not in text
        assert "db.example" in text
    assert settings.database_url is not None
    assert "s3cret" in settings.database_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:p%40:x@h:1/d", "postgresql://u:***@h:1/d"),
        ("postgresql://u:p@q/r?s@h:1/d", "postgresql://u:***@h:1/d"),
        ("postgresql://h/d", "postgresql://h/d"),
        ("postgresql://u@/d?host=/run", "postgresql://u@/d?host=/run"),
        ("postgresql:///d?user=u&password=p", "postgresql:///d?user=u&password=***"),
    ],
)
def test_redacted(url: str, shown: str) -> None:
    assert redacted(url) == shown


def test_the_table_is_complete() -> None:
    named = {setting.name for setting in SETTINGS}
    assert named == {f.name for f in fields(Settings)} | {"database_url_file"}
    assert all(setting.help.endswith(".") and setting.default for setting in SETTINGS)


def test_every_default_reads_as_the_docs_show_it(tmp_path: Path) -> None:
    """Giving each default as the docs show it changes nothing; those of three settings are no values."""
    told = {
        s.variable: s.default
        for s in SETTINGS
        if s.name not in {"database_url", "database_url_file", "state_dir"}
    }
    assert read(tmp_path, "", None, **told) == read(tmp_path)
