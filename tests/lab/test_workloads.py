import gzip
import math
import struct
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch.nn import functional as F

import sumwire
from sumwire.errors import ConfigError
from sumwire.lab.gradients import worker_gradients as gradients
from sumwire.lab.workloads import Workload, find, recommend
from sumwire.lab.workloads.density import densities, describe, table
from sumwire.lab.workloads.language import WordModel, number_words, read_words
from sumwire.lab.workloads.recommend import VARIABLE, draw_others, find_ratings, leave_one_out, read_ratings
from sumwire.lab.workloads.reproducible import draw_batches, reproducible

# The options of a variant are those of its class, which `replace` cannot see.
change: Any = replace

TEXT = Path(sumwire.__file__).parent
NCF = change(find("ncf-small"), factors=8, width=16, tower=(16, 8), batch=32)
TINY: dict[str, Workload] = {
    "ncf": NCF,
    "ncf-rows": change(NCF, copies=2),
    "lstm": change(find("lstm"), vocabulary=500, width=32, samples=32, context=16, tests=16, path=TEXT),
    "vgg": change(find("vgg"), width=4, hidden=64),
}


@pytest.fixture(autouse=True)
def invariants() -> Iterator[None]:
    # torch warns unless these checks are enabled or disabled explicitly.
    with torch.sparse.check_sparse_tensor_invariants(enable=True):
        yield


LOADERS: dict[type[Workload], Any] = {}


@pytest.fixture
def loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data are loaded once for all tests that only train on them, which takes less time."""
    for kind in {type(workload) for workload in TINY.values()}:
        monkeypatch.setattr(kind, "load", LOADERS.setdefault(kind, lru_cache(kind.load)))


def train(workload: Workload, steps: int) -> tuple[list[float], float, float]:
    """Losses, and the score before and after."""
    data = workload.load(0)
    batches = draw_batches(len(data.inputs), workload.batch, torch.Generator().manual_seed(0))
    with reproducible(0):
        model = workload.model(data)
        optimizer = workload.optimizer(model)
        before, losses = workload.score(model, data), []
        for rows in islice(batches, steps):
            optimizer.zero_grad()
            loss = workload.loss(model, data.inputs[rows], data.targets[rows])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, before, workload.score(model, data)


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.parametrize(("name", "steps", "sign"), [("ncf", 400, 1), ("lstm", 100, -1), ("vgg", 150, 1)])
def test_training_lowers_the_loss_and_betters_the_score(name: str, steps: int, sign: int) -> None:
    losses, before, after = train(TINY[name], steps)
    tenth = steps // 10
    assert np.mean(losses[-tenth:]) < 0.9 * np.mean(losses[:tenth])
    assert sign * after > sign * before


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.parametrize("name", TINY)
def test_seed_decides_every_byte(name: str) -> None:
    def run(seed: int) -> bytes:
        return np.stack(gradients(TINY[name], 2, steps=2, batch=4, seed=seed)).tobytes()

    first = run(1)
    LOADERS[type(TINY[name])].cache_clear()
    assert first == run(1)
    assert first != run(2)


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.parametrize("name", TINY)
def test_gradients_do_not_depend_on_the_number_of_workers(name: str) -> None:
    few = gradients(TINY[name], 2, steps=2, batch=4)
    many = gradients(TINY[name], 4, steps=2, batch=4)
    assert np.array_equal(few, many[:2])
    assert all(gradient.dtype == np.float32 and np.isfinite(gradient).all() for gradient in many)


def test_global_random_state_and_threads_are_untouched() -> None:
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    gradients(TINY["vgg"], 1, steps=1)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.get_num_threads() == threads


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.parametrize("name", ["ncf", "lstm"])
def test_sparse_embeddings_have_the_same_gradients(name: str) -> None:
    dense = gradients(TINY[name], 2, steps=0)
    sparse = gradients(change(TINY[name], sparse=True), 2, steps=0)
    assert np.array_equal(dense, sparse)
    # After some steps: their optimizers divide in another order.
    dense = gradients(TINY[name], 1, steps=3)
    sparse = gradients(change(TINY[name], sparse=True), 1, steps=3)
    assert np.allclose(dense, sparse, rtol=1e-3, atol=1e-6)


@pytest.mark.usefixtures("loaded_once")
def test_rows_of_a_batch_are_the_density_of_its_embeddings() -> None:
    seen, sizes = rows_of_workers(NCF, workers=4)
    found = describe(NCF, steps=0, workers=(1, 4))
    assert [row.kind for row in found] == ["embedding", "linear", "all"]
    embedding = found[0]
    for workers in (1, 4):
        users, items = (len(set().union(*[pair[column] for pair in seen[:workers]])) for column in (0, 1))
        assert embedding.union[workers] == pytest.approx((users + items) / sum(sizes), rel=1e-6)


def rows_of_workers(workload: Workload, workers: int) -> tuple[list[tuple[set[int], set[int]]], tuple[int, ...]]:
    """Users and items of the batches that workers of a model without training get."""
    data = workload.load(0)
    batches = draw_batches(len(data.inputs), workload.batch, torch.Generator().manual_seed(0))
    pairs = [data.inputs[rows].T.tolist() for rows in islice(batches, workers)]
    return [(set(users), set(items)) for users, items in pairs], data.sizes


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.parametrize("name", TINY)
def test_densities_grow_with_workers_and_kinds_add_up(name: str) -> None:
    *kinds, everything = describe(TINY[name], steps=2, workers=(1, 2, 4))
    assert everything.kind == "all"
    for row in (*kinds, everything):
        assert 0 < row.union[1] <= row.union[2] <= row.union[4] <= 1
    assert sum(row.parameters for row in kinds) == everything.parameters
    (first, _, _, fourth) = densities(gradients(TINY[name], 4, steps=2))
    assert (first, fourth) == pytest.approx((everything.union[1], everything.union[4]))


@pytest.mark.usefixtures("loaded_once")
def test_embeddings_are_sparse_and_the_rest_is_not() -> None:
    for name in ("ncf", "ncf-rows", "lstm"):
        embedding, dense, _ = describe(TINY[name], steps=2, batch=4, workers=(1,))
        assert embedding.kind == "embedding"
        assert embedding.union[1] < 0.35 < dense.union[1]


def test_table_has_a_line_for_every_row() -> None:
    rows = describe(TINY["vgg"], steps=0, workers=(1, 4))
    screen = StringIO()
    Console(file=screen, width=100).print(table(rows, "VGG"))
    text = screen.getvalue()
    for word in ("VGG", "convolution", "linear", "all", "of 1 worker", "of 4 workers", f"{rows[-1].parameters:,}"):
        assert word in text


@pytest.mark.parametrize(("name", "least"), [("ncf", 20_000_000), ("ncf-rows", 20_000_000), ("ncf-small", 1_000_000)])
def test_size_of_neumf_on_all_of_movielens(name: str, least: int) -> None:
    workload: Any = find(name)
    ratings = read_ratings(find_ratings())
    users, items = (workload.copies * len(np.unique(ratings[:, column])) for column in (0, 1))
    assert (users, items) == (943 * workload.copies, 1682 * workload.copies)
    with torch.device("meta"):
        model = recommend.NeuMF(users, items, factors=workload.factors, width=workload.width, tower=workload.tower)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert sum(sizes.values()) >= least
    embeddings = sum(size for name, size in sizes.items() if name.endswith(("factors.weight", "features.weight")))
    assert embeddings > 0.8 * sum(sizes.values())


@pytest.mark.parametrize("copies", [1, 3])
def test_no_test_item_is_trained_on_and_no_other_candidate_was_rated(copies: int) -> None:
    data = change(NCF, copies=copies).load(5)
    keys = data.inputs.long() @ torch.tensor([data.sizes[1], 1])
    liked, disliked = keys[data.targets == 1], keys[data.targets == 0]
    assert len(liked) == copies * (100_000 - 943)
    assert len(disliked) == 4 * len(liked)
    assert not torch.isin(disliked, liked).any()

    assert data.test_inputs.shape == (943, 100, 2)
    assert torch.equal(data.test_inputs[:, :, 0], torch.arange(943).repeat(100, 1).T)
    tests = data.test_inputs.long() @ torch.tensor([data.sizes[1], 1])
    assert not torch.isin(tests[:, 0], keys).any()
    assert not torch.isin(tests[:, 1:], torch.cat([liked, tests[:, 0]])).any()


def test_last_rating_of_every_user_is_held_out() -> None:
    ratings = np.array([[0, 5, 30], [1, 2, 10], [0, 3, 20], [1, 4, 5], [0, 1, 10]])
    rest, last = leave_one_out(ratings)
    assert last.tolist() == [[0, 5], [1, 2]]
    assert rest.tolist() == [[0, 1], [0, 3], [1, 4]]


def test_others_are_drawn_until_none_is_known() -> None:
    known = np.array([0, 1, 2, 4, 5, 7])  # of items 0 to 3, user 0 has not rated 3, user 1 not 2
    pairs = draw_others(np.repeat([0, 1], 50), known, 4, np.random.default_rng(0))
    assert {tuple(pair) for pair in pairs.tolist()} == {(0, 3), (1, 2)}


def test_ratings_without_recbole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(recommend, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=f"pip install --no-deps recbole, or give the path .* in {VARIABLE}"):
        NCF.load(0)
    # MovieLens's own file has no header.
    given = tmp_path / "u.data"
    given.write_text("196\t242\t3\t881250949\n186\t302\t3\t891717742\n196\t302\t1\t881250950\n")
    monkeypatch.setenv(VARIABLE, str(given))
    assert read_ratings(find_ratings()).tolist() == [[1, 0, 881250949], [0, 1, 891717742], [1, 1, 881250950]]


@pytest.mark.parametrize("content", [None, "", "user,item\n1,2\n", "1\t2\tx\ty\n"])
def test_bad_ratings_name_the_file_and_the_remedy(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ratings"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=f"ratings.*give ml-100k.inter .*{VARIABLE}"):
        change(NCF, path=path).load(0)


def test_words_are_numbered_by_frequency() -> None:
    words = ["b", "a", "b", "c", "a", "b", "d"]
    assert number_words(words, 10) == {"b": 1, "a": 2}
    assert number_words(words, 2) == {"b": 1}


def test_words_of_a_folder_without_its_tests(tmp_path: Path) -> None:
    for name, text in (("b.txt", "Second_file 42"), ("a.py", "x += 1"), ("tests/c.py", "no"), ("d.bin", "no")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert list(read_words(tmp_path)) == ["x", "+", "=", "1", "second", "file", "4", "2"]
    assert list(read_words(tmp_path / "a.py")) == ["x", "+", "=", "1"]


def test_python_library_has_words_enough() -> None:
    data = find("lstm").load(0)
    (words,) = data.sizes
    assert 10_000 <= words <= 20_000
    assert data.inputs.numel() > 500_000
    assert torch.equal(data.inputs[:, 1:], data.targets[:, :-1])


def test_sampled_loss_approaches_that_of_all_words() -> None:
    with reproducible(0):
        model = WordModel(20, width=8, layers=1, samples=50_000)
        inputs, targets = torch.randint(20, (2, 4, 6))
        with torch.no_grad():
            sampled = model(inputs, targets)
            scores = model(inputs).flatten(0, 1)
            # Sampled words exclude the target, so that it counts once.
            full = F.cross_entropy(scores, targets.flatten())
    assert sampled.item() == pytest.approx(full.item(), rel=0.02)
    expected = model._log_expected(torch.arange(20)).exp().sum().item()
    assert math.isclose(expected, 50_000, rel_tol=1e-5)


def test_bad_texts_name_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the text .*missing.*give another path"):
        change(TINY["lstm"], path=tmp_path / "missing").load(0)
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(ConfigError, match="has 2 words, 513 are needed: give more text"):
        change(TINY["lstm"], path=tmp_path).load(0)


def write_idx(path: Path, values: np.ndarray) -> None:
    content = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def test_images_of_mnists_format(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (60, 28, 28), np.uint8)
    labels = np.arange(60, dtype=np.uint8) % 7
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", images)
    write_idx(tmp_path / "train-labels-idx1-ubyte", labels)
    data = change(TINY["vgg"], path=tmp_path).load(0)
    assert (data.sizes, len(data.inputs), len(data.test_inputs)) == ((7,), 50, 10)
    assert data.inputs.shape[1:] == (1, 16, 16)
    assert -1 <= data.inputs.min() < data.inputs.max() <= 1

    write_idx(tmp_path / "train-labels-idx1-ubyte", labels[:-1])
    with pytest.raises(ConfigError, match="files belong together"):
        change(TINY["vgg"], path=tmp_path).load(0)


@pytest.mark.parametrize("content", [None, b"", b"\0\0\x08", b"\0\0\x08\x01\0\0\0\x09\1", b"\0\0\x0d\x01\0\0\0\x01\1"])
def test_bad_images_name_the_file_and_the_remedy(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(ConfigError, match="cannot read .*train-images.*give a folder with the files of MNIST"):
        change(TINY["vgg"], path=tmp_path).load(0)


@pytest.mark.parametrize(
    ("name", "workers", "options", "message"),
    [
        ("vgg", 0, {}, "workers=0.*pass workers>=1"),
        ("vgg", 1, {"batch": 0}, "batch=0.*pass .*batch>=1"),
        ("vgg", 1, {"steps": -1}, "steps=-1.*pass .*steps>=0"),
        ("vgg", 3, {"batch": 600}, r"'vgg' has 1498; .*workers\*batch<=1498"),
    ],
)
def test_bad_arguments_name_the_limit_and_the_remedy(
    name: str, workers: int, options: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        gradients(name, workers, **options)  # type: ignore[arg-type]
