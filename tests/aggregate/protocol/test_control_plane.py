"""HELLO and TABLE: sessions, tables, and who is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sumwire.aggregate.protocol.control_plane import ControlPlane
from sumwire.aggregate.protocol.job import JobOptions, check_jobs, read_jobs
from sumwire.aggregate.protocol.packet import HEADER, Operation, PacketHeader, PacketKind
from sumwire.aggregate.protocol.table import LookupTable
from sumwire.errors import ConfigError, HeadroomError

JOB = JobOptions(number=4, secret="long enough", peers=("10.0.0.1", "10.0.0.2", "10.0.0.3"), quorum=2)


class Recorder:
    """A data plane that remembers what it was told."""

    body, padded = 1408, False

    def __init__(self):
        self.sessions, self.tables, self.hears = [], {}, True

    def begin_session(self, job, session):
        self.sessions.append(session)
        self.tables = {}

    def install_table(self, job, number, table):
        self.tables[number] = table

    def takes_from(self, job, worker, port):
        return self.hears


@pytest.fixture
def plane():
    data = Recorder()
    control = ControlPlane([JOB], data, started=100)
    control.data = data
    return control


def ask(plane, kind, worker, body, *, address=None, session=None, **fields):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    known = {"job": JOB.number, "worker": worker, "key": JOB.keys[0], "length": len(text), "members": 77}
    known["session"] = plane.session(JOB.number) if session is None else session
    datagram = PacketHeader(kind=kind, **(known | fields)).pack() + text
    reply = plane.answer(datagram, address or f"10.0.0.{worker + 1}", 4660)
    if reply is None:
        return None
    header = PacketHeader.unpack(reply)
    assert (header.key, header.members, header.worker) == (JOB.keys[1], 77, worker)
    return PacketKind(header.kind).name, json.loads(reply[HEADER:])


def hello(plane, worker, nonce, **more):
    kind, body = ask(plane, PacketKind.HELLO, worker, {"nonce": nonce} | more)
    assert kind == "WELCOME"
    return body


def test_workers_join_a_session_which_hello_does_not_change(plane):
    assert hello(plane, 0, 11)["joined"] == [0]
    assert hello(plane, 2, 13)["joined"] == [0, 2]
    again = hello(plane, 0, 11)
    assert again == {
        "session": 100, "joined": [0, 2], "workers": 3, "quorum": 2, "deadline": None, "headroom": 3, "window": 128,
        "channels": 3, "body": 1408, "padded": False,
    }  # fmt: skip
    assert plane.data.sessions == [100]


def test_another_nonce_begins_a_session(plane):
    for worker in range(3):
        hello(plane, worker, 11)
    assert (hello(plane, 1, 13)["session"], plane.joined(JOB.number)) == (101, [1])
    assert plane.data.sessions == [100, 101]


def test_a_hello_of_a_worker_s_former_self_ends_no_session(plane):
    hello(plane, 1, 11)
    assert hello(plane, 1, 12)["session"] == 101
    kind, body = ask(plane, PacketKind.HELLO, 1, {"nonce": 11})
    assert (kind, plane.session(JOB.number)) == ("REFUSED", 101)
    assert "a worker was restarted" in body["error"]
    assert hello(plane, 1, 12)["session"] == 101


def test_nobody_is_welcome_before_the_data_plane_takes_its_packets(plane):
    plane.data.hears = False
    assert ask(plane, PacketKind.HELLO, 1, {"nonce": 11}) is None
    assert plane.joined(JOB.number) == []
    plane.data.hears = True
    assert hello(plane, 1, 11)["joined"] == [1]


def test_sessions_are_never_zero():
    control = ControlPlane([JOB], Recorder(), started=2**32 - 1)
    hello(control, 0, 1)
    assert hello(control, 0, 2)["session"] == 1
    assert ControlPlane([JOB], Recorder(), started=2**32).session(JOB.number) == 1


TABLE = {"name": "lattice-1/4/4", "bits": 2, "lane": 8, "values": [0, 3, 5, 9]}


def test_equal_tables_have_one_number_for_all_workers_of_a_session(plane):
    for worker in range(2):
        hello(plane, worker, 1)
    assert ask(plane, PacketKind.TABLE, 0, TABLE) == ("WELCOME", {"table": 0})
    assert ask(plane, PacketKind.TABLE, 0, TABLE | {"name": "another"}) == ("WELCOME", {"table": 1})
    assert ask(plane, PacketKind.TABLE, 1, TABLE) == ("WELCOME", {"table": 0})
    assert plane.data.tables[0].values.tolist() == [0, 3, 5, 9]
    hello(plane, 0, 2)
    assert ask(plane, PacketKind.TABLE, 0, TABLE | {"name": "third"}) == ("WELCOME", {"table": 0})


def test_at_most_32_tables(plane):
    hello(plane, 0, 1)
    for number in range(32):
        assert ask(plane, PacketKind.TABLE, 0, TABLE | {"name": str(number)})[1] == {"table": number}
    assert "32 at most" in ask(plane, PacketKind.TABLE, 0, TABLE | {"name": "x"})[1]["error"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"name": ""}, "needs a name"),
        ({"name": "x" * 257}, "needs a name"),
        ({"bits": 3}, "bits"),
        ({"bits": True}, "indices of True bits"),
        ({"lane": 64}, "lanes"),
        ({"values": [0, 1, 2]}, "list of 4"),
        ({"values": [0, 1, 2, 2.5]}, "integers"),
        ({"values": [0, 2, 1, 3]}, "ascend"),
        ({"values": [-1, 2, 3, 4]}, "ascend"),
        ({"values": [0, 1, 2, 86]}, "do not fit lanes of 8 bits"),
        ({"values": [0, 1, 2, 3]}, "other values at another worker"),
        ({"lane": 16}, "other values at another worker"),
    ],
)
def test_tables_that_are_refused_by_name(plane, change, what):
    hello(plane, 0, 1)
    ask(plane, PacketKind.TABLE, 0, TABLE)
    kind, body = ask(plane, PacketKind.TABLE, 0, TABLE | change)
    assert kind == "REFUSED"
    assert what in body["error"]


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[1]", {"nonce": 0}, {"nonce": 2**63}, {"nonce": "1"}])
def test_hello_that_is_refused(plane, body):
    assert ask(plane, PacketKind.HELLO, 0, body)[0] == "REFUSED"


def test_a_table_needs_a_session(plane):
    assert "HELLO first" in ask(plane, PacketKind.TABLE, 0, TABLE)[1]["error"]
    hello(plane, 0, 1)
    assert "HELLO first" in ask(plane, PacketKind.TABLE, 0, TABLE, session=99)[1]["error"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": 99}, "kind 99 is no request"),
        ({"worker": 1}, "worker 1 has not said HELLO in session 100, because the aggregator was restarted"),
        ({"channel": 3}, "channel 3 is not one of the job's 3: configure channels"),
        ({"op": Operation.LOOKUP, "table": 2}, "table 2 is not one of the session's 0"),
        ({"count": 4}, "4 payloads are more than lanes have room for, 3: configure headroom"),
        ({"result": 1472}, "results have 1408 at most"),
        ({}, "worker 0 sends from another UDP port or network device than it said HELLO from"),
    ],
)
def test_data_that_reaches_the_control_plane_is_explained(plane, fields, said):
    hello(plane, 0, 5)
    usual = {"kind": PacketKind.MERGE, "worker": 0}
    kind, body = ask(plane, body=b"", **(usual | fields))
    assert kind == "REFUSED"
    assert said in body["error"]


@pytest.mark.parametrize(
    "fields", [{"job": 5}, {"key": 1}, {"key": JOB.keys[1]}, {"worker": 9}, {"address": "10.0.0.9"}]
)
def test_strangers_get_no_answer(plane, fields):
    worker = fields.pop("worker", 0)
    assert (
        ask(plane, PacketKind.HELLO, worker, {"nonce": 1}, address=fields.pop("address", "10.0.0.1"), **fields) is None
    )
    assert plane.answer(b"anything", "10.0.0.1", 4660) is None


def test_jobs_from_a_file(tmp_path: Path):
    path = tmp_path / "jobs.toml"
    path.write_text(
        '[[job]]\nnumber = 1\nsecret = "long enough"\npeers = ["10.0.0.1@eth0", "10.0.0.2"]\nwindow = 100\n'
    )
    (job,) = read_jobs(path)
    assert (job.workers, job.needed, job.room, job.slots, job.ports) == (2, 2, 2, 256, ("eth0", None))
    assert job.keys[0] != job.keys[1]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "for each job"),
        ("[job]\nnumber = 1", "for each job"),
        ("[[job]]\nnumber = 1", "needs peers, secret"),
        ("nonsense", "cannot read"),
        ('[[job]]\nnumber = 1\nsecret = "long enough"\npeers = ["10.0.0.1"]\nspeed = 2', "'speed' is unknown"),
        ('[[job]]\nnumber = 64\nsecret = "long enough"\npeers = ["10.0.0.1"]', "number=64"),
        ('[[job]]\nnumber = 1\nsecret = "short"\npeers = ["10.0.0.1"]', "8 characters"),
        ('[[job]]\nnumber = 1\nsecret = "long enough"\npeers = []', "workers"),
        ('[[job]]\nnumber = 1\nsecret = "long enough"\npeers = ["10.0.0.1"]\nquorum = 2', "quorum=2"),
        ('[[job]]\nnumber = 1\nsecret = "long enough"\npeers = ["10.0.0.1"]\nwindow = 4000', "window=4000"),
        ('[[job]]\nnumber = 1\nsecret = "long enough"\npeers = ["10.0.0.1"]\ndeadline = 0', "deadline"),
        ('[[job]]\nnumber = 1\nsecret = "long enough"\npeers = ["fe80::1"]', "IPv4"),
    ],
)
def test_jobs_that_are_refused(tmp_path: Path, text: str, what: str):
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=what):
        read_jobs(path)


def test_numbers_of_jobs_differ():
    with pytest.raises(ConfigError, match="of its own"):
        check_jobs((JOB, JOB))


def test_a_table_without_room_for_all_payloads():
    with pytest.raises(HeadroomError, match="wider lanes"):
        LookupTable.of(1, 8, [0, 128], headroom=2)
