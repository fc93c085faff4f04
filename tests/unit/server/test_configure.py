"""What an installation offers to run in."""

from commonage.server.platform import LocalSupport, builtin_of, declared_platform
from commonage.server.settings.settings import Settings


def without_image(settings: Settings) -> list[str]:
    support = LocalSupport(settings)
    return [one.name for one in declared_platform(settings).environments if not support.offers(one)]


def settings(**values: object) -> Settings:
    return Settings.model_validate(values)


def test_where_workloads_run_in_containers_what_has_no_image_is_not_on_offer() -> None:
    lists = [{"name": "lists", "requirements": ["numpy"]}, {"name": "torch", "image": "lab/torch:1"}]
    bare = settings(engine="docker", environments=lists)
    assert without_image(bare) == ["base", "notebook", "lists"]
    given = settings(engine="swarm", docker_image="lab/notebook:1", environments=lists)
    assert without_image(given) == ["lists"]
    assert without_image(settings(environments=lists)) == []


def test_nothing_is_said_of_what_is_in_an_image_that_others_made() -> None:
    own = {one.name: one for one in builtin_of(settings())}
    assert "NumPy" in own["notebook"].description
    given = {one.name: one for one in builtin_of(settings(engine="docker", docker_image="lab/notebook:1"))}
    assert (given["notebook"].image, given["notebook"].description) == ("lab/notebook:1", "")
