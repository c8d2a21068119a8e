import numpy as np
import pytest
import torch

from sumwire.lab.gradients import worker_gradients
from sumwire.lab.workloads import DENSE

PARAMETERS = {"mlp": 85_002, "resnet": 271_994, "gpt": 867_072}


@pytest.mark.parametrize("name", DENSE)
def test_each_worker_has_its_own_finite_flat_gradient(name: str) -> None:
    first, second = worker_gradients(name, 2, steps=2, batch=4)
    for gradient in (first, second):
        assert gradient.dtype == np.float32
        assert gradient.shape == (PARAMETERS[name],)
        assert np.isfinite(gradient).all()
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("name", DENSE)
def test_seed_decides_every_byte(name: str) -> None:
    def run(seed: int) -> bytes:
        return np.stack(worker_gradients(name, 2, steps=3, batch=4, seed=seed)).tobytes()

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_gradients_do_not_depend_on_the_number_of_workers() -> None:
    few = worker_gradients("resnet", 2, steps=2, batch=4)
    many = worker_gradients("resnet", 4, steps=2, batch=4)
    assert np.array_equal(few, many[:2])


def test_global_random_state_is_untouched() -> None:
    before = torch.get_rng_state()
    worker_gradients("mlp", 1, steps=1)
    assert torch.equal(before, torch.get_rng_state())


def test_on_step_counts_up_to_the_total() -> None:
    seen: list[tuple[int, int]] = []
    worker_gradients("mlp", 1, steps=3, on_step=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_disjoint_batches_of_all_samples_average_to_the_full_gradient() -> None:
    parts = worker_gradients("mlp", 3, steps=0, batch=599)
    (whole,) = worker_gradients("mlp", 1, steps=0, batch=3 * 599)
    assert np.allclose(np.mean(parts, axis=0), whole, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "workers", "options", "message"),
    [
        ("missing", 1, {}, "no workload 'missing': choose from conv, transformer, "),
        ("mlp", 0, {}, "workers=0.*pass workers>=1"),
        ("mlp", 1, {"batch": 0}, "batch=0.*pass .*batch>=1"),
        ("mlp", 1, {"steps": -1}, "steps=-1.*pass .*steps>=0"),
        ("mlp", 3, {"batch": 600}, r"'mlp' has 1797; .*workers\*batch<=1797"),
    ],
)
def test_bad_arguments_name_the_limit_and_the_remedy(
    name: str, workers: int, options: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        worker_gradients(name, workers, **options)  # type: ignore[arg-type]
