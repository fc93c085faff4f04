"""The page of an app that did not start in time, made from Jupyter's own page of an error."""

from jinja2 import ChoiceLoader, DictLoader, Environment, FileSystemLoader

from commonage.files.injected import JUPYTER

RELOADS = '<meta http-equiv="refresh" content="5">'
JUPYTERS = """<head>{% block meta %}{% endblock %}</head>
{% block error_detail %}{% if message %}<pre>{{ message }}</pre>{% endif %}{% endblock %}"""


def page(message: str) -> str:
    loader = ChoiceLoader([FileSystemLoader(JUPYTER / "templates"), DictLoader({"error.html": JUPYTERS})])
    environment = Environment(loader=loader, autoescape=True)
    return environment.get_template("500.html").render(message=message)


def test_the_page_of_an_app_that_was_too_slow_reloads() -> None:
    shown = page("could not start tensorboard in time")
    assert RELOADS in shown
    assert "could not start tensorboard in time" in shown


def test_the_page_of_another_error_stays() -> None:
    assert RELOADS not in page("Unhandled error")
    assert RELOADS not in page("")
