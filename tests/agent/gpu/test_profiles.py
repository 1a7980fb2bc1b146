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
    gpus = parse_profile(profile).gpus
    assert [(gpu.model, gpu.mem_bytes) for gpu in gpus] == [(model, mem_mib * MIB)] * count


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
    assert parse_profile(str(path)).gpus == (
        FakeGpu("RTX4090", 24564 * MIB, "8.9"),
        FakeGpu("RTX4090", 24564 * MIB, "8.9"),
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
        '[[gpu]]\nmodel = "T4"\nnuma_node = -1',
        '[[gpu]]\nmodel = "T4"\nmig = "1g.5gb"',
        'nvlinks = [[0, 1]]\n[[gpu]]\nmodel = "T4"',
        'switches = 3\n[[gpu]]\nmodel = "T4"',
        '[[gpu]]\nmodel = "T4"\ncount = 40\n[[gpu]]\nmodel = "T4"\ncount = 40',
    ],
)
def test_a_file_that_describes_no_gpus_is_refused_by_its_name(tmp_path, content):
    path = tmp_path / "node.toml"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"node\.toml") as refused:
        parse_profile(str(path))
    assert "\n" not in str(refused.value)


def test_a_machine_is_known_by_its_name_with_its_links_and_numa_nodes():
    dgx = parse_profile("DGX-A100")
    assert [gpu.model for gpu in dgx.gpus] == ["A100-80GB"] * 8
    assert [gpu.numa_node for gpu in dgx.gpus] == [0] * 4 + [1] * 4
    assert dgx.nvlinks == (tuple(range(8)),)
    assert dgx.switches == ((0, 1), (2, 3), (4, 5), (6, 7))


def test_nvlink_bridges_join_gpus_in_pairs():
    assert parse_profile("4xRTX3090-nvlink").nvlinks == ((0, 1), (2, 3))
    assert parse_profile("3xRTX3090-nvlink").nvlinks == ((0, 1),)
    assert parse_profile("4xRTX3090").nvlinks == ()


def test_a_gpu_is_cut_into_mig_slices():
    (gpu,) = parse_profile("1xA100-40GB:3g.20gb,1g.5gb*2").gpus
    assert [part.model for part in gpu.slices] == ["A100-40GB MIG 3g.20gb", *["A100-40GB MIG 1g.5gb"] * 2]
    assert gpu.slices[1].mem_bytes == 4864 * MIB


@pytest.mark.parametrize(
    ("profile", "complaint"),
    [
        ("1xA100-40GB:1g.5gb*7,1g.5gb", "more than one A100-40GB has"),
        ("1xA100-40GB:1g.40gb*2", "more than one A100-40GB has"),
        ("1xRTX4090:1g.5gb", "RTX4090 has no MIG"),
        ("1xA100-40GB:small", "no MIG slice"),
    ],
)
def test_what_no_gpu_can_be_cut_into_is_refused(profile, complaint):
    with pytest.raises(ValueError, match=complaint):
        parse_profile(profile)


def test_a_file_tells_links_nodes_and_slices(tmp_path):
    path = tmp_path / "node.toml"
    gpus = '[[gpu]]\nmodel = "T4"\ncount = 2\nnuma_node = 1\n[[gpu]]\nmodel = "A100-40GB"\nmig = "1g.5gb*7"\n'
    path.write_text("nvlinks = [[0, 1]]\nswitches = [[1, 2]]\n" + gpus)
    node = parse_profile(str(path))
    assert (node.nvlinks, node.switches) == (((0, 1),), ((1, 2),))
    assert [gpu.numa_node for gpu in node.gpus] == [1, 1, None]
    assert [len(gpu.slices) for gpu in node.gpus] == [0, 0, 7]
