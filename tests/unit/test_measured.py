"""The model held against kept measurements of scenarios that nothing was fitted to: those of two ranks.

`python -m tools.model_check` does all of them, and every way of choosing; docs/internals/model.md has its table.
"""

from __future__ import annotations

import os

from tools.bench import families, kept
from tools.model_check.cases import OTHERS, cases, label
from tools.model_check.choosers import measured_of_few, modelled_best
from tools.model_check.figures import figures

FILE = kept.FOLDER / "h200x2_campaign.json"


def test_the_model_is_near_measurements_that_nothing_was_fitted_to() -> None:
    splits = families.splits()
    unseen = {
        label(row.scenario, row.ranks, row.on_two)
        for row in kept.read(FILE).rows
        if splits.get((row.scenario.operation, row.scenario.m, row.scenario.n, row.scenario.k)) == "unseen"
        and (row.ranks == 2 or "FICCO_ALL" in os.environ)  # the others cost more
    }
    found, notes = cases([FILE], sorted(unseen), "h200-switch", 1)
    assert all(OTHERS in note for note in notes), notes
    assert all(case.split == "unseen" for case in found)
    whole = figures(found, {"model": modelled_best, "measured": measured_of_few})
    # NOTE of all ranks 2.1 % before tiles for few rows came, and 2.13 % since, as docs/internals/model.md says
    assert whole.errors.median < (0.022 if "FICCO_ALL" in os.environ else 0.021)
    # NOTE 8.7 % of the variants whose kernels are still chosen, 383 at two ranks; 8.4 % while those of long launches,
    # which the model is nearer to, were among them
    assert whole.errors.p90 < 0.0875
    assert whole.ranks.median is not None
    assert whole.ranks.median > 0.8
    lost = whole.choices["model"]
    assert lost.mean is not None
    assert lost.mean < 0.01
    # NOTE 40 of 45 cases; by the noise of single runs the fastest of one measurement is as near in 93 % of another
    assert lost.near >= 0.86 * lost.cases
    lost = whole.choices["measured"]
    assert lost.near >= 0.97 * lost.cases
    assert lost.mean is not None
    assert lost.mean < 0.003
