"""What a fake GPU profile stands for."""

import pytest
from ebbtide_agent.gpu.profiles import KNOWN_MODELS, MIB, FakeGpu, parse_profile


@pytest.mark.parametrize(
    ("profile", "count", "model", "mem_mib"),
    [
        ("4xA100-40GB", 4, "A100-40GB", 40960),
        ("2xRTX4090", 2, "RTX4090", 24564),
        ("8xH100-80GB", 8, "H100-80GB", 81559),
        ("1xt4", 1, "T4", 15360),
        ("64xv100-16gb", 64, "V100-16GB", 16384),
    ],
)
def test_a_profile_is_a_count_and_a_model_in_any_case(profile, count, model, mem_mib):
    assert parse_profile(profile) == (FakeGpu(model, mem_mib * MIB),) * count


@pytest.mark.parametrize(
    ("profile", "complaint"),
    [
        ("2xRTX9999", "unknown GPU model 'RTX9999'"),
        ("RTX4090", "neither COUNTxMODEL"),
        ("0xT4", "count must be 1 to 64, not 0"),
        ("65xT4", "count must be 1 to 64, not 65"),
        ("-1xT4", "neither COUNTxMODEL"),
        ("", "neither COUNTxMODEL"),
        ("missing.toml", "missing.toml"),
    ],
)
def test_a_wrong_profile_is_refused_in_one_line_that_says_what_is_wrong(profile, complaint):
    with pytest.raises(ValueError, match=complaint) as refused:
        parse_profile(profile)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("profile", ["2xRTX9999", "RTX4090"])
def test_who_asks_for_an_unknown_model_is_told_the_known_ones(profile):
    with pytest.raises(ValueError, match="known models") as refused:
        parse_profile(profile)
    assert all(model in str(refused.value) for model in KNOWN_MODELS)


def test_a_file_mixes_known_models_and_ones_with_a_size_of_their_own(tmp_path):
    path = tmp_path / "node.toml"
    path.write_text('[[gpu]]\nmodel = "rtx4090"\ncount = 2\n[[gpu]]\nmodel = "Prototype"\nmem_mib = 1000\n')
    assert parse_profile(str(path)) == (
        FakeGpu("RTX4090", 24564 * MIB),
        FakeGpu("RTX4090", 24564 * MIB),
        FakeGpu("Prototype", 1000 * MIB),
    )


@pytest.mark.parametrize(
    "content",
    [
        "",
        "gpu = 3",
        "gpu = [3]",
        "not toml at all",
        "[[gpu]]\ncount = 2",
        '[[gpu]]\nmodel = "Prototype"',
        '[[gpu]]\nmodel = "Prototype"\nmem_mib = 0',
        '[[gpu]]\nmodel = "T4"\ncount = "2"',
        '[[gpu]]\nmodel = "T4"\ncount = 0',
        '[[gpu]]\nmodel = "T4"\ncount = 40\n[[gpu]]\nmodel = "T4"\ncount = 40',
    ],
)
def test_a_file_that_describes_no_gpus_is_refused_by_its_name(tmp_path, content):
    path = tmp_path / "node.toml"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"node\.toml") as refused:
        parse_profile(str(path))
    assert "\n" not in str(refused.value)
