"""TLS and passwords: one server, Sentinels with a password of their own, and a Cluster, over certificates made here."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import pytest

from tests.cluster.kit import NAME, ask
from tests.integration.processes import Store, wait_until
from tests.integration.rig import open_rig
from tests.support import eventually, free_port, server_binary, server_kinds
from tokenweir import Client, StoreUnavailable
from tokenweir.connection import Connection, connect
from tokenweir.keys import Keys

pytestmark = pytest.mark.anyio

# With all that a URL gives a meaning to.
_PASSWORD, _OTHERS = "p@ss/w?rd#1%:&", "their/s?ecret"


class Certificate(NamedTuple):
    """One for 127.0.0.1, signed by itself."""

    file: Path
    key: Path

    @property
    def options(self) -> list[str]:
        """A server's, but for its port."""
        files = {"cert": self.file, "key": self.key, "ca-cert": self.file}
        words = [word for name, file in files.items() for word in (f"--tls-{name}-file", str(file))]
        return [*words, "--tls-auth-clients", "no"]


class Secured(Store):
    """A server with a TLS port, and an ACL user with a password."""

    def __init__(self, folder: Path, kind: str, certificate: Certificate, *options: str) -> None:
        folder.mkdir()
        self.tls_port = free_port()
        super().__init__(folder, kind, ["--tls-port", str(self.tls_port), *certificate.options, *options])
        host = f"weir:{quote(_PASSWORD, safe='')}@127.0.0.1:{self.tls_port}"
        self.trusted = f"ssl_ca_certs={certificate.file}"
        self.url, self.distrusted = f"rediss://{host}/0?{self.trusted}", f"rediss://{host}/0"

    def start(self) -> None:
        """Start it, and make the user."""
        super().start()
        ask(self.port, "ACL", "SETUSER", "weir", "on", f">{_PASSWORD}", "~tokenweir:*", "&*", "+@all")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    folder = tmp_path_factory.mktemp("tls")
    made = Certificate(folder / "server.crt", folder / "server.key")
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    words += ["-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run([*words, "-keyout", made.key, "-out", made.file], check=True, capture_output=True)
    return made


@pytest.fixture(scope="module")
def kind(certificate: Certificate) -> str:
    """The first kind of server that was built with TLS."""
    for each in server_kinds():
        words = [str(server_binary(each)), "--port", "0", "--tls-port", str(free_port()), *certificate.options]
        with subprocess.Popen([*words, "--save", ""], cwd=certificate.file.parent, stdout=subprocess.PIPE) as process:
            assert process.stdout
            lines = (line.decode(errors="replace") for line in process.stdout)
            ready = any("eady to accept connections" in line for line in lines)  # ends with the process where it can't
            process.terminate()
        if ready:
            return each
    pytest.skip(f"none of the servers here ({', '.join(server_kinds())}) was built with TLS")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, kind: str, certificate: Certificate) -> Iterator[Secured]:
    server = Secured(tmp_path_factory.mktemp("place") / "p", kind, certificate)
    server.start()
    yield server
    server.stop()
    server.client.close()


async def test_all_of_it_works_over_tls_with_a_user(secured: Secured) -> None:
    """Producer, worker and command line: one URL, and nothing that any of them says holds its password."""
    with open_rig(place=secured, pool="secured") as rig:
        run = rig.run()
        async with Client(secured.url, pool="secured") as client:
            result = await client.result(await client.submit("over TLS"))
        words = [sys.executable, "-m", "pipeline.cli", "check", "--offline", "--config", str(rig.config)]
        said = [subprocess.run([*words, *more], capture_output=True, text=True) for more in ([], ["--show"])]
        texts = [run.text, *(text for each in said for text in (each.stdout, each.stderr))]

    assert result.status == "ok"
    assert f"rediss://weir:***@127.0.0.1:{secured.tls_port}" in said[0].stdout
    assert [each.returncode for each in said] == [0, 0]
    for secret in (_PASSWORD, quote(_PASSWORD, safe=""), "w%3Frd", "w?rd"):
        assert not [text for text in texts if secret in text]


async def test_what_is_wrong_with_tls_or_the_user_is_told(secured: Secured) -> None:
    """A certificate that nobody vouches for, a wrong password: one line each, without the password."""
    wrong = secured.url.replace("weir:", "weir:x")
    for url, reason in ((secured.distrusted, "certificate verify failed"), (wrong, "invalid username-password")):
        connection = Connection(connect(url), Keys())
        with pytest.raises(StoreUnavailable, match=reason) as caught:
            await connection.command("PING")
        await connection.aclose()
        assert "w%3Frd" not in str(caught.value)
        assert "w?rd" not in str(caught.value)


def test_closing_leaves_nothing_open_at_a_silent_server(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that ends while Redis doesn't answer closes its sockets all the same, though TLS has a goodbye."""
    left: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: left.append(found.exc_value))

    async def main() -> None:
        async with Client(secured.url, pool="secured") as client:
            await asyncio.gather(*(client.status(f"nobody{number}") for number in range(4)))
            os.kill(secured.pid, signal.SIGSTOP)

    try:
        asyncio.run(main())
    finally:
        os.kill(secured.pid, signal.SIGCONT)
    gc.collect()

    assert left == []


async def test_sentinels_have_a_password_of_their_own(secured: Secured, kind: str, certificate: Certificate) -> None:
    """Over TLS, with their password named apart; without it the error says how, and shows neither of the two."""
    port, folder = free_port(), certificate.file.parent
    lines = ["port 0", f"tls-port {port}", "tls-replication yes", f"requirepass {_OTHERS}"]
    lines += [f"sentinel monitor {NAME} 127.0.0.1 {secured.tls_port} 1"]
    lines += [f"sentinel auth-user {NAME} weir", f'sentinel auth-pass {NAME} "{_PASSWORD}"']
    lines += [" ".join(pair).removeprefix("--") for pair in zip(*[iter(certificate.options)] * 2, strict=True)]
    (folder / "sentinel.conf").write_text("\n".join(lines) + "\n")
    sentinel = subprocess.Popen(
        [str(server_binary(kind)), "sentinel.conf", "--sentinel"], cwd=folder, stdout=subprocess.DEVNULL
    )
    user = f"weir:{quote(_PASSWORD, safe='')}"
    url = f"rediss+sentinel://{user}@127.0.0.1:{port}/{NAME}?{secured.trusted}"
    try:
        right = Connection(connect(f"{url}&sentinel_password={quote(_OTHERS, safe='')}"), Keys())

        async def found() -> bool:
            with suppress(StoreUnavailable):
                return bool(await right.command("SET", Keys().key("found"), "there"))
            return False

        await eventually(found)
        place = str(right.links.place)
        wrong = Connection(connect(url), Keys())
        with pytest.raises(StoreUnavailable, match=r"\?sentinel_username=\.\.\.&sentinel_password") as caught:
            await wrong.command("PING")
        await right.aclose()
        await wrong.aclose()
    finally:
        sentinel.terminate()
        sentinel.wait(10)

    assert place == f"127.0.0.1:{secured.tls_port}"
    for secret in ("w%3Frd", "w?rd", "ecret"):
        assert secret not in str(caught.value)


async def test_a_cluster_over_tls(tmp_path: Path, kind: str, certificate: Certificate) -> None:
    """The nodes that it tells of are spoken to by TLS as well."""
    options = ("--cluster-enabled", "yes", "--tls-cluster", "yes", "--cluster-port", str(free_port()))
    node = Secured(tmp_path / "p", kind, certificate, *options)
    node.start()
    try:
        ask(node.port, "CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        wait_until(lambda: "cluster_state:ok" in ask(node.port, "CLUSTER", "INFO"), 10)
        user = f"weir:{quote(_PASSWORD, safe='')}"
        async with Client(f"rediss+cluster://{user}@127.0.0.1:{node.tls_port}?{node.trusted}") as client:
            id_ = await client.submit("over TLS, in a Cluster")
            status = await client.status(id_)
    finally:
        node.stop()
        node.client.close()

    assert status is not None
    assert status.state == "submitted"
