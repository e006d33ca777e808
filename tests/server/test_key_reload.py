"""Keys that are read again while the server runs: who is let in, what stays counted, and files that cannot be used."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_process import Process

from surefoot.kernels.errors import ConfigError, RequestError
from surefoot.server.api_keys import ApiKey, KeySource
from surefoot.server.key_reload import KeyReload
from surefoot.server.limits import Allowance, KeyLimits
from surefoot.server.tenants import Gate

MODEL = Path(__file__).parents[1] / "data" / "oracle" / "qwen3" / "model.gguf"
GOOD = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def change(live: Any, *keys: str | ApiKey, admin: str | None = None) -> str:
    return live.service.change_keys(live.service.gate.ring(keys, admin))


# --- in force at once, without losing count --------------------------------------------------------------------------


def test_requests_of_a_removed_key_finish_and_new_ones_are_refused(start: Any, script: Any) -> None:
    live = start(script(text=lambda _: b"word " * 30, pause_s=0.02), api_keys=("old", "stays"), admin_key="root")
    with live.client("old") as client, live.http() as http:
        stream = client.chat.completions.create(**GOOD, stream=True)
        next(iter(stream))
        said = change(live, "new", "stays", admin="other")
        assert said == "API keys: 2 (1 new, 1 removed); admin key: changed"
        codes = {key: http.get("/v1/models", headers=bearer(key)).status_code for key in ("old", "new", "stays")}
        assert codes == {"old": 401, "new": 200, "stays": 200}
        admins = {key: http.get("/admin/state", headers=bearer(key)).status_code for key in ("root", "other", "stays")}
        assert admins == {"root": 401, "other": 200, "stays": 401}
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "word " * 30


def test_a_key_that_stays_keeps_what_it_has_used(start: Any, script: Any, caplog: pytest.LogCaptureFixture) -> None:
    limits = KeyLimits(at_once=2, per_minute=4)
    live = start(script(text=lambda _: b"word " * 40, pause_s=0.02), api_keys=(ApiKey("k", "alice", limits),))
    with live.client("k") as client, live.http() as http, caplog.at_level("INFO", "surefoot.access"):
        stream = client.chat.completions.create(**GOOD, stream=True)
        next(iter(stream))
        change(live, ApiKey("k", "bob", KeyLimits(at_once=1, per_minute=4)))
        busy = http.post("/v1/chat/completions", json=GOOD, headers=bearer("k"))
        assert (busy.status_code, "(1)" in busy.text or "once" in busy.json()["error"]["message"]) == (429, True)
        assert int(busy.headers["x-ratelimit-remaining-requests"]) <= 3
        change(live, ApiKey("k", "bob"))
        free = http.post("/v1/chat/completions", json=GOOD, headers=bearer("k"))
        assert (free.status_code, "x-ratelimit-limit-requests" in free.headers) == (200, False)
        list(stream)
    assert next(record.getMessage().split()[-1] for record in caplog.records) == "bob"


def test_what_a_removed_key_had_stored_is_forgotten(start: Any) -> None:
    live = start(api_keys=("a", "b"), admin_key="root")
    with live.http() as http:
        made = {
            key: http.post("/v1/responses", json={"input": "hi"}, headers=bearer(key)).json()["id"]
            for key in ("a", "b")
        }

        def codes() -> list[int]:
            return [http.get(f"/v1/responses/{made[key]}", headers=bearer(key)).status_code for key in ("a", "b")]

        assert codes() == [200, 200]
        change(live, "a", admin="root")
        change(live, "a", "b", admin="root")
        assert codes() == [200, 404]
        gone = live.service.gate.ring(["gone"], None).tenants
        shelf = live.service.responses.shelf(next(iter(gone.values())))  # of a request that still ran
        assert shelf.get(made["a"]) is None


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


LIMITS = st.builds(KeyLimits, st.none() | st.integers(1, 4), st.none() | st.integers(1, 120))


@given(LIMITS, st.lists(st.tuples(LIMITS, st.floats(0, 90), st.integers(0, 6)), max_size=12))
def test_changes_of_limits_never_give_more_than_the_largest_of_them(
    first: KeyLimits, changes: list[tuple[KeyLimits, float, int]]
) -> None:
    clock = Clock()
    allowance = Allowance(first, clock)
    for limits, wait_s, tries in changes:
        before, used = allowance.limits, allowance.num_requests
        allowance.change(limits)
        allowance.change(limits)  # a second time changes nothing
        assert allowance.num_requests == used
        clock.now += wait_s
        let_in = 0
        for _ in range(tries):
            try:
                allowance.enter()
                let_in += 1
            except RequestError as refusal:
                assert refusal.status == 429
        if limits.per_minute is not None:
            assert let_in <= limits.per_minute
            known = [rate for rate in (before.per_minute, limits.per_minute) if rate is not None]
            assert 0 <= allowance._left <= max(known)
        if limits.at_once is not None:
            assert allowance.num_requests <= max(limits.at_once, used)
        for _ in range(allowance.num_requests // 2):
            allowance.leave()


@given(st.lists(st.sets(st.sampled_from("abcdef"), min_size=1), min_size=1, max_size=6))
def test_whoever_is_in_the_last_keyring_is_let_in_and_nobody_else(rings: list[set[str]]) -> None:
    gate = Gate(sorted(rings[0]), None)
    for keys in rings:
        before = {tenant.name: tenant.allowance for tenant in gate._ring.tenants.values()}
        gate.change(gate.ring([ApiKey(key, key) for key in sorted(keys)], "admin"))
        now = {tenant.name: tenant for tenant in gate._ring.tenants.values()}
        assert set(now) == keys and len(gate.salts) == len(keys)
        for name in keys & before.keys():
            assert now[name].allowance is before[name]


# --- files -----------------------------------------------------------------------------------------------------------


def empty(path: Path) -> None:
    path.write_text("")


def comments(path: Path) -> None:
    path.write_text("# none\n\n")


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def circle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def gone(path: Path) -> None:
    path.unlink()


def binary(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00key")


def twice(path: Path) -> None:
    path.write_text("same\nsame\n")


def broken(path: Path) -> None:
    path.write_text("sk-secret two names\n")


BAD = [empty, comments, huge, folder, pipe, endless, circle, gone, binary, twice, broken]


@pytest.mark.parametrize("spoil", BAD)
def test_a_file_that_cannot_be_used_is_one_clear_error(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    path = tmp_path / "keys"
    path.write_text("good\n")
    source = KeySource(api_file=path)
    assert source.read(again=True).api == (ApiKey("good"),)
    spoil(path)
    began = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        source.read(again=True)
    assert time.monotonic() - began < 5
    assert "sk-secret" not in str(caught.value) and "\n" not in str(caught.value)
    assert str(path) in str(caught.value) or spoil is twice


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys"
    path.write_text("good\n")

    def forbidden(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", forbidden)  # root may read everything
    with pytest.raises(ConfigError, match="Permission denied"):
        KeySource(api_file=path).read(again=True)


def test_keys_may_come_out_of_a_pipe_at_the_start() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"from-a-pipe alice\n")
    os.close(writer)
    source = KeySource(api_file=Path(f"/dev/fd/{reader}"))
    if not source.api_file or not source.api_file.exists():
        pytest.skip("needs /dev/fd")
    assert source.read().api == (ApiKey("from-a-pipe", "alice"),)
    with pytest.raises(ConfigError, match="not a regular file"):
        source.read(again=True)
    os.close(reader)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: text.encode(errors="surrogatepass")))
def test_any_bytes_are_keys_or_one_clear_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(data)
    try:
        keys = KeySource(api_file=path).read(again=True).api
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1
        return
    assert keys and all(key.secret and key.secret.split() == [key.secret] for key in keys)
    Gate([], None).ring(keys, None)


# --- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="needs SIGHUP")
def test_a_signal_that_comes_while_the_server_starts_counts_once_it_is_up(start: Any, tmp_path: Path) -> None:
    live, path = start(api_keys=("first",)), tmp_path / "keys"
    path.write_text("second\n")
    reload = KeyReload(KeySource(api_file=path))

    async def begin() -> None:
        reload.attach(live.service)
        while next(iter(live.service.gate._ring.tenants.values())).name == before:
            await asyncio.sleep(0.001)

    before = next(iter(live.service.gate._ring.tenants.values())).name
    with reload.on_hangup():
        os.kill(os.getpid(), signal.SIGHUP)
        asyncio.run(asyncio.wait_for(begin(), 10))
        os.kill(os.getpid(), signal.SIGHUP)  # its loop is closed
    with live.http() as http:
        assert [http.get("/v1/models", headers=bearer(key)).status_code for key in ("first", "second")] == [401, 200]


@pytest.mark.parametrize(
    ("terminal", "files", "handled"), [(True, False, False), (True, True, True), (False, False, True)]
)
def test_only_a_server_without_files_ends_with_its_terminal(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, files: bool, handled: bool
) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: terminal)
    before = signal.getsignal(signal.SIGHUP)
    with KeyReload(KeySource(api_file=Path("keys") if files else None)).on_hangup():
        assert (signal.getsignal(signal.SIGHUP) is not before) == handled
    assert signal.getsignal(signal.SIGHUP) is before


# --- of a process ----------------------------------------------------------------------------------------------------


class Server:
    """A process with a file of API keys and one with the admin key."""

    def __init__(self, folder: Path) -> None:
        self.keys, self.admin, self.log = folder / "keys", folder / "admin", folder / "log"
        self.write("first alice\nsecond bob\n")
        self.admin.write_text("root\n")
        self.admin.chmod(0o600)
        flags = ("--api-key-file", str(self.keys), "--admin-key-file", str(self.admin))
        self.process = Process(MODEL, 8 << 20, self.log, *flags)
        self.http = httpx.Client(base_url=self.process.url, timeout=30)

    def write(self, text: str) -> None:
        """Replaces the file, as it should be done."""
        made = self.keys.with_suffix(".new")
        made.write_text(text)
        made.chmod(0o600)
        if self.keys.is_dir():
            self.keys.rmdir()
        made.replace(self.keys)

    def hang_up(self) -> str:
        """SIGHUP, and the line that says what came of it."""
        seen = len(self.lines())
        self.process.popen.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 20
        while len(self.lines()) == seen and time.monotonic() < deadline:
            time.sleep(0.01)
        [line] = self.lines()[seen:]
        return line

    def lines(self) -> list[str]:
        return [
            line for line in self.log.read_text().splitlines(keepends=True) if "SIGHUP" in line and line[-1] == "\n"
        ]

    def code(self, key: str, path: str = "/v1/models") -> int:
        return self.http.get(path, headers=bearer(key)).status_code


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    begun = Server(tmp_path)
    yield begun
    begun.http.close()
    begun.process.popen.terminate()
    assert begun.process.popen.wait(timeout=30) == 0
    assert "Traceback" not in begun.log.read_text()


def test_sighup_reads_the_files_again_and_keeps_the_old_keys_where_they_are_bad(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with server.http.stream("POST", "/v1/chat/completions", json=body, headers=bearer("second")) as stream:
        lines = stream.iter_lines()
        next(lines)
        server.write("first carol per-minute=1\nthird\n")
        server.admin.write_text("other\n")
        assert "API keys: 2 (1 new, 1 removed); admin key: changed" in server.hang_up()
        assert [server.code(key) for key in ("first", "second", "third")] == [200, 401, 200]
        assert [server.code(key, "/admin/state") for key in ("root", "other")] == [401, 200]
        assert list(lines)[-2] == "data: [DONE]"
    answers = [server.http.post("/tokenize", json={"prompt": "x"}, headers=bearer("first")) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    for spoil in BAD:
        server.write("fourth\n")
        spoil(server.keys)
        line = server.hang_up()
        assert " ERROR surefoot.server: SIGHUP: all keys stay as they are: " in line
        assert "sk-secret" not in line
        assert [server.code(key) for key in ("first", "third", "fourth")] == [200, 200, 401]
        if not server.keys.is_dir():
            server.keys.unlink(missing_ok=True)
    server.write("fourth\n")
    server.admin.write_text("a\nb\n")
    assert "there is one admin key" in server.hang_up()
    server.admin.write_text("fourth\n")
    assert "the admin key is also an API key" in server.hang_up()
    server.admin.write_text("other\n")
    assert "API keys: 1 (1 new, 2 removed); admin key: as before" in server.hang_up()
    assert [server.code(key) for key in ("first", "third", "fourth")] == [401, 401, 200]
    text = server.log.read_text()
    assert " carol\n" in text and not any(f" {key}" in text for key in ("third", "fourth", "other"))


def test_many_sighups_under_load_end_with_the_last_file(server: Server) -> None:
    body = {"prompt": "x", "max_tokens": 2}
    codes: set[int] = set()
    for number in range(40):
        server.write(f"first alice\nkey-{number}\n")
        for _ in range(1 + number % 3):
            server.process.popen.send_signal(signal.SIGHUP)
        codes.add(server.http.post("/v1/completions", json=body, headers=bearer("first")).status_code)
    assert codes == {200}
    deadline = time.monotonic() + 20
    while server.code("key-39") != 200:
        assert time.monotonic() < deadline
    assert [server.code(f"key-{number}") for number in (0, 20, 38)] == [401, 401, 401]
    assert len(server.lines()) <= 80


def test_sighup_without_files_ends_nothing(tmp_path: Path) -> None:
    server = Process(MODEL, 8 << 20, tmp_path / "log")
    try:
        server.popen.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 20
        while "nothing to read again" not in (tmp_path / "log").read_text():
            assert time.monotonic() < deadline and server.popen.poll() is None
        assert httpx.get(f"{server.url}/health").status_code == 200
    finally:
        server.popen.terminate()
        assert server.popen.wait(timeout=30) == 0
