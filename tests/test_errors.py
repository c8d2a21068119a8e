"""Errors come from worker processes as well: they must survive the way."""

import pickle

from sumwire import ConfigError, NonFiniteError


def test_errors_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(NonFiniteError("2 of 9 values are NaN", index=3, count=2)))
    assert (str(error), error.index, error.count) == ("2 of 9 values are NaN", 3, 2)
    assert str(pickle.loads(pickle.dumps(ConfigError("bits=9")))) == "bits=9"
