"""The records of kinds of operation are whole, and agree with those of the language's verbs."""

from __future__ import annotations

import pytest

from ficco_dsl.verbs import VERBS
from ficco_rt.graph.kinds import BY_NODE, KINDS, SIDE_OF_SPAN, kind_of
from ficco_rt.graph.ops.kind import OpKind
from ficco_rt.plan.codec import _RECORDS
from ficco_rt.report.drawing import _FAMILIES
from ficco_rt.trace.model import NO_WORK


def test_every_verb_has_a_kind() -> None:
    assert {verb.node for verb in VERBS} == set(BY_NODE)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.word)
def test_a_record_is_whole(kind: OpKind[object]) -> None:
    assert kind.word
    assert kind.noun
    assert kind.span not in NO_WORK
    assert _FAMILIES[kind.side]
    assert BY_NODE[kind.node] is kind
    assert kind_of(object.__new__(kind.body)) is kind


def test_names_are_their_own() -> None:
    for names in ([kind.word for kind in KINDS], list(SIDE_OF_SPAN), [record.name for record in _RECORDS]):
        assert len(set(names)) == len(names)
    assert len(SIDE_OF_SPAN) == len(KINDS)


def test_a_stored_work_has_every_field_of_its_body() -> None:
    for record in _RECORDS:
        assert set(record.body.__slots__) <= set(record.fields.values())
