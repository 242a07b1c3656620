"""One circuit for many: in whatever order commands and news arrive, all follow the record in the end."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.breaker.circuit import CLOSED, HALF_OPEN, OPEN, CircuitSettings
from headgate.sharing.records.circuit import CircuitRecord, LentProbe, SharedCircuit

SECOND = 1_000_000_000
RECOVERY = 30 * SECOND
LEASE = 10 * SECOND
AHEAD = 1_000 * SECOND  # the store's clock, of ours


def a_circuit(probes=1):
    return SharedCircuit(
        CircuitSettings(
            threshold=1,
            recovery=RECOVERY,
            max_recovery=4 * RECOVERY,
            jitter=0.0,
            probes=probes,
            lease=LEASE,
            failure_rate=None,
            slow_rate=None,
            window=60 * SECOND,
            minimum=10,
        )
    )


class Fleet:
    """Circuits, the record between them, and commands that wait until the test delivers them."""

    def __init__(self, many=3, probes=1):
        self.record = CircuitRecord()
        self.births = iter(range(1, 10**9))
        self.heard = [[] for _ in range(many)]  # what each process has heard last
        self.circuits = [a_circuit(probes) for _ in range(many)]
        self.now = 0
        self.most = probes
        self.names = iter(range(10**9))
        self.running = []  # circuit, probe, until when

    def fail(self, i):
        circuit = self.circuits[i]
        entry = circuit.enter(self.now)
        if isinstance(entry, int):
            circuit.failed(entry, False, self.now, 0.0)
        elif entry is not None:
            self.running.append((circuit, entry, self.now + LEASE))

    def finish(self, how):
        if self.running:
            circuit, probe, _ = self.running.pop(0)
            if how == "ignored":
                circuit.ignored(probe)
            else:
                getattr(circuit, how)(probe, False, self.now, 0.0)

    def deliver(self, i):
        """The first command of circuit i reaches the record, and circuit i hears what the record says."""
        circuit, record, there = self.circuits[i], self.record, self.now + AHEAD
        if circuit.commands:
            command = circuit.commands.popleft()
            who = str(next(self.names))
            if command.what == "lend":
                command = command._replace(more=(*command.more, who))
            if not record.born and self.heard[i]:  # its change is made to what it knows
                record = CircuitRecord.read(self.heard[i])
            due, changed = record.carry_out(command, there, there)
            if changed:
                if not self.record.born:
                    record.born = next(self.births)
                self.record = record
            if command.what == "lend":
                self.hear(i)
                circuit.lent(command.seen, who, None if due is None else due - AHEAD)
        self.hear(i)

    def ask(self, i):
        """Circuit i is open, its time is up, and it gets an answer to its question for a probe."""
        self.fail(i)
        self.deliver(i)
        self.now += RECOVERY
        self.fail(i)
        self.deliver(i)

    def lose(self, which):
        """The store loses the record; some processes have not heard of it for so long that they forget it."""
        self.record = CircuitRecord()
        self.heard = [[] if i < which else heard for i, heard in enumerate(self.heard)]

    def hear(self, i):
        if self.record.born:
            self.heard[i] = self.record.written()
            self.circuits[i].follow(CircuitRecord.read(self.heard[i]), AHEAD, self.now)

    def settle(self):
        """Everything on its way arrives."""
        for _ in range(50):
            for i in range(len(self.circuits)):
                while self.circuits[i].commands:
                    self.deliver(i)
                self.hear(i)

    def probing(self):
        """Probes of the present generation that are not overdue, held or under way."""
        return sum(
            probe.generation == self.record.generation and due > self.now for _, probe, due in self.running
        ) + sum(
            due > self.now
            for circuit in self.circuits
            if circuit.generation == self.record.generation
            for due in circuit._lent.values()
        )


steps = st.lists(
    st.one_of(
        st.tuples(st.just("fail"), st.integers(0, 2)),
        st.tuples(st.just("deliver"), st.integers(0, 2)),
        st.tuples(st.just("hear"), st.integers(0, 2)),
        st.tuples(st.just("finish"), st.sampled_from(["succeeded", "failed", "ignored"])),
        st.tuples(st.just("pass"), st.sampled_from([1, 5, 10, 30, 60])),
        st.tuples(st.just("reset"), st.integers(0, 2)),
        st.tuples(st.just("hand back"), st.integers(0, 2)),
        st.tuples(st.just("ask"), st.integers(0, 2)),
        st.tuples(st.just("lose"), st.integers(0, 3)),
    ),
    max_size=60,
)


@given(steps, st.integers(1, 3))
@settings(max_examples=300)
def test_never_more_probes_than_configured_and_all_end_up_where_the_record_is(steps, probes):
    """Commands and news arrive late and in any order, and the store may lose the record."""
    fleet = Fleet(probes=probes)
    losses = 0
    for what, which in steps:
        losses += what == "lose"
        if what == "pass":
            fleet.now += which * SECOND
        elif what == "reset":
            fleet.circuits[which].reset()
        elif what == "hand back":
            for who in list(fleet.circuits[which]._lent):
                fleet.circuits[which].hand_back(who)
        else:
            getattr(fleet, what)(which)
        assert fleet.probing() <= probes * (1 + losses)  # a new record knows of no probe before it
        for circuit in fleet.circuits:
            assert (circuit.generation % 2 == 1) == (circuit.state != CLOSED)

    fleet.settle()

    for circuit in fleet.circuits if fleet.record.born or not losses else []:
        assert circuit.generation == fleet.record.generation
        assert (circuit.state != CLOSED) == fleet.record.is_open


def test_a_shared_circuit_recovers_from_any_state_once_the_far_side_works():
    """Probes fail three times, then one succeeds."""
    fleet = Fleet()
    fleet.fail(0)
    fleet.settle()
    for _ in range(3):
        fleet.now += 4 * RECOVERY
        fleet.fail(1)
        fleet.deliver(1)
        fleet.fail(1)
        fleet.finish("failed")
        fleet.settle()
        assert [circuit.state for circuit in fleet.circuits] == [OPEN] * 3
    assert fleet.record.reopened == 3
    fleet.now += 4 * RECOVERY
    fleet.fail(2)  # asks for the probe
    fleet.deliver(2)
    fleet.fail(2)  # is the probe
    assert fleet.circuits[2].state == HALF_OPEN
    fleet.finish("succeeded")
    assert fleet.circuits[2].state == HALF_OPEN  # until the record says so
    fleet.settle()
    assert [circuit.state for circuit in fleet.circuits] == [CLOSED] * 3


def test_a_shared_circuit_without_its_store_works_alone_and_tells_the_record_later():
    fleet = Fleet(many=2)
    alone, other = fleet.circuits
    alone.alone = True
    fleet.fail(0)
    fleet.now += RECOVERY
    probe = alone.enter(fleet.now)
    assert not isinstance(probe, LentProbe)
    assert alone.succeeded(probe, False, fleet.now, 0.0)
    assert alone.state == CLOSED
    fleet.fail(0)
    assert (alone.state, other.state) == (OPEN, CLOSED)
    alone.alone = False
    fleet.settle()
    assert (alone.state, other.state) == (OPEN, OPEN)
    assert alone.generation == other.generation == fleet.record.generation == 3


def test_a_process_that_is_two_generations_behind_cannot_open_the_circuit():
    """The process has heard neither of the opening nor of the closing."""
    fleet = Fleet(many=2)
    fleet.fail(0)
    fleet.deliver(0)
    fleet.record.close(fleet.record.generation)
    fleet.fail(1)  # has heard of neither
    fleet.settle()
    assert fleet.record.generation == 2
    assert [circuit.state for circuit in fleet.circuits] == [CLOSED] * 2


def asked(fleet, i):
    """Have circuit i, which is open, ask for a probe; the record answers."""
    assert fleet.circuits[i].enter(fleet.now) is None
    fleet.deliver(i)


def opened(many=2, probes=1):
    """A fleet whose circuits are open and may probe."""
    fleet = Fleet(many, probes)
    fleet.fail(0)
    fleet.settle()
    fleet.now += RECOVERY
    return fleet


@pytest.mark.parametrize("leave", [lambda circuit: circuit.hand_back("0"), SharedCircuit.go_alone])
def test_a_probe_that_was_not_used_is_lent_to_another_process_when_it_is_handed_back(leave):
    fleet = opened()
    holder, other = fleet.circuits
    fleet.names = iter(range(10))
    asked(fleet, 0)
    asked(fleet, 1)
    assert holder.would_admit(fleet.now)
    assert not other.would_admit(fleet.now)
    leave(holder)
    leave(holder)  # there is nothing left to hand back
    fleet.deliver(0)
    assert fleet.record.probes == {}
    fleet.hear(1)
    asked(fleet, 1)
    assert isinstance(other.enter(fleet.now), LentProbe)


def test_a_probe_that_is_lent_when_the_circuit_has_closed_meanwhile_goes_back():
    fleet = opened(many=1)
    (circuit,) = fleet.circuits
    assert circuit.enter(fleet.now) is None
    lend = circuit.commands.popleft()
    due, changed = fleet.record.carry_out(lend.to("late"), fleet.now + AHEAD, fleet.now + AHEAD)
    assert changed
    circuit.reset()
    circuit.lent(lend.seen, "late", due - AHEAD)
    assert [command.what for command in circuit.commands] == ["reset", "close", "take back"]
    fleet.settle()
    assert (circuit.state, fleet.record.is_open, fleet.record.probes) == (CLOSED, False, {})


def test_a_record_that_was_lost_goes_on_from_what_the_process_has_seen_that_asks_for_a_probe():
    fleet = opened()
    fleet.record = CircuitRecord()
    asked(fleet, 0)
    assert fleet.record.is_open
    assert fleet.record.generation == fleet.circuits[0].generation
    assert isinstance(fleet.circuits[0].enter(fleet.now), LentProbe)
    asked(fleet, 1)
    assert fleet.circuits[1].enter(fleet.now) is None


def lived(fleet):
    """Open and close the circuit three times, so that its generation is six."""
    for _ in range(3):
        fleet.fail(0)
        fleet.settle()
        fleet.circuits[0].reset()
        fleet.settle()
    return fleet


@pytest.mark.parametrize("loses", ["the store", "the store and the others"])
def test_a_new_process_that_writes_first_after_a_loss_is_followed_by_those_that_know_later_generations(loses):
    fleet = lived(Fleet(many=3))
    assert [circuit.generation for circuit in fleet.circuits] == [6] * 3
    fleet.circuits[2] = a_circuit()
    fleet.lose(3 if loses.endswith("others") else 0)
    fleet.heard[2] = []
    fleet.fail(2)
    fleet.settle()
    assert [circuit.state for circuit in fleet.circuits] == [OPEN] * 3
    assert [circuit.generation for circuit in fleet.circuits] == [1] * 3
    fleet.circuits[2].reset()
    fleet.settle()
    fleet.fail(1)
    fleet.settle()
    assert [circuit.state for circuit in fleet.circuits] == [OPEN] * 3
    assert fleet.record.generation == 3


def test_a_process_that_heard_less_and_writes_first_after_a_loss_is_followed_by_the_others():
    fleet = Fleet(many=2)
    fleet.fail(0)
    fleet.settle()
    known = fleet.heard[1]
    fleet.circuits[0].reset()
    fleet.deliver(0)
    fleet.deliver(0)
    assert (fleet.circuits[0].generation, fleet.circuits[1].generation) == (2, 1)
    fleet.lose(0)
    assert fleet.heard[1] == known
    fleet.now += RECOVERY
    fleet.fail(1)  # asks for a probe of the circuit that it knows
    fleet.settle()
    assert [circuit.state for circuit in fleet.circuits] == [OPEN] * 2


def test_what_a_process_tells_of_a_lost_record_changes_the_next_one_only_if_that_is_new():
    """The process has failed in a generation that no other process knows."""
    fleet = lived(Fleet(many=2))
    fleet.fail(0)
    late = fleet.circuits[0].commands.popleft()
    fleet.lose(2)
    fleet.circuits[1] = a_circuit()
    fleet.fail(1)
    fleet.deliver(1)
    fleet.circuits[1].reset()
    fleet.deliver(1)
    fleet.circuits[0].commands.append(late)
    assert not fleet.record.is_open
    fleet.settle()
    assert [circuit.state for circuit in fleet.circuits] == [CLOSED] * 2
    assert fleet.circuits[0].generation == fleet.record.generation == 2


def test_a_probe_of_a_lost_record_closes_no_circuit_that_was_opened_after_the_loss():
    fleet = opened(many=2)
    asked(fleet, 0)
    fleet.fail(0)
    (_circuit, probe, _until) = fleet.running.pop()
    fleet.circuits[0].succeeded(probe, False, fleet.now, 0.0)
    (close,) = fleet.circuits[0].commands
    fleet.lose(2)
    fleet.circuits[1] = a_circuit()
    fleet.fail(1)
    fleet.deliver(1)
    assert fleet.record.generation == close.seen
    fleet.settle()
    assert fleet.record.is_open
    assert CLOSED not in [circuit.state for circuit in fleet.circuits]


def test_the_success_of_a_probe_does_not_close_a_circuit_that_another_probe_has_opened_again():
    fleet = opened(many=1, probes=2)
    (circuit,) = fleet.circuits
    asked(fleet, 0)
    one = circuit.enter(fleet.now)
    fleet.now += 1
    asked(fleet, 0)
    other = circuit.enter(fleet.now)
    circuit.failed(one, False, fleet.now, 0.0)
    assert not circuit.succeeded(other, False, fleet.now, 0.0)
    fleet.settle()
    assert circuit.state == OPEN
    assert fleet.record.is_open


@pytest.mark.parametrize("how", ["probe", "hand"])
def test_a_process_whose_probe_failed_after_the_circuit_was_closed_closes_its_own_too(how):
    """The record hears of the failure last. It is that of a generation which is over."""
    fleet = opened(many=3, probes=2)
    for i in (0, 1):
        asked(fleet, i)
        fleet.fail(i)
    if how == "hand":
        fleet.circuits[2].reset()
        fleet.deliver(2)
    else:
        fleet.finish("succeeded")
        fleet.deliver(0)
    assert not fleet.record.is_open
    fleet.running = fleet.running[-1:]
    fleet.finish("failed")
    assert fleet.circuits[1].state == OPEN
    fleet.settle()
    assert [circuit.state for circuit in fleet.circuits] == [CLOSED] * 3
    assert not fleet.record.is_open


def test_a_call_whose_outcome_says_nothing_gives_back_the_probe_that_it_was_and_only_then():
    fleet = opened(many=1)
    (circuit,) = fleet.circuits
    asked(fleet, 0)
    probe = circuit.enter(fleet.now)
    circuit.ignored(circuit.generation)  # a call from before the circuit opened
    assert not circuit.commands
    circuit.ignored(probe)
    fleet.settle()
    assert fleet.record.probes == {}


def test_a_process_that_probes_hears_of_the_probes_of_others_and_goes_on_probing():
    fleet = opened(probes=2)
    asked(fleet, 0)
    assert isinstance(fleet.circuits[0].enter(fleet.now), LentProbe)
    asked(fleet, 1)
    fleet.hear(0)
    assert fleet.circuits[0].state == HALF_OPEN
    assert fleet.circuits[0].opens_in(fleet.now) == LEASE


def test_many_refused_calls_ask_for_one_probe():
    fleet = Fleet(many=1)
    (circuit,) = fleet.circuits
    fleet.fail(0)
    fleet.settle()
    fleet.now += RECOVERY
    for _ in range(5):
        assert circuit.enter(fleet.now) is None
    assert [command.what for command in circuit.commands] == ["lend"]
    assert 0 < circuit.opens_in(fleet.now) <= SECOND


@pytest.mark.parametrize(
    "written",
    [
        [],
        [1],
        [1, 1, 0, 0, "", {}, 5],
        [1, -1, 0, 0, "", {}],
        [-1, 1, 0, 0, "", {}],
        [1, 1, 0.5, 0, "", {}],
        [1, 1, 0, 0, 7, {}],
        [1, 1, 0, 0, "", {"a": "b"}],
    ],
)
def test_a_text_that_is_not_the_record_of_a_circuit_is_refused(written):
    with pytest.raises(ValueError):
        CircuitRecord.read(written)


def test_an_open_circuit_is_worth_keeping_for_longer_than_it_is_open():
    record = CircuitRecord()
    assert record.worth_keeping(0) == 0
    record.trip(0, 5, RECOVERY, 0, "why")
    assert record.worth_keeping(5) > RECOVERY
    assert record.worth_keeping(5 + 2 * RECOVERY) > 0
