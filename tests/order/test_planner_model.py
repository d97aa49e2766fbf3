"""The planner and the cutters of its batches against a model, with measurements in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from threadloader._order.planner import Planner
from threadloader._order.sampler_pass import UserPass
from threadloader._order.samplers import BatchSampler
from threadloader._order.tickets import TicketCutter, TicketSize
from threadloader._resume import Lane

if TYPE_CHECKING:
    from threadloader._order.tickets import PlannedBatch

THREADS = 3


class OrderMachine(RuleBasedStateMachine):
    """Draws batches and cuts tickets as an epoch does, and keeps what every row became."""

    @initialize(
        samples=st.integers(0, 60),
        batch_size=st.integers(1, 20),
        drop_last=st.booleans(),
        whole=st.booleans(),
    )
    def start(self, samples: int, batch_size: int, drop_last: bool, whole: bool) -> None:
        self.samples, self.batch_size, self.drop_last = samples, batch_size, drop_last
        self.planner = Planner(
            UserPass(BatchSampler(range(samples), batch_size, drop_last)), Lane(), batched=True
        )
        self.pace = TicketSize()
        self.whole = whole
        self.rows_seen = 0
        self.open: list[tuple[PlannedBatch, TicketCutter]] = []
        self.cut_rows: list[list[Any]] = []  # of each batch, what its tickets had so far
        self.ended = False

    @rule()
    def draw(self) -> None:
        batch = self.planner.draw()
        if batch is None:
            self.ended = True
            return
        assert not self.ended
        assert batch.sequence == len(self.cut_rows)
        self.cut_rows.append([])
        cutter = TicketCutter(batch, self.pace, lambda: 1 / THREADS, one_ticket=self.whole)
        self.open.append((batch, cutter))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.open) - 1))
        batch, cutter = self.open[at]
        ticket = cutter.cut()
        rows = self.cut_rows[batch.sequence]
        if ticket is None:
            assert len(rows) == len(batch.indices)
            del self.open[at]
            return
        assert ticket.batch is batch
        assert ticket.start == len(rows)
        if not self.whole:
            assert ticket.stop - ticket.start <= max(1, self.rows_seen)
        rows += batch.indices[ticket.start : ticket.stop]

    @rule(rows=st.integers(0, 30), seconds=st.floats(0, 1e-2))
    def measure(self, rows: int, seconds: float) -> None:
        self.pace.measured(rows, seconds)
        self.rows_seen += rows

    @invariant()
    def a_cutter_never_promises_less_than_one_ticket(self) -> None:
        assert all(cutter.left() >= 1 for _, cutter in self.open)

    @invariant()
    def tickets_hold_the_samplers_indices_in_order(self) -> None:
        for sequence, rows in enumerate(self.cut_rows):
            first = sequence * self.batch_size
            assert rows == list(range(first, first + len(rows)))

    def teardown(self) -> None:
        while not self.ended:
            self.draw()
        for batch, cutter in self.open:
            while (ticket := cutter.cut()) is not None:
                self.cut_rows[batch.sequence] += batch.indices[ticket.start : ticket.stop]
        drop = self.samples % self.batch_size if self.drop_last else 0
        assert sum(self.cut_rows, []) == list(range(self.samples - drop))  # noqa: RUF017


TestOrder = OrderMachine.TestCase
TestOrder.settings = settings(max_examples=150, stateful_step_count=30)
