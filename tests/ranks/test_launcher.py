"""`atb-dist launch` with real processes: shell and Python commands that import no torch."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from job_processes import ENDED_WITHIN_S, LAUNCH, environment, is_running, wait_for

PYTHON = sys.executable
WHO = "from atb_dist.comm.rank import RankInfo; print(RankInfo.from_env())"
Popen = subprocess.Popen[bytes]


def launch(
    *words: str, stdin: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*LAUNCH, *words],
        input=stdin,
        capture_output=True,
        timeout=30,
        env={**environment(), **(env or {})},
    )


def shell(
    n: int, script: str, *flags: str, **options: object
) -> subprocess.CompletedProcess[bytes]:
    return launch("-n", str(n), *flags, "--", "sh", "-c", script, **options)  # type: ignore[arg-type]


@contextlib.contextmanager
def started(*words: str) -> Iterator[Popen]:
    process = subprocess.Popen(
        [*LAUNCH, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)


def pids_in(folder: Path, count: int) -> dict[str, int]:
    """Wait for files that hold a pid each; return pid by file name."""

    def read() -> dict[str, int]:
        texts = {path.name: path.read_text() for path in folder.iterdir()}
        return {name: int(text) for name, text in texts.items() if text.endswith("\n")}

    wait_for(f"{count} pids in {folder}", lambda: len(read()) == count)
    return read()


def wait_until_ended(pids: Sequence[int]) -> None:
    wait_for(f"the end of {pids}", lambda: not any(map(is_running, pids)), ENDED_WITHIN_S)


# --- ranks, their environment, their output ---


def test_eight_ranks_on_any_number_of_cores_know_each_other() -> None:
    done = launch("-n", "8", "--", PYTHON, "-c", WHO)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode() + done.stderr.decode()
    infos = re.findall(
        r"RankInfo\(rank=(\d), size=8, local_rank=(\d), local_size=8, node_rank=0, num_nodes=1, "
        r"session='([\w-]+)', launcher='atb-dist'\)",
        lines,
    )
    assert sorted((rank, local) for rank, local, _ in infos) == [(str(r), str(r)) for r in range(8)]
    assert len({session for _, _, session in infos}) == 1
    assert done.stdout.count(b"\n") == 1


def test_stdin_and_stdout_of_rank_0_are_untouched() -> None:
    data = bytes(range(256)) * 5000 + b"no line end"
    done = shell(3, 'if [ "$RANK" = 0 ]; then cat; else cat; echo "not mine"; fi', stdin=data)
    assert done.returncode == 0, done.stderr
    assert done.stdout == data
    for rank in (1, 2):
        assert b"[rank %d] not mine\n" % rank in done.stderr


def test_every_other_line_is_prefixed_and_whole() -> None:
    script = "i=0; while [ $i -lt 300 ]; do echo line $i of $RANK >&2; i=$((i+1)); done; printf end"
    done = shell(3, script, "--quiet")
    assert done.stdout == b"end"
    lines = done.stderr.decode().splitlines()
    for rank in range(3):
        mine = [line for line in lines if line.startswith(f"[rank {rank}] line")]
        assert mine == [f"[rank {rank}] line {i} of {rank}" for i in range(300)]
    assert len(lines) == 900 + 2


def test_prints_of_other_ranks_show_at_once_and_rank_0_is_as_in_a_shell() -> None:
    script = (
        "import os, time; print('early', os.environ.get('PYTHONUNBUFFERED'));"
        " time.sleep(0.1); os.kill(os.getpid(), 9)"
    )
    done = launch("-n", "2", "--", "sh", "-c", f'[ $RANK = 0 ] || exec {PYTHON} -c "{script}"')
    assert b"[rank 1] early 1\n" in done.stderr
    plain = launch("-n", "1", "--", "sh", "-c", "echo $PYTHONUNBUFFERED")
    assert plain.stdout == b"\n"


def test_table_shows_pids_cpus_and_devices() -> None:
    done = shell(2, 'echo "pid $$" >&2', "--bind", "cores")
    pids = dict(re.findall(r"\[rank (\d)\] pid (\d+)", done.stderr.decode()))
    for rank in "01":
        row = rf"^ +{rank} +{pids[rank]} +[0-9,-]+ +\d+  (cpu|npu:{rank}.*|cuda:{rank})$"
        assert re.search(row, done.stderr.decode(), re.MULTILINE)
    assert b"device" not in shell(2, "true", "--quiet").stderr


def test_cores_are_dealt_out_and_threads_follow() -> None:
    script = (
        "import os; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'],"
        " file=__import__('sys').stderr)"
    )
    done = launch("-n", "2", "--quiet", "--bind", "cores", "--", PYTHON, "-c", script)
    allowed = sorted(os.sched_getaffinity(0))
    sets = re.findall(r"\] \[([\d, ]+)\] (\d+)", done.stderr.decode())
    assert len(sets) == 2
    bound = [[int(cpu) for cpu in text.split(",")] for text, _ in sets]
    assert sorted({cpu for cpus in bound for cpu in cpus}) == allowed
    if len(allowed) >= 2:
        assert not set(bound[0]) & set(bound[1])
    assert all(1 <= int(count) <= max(1, len(allowed) // 2) for _, count in sets)
    kept = shell(1, "echo $OMP_NUM_THREADS", env={"OMP_NUM_THREADS": "17"})
    assert kept.stdout == b"17\n"


def test_variables_of_an_outer_launcher_are_not_passed_on() -> None:
    outer = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "3", "ATB_DIST_SESSION": "old"}
    done = launch("-n", "2", "--", PYTHON, "-c", WHO, env=outer)
    assert done.returncode == 0, done.stderr
    assert b"session='atb-dist-" in done.stdout


def test_two_jobs_at_once_never_meet() -> None:
    words = ("-n", "2", "--quiet", "--", "sh", "-c", "echo $MASTER_PORT $ATB_DIST_SESSION; sleep 1")
    with started(*words) as one, started(*words) as other, started(*words) as third:
        said = {job.communicate(timeout=20)[0] for job in (one, other, third)}
    ports = {line.split()[0] for line in said}
    sessions = {line.split()[1] for line in said}
    assert len(ports) == len(sessions) == 3


# --- failures ---


def test_exit_code_and_error_of_the_first_failing_rank() -> None:
    script = 'if [ "$RANK" = 2 ]; then echo "the cause" >&2; exit 41; fi; sleep 60'
    done = shell(4, script)
    assert done.returncode == 41
    text = done.stderr.decode()
    pid = re.search(r"^ +2 +(\d+)", text, re.MULTILINE)
    assert pid is not None
    assert text.splitlines()[-1] == (
        f"atb-dist: error: rank 2 of 4 (pid {pid[1]}) exited with code 41; "
        "stopped the other 3 ranks"
    )
    assert "[rank 2] the cause" in text


def test_first_failure_is_shown_before_what_others_say_while_they_are_stopped() -> None:
    script = """
    trap 'echo "late words" >&2; exit 9' TERM
    if [ "$RANK" = 1 ]; then sleep 0.3; echo "the cause" >&2; exit 3; fi
    while :; do sleep 0.05; done
    """
    done = shell(3, script)
    assert done.returncode == 3
    text = done.stderr.decode()
    assert text.index("the cause") < text.index("late words")
    assert "rank 1 of 3" in text.splitlines()[-1]


def test_a_rank_that_only_reports_a_dead_peer_is_not_the_cause() -> None:
    script = """
    if [ "$RANK" = 0 ]; then echo "PeerFailure: rank 1 of 2 failed" >&2; exit 1; fi
    sleep 0.4; echo "ValueError: the cause" >&2; exit 5
    """
    done = shell(2, script)
    assert done.returncode == 5
    text = done.stderr.decode()
    assert "rank 1 of 2" in text.splitlines()[-1]
    assert "ValueError: the cause" in text


def test_a_lone_report_of_a_dead_peer_still_ends_the_job() -> None:
    done = shell(2, '[ "$RANK" = 1 ] && { echo "PeerFailure: x" >&2; exit 6; }; sleep 60')
    assert done.returncode == 6


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_sigkill_of_a_rank_ends_all(tmp_path: Path, victim: int) -> None:
    script = f"sleep 60 & echo $! > {tmp_path}/child$RANK; echo $$ > {tmp_path}/rank$RANK; wait"
    with started("-n", "4", "--", "sh", "-c", script) as job:
        pids = pids_in(tmp_path, 8)
        os.kill(pids[f"rank{victim}"], signal.SIGKILL)
        wait_until_ended(list(pids.values()))
        _, stderr = job.communicate(timeout=10)
    assert job.returncode == 128 + signal.SIGKILL
    last = stderr.decode().splitlines()[-1]
    assert f"rank {victim} of 4 (pid {pids[f'rank{victim}']}) was killed by SIGKILL" in last


def test_ranks_that_ignore_sigterm_are_killed(tmp_path: Path) -> None:
    script = f"trap '' TERM INT; echo $$ > {tmp_path}/rank$RANK; while :; do sleep 0.1; done"
    with started("-n", "3", "--", "sh", "-c", script) as job:
        pids = list(pids_in(tmp_path, 3).values())
        os.kill(pids[0], signal.SIGKILL)
        wait_until_ended(pids)
        job.communicate(timeout=10)
    assert job.returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize("escape", ["", "setsid ", "env -i "])
def test_sigkill_of_the_launcher_ends_ranks_and_their_children(tmp_path: Path, escape: str) -> None:
    script = (
        f"trap '' TERM HUP INT; {escape}sh -c 'echo $$ > {tmp_path}/child'$RANK'; sleep 60' & "
        f"echo $$ > {tmp_path}/rank$RANK; wait"
    )
    with started("-n", "2", "--", "sh", "-c", script) as job:
        pids = list(pids_in(tmp_path, 4).values())
        job.kill()
        wait_until_ended(pids)


def test_sigkill_of_the_launcher_while_ranks_start(tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/$$; sleep 60"
    with started("-n", "8", "--", "sh", "-c", script) as job:
        wait_for("a first rank", lambda: any(tmp_path.iterdir()))
        job.kill()
        job.wait(timeout=10)
        time.sleep(0.3)  # a rank that slipped through would write its pid by now
        wait_until_ended([int(path.name) for path in tmp_path.iterdir()])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_forwarded(tmp_path: Path, number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script = f"""
    trap 'echo got {name} >&2; exit 0' {name}
    echo $$ > {tmp_path}/rank$RANK
    while :; do sleep 0.05; done
    """
    with started("-n", "2", "--", "sh", "-c", script) as job:
        pids = list(pids_in(tmp_path, 2).values())
        job.send_signal(number)
        wait_until_ended(pids)
        _, stderr = job.communicate(timeout=10)
    assert job.returncode == 128 + number
    for rank in range(2):
        assert b"[rank %d] got %s" % (rank, name.encode()) in stderr
    assert stderr.decode().splitlines()[-1] == f"atb-dist: error: stopped by {number.name}"


def test_a_second_ctrl_c_kills_at_once(tmp_path: Path) -> None:
    script = f"trap '' TERM INT; echo $$ > {tmp_path}/rank$RANK; while :; do sleep 0.1; done"
    with started("-n", "2", "--", "sh", "-c", script) as job:
        pids = list(pids_in(tmp_path, 2).values())
        job.send_signal(signal.SIGINT)
        time.sleep(0.2)
        job.send_signal(signal.SIGINT)
        wait_until_ended(pids)
        job.communicate(timeout=10)
    assert job.returncode == 128 + signal.SIGINT


def test_a_good_end_lets_what_ranks_started_finish_and_then_ends_it(tmp_path: Path) -> None:
    script = f"(sleep 0.4; echo written >&2) & setsid sleep 60 & echo $! > {tmp_path}/child$RANK"
    done = shell(2, script)
    assert done.returncode == 0
    assert b"[rank 0] written" in done.stderr
    assert b"[rank 1] written" in done.stderr
    wait_until_ended(list(pids_in(tmp_path, 2).values()))


def test_a_reader_that_stopped_reading_does_not_keep_the_job_alive(tmp_path: Path) -> None:
    script = (
        f'echo $$ > {tmp_path}/rank$RANK; while :; do echo "many words of rank $RANK" >&2; done'
    )
    with started("-n", "2", "--", "sh", "-c", script) as job:
        pids = list(pids_in(tmp_path, 2).values())
        time.sleep(0.3)  # both pipes fill
        job.send_signal(signal.SIGTERM)
        wait_until_ended(pids)
        job.wait(timeout=10)
    assert job.returncode == 128 + signal.SIGTERM


def test_rank_0_owns_the_terminal_and_ctrl_c_ends_all() -> None:
    mine, theirs = pty.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    script = 'import sys; print(sys.stdin.isatty(), input("name? ")); input()'
    job = subprocess.Popen(
        [*LAUNCH, "-n", "2", "--", "sh", "-c", f"[ $RANK = 1 ] || exec {PYTHON} -c '{script}'"],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment(),
        start_new_session=True, preexec_fn=take_terminal,  # noqa: PLW1509
    )  # fmt: skip
    os.close(theirs)
    seen = b""

    def read_until(text: bytes) -> None:
        nonlocal seen
        deadline = time.monotonic() + 15
        while text not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([mine], [], [], 0.1)[0]:
                seen += os.read(mine, 4096)

    try:
        read_until(b"name? ")
        os.write(mine, b"bard\n")
        read_until(b"True bard")
        os.write(mine, b"\x03")
        read_until(b"stopped by SIGINT")
        assert job.wait(timeout=10) == 128 + signal.SIGINT
    finally:
        job.kill()
        job.wait(timeout=10)
        os.close(mine)


def test_a_rank_that_cannot_be_killed_does_not_keep_the_launcher() -> None:
    """Such as one in a device driver; here signals to ranks are switched off instead."""
    code = """if True:
    import sys
    from atb_dist.launcher import process, supervisor, sweep
    from atb_dist.launcher.job import Job
    process.RankProcess.signal = lambda self, number: None
    sweep.end_job = lambda *_, **__: 0
    supervisor.TERM_WAIT_S = supervisor.KILL_WAIT_S = 0.2
    script = '[ $RANK = 1 ] && exit 3; exec sleep 60'
    sys.exit(supervisor.launch(Job(("sh", "-c", script), 2, quiet=True)))
    """
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, timeout=30, env=environment())
    assert done.returncode == 3
    lines = done.stderr.decode().splitlines()
    assert re.search(r"rank 0 \(pid \d+\) does not end", lines[-2])
    assert "rank 1 of 2" in lines[-1]


# --- what is refused ---


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-n", "2", "--", "no-such-command"], "command not found: no-such-command"),
        (["-n", "2", "--", "./no/such"], "command not found: ./no/such"),
        (["-n", "2", "--", __file__], "use -- python"),
        (["-n", "2"], "no command given"),
        (["-n", "0", "--", "true"], "-n 0 starts no rank"),
        (["-n", "two", "--", "true"], "-n two is not a whole number"),
        (["-n", "1.5", "--", "true"], "-n 1.5 is not a whole number"),
        (["-n", "2", "--bind", "socket", "--", "true"], "use cores, numa, none"),
        (["-n", "2", "--device", "tpu", "--", "true"], "use auto, cpu, npu, cuda"),
        (["-n", "2", "--nodes", "2", "--", "true"], "needs --rendezvous HOST:PORT"),
        (["-n", "2", "--nodes", "0", "--", "true"], "--nodes 0"),
        (["-n", "2", "--node-rank", "1", "--", "true"], "--node-rank 1 does not fit --nodes 1"),
        (["-n", "2", "--rendezvous", "h:99999", "--", "true"], "--rendezvous h:99999"),
        (["-n", "2", "--rendezvous", "h", "--", "true"], "is not HOST:PORT"),
        (["-n", "2", "--timeout", "0", "--", "true"], "--timeout 0"),
        (["-n", "2", "--timeout", "soon", "--", "true"], "--timeout=soon is not"),
        (["-n", "2", "--no-such-flag", "--", "true"], "--no-such-flag"),
        (["--", "true"], "-n"),
    ],
)
def test_bad_flags_cost_one_line(words: list[str], text: str) -> None:
    done = launch(*words)
    assert done.returncode == 2
    assert done.stdout == b""
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 1, lines
    assert text in lines[0]


def test_an_environment_npu_ranks_would_fail_in_costs_one_line_each() -> None:
    env = {"ASCEND_RT_VISIBLE_DEVICES": "1,0", "HCCL_BUFFSIZE": "200MB"}
    done = launch("-n", "2", "--", "true", env=env)
    assert done.returncode == 2
    lines = done.stderr.decode().splitlines()
    assert len(lines) == 2
    assert "use 0,1" in lines[0]
    assert "HCCL_BUFFSIZE=200MB" in lines[1]
    assert launch("-n", "2", "--device", "cpu", "--", "true", env=env).returncode == 0


def test_npu_jobs_get_ports_and_a_table_of_cards() -> None:
    done = shell(2, "echo $HCCL_IF_BASE_PORT", env={"ASCEND_RT_VISIBLE_DEVICES": "4,5"})
    if b"names device" in done.stderr:
        pytest.skip("this host has NPUs, but not eight")
    assert 20000 <= int(done.stdout) < 30000
    assert b"npu:1 (card 5)" in done.stderr


def test_a_file_the_kernel_cannot_run_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF but not really")
    broken.chmod(0o755)
    done = launch("-n", "3", "--", str(broken))
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[-1].startswith("atb-dist: error: can't start ")


# --- several nodes: two launchers on this host ---


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def node(k: int, address: str, *command: str, n: int = 2, nodes: int = 2) -> list[str]:
    return [
        "-n", str(n), "--nodes", str(nodes), "--node-rank", str(k), "--rendezvous", address,
        "--timeout", "15", "--quiet", "--", *command,
    ]  # fmt: skip


def test_two_nodes_make_one_job() -> None:
    address = free_address()
    with (
        started(*node(1, address, PYTHON, "-c", WHO)) as late,
        started(*node(0, address, PYTHON, "-c", WHO)) as first,
    ):
        texts = [b"".join(job.communicate(timeout=20)).decode() for job in (first, late)]
    assert (first.returncode, late.returncode) == (0, 0), texts
    infos = re.findall(
        r"rank=(\d), size=4, local_rank=(\d), local_size=2, node_rank=(\d), num_nodes=2, "
        r"session='([\w-]+)'",
        "".join(texts),
    )
    assert sorted(info[:3] for info in infos) == [
        ("0", "0", "0"), ("1", "1", "0"), ("2", "0", "1"), ("3", "1", "1"),
    ]  # fmt: skip
    assert len({info[3] for info in infos}) == 1


@pytest.mark.parametrize("failing", [0, 3])
def test_a_failure_on_one_node_ends_all_nodes(tmp_path: Path, failing: int) -> None:
    script = (
        f'echo $$ > {tmp_path}/rank$RANK; [ "$RANK" = {failing} ] && '
        '{ sleep 0.5; echo "the cause" >&2; exit 23; }; sleep 60'
    )
    address = free_address()
    with (
        started(*node(0, address, "sh", "-c", script)) as first,
        started(*node(1, address, "sh", "-c", script)) as second,
    ):
        pids = pids_in(tmp_path, 4)
        texts = [job.communicate(timeout=20)[1].decode() for job in (first, second)]
        wait_until_ended(list(pids.values()))
    assert (first.returncode, second.returncode) == (23, 23)
    for text in texts:
        assert f"rank {failing} of 4 (pid {pids[f'rank{failing}']} on node" in text
        assert f"[rank {failing}] the cause" in text


@pytest.mark.parametrize("killed", [0, 1])
def test_death_of_one_launcher_ends_all_nodes(tmp_path: Path, killed: int) -> None:
    script = f"echo $$ > {tmp_path}/rank$RANK; sleep 60"
    address = free_address()
    with (
        started(*node(0, address, "sh", "-c", script)) as first,
        started(*node(1, address, "sh", "-c", script)) as second,
    ):
        pids = pids_in(tmp_path, 4)
        (first, second)[killed].kill()
        wait_until_ended(list(pids.values()))
        survivor = (second, first)[killed]
        _, stderr = survivor.communicate(timeout=10)
    assert survivor.returncode == 1
    assert f"the launcher of node {killed} is gone" in stderr.decode().splitlines()[-1]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"n": 3}, "ranks is 3 on node 1 but 2 on node 0"),
        ({"nodes": 3}, "nodes is 3 on node 1 but 2 on node 0"),
        ({"command": ("false",)}, "command is false on node 1 but true on node 0"),
    ],
)
def test_nodes_that_were_started_differently_refuse(change: dict[str, object], text: str) -> None:
    address = free_address()
    command = change.pop("command", ("true",))
    with (
        started(*node(0, address, "true")) as first,
        started(*node(1, address, *command, **change)) as second,  # type: ignore[misc, arg-type]
    ):
        for job in (first, second):
            _, stderr = job.communicate(timeout=20)
            assert job.returncode == 2
            assert text in stderr.decode()
            assert len(stderr.decode().splitlines()) == 1


def test_strangers_and_doubles_do_not_disturb_the_meeting() -> None:
    address = free_address()
    host, port = address.split(":")
    with started(*node(0, address, "true")) as first:
        strangers = []

        def connected() -> bool:
            with contextlib.suppress(OSError):
                strangers.append(socket.create_connection((host, int(port)), timeout=2))
            return bool(strangers)

        wait_for("node 0 to listen", connected)
        strangers.append(socket.create_connection((host, int(port)), timeout=2))
        strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
        strangers[1].sendall(b'{"half')
        with started(*node(0, address, "true")) as double:
            _, stderr = double.communicate(timeout=20)
            assert double.returncode == 2
            assert b"can't listen at --rendezvous" in stderr
            assert b"(pid %d)" % first.pid in stderr
        with started(*node(1, address, "true")) as second:
            second.communicate(timeout=20)
            assert second.returncode == 0
        first.communicate(timeout=20)
        assert first.returncode == 0
        for stranger in strangers:
            stranger.close()


def test_a_long_wait_says_what_for() -> None:
    address = free_address()
    words = ["-n", "1", "--nodes", "2", "--rendezvous", address, "--timeout", "4"]
    with (
        started(*words, "--node-rank", "0", "--", "true") as host,
        started(
            *words[:-3], free_address(), "--timeout", "4", "--node-rank", "1", "--", "true"
        ) as lost,
    ):
        said = [job.communicate(timeout=20)[1].decode().splitlines()[0] for job in (host, lost)]
    assert said[0] == f"atb-dist: waiting at {address} for node 1 of 2"
    assert "waiting for node 0 at" in said[1]
    assert "Connection refused" in said[1]


@pytest.mark.parametrize("k", [0, 1])
def test_a_node_that_stays_alone_gives_up(k: int) -> None:
    words = node(k, free_address(), "true")
    words[words.index("--timeout") + 1] = "0.5"
    done = launch(*words)
    assert done.returncode == 1
    assert "--timeout changes the limit" in done.stderr.decode()
    assert len(done.stderr.splitlines()) == 1
