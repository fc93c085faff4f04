"""Members of tenants, and the permissions that membership gives."""

import pytest

from commonage.control.access import Access, access_of
from commonage.control.catalogue.catalogue import Catalogue
from commonage.control.settings import ControlSettings
from commonage.control.tenants import tenant_of
from commonage.control.workloads.submission import Submission, spec_of
from commonage.domain.errors import Forbidden, InvalidInput
from commonage.domain.principals import Principal, Scope
from commonage.domain.tenants import Rules, Tenant
from commonage.domain.workloads import Kind
from commonage.testing import factories as make

OPTICS = Tenant("optics", sites=("north",), environments=("torch", "notebook"))
COURSE = Tenant("course", sites=("north", "south"))
SETTINGS = ControlSettings(rules=Rules((OPTICS, COURSE)))
USER = frozenset({Scope.READ, Scope.SUBMIT})
CATALOGUE = Catalogue(
    (
        make.environment("base", kinds=(Kind.JOB,)),
        make.environment("torch", kinds=(Kind.JOB, Kind.SESSION)),
        make.environment("notebook", kinds=(Kind.SESSION,)),
    )
)


def person(*groups: str, admin: bool = False) -> Principal:
    return Principal("ann", USER | ({Scope.ADMIN} if admin else set()), groups)


def access(*groups: str, admin: bool = False, settings: ControlSettings = SETTINGS) -> Access:
    return access_of(person(*groups, admin=admin), settings)


def chosen(asked: str | None, access: Access) -> str:
    return tenant_of(asked, access, access).name


@pytest.mark.parametrize(
    ("groups", "tenant"),
    [((), "commons"), (("staff",), "commons"), (("optics", "staff"), "optics"), (("optics", "course"), "commons")],
)
def test_the_tenant_of_who_names_none(groups: tuple[str, ...], tenant: str) -> None:
    assert chosen(None, access(*groups)) == tenant


def test_one_may_choose_among_ones_own() -> None:
    assert [one.name for one in access("optics", "staff").own_tenants()] == ["commons", "optics"]
    assert chosen("commons", access("optics")) == "commons"
    with pytest.raises(Forbidden, match="ann may not submit to 'course'; choose one of: commons, optics"):
        chosen("course", access("optics"))
    with pytest.raises(Forbidden, match="may not submit to 'staff'"):
        chosen("staff", access("staff"))


def test_admins_may_choose_any_that_there_is() -> None:
    assert chosen("course", access(admin=True)) == "course"
    with pytest.raises(InvalidInput, match="no tenant 'staff'; there are: commons, optics, course"):
        chosen("staff", access(admin=True))


def test_the_default_tenant_may_be_declared_like_any() -> None:
    settings = ControlSettings(rules=Rules((Tenant("commons", weight=3.0),)))
    own = access(settings=settings)
    assert tenant_of(None, own, own).weight == 3.0


def test_groups_said_by_the_hub_count_and_those_of_others_do_not() -> None:
    ask = Submission(Kind.JOB, ("true",), owner="bob", groups=("optics",), environment="torch")
    assert spec_of(ask, person(admin=True), CATALOGUE, SETTINGS).tenant == "optics"
    mine = Submission(Kind.JOB, ("true",), groups=("optics",))
    assert spec_of(mine, person(), CATALOGUE, SETTINGS).tenant == "commons"


def test_environments_of_a_tenant() -> None:
    def environment(kind: Kind, name: str | None) -> str:
        command = ("true",) if kind is Kind.JOB else ()
        return spec_of(Submission(kind, command, environment=name), person("optics"), CATALOGUE, SETTINGS).environment

    assert environment(Kind.JOB, None) == "torch"  # `base`, the usual one, is not theirs
    assert environment(Kind.SESSION, None) == "notebook"
    with pytest.raises(InvalidInput, match=r"EnvironmentNotOffered\(.*exists=True.*offered=\('torch',\)"):
        environment(Kind.JOB, "base")


def test_a_notebook_as_a_job_runs_in_the_default_environment_of_sessions() -> None:
    both = (Kind.JOB, Kind.SESSION)
    catalogue = Catalogue((make.environment("base", kinds=(Kind.JOB,)), make.environment("notebook", kinds=both)))
    of_command = {
        command: spec_of(Submission(Kind.JOB, command), person(), catalogue, SETTINGS).environment
        for command in (("python", "a.py"), ("work/a.ipynb",))
    }
    assert of_command == {("python", "a.py"): "base", ("work/a.ipynb",): "notebook"}
