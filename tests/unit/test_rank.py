"""RankInfo.from_env over hand-made environments; real launchers are in tests/ranks."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atb_dist.comm import rank as rank_module
from atb_dist.comm.rank import RankInfo, without_launcher
from atb_dist.errors import ConfigError

Env = dict[str, str]


def torchrun(rank: int, nodes: int, local: int) -> Env:
    return {
        "RANK": str(rank), "WORLD_SIZE": str(nodes * local),
        "LOCAL_RANK": str(rank % local), "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(rank // local), "GROUP_WORLD_SIZE": str(nodes),
        "MASTER_ADDR": "h0", "MASTER_PORT": "4711", "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_ERROR_FILE": f"/tmp/x{rank // local}/none_a/attempt_0/{rank}/error.json",
    }  # fmt: skip


def openmpi(rank: int, nodes: int, local: int) -> Env:
    return {
        "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(nodes * local),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank % local),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(local), "OMPI_COMM_WORLD_NODE_RANK": "0",
        "PMIX_NAMESPACE": "prterun-h0-99@1", "PMIX_RANK": str(rank),
    }  # fmt: skip


def mpich(rank: int, nodes: int, local: int) -> Env:
    return {
        "PMI_RANK": str(rank), "PMI_SIZE": str(nodes * local), "PMI_FD": "9",
        "MPI_LOCALRANKID": str(rank % local), "MPI_LOCALNRANKS": str(local),
    }  # fmt: skip


def slurm(rank: int, nodes: int, local: int) -> Env:
    return {
        "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(nodes * local),
        "SLURM_LOCALID": str(rank % local), "SLURM_NODEID": str(rank // local),
        "SLURM_STEP_TASKS_PER_NODE": f"{local}(x{nodes})" if nodes > 1 else str(local),
        "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0",
    }  # fmt: skip


MAKERS = {"torchrun": torchrun, "openmpi": openmpi, "mpich": mpich, "slurm": slurm}


def pretend_hydra(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = {"--control-port": "h0:5151", "started": "12.345"}
    monkeypatch.setattr(rank_module, "_hydra_proxy", lambda: proxy)


@given(st.sampled_from(sorted(MAKERS)), st.integers(1, 5), st.integers(1, 9))
def test_every_launcher_gives_whole_jobs(launcher: str, nodes: int, local: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        pretend_hydra(patch)
        job = [RankInfo.from_env(MAKERS[launcher](r, nodes, local)) for r in range(nodes * local)]
    assert [r.rank for r in job] == list(range(nodes * local))
    assert [(r.node_rank, r.local_rank) for r in job] == [
        (n, i) for n in range(nodes) for i in range(local)
    ]
    assert {(r.size, r.local_size, r.num_nodes, r.launcher) for r in job} == {
        (nodes * local, local, nodes, launcher)
    }
    assert len({r.session for r in job}) == 1
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,64}", job[0].session)


@pytest.mark.parametrize(
    ("launcher", "change"),
    [
        ("torchrun", {"MASTER_PORT": "4712"}),
        ("torchrun", {"TORCHELASTIC_RUN_ID": "other"}),
        ("torchrun", {"TORCHELASTIC_RESTART_COUNT": "1"}),
        ("torchrun", {"TORCHELASTIC_ERROR_FILE": "/tmp/y/none_b/attempt_0/0/error.json"}),
        ("openmpi", {"PMIX_NAMESPACE": "prterun-h0-100@1"}),
        ("slurm", {"SLURM_JOB_ID": "78"}),
        ("slurm", {"SLURM_STEP_ID": "1"}),
    ],
)
def test_another_job_has_another_session(launcher: str, change: Env) -> None:
    env = MAKERS[launcher](0, 1, 2)
    assert RankInfo.from_env(env).session != RankInfo.from_env({**env, **change}).session


def test_two_single_processes_are_two_jobs() -> None:
    one, other = RankInfo.from_env({}), RankInfo.from_env({})
    assert (one.rank, one.size, one.launcher) == (0, 1, "none")
    assert one.session != other.session


@pytest.mark.parametrize("launcher", [*MAKERS, "none"])
def test_a_given_session_wins(launcher: str) -> None:
    env = MAKERS[launcher](1, 1, 2) if launcher != "none" else {}
    assert RankInfo.from_env({**env, "ATB_DIST_SESSION": "mine.7"}).session == "mine.7"


@pytest.mark.parametrize("session", ["a/b", "a b", "x" * 65, "é", "a\0b"])
def test_a_session_that_cannot_name_a_socket_is_refused(session: str) -> None:
    with pytest.raises(ConfigError, match="ATB_DIST_SESSION="):
        RankInfo.from_env({"ATB_DIST_SESSION": session})


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"RANK": "0"}, ["RANK=0", "WORLD_SIZE is not"]),
        ({"WORLD_SIZE": "2"}, ["WORLD_SIZE=2", "RANK is not"]),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ["LOCAL_RANK is not"]),
        ({**torchrun(0, 1, 2), "RANK": ""}, ["RANK is not"]),
        ({**torchrun(0, 1, 2), "RANK": "one"}, ["RANK='one'", "whole number"]),
        ({**torchrun(0, 1, 2), "RANK": "1.0"}, ["RANK='1.0'"]),
        ({**torchrun(0, 1, 2), "RANK": "٣"}, ["RANK="]),
        ({**torchrun(0, 1, 2), "RANK": "2"}, ["rank 2", "size 2"]),
        ({**torchrun(0, 1, 2), "RANK": "-1"}, ["rank -1"]),
        ({**torchrun(0, 1, 2), "WORLD_SIZE": "0"}, ["rank 0", "size 0"]),
        ({**torchrun(0, 1, 2), "LOCAL_RANK": "2"}, ["local rank 2", "local size 2"]),
        ({**torchrun(0, 1, 2), "LOCAL_WORLD_SIZE": "0"}, ["local size 0"]),
        ({**torchrun(0, 1, 2), "LOCAL_WORLD_SIZE": "4"}, ["0 of 4", "0 of 2"]),
        ({**torchrun(0, 1, 2), "LOCAL_RANK": "1"}, ["local rank 1 of 2", "rank 0 of 2"]),
        ({**torchrun(0, 1, 2), "GROUP_RANK": "3"}, ["node rank 3"]),
        ({**torchrun(0, 1, 2), "MASTER_PORT": ""}, ["MASTER_PORT", "ATB_DIST_SESSION"]),
        ({**torchrun(0, 1, 2), **openmpi(1, 1, 2)}, ["OMPI_COMM_WORLD_RANK=1", "RANK=0"]),
        ({**torchrun(0, 1, 4), **openmpi(0, 1, 2)}, ["SIZE=2", "WORLD_SIZE=4"]),
        ({**mpich(0, 1, 2), **openmpi(1, 1, 2)}, ["PMI_RANK=0", "(mpich)"]),
        ({**torchrun(0, 1, 2), "PMI_RANK": "1", "PMI_SIZE": "2"}, ["MPI_LOCALRANKID is not"]),
        ({**openmpi(0, 1, 2), "PMIX_NAMESPACE": ""}, ["PMIX_NAMESPACE", "ATB_DIST_SESSION"]),
        ({"PMI_RANK": "0"}, ["PMI_SIZE is not"]),
        ({"PMI_SIZE": "2"}, ["PMI_RANK is not"]),
        ({**slurm(0, 2, 2), "SLURM_NODEID": "2"}, ["SLURM_NODEID=2"]),
        ({**slurm(0, 2, 2), "SLURM_STEP_TASKS_PER_NODE": "2"}, ["SLURM_STEP_TASKS_PER_NODE=2"]),
        ({**slurm(0, 2, 2), "SLURM_STEP_TASKS_PER_NODE": "2(y3)"}, ["2(y3)"]),
        ({**slurm(0, 1, 2), "SLURM_LOCALID": ""}, ["SLURM_LOCALID is not"]),
        ({**slurm(0, 1, 2), "SLURM_JOB_ID": ""}, ["SLURM_JOB_ID"]),
    ],
)
def test_contradictions_are_refused_in_one_line(env: Env, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        RankInfo.from_env(env)
    assert "\n" not in str(refused.value)
    for word in words:
        assert word in str(refused.value)


def test_a_wrapper_that_repeats_the_mpi_numbers_is_no_contradiction() -> None:
    env = {**openmpi(1, 1, 2), "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h0"}
    info = RankInfo.from_env(env)
    assert (info.rank, info.size, info.launcher) == (1, 2, "openmpi")


def test_slurm_around_another_launcher_counts_nodes_not_ranks() -> None:
    outer = slurm(1, 2, 1)
    assert RankInfo.from_env({**outer, **torchrun(5, 2, 4)}).rank == 5
    assert RankInfo.from_env({**outer, **openmpi(5, 2, 4)}).local_rank == 1


def test_a_slurm_batch_script_is_one_process() -> None:
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7", "SLURM_LOCALID": "0"}
    assert RankInfo.from_env(batch).size == 1


def test_slurm_speaking_pmi_is_slurm() -> None:
    env = {**slurm(3, 1, 4), "PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "8"}
    assert RankInfo.from_env(env).launcher == "slurm"


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.data())
def test_uneven_slurm_nodes(tasks: list[int], data: st.DataObject) -> None:
    node = data.draw(st.integers(0, len(tasks) - 1))
    local = data.draw(st.integers(0, tasks[node] - 1))
    info = RankInfo.from_env(
        {
            "SLURM_PROCID": str(sum(tasks[:node]) + local),
            "SLURM_STEP_NUM_TASKS": str(sum(tasks)),
            "SLURM_LOCALID": str(local),
            "SLURM_NODEID": str(node),
            "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, tasks)),
            "SLURM_JOB_ID": "77",
            "SLURM_STEP_ID": "0",
        }
    )
    assert (info.node_rank, info.local_size, info.num_nodes) == (node, tasks[node], len(tasks))


NAMES = sorted({name for maker in MAKERS.values() for name in maker(0, 1, 1)})
VALUES = st.sampled_from(["", "0", "1", "2", "-1", "7", "x", "1(x2)", "0x1", "99999999999", " 1"])


CHANGES = st.dictionaries(st.sampled_from([*NAMES, "ATB_DIST_LAUNCHER"]), VALUES, max_size=3)


@given(st.lists(st.sampled_from(sorted(MAKERS)), max_size=2), st.integers(0, 3), CHANGES)
def test_any_environment_is_read_or_refused(launchers: list[str], rank: int, changes: Env) -> None:
    env: Env = {}
    for launcher in launchers:
        env |= MAKERS[launcher](rank, 2, 2)
    refusal = ""
    try:
        info = RankInfo.from_env(env | changes)
    except ConfigError as error:
        refusal = str(error)
    if refusal:
        assert "\n" not in refusal
    else:
        assert 0 <= info.rank < info.size
        assert 0 <= info.local_rank < info.local_size <= info.size
        assert 0 <= info.node_rank < info.num_nodes <= info.size


def test_mpich_without_its_proxy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_module, "_hydra_proxy", dict)
    with pytest.raises(ConfigError, match=r"hydra_pmi_proxy.*ATB_DIST_SESSION"):
        RankInfo.from_env(mpich(0, 1, 2))


def test_our_launcher_is_told_from_torchrun() -> None:
    env = torchrun(0, 1, 2) | {"ATB_DIST_LAUNCHER": "atb-dist", "ATB_DIST_SESSION": "s1"}
    with pytest.raises(ConfigError, match="below atb-dist launch"):
        RankInfo.from_env(env)
    del env["TORCHELASTIC_RUN_ID"]
    assert RankInfo.from_env(env).launcher == "atb-dist"


@pytest.mark.parametrize("launcher", MAKERS)
def test_a_scrubbed_environment_is_a_single_process(launcher: str) -> None:
    kept = {"PATH": "/bin", "GROUP": "users", "MPI_HOME": "/opt", "SLURM_JOB_NODELIST": "h0"}
    left = without_launcher({**MAKERS[launcher](1, 2, 2), **kept, "ATB_DIST_SESSION": "s"})
    assert RankInfo.from_env(left).launcher == "none"
    assert kept.items() <= left.items()
    assert not {"ATB_DIST_SESSION", "MASTER_PORT", "PMI_FD"} & left.keys()
