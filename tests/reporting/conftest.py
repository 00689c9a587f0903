"""Groups of runs that tests of tables and of words share."""

from dataclasses import replace

import pytest
from made_runs import PDAE, counterfactual_record, make_group, probe_record


@pytest.fixture(scope="module")
def good():
    return make_group(0.3)


@pytest.fixture(scope="module")
def bad():
    return make_group(3.0, config=PDAE)


@pytest.fixture(scope="module")
def measured():
    """DiTi with everything measured, PDAE with a probe alone."""
    full = make_group()
    record, edits = probe_record(0.3, with_disentanglement=True), counterfactual_record(2.0, 0.5)
    full = replace(full, runs=(replace(full.runs[0], probe=record, counterfactuals=edits),))
    return [full, make_group(1.0, config=PDAE)]
