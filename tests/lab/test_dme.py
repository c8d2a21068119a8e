import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from sumwire.cli import main
from sumwire.dme import estimate
from sumwire.errors import ConfigError
from sumwire.lab import images
from sumwire.lab.dme import clustering, components, estimation, study
from sumwire.lab.dme.schemes import Entry, all_schemes, draw
from sumwire.lab.dme.study import Fit, Study

FEW = ("StochasticLevels(16)", "Rotated(16)", 'VariableLength("sqrt")', "Eden(3)", "Lattice(n, 3)")
CLIENTS = (2, 5)


def few(clients: int, seed: int = 0) -> list[Entry]:
    return [entry for entry in all_schemes(clients, seed) if entry.label in FEW]


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "all_schemes", few)
        patch.setattr(clustering, "CENTERS", 4)
        patch.setattr(images, "WIDTH", 128)
        yield


@pytest.fixture(scope="module")
def digits() -> Study:
    return Study("digits", images.load("digits", rows=200), clients=CLIENTS, rounds=6, seed=1)


@pytest.fixture(scope="module")
def means() -> list[estimation.Estimate]:
    return estimation.measure(128, CLIENTS, rounds=2)


@pytest.fixture(scope="module")
def clusters(digits: Study) -> tuple[list[float], list[Fit]]:
    return clustering.measure(digits)


@pytest.fixture(scope="module")
def projections(digits: Study) -> tuple[components.Exact, components.PCA, list[Fit]]:
    return components.measure(replace(digits, rounds=16), 2)


# Data


def write_idx(path: Path, values: np.ndarray, kind: int = 8) -> None:
    head = bytes([0, 0, kind, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(head + values.astype(np.uint8).tobytes()))


def test_an_idx_file_is_read_whole_or_in_part(tmp_path: Path) -> None:
    values = np.arange(30).reshape(5, 3, 2)
    write_idx(tmp_path / "x.gz", values)
    assert np.array_equal(images.read_idx(tmp_path / "x.gz"), values)
    assert np.array_equal(images.read_idx(tmp_path / "x.gz", 2), values[:2])
    assert np.array_equal(images.read_idx(tmp_path / "x.gz", 9), values)


def gz(content: bytes) -> bytes:
    # Without a time stamp: parametrized bytes become test ids, which must be the same in every xdist process.
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not gzip", "cannot read"),
        (gz(b""), "4 bytes too early"),
        (gz(b"\0\0\x08\x01" + b"\0\0"), "2 bytes too early"),
        (gz(b"\0\0\x08\x01" + b"\0\0\0\x05" + b"abc"), "2 bytes too early"),
        (gz(b"\0\0\x08\x01" + b"\0\0\0\x05" + b"abcde")[:-12], "cannot read"),
        (gz(b"\0\0\x0d\x01" + b"\0\0\0\x01" + b"abcd"), "not an idx file of bytes"),
        (gz(b"\0\0\x08\0"), "not an idx file of bytes"),
        (gz(b"\x01\0\x08\x01" + b"\0\0\0\x01" + b"a"), "not an idx file of bytes"),
    ],
)
def test_a_bad_idx_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.gz").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        images.read_idx(tmp_path / "x.gz")


def test_images_are_scaled_and_padded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "WIDTH", 1024)
    pixels = np.random.default_rng(0).integers(0, 256, (7, 28, 28))
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", pixels)
    rows = images.load("fashion-mnist", path=tmp_path, rows=3)
    assert (rows.shape, rows.dtype) == ((3, 1024), np.float32)
    assert np.allclose(rows[:, :784] * 255, pixels[:3].reshape(3, -1))
    assert not rows[:, 784:].any()
    digits = images.load("digits")
    assert digits.shape == (1797, 1024)
    assert digits.max() == 1
    assert not digits[:, 64:].any()


def test_without_fashion_mnist_the_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Debian package dataset-fashion-mnist.*--path"):
        images.load("fashion-mnist", path=tmp_path)
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", np.zeros((2, 5, 5)))
    with pytest.raises(ConfigError, match="not the images of Fashion-MNIST"):
        images.load("fashion-mnist", path=tmp_path)


def test_unbalanced_vectors_have_one_large_coordinate() -> None:
    plain, unbalanced = (estimation.vectors(kind, 50, 20, np.random.default_rng(0)) for kind in estimation.KINDS)
    assert np.array_equal(plain[:, :-1], unbalanced[:, :-1])
    assert abs(unbalanced[:, -1].mean() - 100) < 1


# The error of a mean


def test_every_scheme_is_compared_on_every_kind(means: list[estimation.Estimate]) -> None:
    labels = [entry.label for entry in all_schemes(2)]
    assert len(set(labels)) == len(labels)
    for kind in estimation.KINDS:
        for clients in CLIENTS:
            assert [e.entry.label for e in means if (e.kind, e.clients) == (kind, clients)] == labels


def test_errors_stay_below_their_bounds(means: list[estimation.Estimate]) -> None:
    bounded = [e for e in means if e.bound is not None and e.entry.family != "Sampled"]
    assert {e.entry.family for e in bounded} == {"StochasticLevels", "Rotated", "VariableLength", "Correlated"}
    for e in bounded:
        assert 0 < e.error < e.bound * 1.1


def test_rotation_pays_where_one_coordinate_is_large(means: list[estimation.Estimate]) -> None:
    errors = {(e.kind, e.entry.label): e.error for e in means if e.clients == CLIENTS[-1]}
    assert errors["unbalanced", "Rotated(16)"] < 0.1 * errors["unbalanced", "StochasticLevels(16)"]
    assert errors["gaussian", "Rotated(16)"] < 2 * errors["gaussian", "StochasticLevels(16)"]
    for family in ("StochasticLevels({})", "Rotated({})"):
        assert errors["gaussian", family.format(4)] > errors["gaussian", family.format(32)]


def test_bits_are_those_of_the_messages(means: list[estimation.Estimate]) -> None:
    bits = {e.entry.label: e.bits for e in means if (e.kind, e.clients) == ("gaussian", 2)}
    for entry in all_schemes(2):
        if entry.family in ("StochasticLevels", "Rotated", "Correlated", "Eden"):
            assert bits[entry.label] == entry.scheme.bits(128) / 128  # type: ignore[union-attr]
    # Terms and payload, each in a frame with a header of 72 bytes.
    assert bits["Lattice(n, 4)"] == pytest.approx(4 + 8 * (2 * 72 + 4) / 128, abs=0.1)


@pytest.mark.parametrize("label", FEW)
def test_what_is_sent_gives_the_library_s_estimate(label: str) -> None:
    xs = estimation.vectors("unbalanced", 3, 100, np.random.default_rng(0))
    scheme = next(entry.scheme for entry in all_schemes(3) if entry.label == label)
    mean, _ = estimation.send(scheme, xs, 7)
    assert np.allclose(mean, estimate(scheme, list(xs), round_id=7), atol=1e-5)


def test_the_seed_decides_every_error() -> None:
    def errors(seed: int) -> list[float]:
        return [e.error for e in estimation.measure(32, [2], 1, seed)]

    assert errors(3) == errors(3)
    assert errors(3) != errors(4)


# k-means and PCA


def test_compressed_k_means_comes_close(clusters: tuple[list[float], list[Fit]]) -> None:
    exact, fits = clusters
    assert [(fit.entry.label, fit.clients, fit.centered) for fit in fits] == [
        (entry.label, n, centered) for n in CLIENTS for centered in (False, True) for entry in few(n)
    ]
    assert min(exact) < exact[0]
    for fit in fits:
        assert fit.loss == pytest.approx(min(fit.history))
        assert len(fit.history) == fit.rounds + 1
        assert fit.loss <= exact[0] / min(exact) - 1
        if fit.entry.label in ("Eden(3)", "Lattice(n, 3)") and fit.centered:
            assert abs(fit.loss) < 0.03
            assert 3 < fit.bits < 6  # headers matter more for short vectors


def test_compressed_pca_comes_close(projections: tuple[components.Exact, components.PCA, list[Fit]]) -> None:
    exact, plain, fits = projections
    assert np.allclose(exact.components @ exact.components.T, np.eye(2))
    assert 0 <= exact.loss(plain) < 0.02
    for fit in fits:
        assert -1e-6 < fit.loss < 1
        assert 0 <= fit.distance <= 2**0.5
        if fit.entry.label in ("Rotated(16)", "Eden(3)", "Lattice(n, 3)") and fit.centered:
            assert fit.loss < 0.05
            assert fit.distance < 0.5


def test_a_mirrored_component_is_as_good(projections: tuple[components.Exact, components.PCA, list[Fit]]) -> None:
    exact, plain, _ = projections
    mirrored = components.Exact(-exact.components, exact.explained)
    assert mirrored.distance(plain) == exact.distance(plain)


def test_repetitions_report_the_worst(digits: Study) -> None:
    alone = [clustering.measure(replace(digits, clients=(2,), rounds=2, seed=seed))[1] for seed in (1, 2)]
    both = clustering.measure(replace(digits, clients=(2,), rounds=2, repeats=2))[1]
    # Not exactly the worse of the two, because schemes use the seed of the study.
    assert both[0].loss == pytest.approx(max(fits[0].loss for fits in alone), rel=0.5)
    assert both[0].history == alone[0][0].history


def test_every_client_needs_a_row() -> None:
    with pytest.raises(ConfigError, match="100 clients need a row each, and there are 50"):
        Study("digits", images.load("digits", rows=50))


def test_the_summary_names_schemes_within_limits() -> None:
    asked = Study("digits", np.zeros((100, 4), np.float32), clients=(10, 100))
    entries = few(100)
    fits = [
        Fit(entries[0], 100, False, bits=4.02, rounds=1, loss=0.001),
        Fit(entries[1], 100, False, bits=3.5, rounds=1, loss=0.011),
        Fit(entries[2], 10, False, bits=2, rounds=1, loss=0.001),
        Fit(entries[3], 100, True, bits=4.0, rounds=1, loss=0.01),
        Fit(entries[4], 100, True, bits=3.2, rounds=1, loss=-0.001),
    ]
    assert study.summary("the inertia", asked, fits) == (
        "Within 1% of the inertia at 4 bits or fewer per coordinate on digits, 100 clients, as in paper: none; "
        "centered: Eden(3) at 4.00, Lattice(n, 3) at 3.20."
    )


# On the command line


def run(command: str, figure: Path) -> str:
    result = CliRunner().invoke(main, ["lab", *command.split(), "--figure", str(figure)])
    assert result.exit_code == 0, result.output
    assert ElementTree.parse(figure).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert figure.name in result.output
    return result.output


def test_lab_dme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimation, "all_schemes", few)
    results = tmp_path / "results.jsonl"
    output = run(f"dme --dimension 64 --clients 2 --clients 3 --rounds 2 --json {results}", tmp_path / "dme.svg")
    assert len(results.read_text().splitlines()) == 2 * 2 * len(FEW)
    for text in (*FEW, "Gaussian vectors", "3 clients", "bound", "±", "Unbalanced vectors, 3 clients, 16 levels"):
        assert text in output


@pytest.mark.parametrize("command", ["kmeans", "pca --components 1"])
def test_lab_kmeans_and_pca(command: str, tmp_path: Path) -> None:
    options = " --rows 60 --clients 2 --rounds 2"
    results = tmp_path / "results.jsonl"
    output = run(f"{command} {options} --json {results}", tmp_path / "both.svg")
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert {(line["scheme"], line["variant"]) for line in lines} == {
        (s, v) for s in FEW for v in study.SETTINGS.values()
    }
    for text in (*FEW, "digits", "2 clients", "as in paper", "centered", "60 rows"):
        assert text in output
    assert output.splitlines()[-1].startswith("Within 1% of ")
    assert "as in paper" not in run(f"{command} {options} --centered", tmp_path / "one.svg")


def test_equal_data_gives_equal_bytes(tmp_path: Path, digits: Study, clusters: tuple[list[float], list[Fit]]) -> None:
    panels = clustering.panels(digits, *clusters)[:1]
    for name in ("first.svg", "second.svg"):
        draw(panels, tmp_path / name, "title", "subtitle")
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes()


def test_tables_fit_a_terminal_of_80_columns(
    means: list[estimation.Estimate], projections: tuple[components.Exact, components.PCA, list[Fit]]
) -> None:
    console = Console(width=80)
    tables = [
        estimation.table([e for e in means if e.kind == "unbalanced"], "unbalanced"),
        study.fits_table("PCA of fashion-mnist", projections[2], 5, components._COLUMNS, "caption"),
    ]
    with console.capture() as captured:
        console.print(*tables)
    assert "…" not in captured.get()
    assert sum(line.startswith("Eden(3)") for line in captured.get().splitlines()) == 2


@pytest.mark.parametrize(
    ("command", "options", "defaults"),
    [
        ("dme", ("--dimension", "--clients", "--rounds", "--seed", "--figure"), ("1024", "10, 100", "dme.svg")),
        ("kmeans", ("--data", "--path", "--rows", "--as-in-paper", "--repeats"), ("digits", "both", "kmeans.svg")),
        ("pca", ("--data", "--path", "--rows", "--as-in-paper", "--components"), ("digits", "both", "pca.svg")),
    ],
)
def test_help_shows_options_and_defaults(command: str, options: tuple[str, ...], defaults: tuple[str, ...]) -> None:
    output = CliRunner().invoke(main, ["lab", command, "--help"]).output
    for text in (*options, *defaults):
        assert text in output
    assert command in CliRunner().invoke(main, ["lab", "--help"]).output


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("dme --figure nowhere/dme.svg", "no directory 'nowhere'"),
        ("kmeans --figure kmeans.txt", "ends in .svg"),
        ("kmeans --rows 50", "100 clients need a row each"),
        ("pca --data fashion-mnist --path nowhere", "dataset-fashion-mnist"),
    ],
)
def test_errors_are_one_line(command: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["lab", *command.split()])
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
