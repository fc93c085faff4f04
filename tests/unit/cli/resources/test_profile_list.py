"""Profile lists of KubeSpawner: what is kept, and that everything else is named."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from commonage.cli.app import app
from commonage.cli.resources.profile_list import MOST, NotProfiles, find_profiles, import_profiles
from commonage.resources.documents import parse_all

VALUES = """
singleuser:
  profileList:
    - display_name: Small
      description: For the first steps
      kubespawner_override:
        image: quay.io/jupyter/scipy-notebook:2024-04-22
        cpu_guarantee: 0.5
        cpu_limit: 2
        mem_guarantee: 512M
        mem_limit: 1G
    - display_name: GPU
      slug: gpu
      default: true
      kubespawner_override:
        mem_limit: 16G
        extra_resource_limits: {nvidia.com/gpu: "1"}
        node_selector: {cloud.google.com/gke-accelerator: nvidia-l4}
        environment: {GRANT: "yes"}
        tolerations: [{key: nvidia.com/gpu}]
      profile_options:
        image:
          display_name: Image
          choices:
            torch:
              display_name: PyTorch
              kubespawner_override: {image: example.org/torch:2, environment: {TORCH: "1"}}
            tf:
              display_name: TensorFlow
              default: true
              kubespawner_override: {image: example.org/tf:2}
          unlisted_choice: {enabled: true, display_name: Other, kubespawner_override: {image: "{value}"}}
"""


def by_name(documents: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in documents if one["kind"] == kind}


def test_values_of_zero_to_jupyterhub_become_profiles_and_environments() -> None:
    found = import_profiles(find_profiles(yaml.safe_load(VALUES)), "physics")
    profiles, environments = by_name(found.documents, "Profile"), by_name(found.documents, "Environment")
    assert list(profiles) == ["gpu-tensorflow", "gpu-pytorch", "small"], "the default is first"
    assert profiles["small"] == {
        "kind": "Profile", "name": "small", "title": "Small", "description": "For the first steps",
        "environment": "scipy-notebook-2024-04-22", "cpus": 0.5, "memory": "1024MiB", "tenants": ["physics"],
        "order": 2,
    }  # fmt: skip
    assert profiles["gpu-pytorch"]["labels"] == {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    assert (profiles["gpu-pytorch"]["gpus"], profiles["gpu-pytorch"]["memory"]) == ("1", "16384MiB")
    assert environments["torch-2"]["variables"] == {"GRANT": "yes", "TORCH": "1"}
    assert environments["tf-2"]["variables"] == {"GRANT": "yes"}
    notes = "\n".join(found.notes)
    for named in ("cpu_limit 2", "mem_guarantee 512M", "tolerations", "profile_options.image.unlisted_choice"):
        assert named in notes
    parse_all(found.documents)


@pytest.mark.parametrize("content", [None, [], "text", {"singleuser": {}}, [{"slug": "x"}], [1]])
def test_a_file_without_profiles_is_refused(content: object) -> None:
    with pytest.raises(NotProfiles, match="profile"):
        find_profiles(content)


def test_of_too_many_combinations_the_default_is_kept() -> None:
    choices = {str(number): {"display_name": str(number), "default": number == 3} for number in range(6)}
    option = {"display_name": "x", "choices": choices}
    found = import_profiles([{"display_name": "Many", "profile_options": {"a": option, "b": option}}])
    assert [one["title"] for one in found.documents] == ["Many (3, 3)"]
    assert found.notes == [
        f"Many: profile_options has more than {MOST} combinations; only the default choices are kept."
    ]


KEYS = st.sampled_from(["cpu_limit", "cpu_guarantee", "mem_limit", "mem_guarantee", "image", "environment",
                        "extra_resource_limits", "node_selector", "volumes", "start_timeout"])  # fmt: skip
ANY = st.one_of(
    st.none(), st.text(max_size=8), st.integers(-2, 9), st.dictionaries(st.text(max_size=4), st.integers(), max_size=2)
)


@given(st.lists(st.tuples(st.text(max_size=20), st.dictionaries(KEYS, ANY)), min_size=1, max_size=4))
def test_every_profile_is_kept_and_every_key_that_is_not_is_named(
    given_profiles: list[tuple[str, dict[str, Any]]],
) -> None:
    profiles = [{"display_name": title, "kubespawner_override": override} for title, override in given_profiles]
    found = import_profiles(find_profiles(profiles))
    assert len(by_name(found.documents, "Profile")) == len(profiles)
    notes = "\n".join(found.notes)
    for _, override in given_profiles:
        for key in ("volumes", "start_timeout"):
            assert override.get(key) is None or f"kubespawner_override.{key} is not kept" in notes


def test_the_command_prints_documents_and_names_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(VALUES, encoding="utf-8")
    done = CliRunner().invoke(app, ["profiles", "import", str(file)])
    assert done.exit_code == 0, done.output
    assert [one["kind"] for one in yaml.safe_load_all(done.stdout)] == ["Environment"] * 3 + ["Profile"] * 3
    assert "GPU: kubespawner_override.tolerations is not kept." in done.stderr
    file.write_text("a: [", encoding="utf-8")
    assert CliRunner().invoke(app, ["profiles", "import", str(file)]).exit_code != 0
