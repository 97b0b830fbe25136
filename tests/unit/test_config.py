"""The configuration: one tree, strict about its keys, with words that help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.config import Config, Deployment, Pool, load, masked, parse, secret
from tokenweir.errors import ConfigError


def pool(**settings: Any) -> dict[str, Any]:
    return {"pools": {"main": settings}}


def test_without_a_file_the_defaults_apply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs with nothing configured: an embedded server and one pool with the limits of a small account."""
    monkeypatch.chdir(tmp_path)

    config = load(env={})

    assert config.redis.url == "embedded:"
    name, main = config.pool()
    assert (name, main.deployments[0].rpm, main.deployments[0].tpm) == ("main", 500, 30_000)


def test_the_file_in_the_working_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tokenweir.toml` here is found without being named; $TOKENWEIR_CONFIG names another, an argument wins."""
    for name, waiting in (("tokenweir.toml", 1), ("env.toml", 2), ("argument.toml", 3)):
        (tmp_path / name).write_text(f"[pools.main]\nmax_waiting = {waiting}\n")
    monkeypatch.chdir(tmp_path)
    env = {"TOKENWEIR_CONFIG": str(tmp_path / "env.toml")}

    found = [load(env={}), load(env=env), load(tmp_path / "argument.toml", env)]

    assert [config.pools["main"].max_waiting for config in found] == [1, 2, 3]


def test_redis_url_overrides_the_file(tmp_path: Path) -> None:
    """REDIS_URL is where a platform says it; the file's other settings stay."""
    file = tmp_path / "c.toml"
    file.write_text('[redis]\nurl = "redis://file"\nprefix = "mine"\n')

    config = load(file, {"REDIS_URL": "rediss://env:6380/1"})

    assert (config.redis.url, config.redis.prefix) == ("rediss://env:6380/1", "mine")
    assert load(file, {"REDIS_URL": ""}).redis.url == "redis://file"


@pytest.mark.parametrize(
    ("tree", "meant"),
    [
        (pool(deployments=[{"rmp": 5}]), "rpm"),
        (pool(max_wating=5), "max_waiting"),
        (pool(edge={"concurency": 5}), "concurrency"),
        ({"redis": {"ulr": "redis://x"}}, "url"),
        ({"metric": {"port": 1}}, "metrics"),
        (pool(caps={"interactiv": 5}), "interactive"),
    ],
)
def test_a_typo_is_an_error_that_names_the_nearest_key(tree: dict[str, Any], meant: str) -> None:
    """A mistyped key doesn't pass in silence; the message says which one was meant."""
    with pytest.raises(ConfigError, match=f"did you mean `{meant}`") as caught:
        parse(tree, where="tokenweir.toml")

    assert str(caught.value).startswith("tokenweir.toml: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        (pool(deployments=[{"rpm": 0}]), "rpm"),
        (pool(deployments=[{"rpm": "many"}]), "rpm"),
        (pool(deployments=[]), "deployments"),
        (pool(deployments=[{"name": "a"}]), "no limit; set rpm or tpm"),
        (pool(deployments=[{"rpm": 5}, {"rpm": 5}]), "the same name"),
        (pool(deployments=[{"rpm": 5, "name": "a:b"}]), "name"),
        (pool(deployments=[{"rpm": 5, "window_s": -1}]), "window_s"),
        (pool(deployments=[{"rpm": 5, "enforcement": "sliding"}]), "enforcement"),
        (pool(lease_s=0), "lease_s"),
        ({"pools": {}}, "pools"),
        ({"pools": {"a b": {}}}, "pools"),
        ({"metrics": {"port": 70_000}}, "port"),
    ],
)
def test_what_cant_work_is_refused_with_its_place(tree: dict[str, Any], said: str) -> None:
    """Every mistake is one line with the place and the reason, at the start and not in the night."""
    with pytest.raises(ConfigError) as caught:
        parse(tree)

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"not = = toml", b"\xff\xfe"])
def test_a_file_that_isnt_toml_is_named(tmp_path: Path, content: bytes) -> None:
    """A broken file is an error with its name."""
    file = tmp_path / "broken.toml"
    file.write_bytes(content)

    with pytest.raises(ConfigError, match=r"broken\.toml: not TOML"):
        load(file, {})


def test_a_file_that_was_named_must_exist(tmp_path: Path) -> None:
    """A mistyped path doesn't end in the defaults."""
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "missing.toml", {})
    with pytest.raises(ConfigError, match="No such file"):
        load(env={"TOKENWEIR_CONFIG": str(tmp_path / "missing.toml")})


def test_an_unknown_pool_is_told_which_there_are() -> None:
    """Asking for a pool that isn't configured names those that are."""
    with pytest.raises(ConfigError, match="no pool 'other'; configured: main"):
        Config().pool("other")


def test_secrets_come_from_the_environment() -> None:
    """`env:NAME` reads the variable and says which one is missing; anything else stands for itself."""
    assert secret("env:KEY", {"KEY": "s3cret"}) == "s3cret"
    assert secret("s3cret", {}) == "s3cret"
    for env in ({}, {"KEY": ""}):
        with pytest.raises(ConfigError, match="environment variable KEY is not set"):
            secret("env:KEY", env)


def test_shown_configuration_holds_no_secrets() -> None:
    """What is printed or logged shows names of variables, but neither keys nor passwords."""
    deployments = (Deployment(rpm=1, api_key="sk-s3cret"), Deployment(name="b", rpm=1, api_key="env:KEY"))
    config = Config(pools={"main": Pool(deployments=deployments)})
    for url in ("redis://user:s3cret@host:6379/0", "rediss://:s3cret@host", "unix://user:s3cret@/run/redis.sock"):
        shown = masked(parse({"redis": {"url": url}}))
        assert "s3cret" not in str(shown)
        assert "host" in shown["redis"]["url"] or "redis.sock" in shown["redis"]["url"]

    keys = [deployment["api_key"] for deployment in masked(config)["pools"]["main"]["deployments"]]
    assert keys == ["***", "env:KEY"]


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:pa@ss@host/0",
        "redis://:secret@host",
        "redis://host/0?password=secret",
        "unix:///tmp/s?password=secret&db=1",
    ],
)
def test_no_form_of_a_url_shows_its_password(url: str) -> None:
    """Wherever a URL keeps its password, people who look at the configuration don't see it."""
    tree = {"redis": {"url": url}, "pools": {"main": {"edge": {"base_url": "http://me:secret@host"}}}}

    shown = str(masked(parse(tree)))

    assert "secret" not in shown
    assert "pa@ss" not in shown
    assert "ss@host" not in shown


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_numbers_are_finite(value: float) -> None:
    """TOML knows infinity and not-a-number; the gate can't count with them, and says so."""
    with pytest.raises(ConfigError, match="window_s must be a finite number"):
        parse({"pools": {"main": {"deployments": [{"rpm": 1, "window_s": value}]}}})


def test_a_table_that_is_none_is_a_clear_error(tmp_path: Path) -> None:
    """A mistake in the file stays one line, whatever the environment says."""
    file = tmp_path / "tokenweir.toml"
    file.write_text('redis = "redis://host"\n')

    with pytest.raises(ConfigError, match="object"):
        load(file, {"REDIS_URL": "redis://env"})
