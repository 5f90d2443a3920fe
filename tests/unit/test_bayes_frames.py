"""The classifiers read frames of pandas and polars: names, types and missing values."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from spamnb.bayes import BeliefNetwork, CategoricalNB, GaussianNB, MixedNB, TreeAugmentedNB
from spamnb.errors import UserError

AGES = [23, 35, 40, 31, 20, 38, 22]
CREDITS = ["fair", "good", "fair", "fair", "good", "good", None]
BUYS = ["no", "no", "no", "yes", "yes", "yes", "yes"]
STUDENTS = [True, False, True, False, True, False, True]
FRAMES = {
    "pandas": lambda: pd.DataFrame(
        {
            "age": pd.array([*AGES[:6], None], dtype="Int64"),
            "income": [1.5, 2.0, np.nan, 3.0, 1.0, 2.5, 4.0],
            "credit": pd.Series(CREDITS),
            "student": STUDENTS,
            "region": pd.Categorical([1, 2, 1, 2, 1, 2, 1]),
        }
    ),
    "polars": lambda: pl.DataFrame(
        {
            "age": [*AGES[:6], None],
            "income": [1.5, 2.0, None, 3.0, 1.0, 2.5, 4.0],
            "credit": CREDITS,
            "student": STUDENTS,
            "region": ["1", "2", "1", "2", "1", "2", "1"],
        },
        schema_overrides={"region": pl.Categorical},
    ),
}


@pytest.mark.parametrize("library", FRAMES)
def test_a_frame_picks_kinds_names_and_missing_values(library):
    """The types of the columns decide; the scores are those of the same rows as lists."""
    frame = FRAMES[library]()
    model = MixedNB().fit(frame, BUYS)
    assert model.kinds_ == ("gaussian", "gaussian", "categorical", "binary", "categorical")
    assert model.feature_names_in_.tolist() == ["age", "income", "credit", "student", "region"]
    lists = [
        [*AGES[:6], None],
        [1.5, 2.0, None, 3.0, 1.0, 2.5, 4.0],
        CREDITS,
        STUDENTS,
        list("1212121"),
    ]
    rows = list(zip(*lists, strict=True))
    plain = MixedNB().fit(rows, BUYS)
    np.testing.assert_allclose(model.predict_proba(frame), plain.predict_proba(rows))
    backwards = frame[["region", "student", "credit", "income", "age"]]
    np.testing.assert_array_equal(model.predict_proba(backwards), model.predict_proba(frame))
    assert "P(credit = fair | class)" in str(model.explain(frame[:1]))
    with pytest.raises(UserError, match="but the model has age, income"):
        model.predict(frame[["age", "income"]])


@pytest.mark.parametrize("library", FRAMES)
def test_other_classifiers_read_frames_too(library):
    """Names are kept, columns are found by name, and a missing value is missing."""
    frame = FRAMES[library]()
    for model in (CategoricalNB(), TreeAugmentedNB()):
        model.fit(frame[["credit", "student"]], BUYS)
        assert model.feature_names_in_.tolist() == ["credit", "student"]
        rows = [[credit, True] for credit in CREDITS]
        swapped = frame[["student", "credit"]][:1]
        np.testing.assert_array_equal(model.predict_proba(swapped), model.predict_proba(rows[:1]))
    numbers = GaussianNB().fit(frame[["income"]][3:], BUYS[3:])
    np.testing.assert_array_equal(numbers.theta_, [[(3.0 + 1.0 + 2.5 + 4.0) / 4]])


@pytest.mark.parametrize("library", FRAMES)
def test_a_network_learns_from_a_frame(library):
    """A variable that the frame does not have is hidden."""
    frame = FRAMES[library]()[["student", "credit"]]
    structure = {"credit": ("student",), "student": ()}
    network = BeliefNetwork.fit(structure, frame)
    rows = [{"credit": credit, "student": s} for credit, s in zip(CREDITS, STUDENTS, strict=True)]
    plain = BeliefNetwork.fit(structure, rows)
    np.testing.assert_array_equal(network.nodes["credit"].table, plain.nodes["credit"].table)
    with pytest.raises(UserError, match="a case has student, but the variables are credit"):
        BeliefNetwork.fit({"credit": ()}, frame)
