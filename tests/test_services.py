import pytest
import services


def test_a_missing_service_skips_by_name(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs sshd: not installed"):
        services.require("sshd", "not installed")


def test_in_ci_nothing_may_be_missing(monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="needs sshd: not installed"):
        services.require("sshd", "not installed")


def test_a_given_postgresql_is_taken(monkeypatch):
    monkeypatch.setenv(services.POSTGRESQL_URL, "postgresql://somewhere/x")
    with services.postgresql() as url:
        assert url == "postgresql://somewhere/x"
