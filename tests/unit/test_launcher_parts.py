"""The launcher's parts that need no ranks: placement, output, ports, addresses, Ascend checks."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atb_dist.errors import ConfigError
from atb_dist.launcher import ascend, placement, sweep
from atb_dist.launcher.job import Job, Meeting, parse_address, rank_environment
from atb_dist.launcher.output import Log, table
from atb_dist.launcher.ports import port_owner, reserve_port
from atb_dist.launcher.process import RankProcess

# --- CPUs ---


@given(st.sets(st.integers(0, 200), min_size=1, max_size=64), st.integers(1, 70))
def test_cores_go_to_every_rank_and_none_is_left_over(cpus: set[int], ranks: int) -> None:
    placed = placement.place("cores", ranks, sorted(cpus), [])
    assert len(placed) == ranks
    assert all(placed)
    if ranks <= len(cpus):
        assert sorted(cpu for held in placed for cpu in held) == sorted(cpus)
        assert max(map(len, placed)) - min(map(len, placed)) <= 1
    else:
        assert set().union(*placed) == cpus
        shares = [sum(held == (cpu,) for held in placed) for cpu in cpus]
        assert max(shares) - min(shares) <= 1


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 12))
def test_numa_gives_whole_nodes(sizes: list[int], ranks: int) -> None:
    nodes, first = [], 0
    for size in sizes:
        nodes.append(list(range(first, first + size)))
        first += size
    cpus = [cpu for held in nodes for cpu in held]
    placed = placement.place("numa", ranks, cpus, nodes)
    assert set().union(*placed) == set(cpus)
    for held in placed:
        assert any(set(node) <= set(held) for node in nodes)
        assert all(set(node) <= set(held) or not set(node) & set(held) for node in nodes)


def test_no_binding_gives_all_cpus() -> None:
    assert placement.place("none", 3, [4, 2], []) == [(2, 4)] * 3


def test_this_host_is_read() -> None:
    cpus = placement.allowed_cpus()
    assert sorted(cpus) == sorted(os.sched_getaffinity(0))
    nodes = placement.numa_nodes(cpus)
    assert sorted(cpu for node in nodes for cpu in node) == sorted(cpus)


@pytest.mark.parametrize(
    ("cpus", "ranks", "cpu_max", "threads"),
    [
        (8, 2, "max 100000", 4), (8, 3, "", 2), (2, 8, "", 1), (64, 4, "200000 100000", 1),
        (64, 2, "850000 100000", 4), (64, 1, "50000 100000", 1), (4, 1, "900000 100000", 4),
        (4, 2, "garbage", 2),
    ],
)  # fmt: skip
def test_threads_follow_cpus_and_the_cgroup(
    cpus: int, ranks: int, cpu_max: str, threads: int
) -> None:
    assert placement.threads_per_rank(cpus, ranks, cpu_max) == threads


@given(st.sets(st.integers(0, 300)))
def test_cpu_lists_read_back(cpus: set[int]) -> None:
    assert placement.parse_cpus(placement.show_cpus(sorted(cpus))) == sorted(cpus)


def test_cpu_lists_look_like_the_kernels() -> None:
    assert placement.show_cpus([5, 0, 1, 2]) == "0-2,5"
    assert placement.parse_cpus("0-2,5\n") == [0, 1, 2, 5]
    assert placement.parse_cpus("\n") == []


# --- addresses, ports, environment ---


@pytest.mark.parametrize(
    ("text", "address"),
    [("node0:29400", ("node0", 29400)), ("10.0.0.7:1", ("10.0.0.7", 1)),
     ("[fe80::1%eth0]:80", ("fe80::1%eth0", 80))],
)  # fmt: skip
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["node0", "node0:", ":80", "h:0", "h:65536", "fe80::1:80", "h:x"])
def test_wrong_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        parse_address(text)


def test_a_reserved_port_is_rank_0s_and_nobody_elses() -> None:
    with reserve_port() as holder:
        port = holder.getsockname()[1]
        others = [reserve_port() for _ in range(200)]
        assert port not in {other.getsockname()[1] for other in others}
        for other in others:
            other.close()
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            if family == socket.AF_INET6 and not socket.has_dualstack_ipv6():
                continue
            with socket.socket(family) as store:  # as a rendezvous store does
                store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                store.bind((address, port))
                store.listen()
                with socket.create_connection((address, port), timeout=5):
                    assert store.accept()[0].close() is None


def test_a_ranks_environment_has_torchruns_names() -> None:
    job = Job(("true",), 2, num_nodes=3, node_rank=1, rendezvous="h:1")
    env = {"PATH": "/bin", "RANK": "9", "OMPI_COMM_WORLD_RANK": "1", "OMP_NUM_THREADS": "5"}
    defaults = {"OMP_NUM_THREADS": "1", "X": "2"}
    assert rank_environment(job, Meeting("s", "h", 77), 3, env, defaults) == {
        "PATH": "/bin", "OMP_NUM_THREADS": "5", "X": "2", "RANK": "3", "WORLD_SIZE": "6",
        "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "3",
        "MASTER_ADDR": "h", "MASTER_PORT": "77", "ATB_DIST_SESSION": "s",
        "ATB_DIST_LAUNCHER": "atb-dist",
    }  # fmt: skip


# --- output ---


class Written:
    """A Log that writes to a pipe, and what has arrived there."""

    def __init__(self) -> None:
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        self.log = Log(writer)

    def text(self) -> str:
        parts = []
        while self.log.has_pending:
            self.log.write_some()
            parts.append(os.read(self._reader, 1 << 16))
        return b"".join(parts).decode()


@given(st.binary(max_size=300), st.lists(st.integers(1, 40), max_size=20))
def test_lines_are_the_same_however_they_are_cut(data: bytes, cuts: list[int]) -> None:
    data = data.replace(b"\r", b"")
    whole, parts = Log(), Log()
    whole.feed(3, "stderr", data)
    start = 0
    for length in cuts:
        parts.feed(3, "stderr", data[start : start + length])
        start += length
    parts.feed(3, "stderr", data[start:])
    for log in (whole, parts):
        log.end(3)
    assert bytes(whole._pending) == bytes(parts._pending)
    expected = b"".join(b"[rank 3] %s\n" % line for line in data.split(b"\n"))
    if not data or data.endswith(b"\n"):
        expected = expected.removesuffix(b"[rank 3] \n")
    assert bytes(whole._pending) == expected


def test_streams_of_ranks_do_not_mix_within_a_line() -> None:
    out = Written()
    out.log.feed(1, "stdout", b"one ")
    out.log.feed(2, "stderr", b"two\n")
    out.log.feed(1, "stderr", b"three\n")
    out.log.feed(1, "stdout", b"more\n")
    assert out.text() == "[rank 2] two\n[rank 1] three\n[rank 1] one more\n"


def test_progress_bars_come_through_piece_by_piece() -> None:
    out = Written()
    out.log.feed(0, "stderr", b"\r 10%\r 20%\r100%\n")
    assert out.text() == "[rank 0]  10%\r[rank 0]  20%\r[rank 0] 100%\n"
    assert out.log.tail(0) == ["100%"]


def test_a_prompt_is_shown_before_its_line_ends() -> None:
    out = Written()
    out.log.feed(0, "stderr", b"name? ")
    assert out.log.has_unfinished(0)
    out.log.show_unfinished(0)
    assert out.text() == "[rank 0] name? "
    assert not out.log.has_unfinished(0)
    out.log.feed(0, "stderr", b"thanks")
    out.log.show_unfinished(0)
    assert out.text() == "thanks"
    out.log.feed(0, "stderr", b"!\n")
    assert out.text() == "!\n"
    assert out.log.tail(0) == ["name? thanks!"]


def test_another_line_does_not_run_into_a_prompt() -> None:
    out = Written()
    for rank in (0, 1):
        out.log.feed(0, "stderr", b"more? ")
        out.log.show_unfinished(0)
        out.log.feed(rank, "stdout", b"line\n")
    out.log.feed(0, "stderr", b"last")
    out.log.show_unfinished(0)
    out.log.end(0)
    assert out.text().splitlines() == [
        "[rank 0] more? ", "[rank 0] line", "[rank 0] more? ", "[rank 1] line", "[rank 0] last",
    ]  # fmt: skip
    out.log.feed(0, "stderr", b"x")
    out.log.show_unfinished(0)
    out.log.say("own words")
    assert out.text() == "[rank 0] x\nown words\n"


def test_a_line_without_end_is_not_kept_forever() -> None:
    out = Written()
    out.log.feed(1, "stderr", b"x" * 200_000)
    assert out.text().startswith("[rank 1] xxx")


def test_held_lines_come_after_the_first_failure() -> None:
    out = Written()
    out.log.feed(1, "stderr", b"cause\n")
    out.log.feed(2, "stderr", b"seen live\n")
    out.log.hold()
    out.log.feed(2, "stderr", b"held 2\n")
    out.log.feed(1, "stderr", b"held 1\n")
    out.log.say_tail(1, "title", out.log.tail(1))
    out.log.release()
    assert out.text().splitlines() == [
        "[rank 1] cause", "[rank 2] seen live", "[rank 1] held 1",
        "title", "[rank 1] cause", "[rank 1] held 1", "[rank 2] held 2",
    ]  # fmt: skip


def test_a_tail_that_stands_last_is_not_repeated() -> None:
    out = Written()
    out.log.feed(2, "stderr", b"other\n")
    out.log.feed(1, "stderr", b"a\nb\n")
    out.log.say_tail(1, "title", out.log.tail(1))
    assert "title" not in out.text()


def test_a_reader_that_went_away_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    log = Log(writer)
    log.say("nobody reads this")
    log.flush(stall_s=1.0)
    assert not log.has_pending
    os.close(writer)


def test_a_table_is_as_wide_as_it_must_be() -> None:
    lines = table(("rank", "cpus", "device"), [("0", "0-63,128-191", "npu:0"), ("1", "7", "cpu")])
    assert lines == [
        "rank          cpus  device",
        "   0  0-63,128-191  npu:0",
        "   1             7  cpu",
    ]


# --- processes ---


def test_a_process_of_the_job_is_found_by_its_environment_and_node() -> None:
    env = {"PATH": os.environ["PATH"], "ATB_DIST_SESSION": "test-sweep-77", "GROUP_RANK": "1"}
    child = subprocess.Popen(["sleep", "60"], env=env, start_new_session=True)
    try:
        assert sweep.job_processes("test-sweep-77", 0, []) == []
        assert sweep.job_processes("test-sweep-7", 1, []) == []
        assert sweep.job_processes("test-sweep-77", 1, []) == [child.pid]
        # A live pid that does not carry the session's name was given to somebody else.
        assert sweep.job_processes("another", 0, [child.pid]) == []
        assert sweep.end_job("test-sweep-77", 1, [], timeout_s=10) == 1
        assert child.wait(timeout=10) == -9
    finally:
        child.kill()
        child.wait(timeout=10)


@pytest.mark.parametrize(
    ("script", "code", "ending"),
    [
        ("exit 0", 0, "exited with code 0"),
        ("exit 250", 250, "exited with code 250"),
        ("kill -TERM $$", 143, "was killed by SIGTERM"),
        ("kill -KILL $$", 137, "was killed by SIGKILL (the kernel"),
        ("kill -34 $$", 162, "was killed by SIGRTMIN"),
    ],
)
def test_endings_are_told_as_a_shell_would(script: str, code: int, ending: str) -> None:
    process = RankProcess(1, ["sh", "-c", script], dict(os.environ), [])
    process._process.communicate(timeout=10)
    assert process.poll()
    assert not process.poll()
    assert process.exit_code == code
    assert process.ending.startswith(ending)


def test_the_guard_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import runpy, sys; runpy.run_path(sys.argv[1]); "
        "bad = [m for m in sys.modules if m.startswith(('atb_dist', 'torch', 'numpy'))]; "
        "sys.exit(str(bad) if bad else 0)"
    )
    words = [sys.executable, "-I", "-S", "-c", code, sweep.__file__]
    subprocess.run(words, check=True, timeout=20)


# --- Ascend ---

Env = dict[str, str]
EIGHT = list(range(8))


@pytest.mark.parametrize(
    ("text", "cards", "visible"),
    [
        ("0,1,2,3", EIGHT, [0, 1, 2, 3]),
        ("4,5,6,7", EIGHT, [4, 5, 6, 7]),
        ("2", EIGHT, [2]),
        ("10,11", [], [10, 11]),  # device files may be hidden in a container
    ],
)
def test_visible_cards(text: str, cards: list[int], visible: list[int]) -> None:
    assert ascend.visible_cards({"ASCEND_RT_VISIBLE_DEVICES": text}, cards) == visible


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,0", ["not ascending", "use 0,1"]),
        ("0,2,1", ["not ascending", "use 0,1,2"]),
        ("0,1,1", ["twice"]),
        ("0, 1", ["stops reading"]),
        ("0,1,", ["list like"]),
        ("0-3", ["list like"]),
        ("all", ["list like"]),
        ("", ["list like"]),
        ("-1", ["list like"]),
        ("0,8", ["names device 8", "0,1,2,3,4,5,6,7"]),
    ],
)
def test_device_lists_that_the_runtime_would_misread(text: str, words: list[str]) -> None:
    found = ascend.problems({"ASCEND_RT_VISIBLE_DEVICES": text}, 1, EIGHT)
    assert len(found) == 1
    assert f"ASCEND_RT_VISIBLE_DEVICES={text}" in found[0]
    assert all(word in found[0] for word in words)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=8))
def test_only_ascending_unique_present_lists_pass(devices: list[int]) -> None:
    env = {"ASCEND_RT_VISIBLE_DEVICES": ",".join(map(str, devices))}
    is_fine = devices == sorted(set(devices)) and set(devices) <= set(EIGHT)
    assert (ascend.problems(env, 1, EIGHT) == []) == is_fine


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"ASCEND_RT_VISIBLE_DEVICES": "0,1"}, ["-n 4 needs 4 NPUs, but 2 are visible (0,1)"]),
        ({"HCCL_BUFFSIZE": "200MB"}, ["HCCL_BUFFSIZE=200MB", "MB"]),
        ({"HCCL_BUFFSIZE": "0"}, ["HCCL_BUFFSIZE=0"]),
        ({"HCCL_BUFFSIZE": "-5"}, ["HCCL_BUFFSIZE=-5"]),
        ({"HCCL_BUFFSIZE": ""}, ["HCCL_BUFFSIZE="]),
        ({"HCCL_DETERMINISTIC": "yes"}, ["HCCL_DETERMINISTIC=yes", "true, false, strict"]),
        ({"LCCL_DETERMINISTIC": "strict"}, ["LCCL_DETERMINISTIC=strict"]),
        ({"HCCL_DETERMINISTIC": "true", "LCCL_DETERMINISTIC": "0"}, ["contradict"]),
        ({"HCCL_DETERMINISTIC": "false", "LCCL_DETERMINISTIC": "1"}, ["contradict"]),
        ({"HCCL_IF_BASE_PORT": "80"}, ["HCCL_IF_BASE_PORT=80", "1024 to 65520"]),
        ({"HCCL_IF_BASE_PORT": "65521"}, ["65521"]),
        ({"HCCL_IF_BASE_PORT": "x"}, ["HCCL_IF_BASE_PORT=x"]),
        ({"HCCL_HOST_SOCKET_PORT_RANGE": "50100-50000"}, ["50100-50000"]),
        ({"HCCL_HOST_SOCKET_PORT_RANGE": "50000-50010,50005"}, ["twice"]),
        ({"HCCL_HOST_SOCKET_PORT_RANGE": "80"}, ["1024 to 65535"]),
        ({"HCCL_HOST_SOCKET_PORT_RANGE": "Auto"}, ["or auto"]),
        ({"HCCL_NPU_SOCKET_PORT_RANGE": "70000"}, ["HCCL_NPU_SOCKET_PORT_RANGE=70000"]),
    ],
)
def test_each_trap_gets_one_line(env: Env, words: list[str]) -> None:
    found = ascend.problems(env, 4, EIGHT)
    assert len(found) == 1
    assert "\n" not in found[0]
    assert all(word in found[0] for word in words)


def test_several_traps_are_all_named() -> None:
    env = {"ASCEND_RT_VISIBLE_DEVICES": "1,0", "HCCL_BUFFSIZE": "big", "HCCL_IF_BASE_PORT": "1"}
    assert len(ascend.problems(env, 2, EIGHT)) == 3


@pytest.mark.parametrize(
    "env",
    [
        {}, {"HCCL_BUFFSIZE": "200"}, {"HCCL_DETERMINISTIC": "TRUE", "LCCL_DETERMINISTIC": "1"},
        {"HCCL_DETERMINISTIC": "strict"}, {"HCCL_HOST_SOCKET_PORT_RANGE": "auto"},
        {"HCCL_NPU_SOCKET_PORT_RANGE": "61000,61050-61100"},
    ],
)  # fmt: skip
def test_a_good_environment_passes(env: Env) -> None:
    assert ascend.problems(env, 8, EIGHT) == []


def test_a_base_port_in_use_is_named() -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        for env in (
            {"HCCL_IF_BASE_PORT": str(max(1024, port - 3))},
            {"HCCL_HOST_SOCKET_PORT_RANGE": str(port)},
        ):
            (found,) = ascend.problems(env, 1, EIGHT)
            assert f"port {port} is held by " in found
            assert f"(pid {os.getpid()})" in found
        wide = {"HCCL_HOST_SOCKET_PORT_RANGE": f"{port},1024-1100"}
        assert ascend.problems(wide, 1, EIGHT) == []  # HCCL looks for a free one itself


def test_nobody_holds_a_free_port() -> None:
    with reserve_port() as holder:
        port = holder.getsockname()[1]
    assert port_owner(port) == "another process"


def test_ports_the_kernel_may_give_away_are_mentioned() -> None:
    env = {"HCCL_IF_BASE_PORT": "50000"}
    (notice,) = ascend.port_notices(env, "32768\t60999", "")
    assert "50000-50015" in notice
    assert "ip_local_reserved_ports=50000-50015" in notice
    assert ascend.port_notices(env, "32768 60999", "50000-50015,8080") == []
    assert ascend.port_notices(env, "61000 65000", "") == []
    assert "50008-50015" in ascend.port_notices(env, "32768 60999", "50000-50007")[0]


def test_port_ranges_that_fused_operators_do_not_support_are_mentioned() -> None:
    def notices(env: Env) -> list[str]:
        return ascend.check(env, device="npu", local_size=1).notices

    cards = {"ASCEND_RT_VISIBLE_DEVICES": "0"}
    assert notices(cards) == []
    (notice,) = notices({**cards, "HCCL_NPU_SOCKET_PORT_RANGE": "61000-61050"})
    assert notice.startswith("HCCL_NPU_SOCKET_PORT_RANGE is set: on A2")
    assert len(notices({**cards, "HCCL_HOST_SOCKET_PORT_RANGE": "auto"})) == 1


def test_two_jobs_get_port_ranges_of_their_own() -> None:
    with ascend.ports({}, "npu") as one, ascend.ports({}, "npu") as other:
        bases = [int(job["HCCL_IF_BASE_PORT"]) for job in (one, other)]
        assert abs(bases[0] - bases[1]) >= ascend.HCCL_PORTS
        taken = {"HCCL_IF_BASE_PORT": str(bases[0] + 5)}
        with (
            pytest.raises(ConfigError, match="another job holds a port"),
            ascend.ports(taken, "npu"),
        ):
            pytest.fail("two jobs share ports")
    with ascend.ports(taken, "npu") as again:
        assert again == taken


def test_cpu_jobs_get_no_ports_and_no_checks() -> None:
    bad = {"ASCEND_RT_VISIBLE_DEVICES": "1,0", "HCCL_BUFFSIZE": "x"}
    with ascend.ports({}, "cpu") as defaults:
        assert defaults == {}
    assert ascend.check(bad, device="cpu", local_size=8).problems == []
    assert len(ascend.check(bad, device="npu", local_size=1).problems) == 2
    assert len(ascend.check(bad, device="auto", local_size=1).problems) == 2
    hidden = {"ASCEND_RT_VISIBLE_DEVICES": ""}
    assert ascend.check(hidden, device="auto", local_size=8).problems == []


def test_device_names_show_logical_index_and_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ascend, "npu_cards", lambda: EIGHT)
    env = {"ASCEND_RT_VISIBLE_DEVICES": "4,6"}
    assert ascend.device_names(env, 2, "auto") == ["npu:0 (card 4)", "npu:1 (card 6)"]
    assert ascend.device_names(env, 2, "cpu") == ["cpu", "cpu"]
    assert re.fullmatch(r"npu:7 \(card 7\)", ascend.device_names({}, 8, "auto")[7])
