"""Every example of the gallery runs as the page has it, and is suspended and resumed without losing a step."""

from collections.abc import Iterator

import pytest

from scripts import gallery

EXAMPLES = gallery.examples(gallery.PAGE.read_text())
UNKNOWN_TO_THE_AGENT = {"plain"}
"""Examples that save by themselves: nobody can know whether they did."""


@pytest.fixture(scope="module")
def stage() -> Iterator[gallery.Stage]:
    with gallery.staged() as stage:
        yield stage


def test_there_are_ten_examples_each_with_its_record_and_its_curve() -> None:
    assert len(EXAMPLES) == 10
    page = gallery.PAGE.read_text()
    for name in EXAMPLES:
        record = page.split(f"<!-- example: {name} -->")[1].split("```")[1]
        assert len(record.splitlines()) > 4, f"record it: python scripts/gallery.py {name}"
        assert f"../figures/gallery-{name}.svg" in page
        assert (gallery.ROOT / f"docs/figures/gallery-{name}.svg").is_file()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_suspended_and_repeats_no_step(stage: gallery.Stage, name: str) -> None:
    recorder = gallery.Recorder(EXAMPLES[name], stage)
    record = recorder.run()
    job = recorder.suspended()
    facts = job.facts()
    expected = "unknown" if name in UNKNOWN_TO_THE_AGENT else "yes"
    assert [suspension["checkpointed"] for suspension in facts["suspensions"]] == [expected]
    assert [attempt["outcome"] for attempt in facts["attempts"]][1:] == ["completed"]
    numbers = [int(step) for step, _, _ in gallery.STEP.findall(job.logs())]
    assert numbers == sorted(set(numbers)), job.logs()
    curve = record.curves[job.id]
    assert curve[-1].step == curve[-1].total
