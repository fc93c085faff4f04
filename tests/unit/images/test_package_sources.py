"""Settings of this machine that a build gets: sources of packages, and trusted authorities."""

import configparser
from pathlib import Path

from commonage.images.package_sources import PIP_CERTIFICATES, has_packages, package_sources
from commonage.images.recipe import CERTIFICATES


def test_pip_s_settings_reach_uv_and_pip(tmp_path: Path) -> None:
    (tmp_path / "simple").mkdir()
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("the certificates")
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nindex-url = file://{tmp_path}/simple\n")
    environ = {
        "PIP_CONFIG_FILE": str(config), "PIP_CERT": str(bundle), "https_proxy": "http://proxy:3128", "SECRET": "x",
        "HOME": str(tmp_path), "UV_PUBLISH_TOKEN": "x",
    }  # fmt: skip
    found = package_sources(environ)
    assert found.variables["UV_DEFAULT_INDEX"] == f"file://{tmp_path}/simple"
    assert found.variables["https_proxy"] == "http://proxy:3128"
    assert found.variables["SSL_CERT_FILE"] == CERTIFICATES
    assert not {"SECRET", "HOME", "PATH", "UV_PUBLISH_TOKEN"} & set(found.variables)
    assert found.certificates == "the certificates"
    # An index in a folder of this machine is copied, with the packages in it.
    assert str(tmp_path) in found.places
    parser = configparser.ConfigParser()
    parser.read_string(found.pip_conf)
    assert parser["global"]["index-url"] == f"file://{tmp_path}/simple"
    assert parser["global"]["cert"] == PIP_CERTIFICATES


def test_with_wheels_nothing_else_is_asked(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    found = package_sources({"UV_DEFAULT_INDEX": "https://index.example/simple", "HOME": str(tmp_path)}, [wheels])
    assert found.variables["UV_FIND_LINKS"] == str(wheels)
    assert "UV_DEFAULT_INDEX" not in found.variables
    assert found.places == (str(wheels),)


def test_a_folder_without_packages_is_none(tmp_path: Path) -> None:
    assert not has_packages(tmp_path)
    assert not has_packages(tmp_path / "missing")
    (tmp_path / "a-1-py3-none-any.whl").touch()
    assert has_packages(tmp_path)
