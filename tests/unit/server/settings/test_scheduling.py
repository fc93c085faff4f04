"""Tenants, quotas, priority classes and labels in the settings: parsing, and the error text for each mistake."""

from pathlib import Path

import pytest

from commonage.domain.errors import InvalidInput
from commonage.domain.tenants import Bounds, PriorityClass, Quota, Tenant
from commonage.server.configure import rules_of
from commonage.server.platform import declared_of, declared_platform
from commonage.server.settings.settings import Settings
from commonage.server.settings.sources import SettingsError, line_of, resolve

WHOLE = """
policy = "best-fit"
half_life = "3d"
entry_penalty = 0
guaranteed_runtime = "20m"

[[tenants]]
name = "optics"
title = "Lab of Optics"
weight = 2
environments = ["notebook"]
[tenants.nominal]
cpus = 32
memory = "256GiB"
gpus = 2.5
[tenants.borrowing]
gpus = 0
[tenants.per_user]
vram = "24GiB"

[[tenants]]
name = "org:students"
nominal = { vram = "80GiB" }
lending = { vram = "40GiB" }

[[priority_classes]]
name = "scavenger"
priority = -90
preemptible = true

[[priority_classes]]
name = "deadline"
priority = 20

[node_labels]
zone = "basement"
"nvidia.com/nvlink" = "yes"
"""


def read(tmp_path: Path, toml: str) -> Settings:
    (tmp_path / "commonage.toml").write_text(toml)
    return resolve({}, environ={}, folder=tmp_path).settings


def wrong(tmp_path: Path, toml: str) -> str:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, toml)
    return str(caught.value).removeprefix(f"{tmp_path}/")


def test_rules_are_parsed(tmp_path: Path) -> None:
    settings = read(tmp_path, WHOLE)
    rules = rules_of(settings)
    assert declared_platform(settings).tenants == (
        Tenant(
            "optics",
            "Lab of Optics",
            2.0,
            Quota(Bounds(32_000, 256 * 1024, 2500), Bounds(gpu_milli=0), Bounds(), Bounds(vram_mib=24 * 1024)),
            environments=("notebook",),
        ),
        Tenant("org:students", quota=Quota(Bounds(vram_mib=80 * 1024), lending=Bounds(vram_mib=40 * 1024))),
    )
    assert (rules.policy, rules.half_life_s, rules.entry_penalty_s) == ("best-fit", 3 * 86400.0, 0.0)
    assert (rules.guaranteed_s, rules.head_of_queue_timeout_s, rules.age_credit) == (1200.0, 600.0, 0.01)
    assert settings.node_labels == {"zone": "basement", "nvidia.com/nvlink": "yes"}


def test_quota_of_counts_months_environments_and_models_is_parsed(tmp_path: Path) -> None:
    settings = read(
        tmp_path,
        'quota_time_zone = "Europe/Berlin"\n[[tenants]]\nname = "a"\n'
        'nominal = { running = 4, queued = 20, storage = "1GiB", gpu_hours_month = 0.5 }\n'
        "per_user.running = 2\nper_environment.notebook = { gpus = 1, queued = 3 }\n"
        "per_model.A100 = { gpus = 2, gpu_hours_month = 100 }\n",
    )
    assert rules_of(settings).time_zone == "Europe/Berlin"
    assert declared_platform(settings).tenants[0].quota == Quota(
        Bounds(running=4, queued=20, storage_mib=1024, gpu_s_month=1800),
        per_user=Bounds(running=2),
        per_environment=(("notebook", Bounds(gpu_milli=1000, queued=3)),),
        per_model=(("A100", Bounds(gpu_milli=2000, gpu_s_month=360_000)),),
    )


def test_priority_classes_extend_built_in_ones(tmp_path: Path) -> None:
    found = declared_platform(read(tmp_path, WHOLE)).priority_classes
    assert [one.name for one in found] == ["scavenger", "low", "normal", "high", "deadline", "urgent"]
    assert found[0] == PriorityClass("scavenger", -90, preemptible=True)
    assert found[4] == PriorityClass("deadline", 20, for_admins=True)


def test_declared_resources_become_documents(tmp_path: Path) -> None:
    made = declared_of(read(tmp_path, WHOLE))
    assert [one["name"] for one in made["Tenant"]] == ["optics", "org:students"]
    assert made["Tenant"][0]["nominal"] == {"cpus": 32, "memory": "256GiB", "gpus": 2.5}
    assert {"kind": "PriorityClass", "name": "deadline", "priority": 20} in made["PriorityClass"]


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ('[[tenants]]\nname = "a"\n[tenants.nominal]\ngpus = "many"',
         "commonage.toml, line 4: tenants.a.nominal.gpus: not a number of GPUs; write it like 4 or 2.5"),
        ('[[tenants]]\nname = "a"\n\n[[tenants]]\nname = "b"\nnominal = { memory = "lots" }',
         "commonage.toml, line 6: tenants.b.nominal.memory: memory 'lots' is not an amount of memory"),
        ('[[tenants]]\nname = "a"\nweight = 0', "line 3: tenants.a.weight: input should be greater than 0"),
        ('[[tenants]]\ntitle = "a"', "line 1: tenants.0.name: field required"),
        ('[[tenants]]\nname = "a"\ndevices = 3', "line 3: tenants.a.devices: no such setting. Settings here: name,"),
        ('[[tenants]]\nname = "a"\n[tenants.borrowing]\ngpus = 1',
         "line 1: tenants.a: borrowing.gpus is relative to nominal.gpus, which is not set"),
        ('[[tenants]]\nname = "a"\nnominal.running = 1\nborrowing.running = 2',
         "tenants.a: borrowing.running: only cpus, memory, gpus, vram are lent"),
        ('[[tenants]]\nname = "a"\nper_model.A100.storage = "1GiB"',
         "tenants.a: per_model.A100.storage: it bounds gpus,"),
        ('quota_time_zone = "Moon/Crater"', "no such time zone"),
        ('[[tenants]]\nname = "a"\nnominal.gpus = 1\nlending.gpus = 2',
         "tenants.a: lending.gpus is more than nominal.gpus"),
        ('[[tenants]]\nname = "a"\n[[tenants]]\nname = "a"', "tenants: 'a' is defined twice"),
        ('tenants = "optics"', "line 1: tenants: input should be a valid tuple"),
        ('[[priority_classes]]\nname = "x"\npriority = 101', "line 3: priority_classes.x.priority: input should"),
        ('name = "x"\n[node_labels]\n"a b" = "c"', "line 2: node_labels: it 'a b' is not the name of a label"),
        ('[node_labels]\nsite = "x"', "node_labels: site is a label that every node already has"),
        ('policy = "fastest"', "line 1: policy cannot be 'fastest'; it takes best-fit, spread, expected-waste"),
        ('site_policy = "nearest"', "site_policy cannot be 'nearest'; it takes first-free, least-used or cheapest"),
        ("port = 1\nhalf_life = 0", "line 2: half_life cannot be 0; it takes a duration"),
        ("age_credit = -1", "age_credit cannot be -1"),
    ],
)  # fmt: skip
def test_invalid_rule_is_reported_with_line(tmp_path: Path, toml: str, said: str) -> None:
    assert said in wrong(tmp_path, toml)


def test_labels_in_a_variable(tmp_path: Path) -> None:
    environ = {"COMMONAGE_NODE_LABELS": "zone=basement, rack=7"}
    assert resolve({}, environ=environ, folder=tmp_path).settings.node_labels == {"rack": "7", "zone": "basement"}
    for wrong_one, words in (("zone", "not of the form zone=basement"), ("zone=", "not a label")):
        with pytest.raises(SettingsError, match=f"COMMONAGE_NODE_LABELS: .*{words}"):
            resolve({}, environ={"COMMONAGE_NODE_LABELS": wrong_one}, folder=tmp_path)
    with pytest.raises(SettingsError, match="tenants is a list of tables, which a variable cannot hold"):
        resolve({}, environ={"COMMONAGE_TENANTS": "x"}, folder=tmp_path)


def test_tenant_with_unknown_environment_or_site_is_refused(tmp_path: Path) -> None:
    for names in ("environments", "sites"):
        settings = read(tmp_path, f'[[tenants]]\nname = "a"\n{names} = ["moon"]')
        with pytest.raises(InvalidInput, match=f"the tenant a: {names}: 'moon' does not exist"):
            declared_platform(settings)


def test_unknown_location_has_no_line() -> None:
    assert line_of("", ("port",)) is None
    assert line_of("# port = 1", ("port",)) is None
    assert line_of("a.b = 1", ("a", "b")) == 1


def test_volume_below_writable_mount_is_refused(tmp_path: Path) -> None:
    text = """
    engine = "docker"
    docker_mounts = ["/srv/shared/{tenant}:/shared:rw"]
    [[volumes]]
    name = "sets"
    source = "/srv/shared/lab/sets"
    """
    settings = read(tmp_path, text)
    with pytest.raises(InvalidInput, match=r"the volume sets: .* is in /srv/shared/\{tenant\} \(docker_mounts\)"):
        declared_platform(settings)
    assert declared_platform(settings.model_copy(update={"engine": "process"})).volumes[0].name == "sets"
    secrets = settings.model_copy(update={"docker_mounts": (f"{settings.data_dir}/secrets:/x",), "volumes": ()})
    with pytest.raises(InvalidInput, match="where the server keeps its secrets"):
        declared_platform(secrets)
