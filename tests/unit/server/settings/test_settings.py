"""Settings: precedence of the sources, and the error text for each mistake."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonage.server.settings.settings import SECTIONS, Settings, allowed, hide, reference, shown, variable_of
from commonage.server.settings.sources import SettingsError, resolve


def wrong(tmp_path: Path, environ: dict[str, str] | None = None, toml: str | None = None, **flags: str) -> str:
    """The error text for an invalid setting."""
    if toml is not None:
        (tmp_path / "commonage.toml").write_text(toml)
    with pytest.raises(SettingsError) as caught:
        resolve(flags, environ=environ or {}, folder=tmp_path)
    return str(caught.value)


def test_defaults_apply_without_any_source(tmp_path: Path) -> None:
    resolved = resolve({}, environ={}, folder=tmp_path)
    assert resolved.settings.port == 8000
    assert resolved.settings.bind == "127.0.0.1"
    assert resolved.settings.data_dir == tmp_path / ".commonage"
    assert set(resolved.origins.values()) == {"default"}
    assert resolved.file is None


@given(
    flag=st.none() | st.integers(0, 65535),
    variable=st.none() | st.integers(0, 65535),
    file=st.none() | st.integers(0, 65535),
)
def test_flag_overrides_variable_overrides_file_overrides_default(
    tmp_path_factory: pytest.TempPathFactory, flag: int | None, variable: int | None, file: int | None
) -> None:
    folder = tmp_path_factory.mktemp("precedence")
    if file is not None:
        (folder / "commonage.toml").write_text(f"port = {file}\n")
    environ = {} if variable is None else {"COMMONAGE_PORT": str(variable)}
    resolved = resolve({"port": None if flag is None else str(flag)}, environ=environ, folder=folder)
    wanted = next(value for value in (flag, variable, file, 8000) if value is not None)
    names = ("flag --port", "COMMONAGE_PORT", str(folder / "commonage.toml"), "default")
    origin = next(name for value, name in zip((flag, variable, file, 8000), names, strict=True) if value is not None)
    assert resolved.settings.port == wanted
    assert resolved.origins["port"] == origin


def test_file_in_data_folder_is_read_if_current_folder_has_none(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "commonage.toml").write_text('name = "Lab"\n')
    assert resolve({"data_dir": "data"}, environ={}, folder=tmp_path).settings.name == "Lab"
    (tmp_path / "commonage.toml").write_text('name = "Here"\n')
    assert resolve({"data_dir": "data"}, environ={}, folder=tmp_path).settings.name == "Here"
    (tmp_path / "other.toml").write_text('name = "Named"\n')
    named = resolve({"data_dir": "data"}, environ={}, folder=tmp_path, config=Path("other.toml"))
    assert named.settings.name == "Named"
    by_variable = resolve({}, environ={"COMMONAGE_CONFIG": "other.toml"}, folder=tmp_path)
    assert by_variable.file == tmp_path / "other.toml"


def test_paths_in_file_are_relative_to_file(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "it.toml").write_text('password_file = "passwords"\n')
    resolved = resolve({"data_dir": "data"}, environ={}, folder=tmp_path, config=tmp_path / "etc" / "it.toml")
    assert resolved.settings.password_file == tmp_path / "etc" / "passwords"
    assert resolved.settings.data_dir == tmp_path / "data"


def test_quantities_and_lists_are_parsed(tmp_path: Path) -> None:
    environ = {
        "COMMONAGE_MEMORY": "64GiB",
        "COMMONAGE_CPUS": "1500m",
        "COMMONAGE_WARN_BEFORE": "5m",
        "COMMONAGE_ADMIN_USERS": "ann, bob",
        "COMMONAGE_LOG_LEVEL": "WARNING",
        "COMMONAGE_BIND": "localhost",
        "COMMONAGE_PRICE_GPU_GIB_HOUR": "0.25",
        "COMMONAGE_CURRENCY": "EUR",
        "COMMONAGE_PUBLIC_URL": "",
    }
    settings = resolve({}, environ=environ, folder=tmp_path).settings
    assert (settings.memory, settings.cpus, settings.warn_before) == (64 * 1024, 1500, 300)
    assert settings.admin_users == ("ann", "bob")
    assert settings.log_level == "warning"
    assert settings.bind == "127.0.0.1"
    assert settings.public_url is None
    assert (settings.prices.gpu_gib_hour, settings.prices.currency) == (0.25, "EUR")


@pytest.mark.parametrize("value", ["300", '"300"', "5.5"])
def test_duration_without_unit_is_refused(tmp_path: Path, value: str) -> None:
    (tmp_path / "commonage.toml").write_text(f"warn_before = {value}\n")
    with pytest.raises(SettingsError, match=r"line 1: warn_before .* has no unit\. Write \d+m for minutes or \d+s for"):
        resolve({}, environ={}, folder=tmp_path)
    with pytest.raises(SettingsError, match=r"COMMONAGE_WARN_BEFORE: .* has no unit"):
        resolve({}, environ={"COMMONAGE_WARN_BEFORE": "300"}, folder=tmp_path)


def test_memory_without_unit_is_mib(tmp_path: Path) -> None:
    (tmp_path / "commonage.toml").write_text("default_memory = 2048\n")
    settings = resolve({}, environ={"COMMONAGE_MEMORY": "4096"}, folder=tmp_path).settings
    assert (settings.default_memory, settings.memory) == (2048, 4096)


def test_environments_are_tables_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "commonage.toml").write_text(
        '[[environments]]\nname = "torch"\nrequirements = ["torch"]\nkinds = ["session", "job"]\n'
        '[environments.variables]\nHF_HOME = "/data/hf"\n'
    )
    (entry,) = resolve({}, environ={}, folder=tmp_path).settings.environments
    made = entry.entry()
    assert (made.name, made.title, made.requirements) == ("torch", "torch", ("torch",))
    assert made.variables == (("HF_HOME", "/data/hf"),)
    assert [kind.value for kind in made.kinds] == ["session", "job"]


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"COMMONAGE_PORT": "http"}, ["COMMONAGE_PORT", "'http'", "a port from 1 to 65535"]),
        ({"COMMONAGE_PORT": "70000"}, ["COMMONAGE_PORT", "'70000'", "a port from 1 to 65535"]),
        ({"COMMONAGE_PROT": "80"}, ["COMMONAGE_PROT", "did you mean COMMONAGE_PORT?"]),
        ({"COMMONAGE_NONSENSE_OF_MINE": "1"}, ["COMMONAGE_NONSENSE_OF_MINE", "not a setting"]),
        ({"COMMONAGE_GPUS": "simulated:2xfoo"}, ["COMMONAGE_GPUS", "simulated:2x24GiB"]),
        ({"COMMONAGE_GPUS": "rocm"}, ["COMMONAGE_GPUS", "'rocm'", "auto, nvml, amd, none"]),
        ({"COMMONAGE_BIND": "example.org"}, ["COMMONAGE_BIND", "an IP address of this machine"]),
        ({"COMMONAGE_MEMORY": "much"}, ["COMMONAGE_MEMORY", "'much'", "like 64GiB"]),
        ({"COMMONAGE_CPUS": "-1"}, ["COMMONAGE_CPUS", "'-1'"]),
        ({"COMMONAGE_LOG_LEVEL": "loud"}, ["COMMONAGE_LOG_LEVEL", "debug, info, warning or error"]),
        ({"COMMONAGE_PRICE_CPU_HOUR": "nan"}, ["COMMONAGE_PRICE_CPU_HOUR", "not negative"]),
        ({"COMMONAGE_ENVIRONMENTS": "[]"}, ["tables", "commonage.toml"]),
        ({"COMMONAGE_CONFIG": "gone.toml"}, ["gone.toml", "does not exist"]),
    ],
)
def test_invalid_variable_is_reported_with_allowed_values(
    tmp_path: Path, environ: dict[str, str], said: list[str]
) -> None:
    sentence = wrong(tmp_path, environ)
    assert [part for part in said if part not in sentence] == []


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("port = 'http'", ["commonage.toml", "port", "'http'"]),
        ("prot = 1", ["commonage.toml", "'prot'", "did you mean port?"]),
        ("port = ", ["commonage.toml", "not valid TOML"]),
        ("[[environments]]\ntitle = 'x'", ["commonage.toml", "environments", "0.name"]),
        ("[[environments]]\nname = 'x'\npicture = 'y'", ["commonage.toml", "environments", "picture"]),
        ("admin_users = 3", ["commonage.toml", "admin_users"]),
    ],
)
def test_invalid_setting_in_file_is_reported(tmp_path: Path, toml: str, said: list[str]) -> None:
    sentence = wrong(tmp_path, toml=toml)
    assert [part for part in said if part not in sentence] == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('membres = ["ann"]', "line 3: tenants.lab.membres: no such setting. Settings here: name, title, weight"),
        ("nominal = { gpu = 1 }", "tenants.lab.nominal.gpu: no such setting. Settings here: cpus, memory, gpus"),
    ],
)
def test_unknown_setting_in_table_is_reported_with_known_settings(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "commonage.toml").write_text(f'[[tenants]]\nname = "lab"\n{line}\n')
    with pytest.raises(SettingsError) as caught:
        resolve({}, environ={}, folder=tmp_path)
    assert said in str(caught.value)


def test_invalid_flag_is_reported_as_typed(tmp_path: Path) -> None:
    assert wrong(tmp_path, data_dir=".", port="x").startswith("flag --port: port cannot be 'x'")


def test_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "commonage.toml").write_bytes(b'name = "\xff"')
    assert "not UTF-8 text (byte 8)" in wrong(tmp_path)
    (tmp_path / "commonage.toml").write_bytes(b"#" * 1_100_000)
    assert "larger than 1 MiB" in wrong(tmp_path)


def test_password_is_not_repeated_in_error(tmp_path: Path) -> None:
    assert "sesame" not in wrong(tmp_path, {"COMMONAGE_DATABASE_URL": "mysql://ann:sesame@db/x"})


def test_variables_of_a_workload_are_not_settings(tmp_path: Path) -> None:
    environ = {"COMMONAGE_WORKLOAD_ID": "x", "COMMONAGE_ARRAY_INDEX": "3", "COMMONAGE_GPU_MEMORY_MIB": "6144"}
    assert resolve({}, environ=environ, folder=tmp_path).settings.port == 8000


def test_all_settings_are_shown_with_origin_and_without_passwords(tmp_path: Path) -> None:
    url = "postgresql://ann:sesame@db/commonage"
    rows = {row.name: row for row in shown(resolve({}, environ={"COMMONAGE_DATABASE_URL": url}, folder=tmp_path))}
    assert set(rows) == set(Settings.model_fields)
    assert rows["database_url"].value == "postgresql://ann:***@db/commonage"
    assert rows["database_url"].origin == "COMMONAGE_DATABASE_URL"
    written = {"default_memory": "1GiB", "max_bundle": "64MiB", "default_cpus": "1", "token_lifetime": "30d"}
    assert {name: rows[name].value for name in written} == written
    assert hide("name", "a://b:c@d") == "a://b:c@d"


def test_reference_has_every_setting() -> None:
    page = reference()
    assert [name for name in Settings.model_fields if f"| `{name}` |" not in page] == []
    assert all(allowed(name) for name in Settings.model_fields)
    assert [name for section in SECTIONS.values() for name in section.model_fields] == list(Settings.model_fields)
    assert variable_of("port") in page
