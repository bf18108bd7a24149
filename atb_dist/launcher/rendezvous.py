"""How the launchers of several nodes find each other, agree, and hear of each other's end.

Node 0 listens; every other node connects, says what it is about to start, and is told the
job's session and master port once all have come. The connections stay open: one JSON object a
line, first "failed" wins, and a launcher that vanishes counts as failed.
"""

from __future__ import annotations

import errno
import json
import select
import socket
import sys
import time
from typing import Any

from atb_dist import __version__
from atb_dist.errors import AtbDistError, ConfigError
from atb_dist.launcher.job import Job, Meeting, parse_address
from atb_dist.launcher.ports import port_owner

Message = dict[str, Any]
_MAX_LINE_BYTES = 1 << 20
_HELLO_TIMEOUT_S = 10.0
NOTICE_AFTER_S = 3.0


class Peer:
    """The launcher of another node."""

    def __init__(self, connection: socket.socket):
        self.node = 0
        self.closed = False
        self.done = False
        self.opened_s = time.monotonic()
        self._socket = connection
        self._received = b""
        # A node that loses power says nothing: keep-alives notice within about 10 s.
        for level, option, value in (
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 4),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000),
        ):
            connection.setsockopt(level, option, value)
        connection.settimeout(5)

    def fileno(self) -> int:
        """The connection, for a selector."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send one message; a peer that can't take it counts as closed."""
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.closed = True

    def receive(self) -> list[Message]:
        """Return the messages that have come, without waiting; call when readable."""
        try:
            data = self._socket.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self.closed |= not data or len(self._received) > _MAX_LINE_BYTES
        *lines, self._received = (self._received + data).split(b"\n")
        try:
            messages = [json.loads(line) for line in lines]
        except (ValueError, RecursionError):  # not one of ours
            messages = [None]
        if not all(isinstance(message, dict) for message in messages):
            self.closed = True
            return []
        return messages

    def close(self, wait_s: float = 0.0) -> None:
        """Close the connection; with wait_s, first let the peer read what was sent and hang up.

        Closing with unread bytes would make the kernel throw away what the peer has not read.
        """
        deadline = time.monotonic() + wait_s
        try:
            self._socket.shutdown(socket.SHUT_WR)
            while not self.closed and (left := deadline - time.monotonic()) > 0:
                if select.select([self], [], [], left)[0]:
                    self.receive()
        except OSError:  # gone already
            self.closed = True
        self.closed = True
        self._socket.close()


class Notice:
    """Tells once, after a while, what a launcher is waiting for; a wrong host name shows early."""

    def __init__(self, job: Job):
        self._due_s = time.monotonic() + (float("inf") if job.quiet else NOTICE_AFTER_S)

    def tell(self, what: str) -> None:
        """Say it if it is time."""
        if time.monotonic() >= self._due_s:
            self._due_s = float("inf")
            sys.stderr.write(f"atb-dist: waiting {what}\n")
            sys.stderr.flush()


def meet(job: Job, offer: Meeting) -> tuple[Meeting, list[Peer]]:
    """Wait for all nodes; return what node 0 offered, and connections.

    Node 0 gets one connection per other node, the others get theirs to node 0.
    Raises ConfigError when nodes were started differently, AtbDistError when some stay away.
    """
    if job.num_nodes == 1:
        return offer, []
    return _host(job, offer) if job.node_rank == 0 else _join(job)


def _hello(job: Job) -> Message:
    return {
        "atb_dist": __version__,
        "nodes": job.num_nodes,
        "ranks": job.local_size,
        "command": list(job.command),
    }


def _host(job: Job, offer: Meeting) -> tuple[Meeting, list[Peer]]:
    host, port = parse_address(job.rendezvous)
    deadline = time.monotonic() + job.timeout_s
    notice = Notice(job)
    joined: dict[int, Peer] = {}
    strangers: list[Peer] = []
    try:
        with _listen(job.rendezvous, host, port) as listener:
            while len(joined) < job.num_nodes - 1:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AtbDistError(
                        f"waited {job.timeout_s:g} s at {job.rendezvous} for "
                        f"{_missing(job, joined)} (--timeout changes the limit)"
                    )
                notice.tell(f"at {job.rendezvous} for {_missing(job, joined)}")
                _accept(listener, strangers, min(left, 1.0))
                for peer in strangers:
                    _welcome(job, peer, joined)
                strangers = [p for p in strangers if p not in joined.values() and not p.closed]
                for node in [node for node, peer in joined.items() if _hung_up(peer)]:
                    del joined[node]
    except (ConfigError, AtbDistError) as error:
        for peer in joined.values():
            peer.send({"refused": str(error)})
        raise
    finally:
        for peer in strangers:
            peer.close()
    for peer in joined.values():
        peer.send({"session": offer.session, "addr": offer.master_addr, "port": offer.master_port})
    return offer, list(joined.values())


def _listen(address: str, host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if _names_this_host(host):
            family, where = socket.AF_INET, ("", port)
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(64)
    except OSError as error:
        held = f", by {port_owner(port)}" if error.errno == errno.EADDRINUSE else ""
        raise ConfigError(
            f"node 0 can't listen at --rendezvous {address}: {error.strerror}{held}; "
            "give an address of this host and a port that no other job uses"
        ) from error
    return listener


def _names_this_host(host: str) -> bool:
    """Whether host is our own name, which distributions like to map to a loopback address."""
    own = socket.gethostname()
    return host in (own, own.partition(".")[0]) and host != "localhost"


def _accept(listener: socket.socket, strangers: list[Peer], timeout_s: float) -> None:
    """Take one connection if there is one; drop those that never say who they are."""
    watched: list[socket.socket | Peer] = [listener, *strangers]
    ready, _, _ = select.select(watched, [], [], timeout_s)
    if listener in ready:
        strangers.append(Peer(listener.accept()[0]))
    for peer in strangers:
        if time.monotonic() - peer.opened_s > _HELLO_TIMEOUT_S:
            peer.close()


def _welcome(job: Job, peer: Peer, joined: dict[int, Peer]) -> None:
    """Check a newcomer's hello against ours, once it has come."""
    if peer.closed or not select.select([peer], [], [], 0)[0]:
        return
    for message in peer.receive():
        node = message.pop("node", None)
        if message.keys() != _hello(job).keys() or not isinstance(node, int):
            peer.close()  # a port scanner, or another program
            return
        for name, ours in _hello(job).items():
            if message[name] != ours:
                text = (
                    f"nodes were started differently: {name} is {_show(message[name])} on node "
                    f"{node} but {_show(ours)} on node 0; give all nodes the same flags and command"
                )
                peer.send({"refused": text})
                raise ConfigError(text)
        if not 0 < node < job.num_nodes or node in joined:
            peer.send({"refused": f"--node-rank {node} is taken; give each node its own number"})
            peer.close()
            return
        peer.node = node
        joined[node] = peer


def _hung_up(peer: Peer) -> bool:
    if select.select([peer], [], [], 0)[0]:
        peer.receive()
    return peer.closed


def _missing(job: Job, joined: dict[int, Peer]) -> str:
    absent = sorted(set(range(1, job.num_nodes)) - joined.keys())
    return f"node {', '.join(map(str, absent))} of {job.num_nodes}"


def _join(job: Job) -> tuple[Meeting, list[Peer]]:
    deadline = time.monotonic() + job.timeout_s
    peer = _connect(job, deadline)
    peer.send({**_hello(job), "node": job.node_rank})
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([peer], [], [], left)[0]:
            continue
        for message in peer.receive():
            if "refused" in message:
                raise ConfigError(str(message["refused"]))
            return Meeting(message["session"], message["addr"], message["port"]), [peer]
        if peer.closed:
            raise AtbDistError(f"node 0 at {job.rendezvous} left before the job began")
    raise AtbDistError(
        f"waited {job.timeout_s:g} s for all {job.num_nodes} nodes to come to {job.rendezvous} "
        "(--timeout changes the limit)"
    )


def _connect(job: Job, deadline: float) -> Peer:
    reason = ""
    notice = Notice(job)
    while (left := deadline - time.monotonic()) > 0:
        try:
            connection = socket.create_connection(parse_address(job.rendezvous), min(left, 5.0))
            if connection.getsockname() != connection.getpeername():  # TCP may meet itself
                return Peer(connection)
            connection.close()
        except OSError as error:
            reason = error.strerror or str(error)
            notice.tell(f"for node 0 at {job.rendezvous}: {reason}")
        time.sleep(0.1)
    raise AtbDistError(
        f"found no node 0 at {job.rendezvous} within {job.timeout_s:g} s: {reason} "
        "(--timeout changes the limit)"
    )


def _show(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
