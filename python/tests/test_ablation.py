"""The ablation without torch: reading runs, rejections, counted models and statistics against slow references, report."""

from __future__ import annotations

import json
import math
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from ablation_runs import VOCABULARY, WINDOW, random_windows, write_experiment, write_run

import longsift
from longsift.ablation.__main__ import main
from longsift.ablation.arms import read_run
from longsift.ablation.config import read_settings
from longsift.ablation.hashing import permutation
from longsift.ablation.measures import earlier_count, earlier_distance, grams, octaves, targets
from longsift.ablation.ngram import Trigram, with_cache
from longsift.ablation.overlap import GramSet, largest_shared
from longsift.ablation.plan import HeldOut, choose, prepare
from longsift.ablation.report import Summary, markdown, page
from longsift.ablation.results import Results, results_path
from longsift.ablation.statistics import (
    Difference,
    DocumentSums,
    Interval,
    Resampler,
    difference,
    entry_problems,
    t_quantile,
    verdict,
)
from longsift.ablation.statistics import ArmResults


def refused(folder: Path, **settings: object) -> str:
    """Message with which `prepare` rejects an experiment of two arms without held-out windows in common."""
    arms = {"one": random_windows(80, 1), "two": random_windows(80, 2)}
    path = write_experiment(folder, arms, random_windows(12, 3), **settings)
    with pytest.raises(longsift.PipelineError) as caught:
        prepare(read_settings(path))
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize("format_name", ["megatron", "parquet"])
def test_windows_are_read_in_the_order_of_the_output(tmp_path: Path, format_name: str) -> None:
    ids = random_windows(10, 1)
    windows = read_run("arm", write_run(tmp_path, "arm", ids, format=format_name))
    assert (windows.ids == ids).all()
    assert windows.documents[:3] == ("arm-0", "arm-0", "arm-1") and windows.classes[:3] == ("a", "a", "b")
    assert windows.pool["hash of arm-4"] == "arm-4" and windows.pool["hash of arm-dropped"] == "arm-dropped"
    assert (read_run("arm", tmp_path / "arm.run", 60).ids == ids[:, :60]).all()


def test_windows_of_a_real_run_are_those_that_longsift_prints(pipeline: Path) -> None:
    settings = {"output.format": "megatron", "stages.score.within": None}
    summary = longsift.run(pipeline, set=settings, arguments=["-q"])
    windows = read_run("arm", Path(summary.run_dir))
    assert len(windows.ids) == summary.windows_kept
    arguments = [f"--set={path}={json.dumps(value)}" for path, value in settings.items()]
    printed = subprocess.check_output([longsift.find_binary(), "tokens", pipeline, "--ids", *arguments], text=True)
    found = [json.loads(line) for line in printed.splitlines()]
    by_document = defaultdict(list)
    for record in found:
        # A document shorter than a window has no ids.
        by_document[record["id"]].append(record.get("ids"))
    for document, ids in zip(windows.documents, windows.ids.tolist(), strict=True):
        assert ids in by_document[document], document
    assert set(windows.classes) == {"all"} and len(windows.tokenizer) == 64


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path, "one", random_windows(80, 1))
    (run / "_SUCCESS").unlink()
    assert "one.run is not the directory of a finished run; run its pipeline to the end" in refused(tmp_path)


def test_runs_whose_output_has_no_windows_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path, "one", random_windows(80, 1), selection={"output.sequence_tokens": 4096})
    assert "packs its windows; remove `output.sequence_tokens`" in refused(tmp_path)


def test_other_tokenizers_are_refused_by_name(tmp_path: Path) -> None:
    write_run(tmp_path, "two", random_windows(80, 2), tokenizer="another")
    assert "tokenizers differ: one tokenizer, two another, heldout tokenizer" in refused(tmp_path)


def test_other_window_lengths_are_refused_by_name(tmp_path: Path) -> None:
    write_run(tmp_path, "two", random_windows(80, 2, window=128))
    assert "window lengths differ: one 64, two 128, heldout 64" in refused(tmp_path, sequence_tokens=64)


def test_windows_with_and_without_a_bos_are_cut_alike(tmp_path: Path) -> None:
    arms = {"one": random_windows(80, 1), "two": random_windows(80, 2, WINDOW - 1)}
    write_run(tmp_path, "two", arms["two"], bos=1)
    path = write_experiment(tmp_path, arms, random_windows(12, 3))
    with pytest.raises(longsift.PipelineError, match="one 64, two 63, heldout 64; set `sequence_tokens: 63`"):
        prepare(read_settings(path))
    path = write_experiment(tmp_path, arms, random_windows(12, 3), sequence_tokens=63)
    assert {arm.ids.shape for arm in prepare(read_settings(path)).arms.values()} == {(80, 63)}


def test_other_amounts_are_refused_with_the_right_amount(tmp_path: Path) -> None:
    write_run(tmp_path, "two", random_windows(70, 2))
    message = refused(tmp_path)
    assert "numbers of windows differ by more than 1%: one 80, two 70" in message and "keep_tokens: 4480" in message


def test_amounts_within_a_hundredth_are_cut_to_the_smallest(tmp_path: Path) -> None:
    arms = {"one": random_windows(101, 1), "two": random_windows(100, 2)}
    plan = prepare(read_settings(write_experiment(tmp_path, arms, random_windows(12, 3))))
    assert [len(arm.ids) for arm in plan.arms.values()] == [100, 100]


def test_a_held_out_document_in_a_pool_is_refused_by_its_content(tmp_path: Path) -> None:
    write_run(tmp_path, "two", random_windows(80, 2), document_prefix="heldout")
    assert "two: 7 held-out documents are in its pool, for example `heldout-0`; remove them" in refused(tmp_path)


def test_windows_that_share_13_grams_with_held_out_documents_are_refused(tmp_path: Path) -> None:
    two = random_windows(80, 2)
    two[7, 5:18] = random_windows(12, 3)[4, 11:24]
    write_run(tmp_path, "two", two)
    message = refused(tmp_path)
    assert "two: 1 windows of 1 documents share more than 1% of their 13-grams" in message and "`two-3` with 2%" in message


def test_unusable_schedules_are_refused(tmp_path: Path) -> None:
    message = refused(tmp_path, tokens=5000, evaluate_tokens=1000, near_tokens=56)
    assert "`tokens` is 5000, less than one epoch of the smallest arm (one, 5120 tokens); set `tokens: 5120`" in message
    assert "only 15 training windows between two evaluations; set `evaluate_tokens: 1280`" in message
    assert "`near_tokens` is 56; expected less than 56" in message


def test_all_mistakes_of_a_file_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "ablation.yaml"
    path.write_text("name: x\narms: {a: a.run}\nheldout: h.run\ntokens: -1\nseed: [1]\nseeds: [1, 1]\noutput: o\nsize: huge\n")
    with pytest.raises(longsift.PipelineError) as caught:
        read_settings(path)
    message = str(caught.value)
    assert "unknown setting `seed`; did you mean `seeds`?" in message
    for part in ("`arms` to map at least two names", "`tokens` to be a positive whole number, got -1", "got 'huge'", "got [1, 1]"):
        assert part in message
    assert main(["plan", str(path)]) == 2


def test_a_comparison_of_an_unknown_arm_is_refused(tmp_path: Path) -> None:
    path = write_experiment(tmp_path, {"one": random_windows(80, 1), "two": random_windows(80, 2)}, random_windows(12, 3))
    path.write_text(path.read_text().replace('[["one", "two"]]', '[["one", "three"]]'))
    with pytest.raises(longsift.PipelineError, match="names the unknown arm `three`"):
        read_settings(path)


def test_permutations_are_the_same_on_every_machine() -> None:
    assert permutation(8, 1, 0).tolist() == permutation(8, 1, 0).tolist() != permutation(8, 1, 1).tolist()
    assert sorted(permutation(1000, 3).tolist()) == list(range(1000))
    assert permutation(6, 1).tolist() == [1, 0, 3, 5, 4, 2]


def slow_distance(ids: npt.NDArray[np.int32], order: int) -> npt.NDArray[np.int64]:
    found = np.zeros(ids.shape, dtype=np.int64)
    for row, window in enumerate(ids.tolist()):
        for end in range(order - 1, len(window)):
            for earlier in range(end - 1, order - 2, -1):
                if window[earlier - order + 1 : earlier + 1] == window[end - order + 1 : end + 1]:
                    found[row, end] = end - earlier
                    break
    return found


def test_distances_and_counts_agree_with_a_slow_reference() -> None:
    ids = random_windows(5, 4, vocabulary=4)
    for order in (1, 2, 3):
        assert (earlier_distance(grams(ids, order)) == slow_distance(ids, order)).all(), order
    counts = earlier_count(grams(ids, 2))
    for row, window in enumerate(ids.tolist()):
        pairs = list(zip(window, window[1:], strict=False))
        assert counts[row, 1:].tolist() == [pairs[:end].count(pair) for end, pair in enumerate(pairs)]


def test_targets_match_their_definitions() -> None:
    ids = random_windows(4, 5, vocabulary=3)
    distance = slow_distance(ids, 3)[:, 1:]
    masks = targets(ids, 8)
    assert masks.last[0].nonzero()[0].tolist() == list(range(WINDOW - WINDOW // 8 - 1, WINDOW - 1))
    assert (masks.retrieval == (masks.last & (distance > 8))).all() and masks.retrieval.any()
    assert (masks.fresh[:, 1:] == (distance[:, 1:] == 0)).all() and not masks.fresh[:, 0].any()


def test_octaves_tile_the_positions() -> None:
    assert octaves(12) == [(1, 2), (2, 4), (4, 8), (8, 12)]


def slow_trigram(train: list[list[int]], window: list[int], vocabulary: int) -> list[float]:
    """Interpolated Kneser-Ney, n-gram by n-gram."""
    three: Counter[tuple[int, ...]] = Counter()
    bigrams = set()
    for ids in train:
        three.update(zip(ids, ids[1:], ids[2:], strict=False))
        bigrams |= set(zip(ids, ids[1:], strict=False))
    two: Counter[tuple[int, ...]] = Counter(key[1:] for key in three)
    one: Counter[tuple[int, ...]] = Counter(key[1:] for key in bigrams)

    def level(counts: Counter[tuple[int, ...]], key: tuple[int, ...], shorter: float) -> float:
        histogram = Counter(counts.values())
        discount = histogram[1] / (histogram[1] + 2 * histogram[2]) if histogram[1] else 0.5
        same = [count for other, count in counts.items() if other[:-1] == key[:-1]]
        if not same:
            return shorter
        return (max(counts[key] - discount, 0) + discount * len(same) * shorter) / sum(same)

    found = []
    for end in range(1, len(window)):
        value = level(one, (window[end],), 1 / vocabulary)
        value = level(two, tuple(window[end - 1 : end + 1]), value)
        found.append(level(three, tuple(window[end - 2 : end + 1]), value) if end >= 2 else value)
    return found


def test_the_trigram_agrees_with_a_slow_reference() -> None:
    train = random_windows(6, 6, window=20, vocabulary=5)
    held = random_windows(3, 7, window=20, vocabulary=6)
    found = Trigram(train, 6).probabilities(held)
    for row, window in enumerate(held.tolist()):
        assert found[row].tolist() == pytest.approx(slow_trigram(train.tolist(), window, 6))


def test_probabilities_of_counted_models_sum_to_one() -> None:
    train = random_windows(6, 8, window=20, vocabulary=5)
    model = Trigram(train, 6)
    begin = [3, 1, 1, 2, 1, 1, 2, 3, 3, 1, 1]
    windows = np.array([[*begin, last] for last in range(6)], dtype=np.int32)
    base = model.probabilities(windows)
    assert base[:, -1].sum() == pytest.approx(1)
    cached = with_cache(windows, base)
    assert cached[:, -1].sum() == pytest.approx(1)
    assert cached[2, -1] > base[2, -1], "2 followed 1 1 twice in this window"


def test_shared_ranges_are_found_at_any_offset() -> None:
    documents = random_windows(2, 9, window=400, vocabulary=1000)
    other = random_windows(1, 10, window=400, vocabulary=1000)[0]
    gram_set = GramSet(list(documents))
    assert not gram_set.hits(other).any()
    other[120:150] = documents[1, 33:63]
    hits = gram_set.hits(other)
    assert hits.nonzero()[0].tolist() == list(range(120, 138))
    assert largest_shared(hits, 112) == pytest.approx(0.18)
    assert largest_shared(hits, 10_000) == pytest.approx(18 / 388)


def test_held_out_windows_are_spread_over_each_document(tmp_path: Path) -> None:
    windows = read_run("heldout", write_run(tmp_path, "heldout", random_windows(10, 1), windows_per_document=5))
    chosen = choose(windows, 2)
    assert (chosen.ids == windows.ids[[1, 3, 6, 8]]).all()
    assert chosen.document_of.tolist() == [0, 0, 1, 1] and chosen.classes == ("a", "b")
    assert len(choose(windows, 99).ids) == 10


def as_sums(values: npt.NDArray[np.float64]) -> DocumentSums:
    return DocumentSums(values * 100, np.full(values.shape, 100.0))


def test_an_estimate_is_the_mean_over_classes_of_means_over_tokens() -> None:
    resampler = Resampler(["a", "a", "b"], seeds=2)
    sums = DocumentSums(np.array([[10, 30, 6], [20, 60, 8]], float), np.array([[10, 30, 2], [10, 30, 2]], float))
    a, b = (10 + 30 + 20 + 60) / 80, (6 + 8) / 4
    assert resampler.estimate(sums) == pytest.approx((a + b) / 2)


def test_a_measure_without_tokens_has_no_value() -> None:
    resampler = Resampler(["a", "b"], seeds=2, resamples=20)
    counts = np.zeros((2, 2))
    sums = DocumentSums(counts, counts)
    interval = resampler.interval(sums)
    assert math.isnan(interval.value) and Difference("loss", interval).answer == "not distinguishable"
    half = DocumentSums(np.array([[6.0, 0], [10, 0]]), np.array([[2.0, 0], [2, 0]]))
    assert resampler.estimate(half) == 4


@pytest.mark.parametrize(("seeds", "of_seeds", "of_documents"), [(5, 0.3, 1), (3, 1, 0.05), (3, 0.2, 1), (3, 0.3, 1), (1, 0, 1)])
def test_intervals_have_their_stated_coverage(seeds: int, of_seeds: float, of_documents: float) -> None:
    random = np.random.default_rng(1)
    covered, trials = 0, 300
    resampler = Resampler(["a"] * 20, seeds=seeds, resamples=400)
    for _ in range(trials):
        values = random.normal(size=(seeds, 1)) * of_seeds + random.normal(size=(1, 20)) * of_documents
        interval = resampler.interval(as_sums(values))
        covered += interval.low <= 0 <= interval.high
    assert 0.92 <= covered / trials <= 0.99


def test_intervals_of_few_seeds_use_students_t() -> None:
    resampler = Resampler(["a"] * 8, seeds=3)
    noise = np.array([[-1.0], [0], [1]])
    interval = resampler.interval(as_sums(np.broadcast_to(noise, (3, 8))))
    assert interval.error == pytest.approx(1 / math.sqrt(3), rel=0.05) and interval.quantile == pytest.approx(4.303, rel=0.05)
    documents = resampler.interval(as_sums(np.broadcast_to(np.arange(8.0), (3, 8))))
    assert documents.quantile == t_quantile(7) and 2.3 < t_quantile(7) < 2.4 and t_quantile(10**9) == pytest.approx(1.96)
    assert interval.detectable == pytest.approx((interval.quantile + 0.84) * interval.error)


def test_differences_are_paired_by_seed_and_document() -> None:
    random = np.random.default_rng(2)
    noise = random.normal(size=(3, 12))
    first, second = ArmResults({"loss": as_sums(noise)}, 9), ArmResults({"loss": as_sums(noise + 0.1)}, 9)
    found = difference("loss", first, second, Resampler(["a"] * 12, seeds=3))
    assert found.interval.value == pytest.approx(-0.1) and found.interval.high < 0 and found.answer == "better"
    assert found.interval.detectable < 1e-6


@pytest.mark.parametrize(("of_seeds", "of_documents"), [(0.02, 0.02), (0.08, 0.02), (0.02, 0.1)])
def test_equal_arms_rarely_differ(of_seeds: float, of_documents: float) -> None:
    random = np.random.default_rng(2)
    resampler = Resampler(["books"] * 12 + ["papers"] * 13 + ["code"] * 6, seeds=3, resamples=300)
    wrong = 0
    for _ in range(200):
        documents = random.normal(size=(1, 31)) * 0.3
        first, second = (
            ArmResults({"loss": as_sums(5 + documents + random.normal(size=(1, 31)) * of_documents + random.normal(size=(3, 1)) * of_seeds)}, 9)
            for _ in range(2)
        )
        wrong += difference("loss", first, second, resampler).answer != "not distinguishable"
    assert wrong / 200 <= 0.08


def one(measure: str, low: float, high: float) -> Difference:
    return Difference(measure, Interval((low + high) / 2, low, high, 0.1))


def test_the_verdict_follows_the_rule() -> None:
    met: dict[str, list[str]] = {"x": [], "y": []}
    level, good, bad = one("long_gain", -1, 1), one("long_gain", 0.1, 1), one("long_gain", -1, -0.1)
    low, high, even = one("loss", -1, -0.1), one("loss", 0.1, 1), one("loss", -1, 1)
    assert verdict([level, even], met, 3) == "not distinguishable at this size"
    assert verdict([good, even], met, 3) == verdict([level, low], met, 3) == verdict([good, low], met, 3) == "better"
    assert verdict([bad, even], met, 3) == verdict([bad, high], met, 3) == "worse"
    assert verdict([good, high], met, 3).startswith("mixed")
    assert verdict([one("retrieval_gain", 0.1, 1), level, even], met, 3) == "not distinguishable at this size"
    assert verdict([good, low], met, 2) == "without a verdict: 2 of 3 seeds"
    assert verdict([good, low], {"x": [], "y": ["too early"]}, 3) == "without a verdict: too small to compare (y)"


def test_the_entry_condition_has_three_parts() -> None:
    right = {"loss": Interval(5, 4, 6, 0), "long_gain": Interval(0.2, 0.1, 0.3, 0), "retrieval_gain": Interval(1.1, 0, 2, 0)}
    assert entry_problems(right, 5.1) == []
    wrong = {"loss": Interval(5.2, 4, 6, 0), "long_gain": Interval(0.2, 0, 0.3, 0), "retrieval_gain": Interval(1, 0, 2, 0)}
    assert len(entry_problems(wrong, 5.1)) == 3


def write_results(experiment: Path, arm: str, seed: int, gain: float, loss: float, final: bool = True) -> None:
    """Writes results in the format of training, with equal values for every document except for a little noise."""
    settings = read_settings(experiment)
    documents = [f"heldout-{index}" for index in range(6)]
    noise = np.random.default_rng(seed).normal(size=6) * 0.01
    values = {"loss": loss, "long_gain": gain, "retrieval_gain": 2.0, "fresh_loss": loss + 1}
    evaluation = {
        "record": "evaluation", "step": 20, "tokens": 5120, "final": final, "seconds": 60.0, "evaluation_seconds": 3.0,
        **values, "copy": 0.5, "recall": 0.1, "octaves": [3.0] * len(octaves(WINDOW)),
        "documents": {
            name: {"sums": (100 * (value + noise)).tolist(), "counts": [100] * 6} for name, value in values.items()
        },
    }  # fmt: skip
    early = {**evaluation, "step": 10, "tokens": 2560, "final": False, "retrieval_gain": 0.1}
    run = {
        "record": "run", "identity": {}, "documents": documents, "classes": ["a", "b"] * 3, "parameters": 9,
        "machine": {"processor": "a processor", "cores": 2, "threads": 1, "torch": "2"},
    }  # fmt: skip
    Results(results_path(settings.output, arm, seed), run, [early, evaluation]).write()


def test_verdicts_appear_after_all_runs_are_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = {"one": random_windows(80, 1), "two": random_windows(80, 2)}
    path = write_experiment(tmp_path, arms, random_windows(12, 3), seeds=[1, 2, 3])
    assert main(["report", str(path)]) == 2
    assert "run `python -m longsift.ablation plan" in capsys.readouterr().err
    assert main(["plan", str(path)]) == 0
    plan = json.loads((tmp_path / "results/plan.json").read_text())
    assert 3 < plan["arms"]["one"]["trigram_loss"] < 5 and len(plan["arms"]["one"]["sample_losses"]) == 10
    loss = plan["arms"]["one"]["trigram_loss"] - 1
    settings = read_settings(path)

    def summary() -> Summary:
        return Summary(settings, plan)

    assert summary().verdicts() == ["one against two: without a verdict: 0 of 6 runs are finished"]
    for seed in (1, 2):
        write_results(path, "one", seed, 0.3, loss)
        write_results(path, "two", seed, 0.1, loss)
    assert summary().verdicts() == ["one against two: without a verdict: 4 of 6 runs are finished"]
    assert {row[-1] for row in summary().difference_rows()} == {"–"}, "no answer without a verdict"
    write_results(path, "one", 3, 0.3, loss)
    write_results(path, "two", 3, 0.1, loss, final=False)
    assert "5 of 6 runs are finished" in summary().verdicts()[0]
    write_results(path, "two", 3, 0.1, loss)
    assert summary().verdicts() == ["one against two: better"]
    text, html = markdown(summary()), page(summary())
    assert "| one − two | long gain | all classes alike | 0.200 [0.200, 0.200] | 0.000 | better |" in text
    assert "0.05 hours of training (256 tokens/s)" in text or "hours of training" in text
    assert html.count("<svg") == 4 and "<script" not in html and "prefers-color-scheme:dark" in html
    assert html.count('stroke="var(--c0)"') == 4 * 3, "a line per seed and chart"
    assert "too small" not in text
    write_results(path, "two", 1, 0.1, loss + 3)
    assert summary().verdicts() == ["one against two: without a verdict: too small to compare (two)"]
    assert main(["report", str(path)]) == 0
    assert (tmp_path / "results/report.html").is_file()


def test_counted_measures_are_recomputed_if_an_arm_changes(tmp_path: Path) -> None:
    arms = {"one": random_windows(80, 1), "two": random_windows(80, 2)}
    path = write_experiment(tmp_path, arms, random_windows(12, 3))
    assert main(["plan", str(path)]) == 0
    before = (tmp_path / "results/plan.json").read_text()
    assert main(["plan", str(path)]) == 0
    assert (tmp_path / "results/plan.json").read_text() == before
    other = write_run(tmp_path, "three", random_windows(80, 4))
    path.write_text(path.read_text().replace("two.run", other.name))
    assert main(["plan", str(path)]) == 0
    assert json.loads((tmp_path / "results/plan.json").read_text())["arms"]["two"] != json.loads(before)["arms"]["two"]


def test_a_trigram_of_the_same_text_beats_one_of_random_tokens(tmp_path: Path) -> None:
    text = np.tile(np.arange(VOCABULARY, dtype=np.int32), 200)[: 100 * WINDOW].reshape(100, WINDOW)
    held = HeldOut(text[:2], np.array([0, 1]), ("x", "y"), ("a", "a"))
    good, random = Trigram(text, VOCABULARY), Trigram(random_windows(100, 1), VOCABULARY)
    losses = [-np.log(model.probabilities(held.ids)).mean() for model in (good, random)]
    assert losses[0] < 0.1 and losses[1] > math.log(VOCABULARY) - 0.5


def test_results_of_other_settings_are_refused(tmp_path: Path) -> None:
    results = Results(tmp_path / "x.jsonl", {"record": "run", "identity": {"tokens": 1}})
    results.write()
    Results.read(results.path).check({"tokens": 1})
    with pytest.raises(longsift.PipelineError, match="tokens: 1 → 2.*set another `output`"):
        Results.read(results.path).check({"tokens": 2})
